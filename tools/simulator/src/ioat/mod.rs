//! Intel I/OAT 3.2 in software: one channel, copies and fills.
//!
//! [`Ioat`] is a [`SoftwareDevice`]; it executes descriptors in [`Ioat::step`], under one lock that register accesses take too. A write of
//! CHAINADDR begins the chain anew and arms the channel; DMACOUNT, modulo 2^16, says how far it may go. So it suits a ring that is
//! counted on and on, and one descriptor that is its own next. Not there: XOR and RAID operations, DCA, MSI without X.

mod config;
mod engine;
mod state;

use crate::hostile::{Liar, Lie, Lies};
use crate::serve::Steps;
use config::{BAR_BYTES, MSIX_BAR, MSIX_BAR_BYTES, VECTORS};
use pollring::bus::RegisterFile;
use pollring::bus::simulated::{Interrupts, SimulatedIommu, SoftwareDevice};
use state::State;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Descriptors that one turn of a thread executes at most.
const BUDGET_DESCRIPTORS: usize = 16;

/// Whether copies are true.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Copies {
    /// Byte for byte.
    #[default]
    True,
    /// One bit of each is flipped: what every check of the data must find.
    OneBitFlipped,
}

/// What a device counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Descriptors that were executed.
    pub descriptors: u64,
    /// Bytes copied or filled.
    pub bytes: u64,
    /// Times that the channel halted on an error.
    pub halts: u64,
    /// Interrupts raised.
    pub interrupts: u64,
}

/// A software I/OAT function.
pub struct Ioat {
    bar: Arc<Bar>,
    vector_table: Arc<VectorTable>,
}

struct Bar {
    state: Mutex<State>,
    /// Accesses that want the lock, and those that got it.
    waiting: AtomicU32,
    served: AtomicU32,
}

impl Bar {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.served.fetch_add(1, Ordering::Relaxed);
        state
    }

    /// The lock for the engine. A mutex is not fair: an engine that is busy for seconds would get it every time, and QEMU gives a
    /// register access 5 s.
    fn lock_last(&self) -> MutexGuard<'_, State> {
        let served = self.served.load(Ordering::Relaxed);
        while self.waiting.load(Ordering::Relaxed) > 0 && self.served.load(Ordering::Relaxed) == served {
            std::thread::yield_now();
        }
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ioat {
    /// A device after power-on, honest or not.
    pub fn new(copies: Copies, lies: Option<Lies>) -> Arc<Ioat> {
        let state = State::new(copies == Copies::OneBitFlipped, lies.map(Liar::new));
        let bar = Bar { state: Mutex::new(state), waiting: AtomicU32::new(0), served: AtomicU32::new(0) };
        Arc::new(Ioat { bar: Arc::new(bar), vector_table: Arc::default() })
    }

    /// Executes up to `budget` descriptors; gives how many.
    pub fn step(&self, budget: usize) -> usize {
        self.bar.lock_last().step(budget)
    }

    /// What it counted.
    pub fn counters(&self) -> Counters {
        self.bar.lock().counters
    }

    /// Lies by kind; empty for an honest device.
    pub fn lies_told(&self) -> Vec<(Lie, u64)> {
        self.bar.lock().liar.as_ref().map(Liar::told).unwrap_or_default()
    }

    /// Takes the device off its bus: all reads give all ones.
    pub fn unplug(&self) {
        self.bar.lock().unplugged = true;
    }
}

impl SoftwareDevice for Ioat {
    fn config_read32(&self, offset: u16) -> u32 {
        let state = self.bar.lock();
        if state.unplugged { u32::MAX } else { state.config.read(offset) }
    }

    fn config_write32(&self, offset: u16, value: u32) {
        let mut state = self.bar.lock();
        if !state.unplugged {
            state.config_write(offset, value);
        }
    }

    fn bar(&self, bar: u8) -> Option<(Arc<dyn RegisterFile>, usize)> {
        match bar {
            0 => Some((self.bar.clone(), BAR_BYTES)),
            MSIX_BAR => Some((self.vector_table.clone(), MSIX_BAR_BYTES)),
            _ => None,
        }
    }

    fn reset(&self) {
        self.bar.lock().reset();
        self.vector_table.reset();
    }

    fn attach(&self, iommu: Arc<SimulatedIommu>) {
        self.bar.lock().iommu = Some(iommu);
    }

    fn vectors(&self) -> u16 {
        VECTORS
    }

    fn connect(&self, interrupts: Arc<dyn Interrupts>) {
        self.bar.lock().interrupts = Some(interrupts);
    }
}

/// Accesses of 8 and 16 bits become accesses of words; reading the rest of a word has no effect where that happens.
impl RegisterFile for Bar {
    fn read32(&self, offset: usize) -> u32 {
        self.lock().read(offset)
    }

    fn write32(&self, offset: usize, value: u32) {
        self.lock().write(offset, value);
    }
}

/// BAR 2: the vector's entry keeps what is written. Whoever delivers the vector holds its own copy.
struct VectorTable([AtomicU32; 4]);

/// Control: the vector is masked.
const MASKED: u32 = 1;

impl Default for VectorTable {
    fn default() -> VectorTable {
        VectorTable([0, 0, 0, MASKED].map(AtomicU32::new))
    }
}

impl VectorTable {
    fn reset(&self) {
        self.0.iter().zip([0, 0, 0, MASKED]).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
    }
}

impl RegisterFile for VectorTable {
    fn read32(&self, offset: usize) -> u32 {
        self.0.get(offset / 4).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    fn write32(&self, offset: usize, value: u32) {
        if let Some(word) = self.0.get(offset / 4) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

/// An engine as a part of a stepper's turn.
pub struct IoatSteps(pub Arc<Ioat>);

impl Steps for IoatSteps {
    fn step(&mut self) -> usize {
        self.0.step(BUDGET_DESCRIPTORS)
    }

    fn rest(&self) -> Duration {
        Duration::from_millis(100)
    }
}
