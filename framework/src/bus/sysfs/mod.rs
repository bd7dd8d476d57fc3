//! What sysfs, procfs and /dev say about PCI functions, and binding them to vfio-pci.
//!
//! A [`Sysfs`] owns nothing: it reads the kernel's files below a root and writes few of them, all through a [`Kernel`], so that
//! a test gives it a tree and a kernel of its own. Nothing here opens a VFIO device. The order towards a port is: look
//! ([`Sysfs::functions`]), take a function from its kernel driver ([`Sysfs::bind`]), let a user have its group
//! ([`Sysfs::give_group`]), check what is missing ([`Sysfs::check_ready`]), open it with [`vfio`](super::vfio), and
//! give it back ([`Sysfs::unbind`]).

mod bind;
mod error;
mod function;
mod group;
mod holders;
mod kernel;
mod network;
mod process;
mod ready;
mod state;
#[cfg(test)]
mod tests;
mod unbind;
mod user;

pub use bind::{Before, Bound, Force};
pub use error::{BindError, IommuState, NoGroup, UnknownFunction};
pub use function::{Function, is_vfio};
pub use group::Member;
pub use holders::Holder;
pub use kernel::Kernel;
pub use network::{Interface, Traffic};
pub use ready::{NotReady, Ready};
pub use unbind::{Changed, GiveTo, Released};
pub use user::{NoUser, User};

use super::PciAddress;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long one step of the kernel may take. A driver that lets a device go waits for what its user holds.
const PATIENCE: Duration = Duration::from_secs(10);

/// The kernel's files about PCI functions; clones read the same tree.
#[derive(Clone)]
pub struct Sysfs {
    root: PathBuf,
    kernel: Arc<dyn Kernel>,
    patience: Duration,
}

impl Default for Sysfs {
    fn default() -> Sysfs {
        Sysfs::new()
    }
}

impl Sysfs {
    /// This machine's.
    pub fn new() -> Sysfs {
        Sysfs::at("/")
    }

    /// A tree that holds `sys`, `proc`, `dev`, `run` and `etc` below `root`.
    pub fn at(root: impl Into<PathBuf>) -> Sysfs {
        Sysfs::with_kernel(root, Arc::new(kernel::Real), PATIENCE)
    }

    /// A tree whose changes go to `kernel`; each may take `patience`.
    pub fn with_kernel(root: impl Into<PathBuf>, kernel: Arc<dyn Kernel>, patience: Duration) -> Sysfs {
        Sysfs { root: root.into(), kernel, patience }
    }

    /// The addresses of all PCI functions, in order. A machine without PCI has none.
    ///
    /// # Errors
    /// The errno of reading the folder.
    pub fn addresses(&self) -> io::Result<Vec<PciAddress>> {
        addresses_in(&self.path("sys/bus/pci/devices"))
    }

    /// All PCI functions, by address. One that goes while it is read is left out.
    ///
    /// # Errors
    /// The errno of reading the list or the routes.
    pub fn functions(&self) -> io::Result<Vec<Function>> {
        let routes = self.routes()?;
        Ok(self.addresses()?.into_iter().filter_map(|address| self.read_function(address, &routes)).collect())
    }

    /// One function.
    ///
    /// # Errors
    /// [`UnknownFunction`], which lists the network functions that exist.
    pub fn function(&self, address: PciAddress) -> Result<Function, UnknownFunction> {
        // Routes that cannot be read count as none here; `bind` asks for them by itself.
        let routes = self.routes().unwrap_or_default();
        self.read_function(address, &routes).ok_or_else(|| self.unknown(address))
    }

    fn unknown(&self, address: PciAddress) -> UnknownFunction {
        let functions = self.functions().unwrap_or_default();
        let network = functions.iter().filter(|function| function.is_network());
        let existing = network.map(ToString::to_string).collect();
        UnknownFunction { address, existing }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.root.join(below)
    }

    fn device(&self, address: PciAddress) -> PathBuf {
        self.path("sys/bus/pci/devices").join(address.to_string())
    }

    /// The group's node, which VFIO makes while one of its functions is bound to vfio-pci.
    fn node(&self, group: u32) -> PathBuf {
        self.path("dev/vfio").join(group.to_string())
    }
}

/// A folder's entries that are PCI addresses, in order; a folder that is missing has none.
fn addresses_in(folder: &Path) -> io::Result<Vec<PciAddress>> {
    let mut addresses: Vec<PciAddress> =
        names_in(folder)?.iter().filter_map(|name| name.parse().ok()).collect();
    addresses.sort_unstable();
    Ok(addresses)
}

/// A folder's entries; a folder that is missing has none.
fn names_in(folder: &Path) -> io::Result<Vec<String>> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => Ok(entries?.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()),
    }
}

/// An attribute's text without its line end.
fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// The last part of where a link points to.
fn link_name(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.file_name()?.to_str()?.to_owned())
}

/// A file's text; a file that is missing is empty.
fn text_or_nothing(path: &Path) -> io::Result<String> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        text => text,
    }
}
