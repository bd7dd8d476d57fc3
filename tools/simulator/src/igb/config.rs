//! Config space of one function: the header of PCI Local Bus 3.0, 6.1, power management, MSI, MSI-X, PCI Express 2.0 and advanced
//! error reporting, at the offsets of the 82576 (datasheet 9.3 to 9.6).
//!
//! The command register's memory space and bus master bits are the gates that software has, and the bit in device control resets
//! the function; everything else only identifies the device or keeps what is written. Silicon has besides: a flash BAR, an I/O
//! BAR, an interrupt pin, vital product data, a serial number, and what belongs to virtual functions.

use pollring::bus::config;

/// Size of BAR 0, bytes (82576 datasheet 9.4.11).
pub(super) const BAR_BYTES: usize = 128 << 10;

/// The BAR with the vector table, and its size.
pub(super) const MSIX_BAR: u8 = 3;
pub(super) const MSIX_BAR_BYTES: usize = 16 << 10;

/// Vectors of the function.
pub(super) const VECTORS: u16 = 10;

const VENDOR_DEVICE: u32 = 0x10c9_8086;
/// Network controller, Ethernet; revision 1.
const CLASS_REVISION: u32 = 0x0200_0001;
const SUBSYSTEM: u32 = 0xa03c_8086;
const COMMAND_WRITABLE: u32 =
    config::MEMORY_SPACE | config::BUS_MASTER | config::INTX_DISABLE | PARITY_RESPONSE | SERR_ENABLE;
const PARITY_RESPONSE: u32 = 1 << 6;
const SERR_ENABLE: u32 = 1 << 8;
/// Status: there are capabilities.
const CAPABILITIES: u32 = 1 << 20;

const CLASS: u16 = 0x08;
const CACHE_LINE: u16 = 0x0c;
const BAR_0: u16 = 0x10;
const BAR_3: u16 = 0x1c;
const SUBSYSTEM_ID: u16 = 0x2c;
const CAPABILITIES_AT: u16 = 0x34;
const INTERRUPT_LINE: u16 = 0x3c;
const POWER: u16 = 0x40;
const MSI: u16 = 0x50;
const MSIX: u16 = 0x70;
const EXPRESS: u16 = 0xa0;
const DEVICE_CONTROL: u16 = EXPRESS + 8;
const ERRORS: u16 = 0x100;

/// Device control: reset the function (PCI Express 2.0, 7.8.4). It reads as 0.
const INITIATE_RESET: u32 = 1 << 15;

const WORDS: usize = 1024;

/// What a write brings about beside its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    /// The function is to be reset.
    Reset,
}

/// One word: where, value after reset, bits that software sets, bits that a written one clears.
type Word = (u16, u32, u32, u32);

const LAYOUT: &[Word] = &[
    (config::VENDOR, VENDOR_DEVICE, 0, 0),
    (config::COMMAND, CAPABILITIES, COMMAND_WRITABLE, 0),
    (CLASS, CLASS_REVISION, 0, 0),
    (CACHE_LINE, 0, 0xff, 0),
    // The low bits are fixed, which tells the size (6.2.5.1); 32-bit memory, not prefetchable.
    (BAR_0, 0, !(BAR_BYTES as u32 - 1), 0),
    (BAR_3, 0, !(MSIX_BAR_BYTES as u32 - 1), 0),
    (SUBSYSTEM_ID, SUBSYSTEM, 0, 0),
    (CAPABILITIES_AT, POWER as u32, 0, 0),
    (INTERRUPT_LINE, 0, 0xff, 0),
    // Power management 1.2; D3 keeps the state.
    (POWER, 0x0003_0001 | (MSI as u32) << 8, 0, 0),
    (POWER + 4, 1 << 3, 3, 0),
    // 64-bit addresses, a mask for the one vector.
    (MSI, 0x0180_0005 | (MSIX as u32) << 8, 1 << 16 | 7 << 20, 0),
    (MSI + 4, 0, !3, 0),
    (MSI + 8, 0, u32::MAX, 0),
    (MSI + 12, 0, 0xffff, 0),
    (MSI + 16, 0, 1, 0),
    (MSIX, 0x11 | (EXPRESS as u32) << 8 | (VECTORS as u32 - 1) << 16, 3 << 30, 0),
    (MSIX + 4, MSIX_BAR as u32, 0, 0),
    (MSIX + 8, 0x2000 | MSIX_BAR as u32, 0, 0),
    // An endpoint; 512 bytes of payload, role-based errors, function-level reset.
    (EXPRESS, 0x0002_0010, 0, 0),
    (EXPRESS + 4, 0x1000_8cc2, 0, 0),
    (DEVICE_CONTROL, 0x2810, 0x7fff, 0xf << 16),
    // 2.5 GT/s, four lanes.
    (EXPRESS + 12, 0x0000_0c41, 0, 0),
    (EXPRESS + 16, 0x0041_0000, 0xffff, 0),
    (EXPRESS + 36, 0x1f, 0, 0),
    (EXPRESS + 40, 0, 0x1f, 0),
    (ERRORS, 0x0001_0001, 0, 0),
    (ERRORS + 4, 0, 0, u32::MAX),
    (ERRORS + 8, 0, 0x001f_f030, 0),
    (ERRORS + 12, 0x0006_2030, 0x001f_f030, 0),
    (ERRORS + 16, 0, 0, u32::MAX),
    (ERRORS + 20, 0x2000, 0x31c1, 0),
    (ERRORS + 24, 0xa0, 0x140, 0),
];

pub(super) struct ConfigSpace(Box<[u32; WORDS]>);

impl Default for ConfigSpace {
    fn default() -> ConfigSpace {
        let mut words = Box::new([0; WORDS]);
        LAYOUT.iter().for_each(|(at, value, ..)| words[usize::from(at / 4)] = *value);
        ConfigSpace(words)
    }
}

impl ConfigSpace {
    pub(super) fn memory_space(&self) -> bool {
        self.read(config::COMMAND) & config::MEMORY_SPACE != 0
    }

    pub(super) fn bus_master(&self) -> bool {
        self.read(config::COMMAND) & config::BUS_MASTER != 0
    }

    #[inline]
    pub(super) fn read(&self, offset: u16) -> u32 {
        self.0.get(usize::from(offset / 4)).copied().unwrap_or(0)
    }

    pub(super) fn write(&mut self, offset: u16, value: u32) -> Effect {
        let Some((at, _, writable, clears)) = LAYOUT.iter().find(|(at, ..)| *at == offset & !3) else {
            return Effect::None;
        };
        let word = &mut self.0[usize::from(at / 4)];
        *word = *word & !writable & !(value & clears) | value & writable;
        if *at == DEVICE_CONTROL && value & INITIATE_RESET != 0 { Effect::Reset } else { Effect::None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_an_82576_with_two_bars() {
        let mut space = ConfigSpace::default();
        assert_eq!(space.read(config::VENDOR), 0x10c9_8086);
        assert_eq!(space.read(CLASS) >> 8, 0x02_0000);
        for (bar, bytes) in [(BAR_0, 128 << 10), (BAR_3, 16 << 10)] {
            space.write(bar, u32::MAX);
            assert_eq!(!space.read(bar) + 1, bytes);
        }
        assert_eq!((space.read(0xff0), space.read(0x1000)), (0, 0));
    }

    #[test]
    fn only_known_command_bits_stick() {
        let mut space = ConfigSpace::default();
        assert!(!space.memory_space() && !space.bus_master());
        space.write(config::COMMAND, u32::MAX);
        assert_eq!(space.read(config::COMMAND), COMMAND_WRITABLE | CAPABILITIES);
        assert!(space.memory_space() && space.bus_master());
        space.write(config::VENDOR, 0);
        assert_eq!(space.read(config::VENDOR), 0x10c9_8086);
    }

    #[test]
    fn the_capabilities_form_a_chain() {
        let space = ConfigSpace::default();
        let mut at = space.read(CAPABILITIES_AT) as u16;
        let mut found = Vec::new();
        while at != 0 {
            let header = space.read(at);
            found.push(header & 0xff);
            at = (header >> 8 & 0xff) as u16;
        }
        assert_eq!(found, [0x01, 0x05, 0x11, 0x10]);
        assert_eq!(space.read(MSIX) >> 16 & 0x7ff, 9);
        assert_eq!(space.read(ERRORS), 0x0001_0001);
    }

    #[test]
    fn device_control_resets_and_does_not_keep_the_bit() {
        let mut space = ConfigSpace::default();
        assert_eq!(space.write(DEVICE_CONTROL, 0x2810), Effect::None);
        assert_eq!(space.write(DEVICE_CONTROL, 0x2810 | INITIATE_RESET), Effect::Reset);
        assert_eq!(space.read(DEVICE_CONTROL), 0x2810);
    }
}
