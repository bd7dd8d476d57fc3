//! Containers and groups: which functions sit behind one table, and what is in the table.
//!
//! A container has no table before its first group, so functions are opened first and memory is mapped after. Groups leave with the
//! container. VFIO_TYPE1v2_IOMMU is the only driver that is asked for: it unmaps exactly what was mapped.

use super::device::VfioDevice;
use super::{advised, memlock_advice, sys};
use crate::bus::sysfs::{NotReady, Sysfs};
use crate::bus::{Backend, MappedBar, PciAddress};
use crate::iova::{Direction, Iommu, Ranges};
use pollring_hugepages::Region;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use thiserror::Error;
use vfio_bindings::bindings::vfio::*;

const CONTAINER: &str = "/dev/vfio/vfio";

/// Why VFIO did not give a function.
#[derive(Debug, Error)]
pub enum VfioError {
    /// No container.
    #[error("open {CONTAINER}: {0}")]
    Container(io::Error),
    /// The kernel's VFIO is not what this code knows.
    #[error(
        "VFIO of this kernel: {0}; it needs API 0 with the type 1 v2 IOMMU driver (CONFIG_VFIO_IOMMU_TYPE1)"
    )]
    Kernel(String),
    /// No such function, or nothing that would confine it.
    #[error(transparent)]
    Function(#[from] NotReady),
    /// Its group cannot be had.
    #[error("pci:{address}: open /dev/vfio/{group}: {error}")]
    Group {
        /// The function.
        address: PciAddress,
        /// Its group.
        group: u32,
        /// The errno and what to do.
        error: io::Error,
    },
    /// Not every function of the group is bound to vfio-pci.
    #[error(
        "pci:{address}: IOMMU group {group} is not viable: another of its functions is held by a kernel driver; see them with \
         `pollring devices`, take them along with `pollring bind --group {address}`"
    )]
    NotViable {
        /// The function.
        address: PciAddress,
        /// Its group.
        group: u32,
    },
    /// The kernel refused a step.
    #[error("pci:{address}: {step}: {error}")]
    Step {
        /// The function.
        address: PciAddress,
        /// What was tried.
        step: &'static str,
        /// The errno and what to do.
        error: io::Error,
    },
}

/// One table of the IOMMU, and the groups behind it.
pub struct Container {
    // Groups go before the container that they are in.
    groups: Mutex<HashMap<u32, File>>,
    file: File,
}

impl Container {
    /// An empty container.
    ///
    /// # Errors
    /// No VFIO, no permission, or a kernel whose VFIO is another.
    pub fn new() -> Result<Arc<Container>, VfioError> {
        let file = OpenOptions::new().read(true).write(true).open(CONTAINER).map_err(|error| {
            let advice = match error.kind() {
                io::ErrorKind::NotFound => "load the module: modprobe vfio-pci",
                io::ErrorKind::PermissionDenied => {
                    "its mode is 0666 by default; see who changed it: ls -l /dev/vfio"
                }
                _ => "see the kernel log: dmesg | grep -i vfio",
            };
            VfioError::Container(advised(error, advice))
        })?;
        let version = sys::api_version(file.as_fd()).map_err(|error| VfioError::Kernel(error.to_string()))?;
        let type1v2 = sys::has_extension(file.as_fd(), VFIO_TYPE1v2_IOMMU);
        match (version as u32, type1v2.unwrap_or(false)) {
            (VFIO_API_VERSION, true) => Ok(Arc::new(Container { groups: Mutex::default(), file })),
            (version, type1v2) => Err(VfioError::Kernel(format!(
                "API {version}, type 1 v2: {}",
                if type1v2 { "yes" } else { "no" }
            ))),
        }
    }

    /// Opens `address`, which is bound to vfio-pci, for [`Device::open`](crate::bus::Device::open).
    ///
    /// # Errors
    /// No group, a group that another process holds or that is not viable, or a refused step.
    pub fn open(self: &Arc<Container>, address: PciAddress) -> Result<Arc<dyn Backend>, VfioError> {
        let group = Sysfs::new().group_of(address)?;
        let mut groups = self.groups();
        let first = groups.is_empty();
        let file = match groups.entry(group) {
            Entry::Occupied(taken) => taken.into_mut(),
            Entry::Vacant(free) => free.insert(self.take_group(address, group, first)?),
        };
        let name = CString::new(address.to_string()).unwrap_or_default();
        let device = sys::device(file.as_fd(), &name).map_err(|error| {
            let advice = match error.raw_os_error() {
                Some(libc::ENODEV | libc::EINVAL) => "it is not bound to vfio-pci; run `pollring bind` on it",
                Some(libc::EBUSY) => "it is open already, in this process or another",
                _ => "see the kernel log: dmesg | tail",
            };
            VfioError::Step { address, step: "open the device", error: advised(error, advice) }
        })?;
        Ok(Arc::new(VfioDevice::new(address, device, self.clone())?))
    }

    /// How many more mappings the kernel allows (the module parameter dma_entry_limit, less what is mapped); `None` when the
    /// kernel, older than 5.10, does not say.
    ///
    /// # Errors
    /// The errno of VFIO_IOMMU_GET_INFO.
    pub fn mappings_left(&self) -> io::Result<Option<u32>> {
        let (_, chain) = sys::iommu_info(self.file.as_fd())?;
        Ok(chain.word(sys::CAPABILITY_DMA_AVAIL))
    }

    fn take_group(&self, address: PciAddress, group: u32, first: bool) -> Result<File, VfioError> {
        let file = open_group(address, group)?;
        let step = |step, error, advice| VfioError::Step { address, step, error: advised(error, advice) };
        let flags = sys::group_flags(file.as_fd())
            .map_err(|error| step("read the group's state", error, "see the kernel log: dmesg | tail"))?;
        if flags & VFIO_GROUP_FLAGS_VIABLE == 0 {
            return Err(VfioError::NotViable { address, group });
        }
        sys::set_container(file.as_fd(), self.file.as_fd()).map_err(|error| {
            step(
                "put its group into a container",
                error,
                "its IOMMU may differ from that of the devices that are open; give it a container of its own",
            )
        })?;
        if first {
            sys::set_iommu(self.file.as_fd(), VFIO_TYPE1v2_IOMMU).map_err(|error| {
                let advice =
                    "without interrupt remapping the kernel refuses (EPERM): see dmesg | grep -i remap";
                step("turn translation on", error, advice)
            })?;
        }
        Ok(file)
    }

    fn groups(&self) -> MutexGuard<'_, HashMap<u32, File>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_entries(&self) -> io::Result<()> {
        match self.mappings_left()? {
            Some(0) => Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "the container has no mapping left (vfio_iommu_type1.dma_entry_limit); use fewer and larger regions, or raise it",
            )),
            _ => Ok(()),
        }
    }
}

fn open_group(address: PciAddress, group: u32) -> Result<File, VfioError> {
    let path = format!("/dev/vfio/{group}");
    OpenOptions::new().read(true).write(true).open(&path).map_err(|error| {
        let advice = match error.raw_os_error() {
            Some(libc::EBUSY) => {
                "another process has it; end that one first (it is named by `fuser -v` on the path)"
            }
            Some(libc::ENOENT) => "the function is not bound to vfio-pci; run `pollring bind` on it",
            Some(libc::EACCES) => {
                "it belongs to another user; run `pollring bind --user NAME` on the function as root"
            }
            _ => "see the kernel log: dmesg | tail",
        };
        VfioError::Group { address, group, error: advised(error, advice) }
    })
}

fn rights(direction: Direction) -> u32 {
    match direction {
        Direction::ToDevice => VFIO_DMA_MAP_FLAG_READ,
        Direction::Both => VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
    }
}

fn map_advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EEXIST) => "something is mapped there already",
        Some(libc::EINVAL) => {
            "the address or size is outside the ranges, or not aligned to the IOMMU's page size"
        }
        Some(libc::ENOSPC) => "the container has no mapping left (vfio_iommu_type1.dma_entry_limit)",
        _ => "see the kernel log: dmesg | tail",
    }
}

impl Iommu for Container {
    fn ranges(&self) -> io::Result<Ranges> {
        let (_, chain) = sys::iommu_info(self.file.as_fd()).map_err(|error| {
            advised(error, "a container has no ranges before a function is opened into it")
        })?;
        // Kernels before 5.4 do not tell; what they refuse shows when it is mapped.
        let pairs = chain.pairs(VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE as u16);
        Ok(Ranges::new(pairs.unwrap_or_else(|| vec![(0, u64::MAX)])))
    }

    fn map(&self, iova: u64, region: &Arc<Region>, direction: Direction) -> io::Result<()> {
        self.check_entries()?;
        let (address, bytes) = (region.base().as_ptr() as u64, region.bytes() as u64);
        // SAFETY: a region's memory is reached through frames and `Shared` only, which allow for devices; the mapping's owner
        // keeps the region until it has unmapped it.
        let mapped = unsafe { sys::map_dma(self.file.as_fd(), rights(direction), address, iova, bytes) };
        mapped.map_err(|error| {
            let advice = match error.raw_os_error() {
                Some(libc::ENOMEM) => {
                    format!("{bytes} bytes more are over the limit on locked memory; {}", memlock_advice())
                }
                _ => map_advice(&error).to_owned(),
            };
            advised(error, &advice)
        })
    }

    fn map_bar(&self, iova: u64, bar: &Arc<MappedBar>, direction: Direction) -> io::Result<()> {
        self.check_entries()?;
        let (address, bytes) = (bar.base().as_ptr() as u64, bar.bytes() as u64);
        // SAFETY: a BAR's memory is reached through `Shared` only, which allows for devices; the mapping's owner keeps the BAR
        // until it has unmapped it.
        let mapped = unsafe { sys::map_dma(self.file.as_fd(), rights(direction), address, iova, bytes) };
        mapped.map_err(|error| {
            let advice = match error.raw_os_error() {
                Some(libc::EFAULT | libc::ENOMEM) => {
                    "the kernel does not let devices reach this BAR; is its device on, and its memory no hole of a bridge?"
                }
                _ => map_advice(&error),
            };
            advised(error, advice)
        })
    }

    fn unmap(&self, iova: u64, bytes: usize) -> io::Result<()> {
        match sys::unmap_dma(self.file.as_fd(), iova, bytes as u64)? {
            unmapped if unmapped == bytes as u64 => Ok(()),
            unmapped => Err(io::Error::other(format!(
                "{bytes} bytes were mapped here and the kernel unmapped {unmapped}"
            ))),
        }
    }
}
