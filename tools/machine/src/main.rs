//! `tools/vm`: runs a command in a small machine.

#![forbid(unsafe_code)]

use clap::{Parser, Subcommand, ValueEnum};
use pollring_vm::{Kernel, Machine, MachineError};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Boots a machine with an IOMMU and runs a command in it.
#[derive(Parser)]
#[command(name = "vm")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program; its output and exit status become this command's
    Run {
        #[command(flatten)]
        machine: Options,
        /// When the machine is ended, seconds
        #[arg(long, default_value_t = 120)]
        limit: u64,
        /// The program, by a path of this host in the workspace, or of the guest
        #[arg(last = true, required = true)]
        program: Vec<String>,
    },
    /// Start a shell on this terminal; `exit` ends the machine
    Shell {
        #[command(flatten)]
        machine: Options,
    },
}

#[derive(clap::Args)]
struct Options {
    /// Add a NIC of QEMU's model (igb, e1000e, virtio-net-pci...); the first two are joined, the next two, and so on
    #[arg(long = "nic", value_name = "MODEL")]
    nics: Vec<String>,
    /// The kernel
    #[arg(long, value_enum, default_value_t = KernelChoice::Small)]
    kernel: KernelChoice,
    /// Memory, MiB
    #[arg(long, default_value_t = 2048)]
    memory: usize,
    /// Huge pages of 2 MiB
    #[arg(long, default_value_t = 256)]
    hugepages: usize,
    /// A folder of the host that the guest reads at the same path; the workspace is shared anyway
    #[arg(long = "share", value_name = "PATH")]
    shares: Vec<String>,
    /// A further argument of QEMU
    #[arg(long = "qemu", value_name = "ARGUMENT", allow_hyphen_values = true)]
    qemu: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum KernelChoice {
    Small,
    Debian,
}

impl Options {
    fn machine(&self) -> Machine {
        let kernel = match self.kernel {
            KernelChoice::Small => Kernel::Small,
            KernelChoice::Debian => Kernel::Debian,
        };
        let mut machine = Machine::new().kernel(kernel).memory_mib(self.memory).hugepages(self.hugepages);
        for pair in self.nics.chunks(2) {
            machine = match pair {
                [first, second] if first == second => machine.joined_nics(first),
                _ => pair.iter().fold(machine, |machine, model| machine.nic(model)),
            };
        }
        machine = self.shares.iter().fold(machine, |machine, path| machine.share(path));
        let arguments: Vec<&str> = self.qemu.iter().map(String::as_str).collect();
        machine.qemu_arguments(&arguments)
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli.command) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "vm: {error}");
            ExitCode::from(match error {
                MachineError::NotPrepared { .. } => 2,
                MachineError::Late { .. } => 124,
                _ => 1,
            })
        }
    }
}

/// QEMU ends with this process; its folder does not.
fn clean_up_when_told_to_end(folder: PathBuf) -> Result<(), MachineError> {
    let step = "listen for signals";
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| MachineError::Host { step: step.into(), error })?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let _ = std::fs::remove_dir_all(&folder);
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

fn run(command: &Command) -> Result<u8, MachineError> {
    match command {
        Command::Run { machine, limit, program } => {
            let running = machine.machine().limit(Duration::from_secs(*limit)).joined().start(program)?;
            clean_up_when_told_to_end(running.folder().to_owned())?;
            let finished = running.wait()?;
            Ok(u8::try_from(finished.status).unwrap_or(1))
        }
        Command::Shell { machine } => {
            let day = Duration::from_secs(24 * 3600);
            let machine = machine.machine().limit(day).terminal();
            let finished = machine.start(&["/bin/bash", "-i"])?.wait()?;
            Ok(u8::try_from(finished.status).unwrap_or(1))
        }
    }
}
