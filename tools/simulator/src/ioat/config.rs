//! Config space of one function: the header of PCI Local Bus 3.0, 6.1, MSI-X, PCI Express 2.0 and advanced error reporting, and the
//! two error registers that I/OAT has behind it.

use pollring::bus::config;

/// Size of BAR 0, bytes.
pub(super) const BAR_BYTES: usize = 16 << 10;

/// The BAR with the vector table, and its size.
pub(super) const MSIX_BAR: u8 = 2;
pub(super) const MSIX_BAR_BYTES: usize = 4 << 10;

/// One vector, for the one channel.
pub(super) const VECTORS: u16 = 1;

/// Skylake Xeon.
const VENDOR_DEVICE: u32 = 0x2021_8086;
/// System peripheral, other; revision 4.
const CLASS_REVISION: u32 = 0x0880_0004;
const COMMAND_WRITABLE: u32 =
    config::MEMORY_SPACE | config::BUS_MASTER | config::INTX_DISABLE | 1 << 6 | 1 << 8;
/// Status: there are capabilities.
const CAPABILITIES: u32 = 1 << 20;
const MSIX: u16 = 0x80;
const EXPRESS: u16 = 0x90;
const DEVICE_CONTROL: u16 = EXPRESS + 8;
const ERRORS: u16 = 0x100;
const DMAUNCERRSTS: u16 = 0x148;
const CHANERR_INT: u16 = 0x180;
const CHANERRMSK_INT: u16 = 0x184;

/// Device control: reset the function (PCI Express 2.0, 7.8.4). It reads as 0.
const INITIATE_RESET: u32 = 1 << 15;

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
    (0x08, CLASS_REVISION, 0, 0),
    (0x0c, 0, 0xff, 0),
    // The low bits are fixed, which tells the size (6.2.5.1); 32-bit memory, not prefetchable.
    (0x10, 0, !(BAR_BYTES as u32 - 1), 0),
    (0x18, 0, !(MSIX_BAR_BYTES as u32 - 1), 0),
    (0x2c, 0x0000_8086, 0, 0),
    (0x34, MSIX as u32, 0, 0),
    (0x3c, 0, 0xff, 0),
    (MSIX, 0x11 | (EXPRESS as u32) << 8 | (VECTORS as u32 - 1) << 16, 3 << 30, 0),
    (MSIX + 4, MSIX_BAR as u32, 0, 0),
    (MSIX + 8, 0x800 | MSIX_BAR as u32, 0, 0),
    // An endpoint; 512 bytes of payload, role-based errors, function-level reset.
    (EXPRESS, 0x0002_0010, 0, 0),
    (EXPRESS + 4, 0x1000_8cc2, 0, 0),
    (DEVICE_CONTROL, 0x2810, 0x7fff, 0xf << 16),
    (EXPRESS + 12, 0x0000_0c41, 0, 0),
    (EXPRESS + 16, 0x0041_0000, 0xffff, 0),
    (EXPRESS + 36, 0x1f, 0, 0),
    (EXPRESS + 40, 0, 0x1f, 0),
    (ERRORS, 0x0001_0001, 0, 0),
    (ERRORS + 4, 0, 0, u32::MAX),
    (ERRORS + 8, 0, u32::MAX, 0),
    (ERRORS + 12, 0x0006_2030, u32::MAX, 0),
    (ERRORS + 16, 0, 0, u32::MAX),
    (ERRORS + 20, 0x2000, 0x31c1, 0),
    (ERRORS + 24, 0xa0, 0x140, 0),
    (DMAUNCERRSTS, 0, 0, u32::MAX),
    (CHANERR_INT, 0, 0, u32::MAX),
    (CHANERRMSK_INT, 0, u32::MAX, 0),
];

pub(super) struct ConfigSpace(Box<[u32; 1024]>);

impl Default for ConfigSpace {
    fn default() -> ConfigSpace {
        let mut words = Box::new([0; 1024]);
        LAYOUT.iter().for_each(|(at, value, ..)| words[usize::from(at / 4)] = *value);
        ConfigSpace(words)
    }
}

impl ConfigSpace {
    pub(super) fn bus_master(&self) -> bool {
        self.read(config::COMMAND) & config::BUS_MASTER != 0
    }

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

    /// The channel's errors as they show in config space.
    pub(super) fn note_errors(&mut self, errors: u32) {
        self.0[usize::from(CHANERR_INT / 4)] |= errors;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_an_ioat_with_two_bars_and_a_chain_of_capabilities() {
        let mut space = ConfigSpace::default();
        assert_eq!((space.read(config::VENDOR), space.read(8) >> 8), (0x2021_8086, 0x08_8000));
        for (bar, bytes) in [(0x10, BAR_BYTES), (0x18, MSIX_BAR_BYTES)] {
            space.write(bar, u32::MAX);
            assert_eq!((!space.read(bar) + 1) as usize, bytes);
        }
        let (mut at, mut found) = (space.read(0x34) as u16, Vec::new());
        while at != 0 {
            found.push(space.read(at) & 0xff);
            at = (space.read(at) >> 8 & 0xff) as u16;
        }
        assert_eq!(found, [0x11, 0x10]);
    }

    #[test]
    fn errors_stay_until_ones_are_written_and_a_reset_bit_is_not_kept() {
        let mut space = ConfigSpace::default();
        space.note_errors(5);
        space.write(CHANERR_INT, 1);
        assert_eq!(space.read(CHANERR_INT), 4);
        assert_eq!(space.write(DEVICE_CONTROL, INITIATE_RESET), Effect::Reset);
        assert_eq!(space.read(DEVICE_CONTROL), 0);
        assert!(!space.bus_master());
        space.write(config::COMMAND, u32::MAX);
        assert!(space.bus_master());
    }
}
