//! Sides on a software igb.

use super::{Bench, Side, mac};
use pollring_simulator::igb::{Igb, IgbConfig};
use pollring_simulator::wire::{self, WireEnd};
use std::sync::Arc;

impl Bench for Igb {
    fn step(&self, frames: usize) -> usize {
        Igb::step(self, frames)
    }

    fn unplug(&self) {
        Igb::unplug(self);
    }

    fn replug(&self) {
        Igb::replug(self);
    }

    fn fail_after(&self, accesses: u64) {
        Igb::fail_after(self, accesses);
    }

    fn lies(&self) -> u64 {
        self.lies_told().iter().map(|(_, count)| *count).sum()
    }

    fn complaints(&self) -> Vec<String> {
        self.violation_counts().iter().map(|violation| format!("{violation:?}")).collect()
    }
}

/// A device that is not yet opened, and the far end of its wire.
pub fn device(number: u8, change: impl FnOnce(&mut IgbConfig)) -> (Arc<Igb>, WireEnd) {
    let (inner, outer) = wire::pair(wire::WireConfig::default());
    let mut config = IgbConfig::new(mac(number), inner);
    change(&mut config);
    (Igb::new(config), outer)
}

impl Side<Igb> {
    /// A side of its own.
    pub fn new(number: u8, change: impl FnOnce(&mut IgbConfig)) -> Side {
        Side::with_pool(number, 2048, change)
    }

    /// A side whose pool has `frames`.
    pub fn with_pool(number: u8, frames: usize, change: impl FnOnce(&mut IgbConfig)) -> Side {
        let (device, outer) = device(number, change);
        Side::open(number, frames, device, outer)
    }
}
