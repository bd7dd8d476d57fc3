//! Config space of one function: the header of PCI Local Bus 3.0, 6.1, without capabilities.
//!
//! The command register's memory space and bus master bits are the gates that software has; everything else only identifies the
//! device.

use pollring::bus::config;

/// Size of BAR 0, bytes (82576 datasheet 9.4.11).
pub(super) const BAR_BYTES: usize = 128 << 10;

const VENDOR_DEVICE: u32 = 0x10c9_8086;
/// Network controller, Ethernet; revision 1.
const CLASS_REVISION: u32 = 0x0200_0001;
const SUBSYSTEM: u32 = 0xa03c_8086;
const COMMAND_WRITABLE: u32 =
    config::MEMORY_SPACE | config::BUS_MASTER | config::INTX_DISABLE | PARITY_RESPONSE | SERR_ENABLE;
const PARITY_RESPONSE: u32 = 1 << 6;
const SERR_ENABLE: u32 = 1 << 8;

const CLASS: u16 = 0x08;
const BAR_0: u16 = 0x10;
const SUBSYSTEM_ID: u16 = 0x2c;

#[derive(Default)]
pub(super) struct ConfigSpace {
    command: u32,
    bar_0: u32,
}

impl ConfigSpace {
    pub(super) fn memory_space(&self) -> bool {
        self.command & config::MEMORY_SPACE != 0
    }

    pub(super) fn bus_master(&self) -> bool {
        self.command & config::BUS_MASTER != 0
    }

    pub(super) fn read(&self, offset: u16) -> u32 {
        match offset & !3 {
            config::VENDOR => VENDOR_DEVICE,
            config::COMMAND => self.command,
            CLASS => CLASS_REVISION,
            BAR_0 => self.bar_0,
            SUBSYSTEM_ID => SUBSYSTEM,
            _ => 0,
        }
    }

    pub(super) fn write(&mut self, offset: u16, value: u32) {
        match offset & !3 {
            config::COMMAND => self.command = value & COMMAND_WRITABLE,
            // The low bits are fixed, which tells the size (6.2.5.1); 32-bit memory, not prefetchable.
            BAR_0 => self.bar_0 = value & !(BAR_BYTES as u32 - 1),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_an_82576_with_a_bar_of_128_kib() {
        let mut space = ConfigSpace::default();
        assert_eq!(space.read(config::VENDOR), 0x10c9_8086);
        assert_eq!(space.read(CLASS) >> 8, 0x02_0000);
        space.write(BAR_0, u32::MAX);
        assert_eq!(!space.read(BAR_0) + 1, 128 << 10);
        assert_eq!(space.read(0x100), 0);
    }

    #[test]
    fn only_known_command_bits_stick() {
        let mut space = ConfigSpace::default();
        assert!(!space.memory_space() && !space.bus_master());
        space.write(config::COMMAND, u32::MAX);
        assert_eq!(space.read(config::COMMAND), COMMAND_WRITABLE);
        assert!(space.memory_space() && space.bus_master());
        space.write(config::VENDOR, 0);
        assert_eq!(space.read(config::VENDOR), 0x10c9_8086);
    }
}
