//! virtio-net in software, on PCI (Virtio 1.2, 4.1 and 5.1).
//!
//! [`Virtio`] is a [`SoftwareDevice`]: put it on a simulated bus, and a driver finds its structures by capabilities. It does its work in
//! [`Virtio::step`], under one lock that register accesses take too; only commands are answered as they are notified. Its split
//! queues are those of the `virtio-queue` crate, so what our ring code and theirs make of a queue must be the same; its packed
//! queues are written from the specification. What a driver does against the specification is counted as a violation, never a
//! panic. Not there: interrupts, offloads, indirect descriptors, live migration.

mod config;
mod filter;
mod lying;
mod memory;
mod net;
mod packed;
mod queue;
mod registers;
mod rss;
mod split;
mod state;

use crate::hostile::{Lie, Lies};
use crate::wire::WireEnd;
use config::BAR_BYTES;
use pollring::bus::RegisterFile;
use pollring::bus::simulated::{SimulatedIommu, SoftwareDevice};
use pollring_drivers::nic::virtio::regs::hash;
pub use rss::RssLimits;
use state::State;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// In which order buffers are used where IN_ORDER was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// As they came.
    InOrder,
    /// Out of order within a step, as the seed decides. Frames of one flow may then overtake each other on the way in.
    Shuffled,
}

/// When the device looks at its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wakeup {
    /// In every step.
    Polling,
    /// In steps after a notification that it asked for.
    Notified,
}

/// How a device is made.
#[derive(Clone)]
pub struct VirtioConfig {
    /// Its address.
    pub mac: [u8; 6],
    /// Its end of a wire.
    pub wire: WireEnd,
    /// Features that it does not offer, of those that it has.
    pub without: u64,
    /// Queue pairs.
    pub pairs: u16,
    /// Entries of each queue at most.
    pub entries: u16,
    /// Its RSS.
    pub rss: RssLimits,
    /// Its order.
    pub completion: Completion,
    /// When it works.
    pub wakeup: Wakeup,
    /// Decides its order.
    pub seed: u64,
    /// Whether and how it lies.
    pub lies: Option<Lies>,
}

impl VirtioConfig {
    /// An honest device with everything that it has.
    pub fn new(mac: [u8; 6], wire: WireEnd) -> VirtioConfig {
        VirtioConfig {
            mac,
            wire,
            without: 0,
            pairs: 4,
            entries: 4096,
            rss: RssLimits { key_bytes: 40, table_entries: 128, hash_types: hash::ALL },
            completion: Completion::InOrder,
            wakeup: Wakeup::Polling,
            seed: 0,
            lies: None,
        }
    }
}

/// What a device counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames put on the wire.
    pub frames_sent: u64,
    /// Frames written to memory.
    pub frames_received: u64,
    /// Frames for another address.
    pub filtered: u64,
    /// Frames that found no buffer and were dropped.
    pub dropped: u64,
    /// Notifications.
    pub notifications: u64,
    /// DMA accesses that the IOMMU refused.
    pub dma_faults: u64,
}

/// A software virtio-net device.
pub struct Virtio {
    bar: Arc<Bar>,
}

struct Bar(Mutex<State>);

impl Bar {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Virtio {
    /// A device after power-on.
    pub fn new(config: VirtioConfig) -> Arc<Virtio> {
        Arc::new(Virtio { bar: Arc::new(Bar(Mutex::new(State::new(config)))) })
    }

    /// Moves up to `budget_frames` frames in each direction and queue; gives how many it moved.
    pub fn step(&self, budget_frames: usize) -> usize {
        self.bar.lock().step(budget_frames)
    }

    /// What it counted.
    pub fn counters(&self) -> Counters {
        self.bar.lock().counters()
    }

    /// What its driver did against the specification; empty for a good one. A device that scribbles counts what it made of it too.
    pub fn violations(&self) -> Vec<String> {
        self.bar.lock().violations.clone()
    }

    /// Lies by kind; empty for an honest device.
    pub fn lies_told(&self) -> Vec<(Lie, u64)> {
        self.bar.lock().lying.as_ref().map(|lying| lying.told()).unwrap_or_default()
    }

    /// Takes the device off its bus: all reads give all ones.
    pub fn unplug(&self) {
        self.bar.lock().unplugged = true;
    }

    /// Puts the device back, as after power-on.
    pub fn replug(&self) {
        let mut state = self.bar.lock();
        (state.unplugged, state.accesses_left) = (false, None);
        state.config.reset();
        state.reset();
    }

    /// Unplugs the device after `accesses` more accesses of its registers and config space.
    pub fn fail_after(&self, accesses: u64) {
        self.bar.lock().accesses_left = Some(accesses);
    }

    /// It asks for a reset and does nothing until it gets one (2.1.2).
    pub fn need_reset(&self) {
        self.bar.lock().need_reset();
    }

    /// From now on, status never reads as 0 after a reset.
    pub fn hang_in_reset(&self) {
        self.bar.lock().hangs = true;
    }
}

impl SoftwareDevice for Virtio {
    fn config_read32(&self, offset: u16) -> u32 {
        let mut state = self.bar.lock();
        if state.is_touched() { state.config.read(offset) } else { u32::MAX }
    }

    fn config_write32(&self, offset: u16, value: u32) {
        let mut state = self.bar.lock();
        if state.is_touched() {
            state.config.write(offset, value);
            state.set_gate();
        }
    }

    fn bar(&self, bar: u8) -> Option<(Arc<dyn RegisterFile>, usize)> {
        (bar == 0).then(|| (self.bar.clone() as Arc<dyn RegisterFile>, BAR_BYTES))
    }

    fn reset(&self) {
        let mut state = self.bar.lock();
        if !state.is_touched() {
            return;
        }
        state.hangs = false;
        state.reset();
        state.config.reset();
        state.set_gate();
    }

    fn attach(&self, iommu: Arc<SimulatedIommu>) {
        self.bar.lock().memory.attach(iommu);
    }
}

impl RegisterFile for Bar {
    fn read32(&self, offset: usize) -> u32 {
        self.lock().read(offset, 4)
    }

    fn write32(&self, offset: usize, value: u32) {
        self.lock().write(offset, 4, value);
    }

    fn read_narrow(&self, offset: usize, bytes: usize) -> u32 {
        self.lock().read(offset, bytes)
    }

    fn write_narrow(&self, offset: usize, bytes: usize, value: u32) {
        self.lock().write(offset, bytes, value);
    }
}
