//! What a subcommand could not do, and which exit status that is.
//!
//! The text of each error names the thing and the next step; this file only collects them and sorts them by status: 2 when the user
//! can change the command or the machine and try again, 1 when a run failed.

use crate::ports::UriError;
use pollring::buffer::PoolError;
use pollring::bus::BusError;
use pollring::bus::sysfs::{BindError, NotReady};
use pollring::bus::vfio::VfioError;
use pollring::bus::vfio_user::VfioUserError;
use pollring::copy::EngineError;
use pollring::hugepages::pool::PoolError as HugePagesError;
use pollring::iova::IovaError;
use pollring::os::AffinityError;
use pollring::port::PortError;
use pollring::rdma::RdmaError;
use pollring::worker::WorkerError;
use pollring_simulator::runner::RunnerError;
use pollring_simulator::serve::ServeError;
use std::io;
use thiserror::Error;

/// Why a subcommand ends with a status other than 0.
#[derive(Debug, Error)]
pub(crate) enum AppError {
    /// Arguments that do not fit, or a precondition that is missing.
    #[error("{0}")]
    Usage(String),
    /// A port that cannot be opened under this name.
    #[error(transparent)]
    Uri(#[from] UriError),
    /// Cores that this process does not have.
    #[error("--cores: {0}")]
    Cores(#[from] AffinityError),
    /// No packet memory.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The machine's huge pages.
    #[error("huge pages: {0}")]
    HugePages(#[from] HugePagesError),
    /// Memory that a device cannot be given.
    #[error(transparent)]
    Iova(#[from] IovaError),
    /// A device.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// A function that cannot be taken or given back.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Something is missing between a function and its port.
    #[error(transparent)]
    NotReady(#[from] NotReady),
    /// The kernel's VFIO.
    #[error(transparent)]
    Vfio(#[from] VfioError),
    /// A device of another process.
    #[error(transparent)]
    VfioUser(#[from] VfioUserError),
    /// A port.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A copy engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// An RDMA device.
    #[error(transparent)]
    Rdma(#[from] RdmaError),
    /// A worker.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The simulated devices' thread.
    #[error(transparent)]
    Devices(#[from] RunnerError),
    /// A software device that cannot be served.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// A system call of the command itself.
    #[error("{step}: {error}")]
    System {
        /// What was tried.
        step: &'static str,
        /// The errno.
        error: io::Error,
    },
    /// The result could not be delivered.
    #[error("write the result to standard output: {0}; it was not delivered")]
    Output(io::Error),
    /// It ran and found something wrong; one reason a line.
    #[error("failed: {}", .0.join("\npollring: failed: "))]
    Failed(Vec<String>),
}

impl AppError {
    /// The exit status: 1 failed at run time, 2 wrong usage or a missing precondition.
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            AppError::Usage(_) | AppError::Uri(_) | AppError::Cores(_) | AppError::Pool(_) => 2,
            AppError::Vfio(_) | AppError::NotReady(_) | AppError::VfioUser(_) => 2,
            AppError::Bind(error) if error.is_precondition() => 2,
            AppError::Serve(ServeError::NoSocket(_) | ServeError::InUse(_) | ServeError::Bind { .. }) => 2,
            AppError::HugePages(error) if can_be_helped(error) => 2,
            AppError::Port(PortError::Config { .. } | PortError::Rings(_)) => 2,
            AppError::Worker(WorkerError::Pin { .. }) => 2,
            AppError::Engine(EngineError::Unsupported { .. } | EngineError::Memory(_)) => 2,
            _ => 1,
        }
    }
}

/// Whether another user, size, node or count would do.
fn can_be_helped(error: &HugePagesError) -> bool {
    use HugePagesError::{Denied, NoHugePages, NoNode, NoPageSize, NotEnoughMemory, TooFew};
    matches!(
        error,
        Denied { .. }
            | NoHugePages { .. }
            | NoNode { .. }
            | NoPageSize { .. }
            | NotEnoughMemory { .. }
            | TooFew { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_can_help_with_2_and_not_with_1() {
        let config =
            PortError::Config { port: "sim:igb".into(), what: "0 queue pairs asked, it has 1 to 16".into() };
        assert_eq!(AppError::Port(config).exit_status(), 2);
        assert_eq!(AppError::Usage("x".into()).exit_status(), 2);
        assert_eq!(AppError::Failed(vec!["x".into()]).exit_status(), 1);
        assert_eq!(AppError::Output(io::ErrorKind::BrokenPipe.into()).exit_status(), 1);
    }

    #[test]
    fn every_reason_stands_on_a_line_of_its_own() {
        let text = AppError::Failed(vec!["2 frames corrupt".into(), "1 frame leaked".into()]).to_string();
        assert_eq!(text, "failed: 2 frames corrupt\npollring: failed: 1 frame leaked");
    }
}
