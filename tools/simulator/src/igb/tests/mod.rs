//! The device as a driver meets it: registers through the bus, rings in memory behind the IOMMU.

mod driver;
mod interrupts;
mod link;
mod receive;
mod registers;
mod rig;
mod timing;
mod transmit;
mod trouble;

use super::{Defect, Timing, Violation};
use crate::hostile::{Lie, Lies};
use pollring::bus::{Access, Health};
use pollring_drivers::nic::igb::desc::{rx, tx};
use pollring_drivers::nic::igb::regs::*;
use rig::{BUFFER_BYTES, MAC, Rig, frame};

fn length(status: u64) -> usize {
    (status >> rx::LENGTH_SHIFT & 0xffff) as usize
}
