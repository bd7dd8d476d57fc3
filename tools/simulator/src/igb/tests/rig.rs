//! A software igb with hand-built rings, for tests: memory behind the IOMMU, registers through the bus, the far end of the wire.

use super::super::{Igb, IgbConfig};
use crate::wire::{WireConfig, WireEnd, pair};
use pollring::buffer::Shared;
use pollring::bus::simulated::{SimulatedIommu, backend};
use pollring::bus::{Device, Registers};
use pollring::hugepages::{Pages, Region, RegionConfig};
use pollring::iova::{AddressSpace, Direction, Placement};
use pollring_drivers::nic::igb::desc::tx;
use pollring_drivers::nic::igb::regs::*;
use std::sync::Arc;

pub(super) const MAC: [u8; 6] = [0xa0, 0x36, 0x9f, 1, 2, 3];
const RING_BYTES: usize = 0x4000;
const TX_RINGS: usize = 0x40000;
const BUFFERS: usize = 0x80000;
pub(super) const BUFFER_BYTES: usize = 2048;
const REGION_BYTES: usize = 4 << 20;

pub(super) struct Rig {
    pub igb: Arc<Igb>,
    pub device: Device,
    pub registers: Registers,
    pub far: WireEnd,
    pub memory: Shared,
    pub iommu: Arc<SimulatedIommu>,
}

impl Rig {
    /// A device that is open and attached, and nothing else.
    pub(super) fn closed(change: impl FnOnce(&mut IgbConfig)) -> Rig {
        let (near, far) = pair(WireConfig { capacity_frames: 4096 });
        let mut config = IgbConfig::new(MAC, near);
        change(&mut config);
        let igb = Igb::new(config);
        let iommu = Arc::new(SimulatedIommu::default());
        let space = AddressSpace::new("test", iommu.clone());
        let mut device = Device::open("sim:igb", backend(igb.clone(), iommu.clone())).unwrap();
        device.join(&space, u64::MAX).unwrap();
        let registers = device.window(0).unwrap();
        let pages = Pages::Small4K { reason: "a test".into() };
        let region = RegionConfig { name: "rig".into(), bytes: REGION_BYTES, pages, node: None };
        let placement = Placement::new(Arc::new(Region::allocate(&region).unwrap()), &[&space]).unwrap();
        let memory = Shared::mapped(Arc::new(space.map(&placement, Direction::Both).unwrap()));
        Rig { igb, device, registers, far, memory, iommu }
    }

    /// The same with DMA on, the link up, both units on, promiscuous; no queue has a ring.
    pub(super) fn new(change: impl FnOnce(&mut IgbConfig)) -> Rig {
        let rig = Rig::closed(change);
        rig.device.start_dma().unwrap();
        rig.bring_link_up();
        rig.registers.write(TCTL, tctl::ENABLE | tctl::PAD_SHORT);
        let all = rctl::UNICAST_PROMISCUOUS | rctl::MULTICAST_PROMISCUOUS | rctl::BROADCAST;
        rig.registers.write(RCTL, rctl::ENABLE | rctl::STRIP_CRC | all);
        rig
    }

    pub(super) fn honest() -> Rig {
        Rig::new(|_| {})
    }

    pub(super) fn bring_link_up(&self) {
        self.registers.write(CTRL, ctrl::SET_LINK_UP);
        self.write_phy(mdic::BMCR, mdic::BMCR_AUTONEG | mdic::BMCR_RESTART_AUTONEG);
        self.igb.run_until_idle();
    }

    pub(super) fn write_phy(&self, register: u32, value: u32) {
        let target = register << mdic::REGISTER_SHIFT | 1 << mdic::PHY_SHIFT;
        self.registers.write(MDIC, value | target | mdic::WRITE);
    }

    pub(super) fn iova(&self, offset: usize) -> u64 {
        self.memory.iova(offset).unwrap().bits()
    }

    pub(super) fn rx_ring(&self, queue: usize) -> usize {
        queue * RING_BYTES
    }

    pub(super) fn tx_ring(&self, queue: usize) -> usize {
        TX_RINGS + queue * RING_BYTES
    }

    pub(super) fn buffer(&self, index: usize) -> usize {
        BUFFERS + index * BUFFER_BYTES
    }

    /// Enables a receive ring of `entries` with buffers of 2 KiB and `srrctl` besides.
    pub(super) fn enable_rx(&self, queue: usize, entries: usize, srrctl: u32) {
        self.set_ring([RDBAL, RDBAH, RDLEN], queue, self.rx_ring(queue), entries);
        self.registers.write_at(SRRCTL, queue, 2 | srrctl::ADVANCED_ONE_BUFFER | srrctl);
        self.registers.write_at(RXDCTL, queue, dctl::ENABLE);
    }

    pub(super) fn enable_tx(&self, queue: usize, entries: usize) {
        self.set_ring([TDBAL, TDBAH, TDLEN], queue, self.tx_ring(queue), entries);
        self.registers.write_at(TXDCTL, queue, dctl::ENABLE);
    }

    fn set_ring(&self, at: [pollring::bus::Register; 3], queue: usize, offset: usize, entries: usize) {
        let iova = self.iova(offset);
        let values = [iova as u32, (iova >> 32) as u32, entries as u32 * 16];
        at.into_iter().zip(values).for_each(|(at, value)| self.registers.write_at(at, queue, value));
    }

    pub(super) fn write_words(&self, offset: usize, words: [u64; 2]) {
        for (at, word) in words.into_iter().enumerate() {
            self.memory.copy_in(offset + at * 8, &word.to_le_bytes()).unwrap();
        }
    }

    pub(super) fn words(&self, offset: usize) -> [u64; 2] {
        let mut bytes = [0; 16];
        self.memory.copy_out(offset, &mut bytes).unwrap();
        let [low, high] = *bytes.as_chunks::<8>().0 else { unreachable!() };
        [low, high].map(u64::from_le_bytes)
    }

    pub(super) fn rx_words(&self, queue: usize, slot: usize) -> [u64; 2] {
        self.words(self.rx_ring(queue) + slot * 16)
    }

    pub(super) fn tx_words(&self, queue: usize, slot: usize) -> [u64; 2] {
        self.words(self.tx_ring(queue) + slot * 16)
    }

    pub(super) fn bytes(&self, offset: usize, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.memory.copy_out(offset, &mut bytes).unwrap();
        bytes
    }

    /// Posts `buffer` in `slot`; the tail is not moved.
    pub(super) fn post(&self, queue: usize, slot: usize, buffer: usize) {
        let iova = self.iova(self.buffer(buffer));
        self.write_words(self.rx_ring(queue) + slot * 16, [iova, 0]);
    }

    /// Describes `bytes` in `slot`, laid into `buffer`; the tail is not moved.
    pub(super) fn describe(&self, queue: usize, slot: usize, buffer: usize, bytes: &[u8], command: u64) {
        let offset = self.buffer(buffer);
        self.memory.copy_in(offset, bytes).unwrap();
        let words = [self.iova(offset), command | bytes.len() as u64];
        self.write_words(self.tx_ring(queue) + slot * 16, words);
    }

    /// The command word of a frame of one descriptor, without the length of the buffer.
    pub(super) fn whole(bytes: usize, more: u64) -> u64 {
        tx::DATA | tx::INSERT_CRC | tx::END_OF_PACKET | (bytes as u64) << tx::PAYLOAD_SHIFT | more
    }

    pub(super) fn sent(&self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        self.far.receive_batch(usize::MAX, |slot| frames.push(std::mem::take(slot)));
        frames
    }
}

/// A frame of `bytes` to nobody in particular, filled with `mark`.
pub(super) fn frame(mark: u8, bytes: usize) -> Vec<u8> {
    let mut frame = vec![mark; bytes];
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}
