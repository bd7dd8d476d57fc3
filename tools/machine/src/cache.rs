//! Where the parts of a machine are, and how QEMU is started from them.
//!
//! QEMU comes from the same Debian root that the guest runs on, newer than the host's: it runs with that root's own dynamic linker
//! and libraries, so nothing is installed on the host and sockets keep their paths.

use crate::MachineError;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Which kernel boots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Built from Debian's linux-source with `kernel.config`: everything built in, up in 3 s.
    Small,
    /// Debian's own, with its initial file system: no iommufd, up in 10 s.
    Debian,
}

/// The folder that `tools/machine/prepare` fills.
#[derive(Clone, Debug)]
pub struct Cache(PathBuf);

impl Cache {
    /// `${XDG_CACHE_HOME:-~/.cache}/pollring`.
    pub fn new() -> Cache {
        let home = || Path::new(&std::env::var_os("HOME").unwrap_or_default()).join(".cache");
        let base = std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from);
        Cache(base.join("pollring"))
    }

    /// The guest's root.
    pub fn root(&self) -> PathBuf {
        self.0.join("root")
    }

    /// Linux's own test programs.
    pub fn selftests(&self) -> PathBuf {
        self.0.join("selftests")
    }

    /// The kernel's image, and its initial file system if it needs one.
    pub fn kernel(&self, kernel: Kernel) -> (PathBuf, Option<PathBuf>) {
        match kernel {
            Kernel::Small => (self.0.join("bzImage"), None),
            Kernel::Debian => (self.0.join("root/vmlinuz"), Some(self.0.join("root/initrd.img"))),
        }
    }

    /// Checks that everything is there.
    ///
    /// # Errors
    /// [`MachineError::NotPrepared`].
    pub fn check(&self, kernel: Kernel) -> Result<(), MachineError> {
        let (image, initial) = self.kernel(kernel);
        let parts = [("root", Some(self.root())), ("kernel", Some(image)), ("initrd", initial)];
        for (what, path) in parts {
            if let Some(path) = path.filter(|path| !path.exists()) {
                return Err(MachineError::NotPrepared { what, path });
            }
        }
        Ok(())
    }

    /// QEMU, without arguments of the machine.
    pub fn qemu(&self) -> Command {
        let root = self.root();
        let libraries = root.join("usr/lib/x86_64-linux-gnu");
        let mut command = Command::new(root.join("lib64/ld-linux-x86-64.so.2"));
        command.arg("--library-path").arg(&libraries);
        command.arg(root.join("usr/bin/qemu-system-x86_64"));
        command.arg("-L").arg(root.join("usr/share/qemu"));
        command.arg("-L").arg(root.join("usr/share/seabios"));
        command.env("QEMU_MODULE_DIR", libraries.join("qemu"));
        command
    }
}

impl Default for Cache {
    fn default() -> Cache {
        Cache::new()
    }
}
