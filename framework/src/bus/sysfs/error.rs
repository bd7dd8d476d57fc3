//! Why a function cannot be taken from its kernel driver or given back, and what the user does next.

use super::{Holder, Member};
use crate::bus::PciAddress;
use std::fmt;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Whether the kernel uses an IOMMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IommuState {
    /// It has groups.
    On,
    /// It has none.
    Off,
}

/// No function has this address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFunction {
    /// What was asked for.
    pub address: PciAddress,
    /// The network functions that exist, with ids and drivers.
    pub existing: Vec<String>,
}

impl fmt::Display for UnknownFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pci:{}: no PCI function has this address; ", self.address)?;
        match self.existing.is_empty() {
            true => f.write_str("this machine has no PCI network function (lspci -D lists all functions)"),
            false => write!(f, "this machine's network functions: {}", self.existing.join(", ")),
        }
    }
}

impl std::error::Error for UnknownFunction {}

/// A function without an IOMMU group: nothing would confine its DMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoGroup {
    /// The function.
    pub address: PciAddress,
    /// Whether other functions have one.
    pub iommu: IommuState,
}

impl fmt::Display for NoGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address;
        write!(f, "pci:{address}: it has no IOMMU group, so nothing would confine its DMA; ")?;
        match self.iommu {
            IommuState::On => f.write_str(
                "an IOMMU is on, but this function is not behind it: see `dmesg | grep -i -e DMAR -e AMD-Vi -e iommu`, or \
                 take a function in another slot",
            ),
            IommuState::Off => f.write_str(
                "no IOMMU is on. Intel: turn VT-d on in the firmware and boot with `intel_iommu=on`. AMD: turn the IOMMU \
                 (AMD-Vi) on in the firmware and boot without `amd_iommu=off`. Virtual machine: give it a virtual IOMMU \
                 (QEMU: -device intel-iommu,intremap=on or -device virtio-iommu-pci)",
            ),
        }
    }
}

impl std::error::Error for NoGroup {}

/// Why a function was not bound, or not given back.
#[derive(Debug, Error)]
pub enum BindError {
    /// No such function.
    #[error(transparent)]
    Unknown(#[from] UnknownFunction),
    /// Nothing would confine it.
    #[error(transparent)]
    NoGroup(#[from] NoGroup),
    /// Something else than a NIC.
    #[error(
        "pci:{address}: it is no network controller (class {class:#06x}); binding takes it from whatever uses it; add \
         --force if that is meant"
    )]
    NotNetwork {
        /// The function.
        address: PciAddress,
        /// Base class and subclass.
        class: u32,
    },
    /// A bridge.
    #[error("pci:{address}: it is a bridge and has no data of its own; bind the functions behind it")]
    Bridge {
        /// The function.
        address: PciAddress,
    },
    /// The host needs it.
    #[error(
        "pci:{address}: the host uses its interface {interface}: {what}; binding it would cut that off; remove the routes \
         first, or add --force"
    )]
    InUse {
        /// The function.
        address: PciAddress,
        /// Its interface.
        interface: String,
        /// What leads through it.
        what: String,
    },
    /// Others depend on its driver.
    #[error(
        "pci:{address}: its driver serves {count} virtual functions; turn them off first: \
         echo 0 > /sys/bus/pci/devices/{address}/sriov_numvfs"
    )]
    VirtualFunctions {
        /// The function.
        address: PciAddress,
        /// How many are on.
        count: u16,
    },
    /// Functions of its group would stay with kernel drivers.
    #[error(
        "pci:{address}: the IOMMU cannot tell it from other functions of its group {group}, which kernel drivers hold: {}; \
         a group is opened whole or not at all: `{command}`",
        list(members)
    )]
    NotViable {
        /// The function.
        address: PciAddress,
        /// Its group.
        group: u32,
        /// Those that kernel drivers hold.
        members: Vec<Member>,
        /// The command line that takes all.
        command: String,
    },
    /// The kernel has no vfio-pci.
    #[error("the kernel has no driver vfio-pci (/sys/bus/pci/drivers/vfio-pci): {reason}")]
    NoModule {
        /// What was tried, and what to do.
        reason: String,
    },
    /// The caller may not.
    #[error("{step}: write {}: {error}; it needs root: run it again with sudo", path.display())]
    Denied {
        /// What was tried.
        step: String,
        /// The file.
        path: PathBuf,
        /// The errno.
        error: io::Error,
    },
    /// The kernel refused a step.
    #[error("pci:{address}: {step}: {error}; {after}")]
    Refused {
        /// The function.
        address: PciAddress,
        /// What was tried.
        step: String,
        /// The errno.
        error: io::Error,
        /// How the function is now.
        after: String,
    },
    /// One of several was refused, and the others were given back.
    #[error("{error}; the functions that this command bound before were given back: {given_back}")]
    Several {
        /// What stopped it.
        error: Box<BindError>,
        /// Each with the driver that has it now.
        given_back: String,
    },
    /// A process uses it.
    #[error(
        "pci:{address}: in use through VFIO by {}; the kernel would wait for as long as that lasts; end it first",
        list(holders)
    )]
    Held {
        /// The function.
        address: PciAddress,
        /// Who.
        holders: Vec<Holder>,
    },
    /// It is not bound to vfio-pci.
    #[error("pci:{address}: {driver} has it, not vfio-pci; unbind gives back only what vfio-pci has")]
    NotOurs {
        /// The function.
        address: PciAddress,
        /// Its driver.
        driver: String,
    },
    /// The driver that is to get it does not exist.
    #[error(
        "the kernel has no driver `{driver}` (/sys/bus/pci/drivers): {reason}; name another with --driver, or load its module"
    )]
    NoDriver {
        /// Its name.
        driver: String,
        /// What was tried.
        reason: String,
    },
    /// A file of the kernel cannot be read.
    #[error("read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The errno.
        error: io::Error,
    },
}

impl BindError {
    /// Whether a check found it before anything was changed, so that the user can do something and try again.
    pub fn is_precondition(&self) -> bool {
        !matches!(self, BindError::Refused { .. } | BindError::Several { .. } | BindError::Read { .. })
    }
}

/// Items with commas between them.
pub(super) fn list<T: ToString>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A step on a file that did not work.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) step: String,
    pub(super) path: PathBuf,
    pub(super) error: io::Error,
}

impl Failure {
    /// The error of the whole command; `after` says how the function is now.
    pub(super) fn into_error(self, address: PciAddress, after: String) -> BindError {
        let Failure { step, path, error } = self;
        match error.kind() {
            io::ErrorKind::PermissionDenied => {
                BindError::Denied { step: format!("pci:{address}: {step}"), path, error }
            }
            _ => BindError::Refused { address, step, error, after },
        }
    }
}
