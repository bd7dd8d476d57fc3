//! `pollring rdma`: what a port's RDMA transport offers, and how fast and how true it is.
//!
//! In this version the transport is RoCEv2 in software over simulated ports; nothing here falls back to anything else.

mod connect;
mod counters;
mod info;
mod latency;
mod load;
mod machine;
mod options;
mod pattern;
mod perf;
mod summary;

use crate::error::AppError;
use crate::ports::{PortName, SimulatedIgb, Target};
use clap::Subcommand;

/// Arguments of `pollring rdma`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show what the RDMA transport of a port offers
    Info(info::Arguments),
    /// Measure and check operations between two simulated ports
    Perf(perf::Arguments),
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &Arguments) -> Result<(), AppError> {
    match &arguments.command {
        Command::Info(arguments) => info::run(arguments),
        Command::Perf(arguments) => perf::run(arguments),
    }
}

/// The simulated port of this name.
///
/// # Errors
/// No port's name, or a port that RDMA does not run on yet.
fn simulated(uri: &str) -> Result<SimulatedIgb, AppError> {
    match uri.parse::<PortName>()?.target {
        Target::Simulated(name) => Ok(name),
        _ => Err(AppError::Usage(format!(
            "port `{uri}`: RDMA runs over simulated ports in this version; use `sim:igb`"
        ))),
    }
}
