//! Config space: the header, and the list of capabilities that says where the structures lie (Virtio 1.2, 4.1.4).

use pollring::bus::config;
use pollring_drivers::nic::virtio::regs::pci;

/// Size of BAR 0, bytes.
pub(super) const BAR_BYTES: usize = 0x4000;
/// Where the structures lie in BAR 0.
pub(super) const COMMON_AT: usize = 0;
pub(super) const ISR_AT: usize = 0x1000;
pub(super) const DEVICE_AT: usize = 0x2000;
pub(super) const NOTIFY_AT: usize = 0x3000;
/// From one queue's notification to the next one's.
pub(super) const NOTIFY_MULTIPLIER: usize = 4;

const FIRST_CAPABILITY: usize = 0x40;
const HAS_CAPABILITIES: u32 = pci::HAS_CAPABILITIES;
/// Network controller, Ethernet; revision 1 of a modern device (4.1.2.1).
const CLASS_REVISION: u32 = 0x0200_0001;
const COMMAND_WRITABLE: u32 = config::MEMORY_SPACE | config::BUS_MASTER | config::INTX_DISABLE;

/// Capability of an ISR structure, which this device has for form only.
const ISR: u8 = 3;

pub(super) struct ConfigSpace {
    words: [u32; 64],
    command: u32,
}

impl ConfigSpace {
    pub(super) fn new() -> ConfigSpace {
        let mut space = ConfigSpace { words: [0; 64], command: 0 };
        space.words[0] = u32::from(pci::MODERN_NET) << 16 | u32::from(pci::VENDOR);
        space.words[2] = CLASS_REVISION;
        space.words[usize::from(pci::CAPABILITIES) / 4] = FIRST_CAPABILITY as u32;
        // A capability of another kind in front, as devices have (MSI-X), which a driver must walk over.
        space.words[FIRST_CAPABILITY / 4] = 0x11 | 0x50 << 8;
        let structures = [
            (pci::COMMON, COMMON_AT, pci::common::BYTES),
            (ISR, ISR_AT, 4),
            (pci::DEVICE, DEVICE_AT, 32),
            (pci::NOTIFY, NOTIFY_AT, 0x1000),
        ];
        let mut at = 0x50;
        for (number, (kind, offset, bytes)) in structures.into_iter().enumerate() {
            let next = if number + 1 == structures.len() { 0 } else { at + 20 };
            let length = if kind == pci::NOTIFY { 20u32 } else { 16 };
            let head = u32::from(pci::VENDOR_CAPABILITY) | (next as u32) << 8 | length << 16;
            space.words[at / 4] = head | u32::from(kind) << 24;
            space.words[at / 4 + 2] = offset as u32;
            space.words[at / 4 + 3] = bytes as u32;
            space.words[at / 4 + 4] = if kind == pci::NOTIFY { NOTIFY_MULTIPLIER as u32 } else { 0 };
            at += 20;
        }
        space
    }

    pub(super) fn reset(&mut self) {
        self.command = 0;
    }

    pub(super) fn memory_space(&self) -> bool {
        self.command & config::MEMORY_SPACE != 0
    }

    pub(super) fn bus_master(&self) -> bool {
        self.command & config::BUS_MASTER != 0
    }

    pub(super) fn read(&self, offset: u16) -> u32 {
        match offset & !3 {
            config::COMMAND => self.command | HAS_CAPABILITIES,
            offset => self.words.get(usize::from(offset) / 4).copied().unwrap_or(0),
        }
    }

    pub(super) fn write(&mut self, offset: u16, value: u32) {
        if offset & !3 == config::COMMAND {
            self.command = value & COMMAND_WRITABLE;
        }
    }
}
