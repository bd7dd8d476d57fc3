//! The changes that this module makes to a machine: files written, modules loaded.
//!
//! Everything else only reads. A test's kernel reacts to the writes as the real one would.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// Who acts on a write to sysfs.
pub trait Kernel: Send + Sync {
    /// Writes `text` to the file, which exists.
    ///
    /// # Errors
    /// The kernel's errno.
    fn write(&self, path: &Path, text: &str) -> io::Result<()>;

    /// Loads a module with what it depends on.
    ///
    /// # Errors
    /// `modprobe` is missing, or failed and said why.
    fn load_module(&self, name: &str) -> io::Result<()>;
}

/// The machine's.
pub(super) struct Real;

impl Kernel for Real {
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        // One write call: sysfs takes each as a whole command.
        OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
    }

    fn load_module(&self, name: &str) -> io::Result<()> {
        let output = Command::new("modprobe").arg("--").arg(name).stdin(Stdio::null()).output()?;
        if output.status.success() {
            return Ok(());
        }
        Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }
}
