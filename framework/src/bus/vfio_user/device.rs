//! The function that a peer serves: config space, BARs, interrupts, reset.
//!
//! What it has is asked once, when it is opened. A read that fails gives all ones, as an absent device does; a failed write shows in the
//! next read.

use super::peer::Peer;
use super::protocol::*;
use super::{PeerError, VfioUserError, region};
use crate::bus::{Backend, Simulated, Window};
use crate::iova::{AddressSpace, Iommu};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use vfio_bindings::bindings::vfio::{
    VFIO_PCI_BAR5_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
};
use zerocopy::IntoBytes;

pub(super) struct VfioUserDevice {
    peer: Arc<Peer>,
    config_bytes: u64,
    flags: u32,
}

impl VfioUserDevice {
    pub(super) fn new(peer: Arc<Peer>) -> Result<VfioUserDevice, VfioUserError> {
        let question = DeviceInfo { argument_bytes: size_of::<DeviceInfo>() as u32, ..Default::default() };
        let info = peer.query(command::GET_INFO, &question).map_err(peer.failed("read what it is"))?;
        if info.flags & DEVICE_PCI == 0 || info.regions <= VFIO_PCI_CONFIG_REGION_INDEX {
            return Err(peer.unfit("it is no PCI function"));
        }
        let config = region::info(&peer, VFIO_PCI_CONFIG_REGION_INDEX);
        let config_bytes = config.map_err(peer.failed("find its config space"))?.info.bytes;
        Ok(VfioUserDevice { peer, config_bytes, flags: info.flags })
    }

    fn vectors(&self) -> Result<u32, PeerError> {
        let argument_bytes = size_of::<InterruptInfo>() as u32;
        let question = InterruptInfo { argument_bytes, index: VFIO_PCI_MSIX_IRQ_INDEX, ..Default::default() };
        self.peer.query(command::GET_IRQ_INFO, &question).map(|info| info.count)
    }

    /// One vector a message: more than one descriptor is more than a peer must take. Without one, delivery of all ends.
    fn set_vector(&self, start: u32, eventfd: Option<BorrowedFd<'_>>) -> Result<(), PeerError> {
        let fds = eventfd.as_slice();
        let set = SetInterrupts {
            argument_bytes: size_of::<SetInterrupts>() as u32,
            flags: TRIGGER | if fds.is_empty() { DATA_NONE } else { DATA_EVENTFD },
            index: VFIO_PCI_MSIX_IRQ_INDEX,
            start,
            count: fds.len() as u32,
        };
        let most = size_of::<SetInterrupts>();
        self.peer.ask(command::SET_IRQS, &[set.as_bytes()], fds, most).map(drop)
    }
}

impl Backend for VfioUserDevice {
    fn config_read32(&self, offset: u16) -> u32 {
        let mut word = [0xff; 4];
        if u64::from(offset) + 4 > self.config_bytes {
            return u32::MAX;
        }
        match self.peer.read(VFIO_PCI_CONFIG_REGION_INDEX, u64::from(offset), &mut word) {
            // Config space is little-endian on every machine.
            Ok(()) => u32::from_le_bytes(word),
            Err(_) => u32::MAX,
        }
    }

    fn config_write32(&self, offset: u16, value: u32) {
        if u64::from(offset) + 4 <= self.config_bytes {
            // A device that is gone takes no write; the next read shows it.
            let _ = self.peer.write(VFIO_PCI_CONFIG_REGION_INDEX, u64::from(offset), &value.to_le_bytes());
        }
    }

    fn window(&self, bar: u8) -> io::Result<Window> {
        if u32::from(bar) > VFIO_PCI_BAR5_REGION_INDEX {
            return Err(io::ErrorKind::NotFound.into());
        }
        region::open(&self.peer, u32::from(bar))
    }

    fn reset(&self) -> io::Result<()> {
        if self.flags & DEVICE_RESET == 0 {
            let what = "the peer's function has no reset; end the peer and start it again";
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        Ok(self.peer.ask(command::RESET, &[], &[], 0).map(drop)?)
    }

    fn attach(&self, space: &AddressSpace) -> io::Result<()> {
        let own: Arc<dyn Iommu> = self.peer.clone();
        if space.has_iommu(&own) {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::InvalidInput, "the space is not the one of the function's peer"))
    }

    fn simulated(&self) -> Simulated {
        Simulated::Yes
    }

    fn set_interrupts(&self, first: u16, eventfds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let count = self.vectors()?;
        if usize::from(first) + eventfds.len() > count as usize {
            let what = format!("it has {count} MSI-X vectors");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        if eventfds.is_empty() {
            return Ok(self.set_vector(0, None)?);
        }
        let mut vectors = (u32::from(first)..).zip(eventfds);
        Ok(vectors.try_for_each(|(vector, eventfd)| self.set_vector(vector, Some(*eventfd)))?)
    }
}
