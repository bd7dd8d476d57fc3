//! One function, by its VFIO device descriptor: config space, BARs, interrupts, reset.
//!
//! Regions and interrupts are told by the kernel (VFIO_DEVICE_GET_REGION_INFO and GET_IRQ_INFO); config space is a region too and is
//! read and written through the descriptor. A read that fails gives all ones, as an absent device does.

use super::group::VfioError;
use super::{Container, advised, region, sys};
use crate::bus::{Backend, PciAddress, Window};
use crate::iova::{AddressSpace, Iommu};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use vfio_bindings::bindings::vfio::*;

pub(super) struct VfioDevice {
    // The device is closed before its container.
    file: Arc<File>,
    container: Arc<Container>,
    config_offset: u64,
    config_bytes: u64,
    flags: u32,
}

impl VfioDevice {
    pub(super) fn new(
        address: PciAddress,
        fd: OwnedFd,
        container: Arc<Container>,
    ) -> Result<VfioDevice, VfioError> {
        let refused = |step| move |error: io::Error| VfioError::Step { address, step, error };
        let file = Arc::new(File::from(fd));
        let info = sys::device_info(file.as_fd()).map_err(refused("read what it is"))?;
        if info.flags & VFIO_DEVICE_FLAGS_PCI == 0 {
            let error = io::Error::other("the kernel does not call it a PCI function");
            return Err(refused("read what it is")(error));
        }
        let (config, _) = sys::region_info(file.as_fd(), VFIO_PCI_CONFIG_REGION_INDEX)
            .map_err(refused("find its config space"))?;
        let (config_offset, config_bytes) = (config.offset, config.size);
        Ok(VfioDevice { file, container, config_offset, config_bytes, flags: info.flags })
    }
}

impl Backend for VfioDevice {
    fn config_read32(&self, offset: u16) -> u32 {
        let mut word = [0xff; 4];
        if u64::from(offset) + 4 > self.config_bytes {
            return u32::MAX;
        }
        match self.file.read_exact_at(&mut word, self.config_offset + u64::from(offset)) {
            // Config space is little-endian on every machine.
            Ok(()) => u32::from_le_bytes(word),
            Err(_) => u32::MAX,
        }
    }

    fn config_write32(&self, offset: u16, value: u32) {
        if u64::from(offset) + 4 <= self.config_bytes {
            // A device that is gone takes no write; the next read shows it.
            let _ = self.file.write_all_at(&value.to_le_bytes(), self.config_offset + u64::from(offset));
        }
    }

    fn window(&self, bar: u8) -> io::Result<Window> {
        if u32::from(bar) > VFIO_PCI_BAR5_REGION_INDEX {
            return Err(io::ErrorKind::NotFound.into());
        }
        region::open(&self.file, u32::from(bar))
    }

    fn reset(&self) -> io::Result<()> {
        if self.flags & VFIO_DEVICE_FLAGS_RESET == 0 {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the function has no reset of its own (no FLR, no slot of its own); unbind and bind it",
            ));
        }
        sys::reset(self.file.as_fd()).map_err(|error| advised(error, "see the kernel log: dmesg | tail"))
    }

    fn attach(&self, space: &AddressSpace) -> io::Result<()> {
        let own: Arc<dyn Iommu> = self.container.clone();
        if space.has_iommu(&own) {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the space is not the one of the container that the function was opened into",
        ))
    }

    fn set_interrupts(&self, first: u16, eventfds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let index = VFIO_PCI_MSIX_IRQ_INDEX;
        let info = sys::irq_info(self.file.as_fd(), index)?;
        if usize::from(first) + eventfds.len() > info.count as usize {
            let what = format!("it has {} MSI-X vectors", info.count);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        sys::set_irqs(self.file.as_fd(), index, u32::from(first), eventfds)
    }
}
