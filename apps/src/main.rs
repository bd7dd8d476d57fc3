//! The `pollring` command: one file per subcommand, and this one only chooses.
//!
//! Each subcommand owns its arguments, does its work and returns. What it could not do comes back as an [`AppError`], whose text goes
//! to standard error and whose kind is the exit status: 0 done, 1 failed at run time, 2 wrong usage or a missing
//! precondition. Logs go to standard error; standard output belongs to results.

#![forbid(unsafe_code)]

mod bind;
mod copy;
mod devices;
mod error;
mod forward;
mod hugepages;
mod output;
mod ports;
mod rdma;
mod simulate;

use clap::{ArgAction, Parser, Subcommand};
use error::AppError;
use std::io::Write;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// Drives NICs from user space.
#[derive(Parser)]
#[command(name = "pollring", version, subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    /// Log more: -v progress, -vv details, -vvv everything. POLLRING_LOG (a filter as `pollring=debug`) overrides it
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List network devices, and what of them this version opens
    Devices(devices::Arguments),
    /// Take network devices from their kernel drivers, for this program (as root)
    Bind(bind::BindArguments),
    /// Give network devices back to their kernel drivers (as root)
    Unbind(bind::UnbindArguments),
    /// Show, reserve or release huge pages
    Hugepages(hugepages::Arguments),
    /// Forward frames from each port to its partner
    Forward(forward::Arguments),
    /// Run a copy engine, and check and measure it
    Copy(copy::Arguments),
    /// Show and measure RDMA
    Rdma(rdma::Arguments),
    /// Serve a software device to QEMU or another vfio-user client
    Simulate(simulate::Arguments),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = start_log(cli.verbose).and_then(|()| match &cli.command {
        Command::Devices(arguments) => devices::run(arguments),
        Command::Bind(arguments) => bind::bind(arguments),
        Command::Unbind(arguments) => bind::unbind(arguments),
        Command::Hugepages(arguments) => hugepages::run(arguments),
        Command::Forward(arguments) => forward::run(arguments),
        Command::Copy(arguments) => copy::run(arguments),
        Command::Rdma(arguments) => rdma::run(arguments),
        Command::Simulate(arguments) => simulate::run(arguments),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to tell when standard error is closed too; the status still says it.
            let _ = writeln!(std::io::stderr(), "pollring: {error}");
            ExitCode::from(error.exit_status())
        }
    }
}

/// Sends what the crates trace to standard error.
fn start_log(verbose: u8) -> Result<(), AppError> {
    let level = ["warn", "info", "debug", "trace"][usize::from(verbose).min(3)];
    let filter = std::env::var("POLLRING_LOG").unwrap_or_else(|_| level.to_owned());
    let parsed = EnvFilter::try_new(&filter).map_err(|error| {
        AppError::Usage(format!("POLLRING_LOG `{filter}`: {error}; write it as `info` or `pollring=debug`"))
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(parsed)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        // It would report a closed standard error to standard error, and panic.
        .log_internal_errors(false)
        .init();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}
