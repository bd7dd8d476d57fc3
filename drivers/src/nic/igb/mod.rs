//! Intel 82576, I350 and I210: 1 Gbit/s, up to 16 queue pairs.
//!
//! [`IgbPort`] owns the device. [`Port::start`](pollring::port::Port::start) runs the steps of `init` and hands out queues that own
//! their tail registers; from then on the port touches only statistics, filters and the link. The datasheet is the 82576's,
//! revision 2.63; what QEMU's model does otherwise is said where it matters.

pub mod desc;
mod init;
mod link;
mod port;
pub mod regs;
mod rx;
mod tx;

pub use port::IgbPort;

use crate::DriverEntry;

const fn entry(device: u16, model: &'static str, proof: &'static str) -> DriverEntry {
    DriverEntry { vendor: 0x8086, device, model, driver: "igb", proof, open: port::open }
}

/// The devices that this driver knows.
pub const DEVICES: &[DriverEntry] = &[
    entry(0x10c9, "Intel 82576", "QEMU's igb behind VFIO; the software igb"),
    entry(0x1521, "Intel I350", "not run"),
    entry(0x1533, "Intel I210", "not run"),
];

/// Sent and received lengths without CRC: a shorter frame cannot carry a header (the device pads to 60 bytes), a longer one would
/// need 9.5 KB of packet buffer a frame (datasheet 1.4).
const SHORTEST_FRAME: u16 = 17;
const LONGEST_FRAME: u16 = 9728;
const CRC_BYTES: usize = 4;
