//! A small machine for tests: QEMU under TCG with an emulated Intel IOMMU and device models that nobody here wrote.
//!
//! [`Machine`] is what to boot and which program to run in it; [`Machine::start`] gives a [`Running`], whose [`Wire`]s are the far
//! ends of its NICs. The guest's root is Debian, read-only under a writable layer in memory; folders of the host appear at their own
//! paths. [`Running::wait`] gives the program's output and exit status. Nothing outlives the value: dropping it ends QEMU, a time limit
//! ends it too, and QEMU ends itself when this process dies. `tools/machine/prepare` makes what is booted.

#![forbid(unsafe_code)]

mod arguments;
mod cache;
mod running;
mod wire;

pub use cache::{Cache, Kernel};
pub use running::{Finished, Running};
pub use wire::Wire;

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;

/// Why a machine did not do what was asked.
#[derive(Debug, Error)]
pub enum MachineError {
    /// Something of the cache is missing.
    #[error("the machine's {what} is not in {}; run `tools/machine/prepare` as root (Debian 12 or 13)", .path.display())]
    NotPrepared {
        /// Which part.
        what: &'static str,
        /// Where it should be.
        path: PathBuf,
    },
    /// A system call on the host.
    #[error("{step}: {error}")]
    Host {
        /// What was tried.
        step: String,
        /// The errno.
        error: io::Error,
    },
    /// The machine ended before its program did.
    #[error("QEMU ended before the program did; {0}")]
    Ended(String),
    /// The limit passed.
    #[error("the machine was ended after {} s, {waiting_for}; {rest}", .limit.as_secs())]
    Late {
        /// The limit.
        limit: Duration,
        /// What had not come.
        waiting_for: String,
        /// What there was by then.
        rest: String,
    },
}

pub(crate) fn host(step: impl Into<String>) -> impl FnOnce(io::Error) -> MachineError {
    let step = step.into();
    |error| MachineError::Host { step, error }
}

/// Where the other end of an emulated NIC's wire is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// In this process.
    Host,
    /// At the other NICs of the same hub, in QEMU.
    Hub(usize),
}

#[derive(Clone, Debug)]
struct Nic {
    model: String,
    end: End,
}

/// How the program talks to its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Talk {
    /// Three byte streams that are kept.
    Streams,
    /// The same, and this process's own streams are joined to them.
    Joined,
    /// This process's terminal.
    Terminal,
}

/// What to boot.
#[derive(Clone, Debug)]
pub struct Machine {
    nics: Vec<Nic>,
    hubs: usize,
    kernel: Kernel,
    shares: Vec<PathBuf>,
    memory_mib: usize,
    hugepages: usize,
    limit: Duration,
    kernel_arguments: Vec<String>,
    qemu_arguments: Vec<String>,
    environment: Vec<(String, String)>,
    talk: Talk,
}

impl Default for Machine {
    fn default() -> Machine {
        Machine::new()
    }
}

impl Machine {
    /// Two cores, 2 GiB, 256 huge pages of 2 MiB, the small kernel, no NIC, a limit of 120 s. The workspace and the program's folder
    /// are shared.
    pub fn new() -> Machine {
        Machine {
            nics: Vec::new(),
            hubs: 0,
            kernel: Kernel::Small,
            shares: vec![workspace()],
            memory_mib: 2048,
            hugepages: 256,
            limit: Duration::from_secs(120),
            kernel_arguments: Vec::new(),
            qemu_arguments: Vec::new(),
            environment: Vec::new(),
            talk: Talk::Streams,
        }
    }

    /// Adds a NIC of QEMU's `model`, on a root port of its own: the first is 0000:01:00.0, the next 0000:02:00.0. Its wire ends here.
    #[must_use]
    pub fn nic(mut self, model: &str) -> Machine {
        self.nics.push(Nic { model: model.to_owned(), end: End::Host });
        self
    }

    /// Adds two NICs of QEMU's `model` that are joined back to back inside QEMU.
    #[must_use]
    pub fn joined_nics(mut self, model: &str) -> Machine {
        let nic = Nic { model: model.to_owned(), end: End::Hub(self.hubs) };
        self.nics.extend([nic.clone(), nic]);
        self.hubs += 1;
        self
    }

    /// Boots `kernel`.
    #[must_use]
    pub fn kernel(mut self, kernel: Kernel) -> Machine {
        self.kernel = kernel;
        self
    }

    /// Lets the guest read `folder` at the same path.
    #[must_use]
    pub fn share(mut self, folder: impl Into<PathBuf>) -> Machine {
        self.shares.push(folder.into());
        self
    }

    /// Memory of the machine, MiB.
    #[must_use]
    pub fn memory_mib(mut self, memory_mib: usize) -> Machine {
        self.memory_mib = memory_mib;
        self
    }

    /// How many huge pages of 2 MiB it reserves.
    #[must_use]
    pub fn hugepages(mut self, pages: usize) -> Machine {
        self.hugepages = pages;
        self
    }

    /// When it is ended, whatever it does.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Machine {
        self.limit = limit;
        self
    }

    /// Adds an argument of the kernel.
    #[must_use]
    pub fn kernel_argument(mut self, argument: &str) -> Machine {
        self.kernel_arguments.push(argument.to_owned());
        self
    }

    /// Adds arguments of QEMU, for devices that this type does not know.
    #[must_use]
    pub fn qemu_arguments(mut self, arguments: &[&str]) -> Machine {
        self.qemu_arguments.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        self
    }

    /// Sets a variable in the program's environment.
    #[must_use]
    pub fn environment(mut self, name: &str, value: &str) -> Machine {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The program's streams are joined to this process's own.
    #[must_use]
    pub fn joined(mut self) -> Machine {
        self.talk = Talk::Joined;
        self
    }

    /// The program talks to this process's terminal, on the serial console.
    #[must_use]
    pub fn terminal(mut self) -> Machine {
        self.talk = Talk::Terminal;
        self
    }

    /// Boots it and runs `program` with its arguments.
    ///
    /// # Errors
    /// Not prepared, or QEMU does not start.
    pub fn start(mut self, program: &[impl AsRef<OsStr>]) -> Result<Running, MachineError> {
        let program: Vec<&OsStr> = program.iter().map(AsRef::as_ref).collect();
        if let Some(folder) = program.first().and_then(|first| folder_of(Path::new(first))) {
            self.shares.push(folder);
        }
        Running::start(&self, &program)
    }

    /// Boots it and runs a script of bash.
    ///
    /// # Errors
    /// As [`Machine::start`].
    pub fn script(self, script: &str) -> Result<Running, MachineError> {
        self.start(&["/bin/bash", "-c", script])
    }
}

/// The folder of a program that is named by a path; those of the guest's own root are there anyway.
fn folder_of(program: &Path) -> Option<PathBuf> {
    if program.components().count() < 2 {
        return None;
    }
    let program = program.canonicalize().ok()?;
    let folder = program.parent()?;
    let of_the_root = ["/usr", "/bin", "/sbin"].iter().any(|root| folder.starts_with(root));
    (!of_the_root).then(|| folder.to_owned())
}

/// The folder of this workspace.
fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}
