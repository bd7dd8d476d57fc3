//! An Intel 82576 in software (82576 datasheet, revision 2.63).
//!
//! [`Igb`] is a [`SoftwareDevice`]: put it on a simulated bus, open it there, and a driver runs on it. It does its work in
//! [`Igb::step`], under one lock that register accesses take too; tail registers are words that the driver stores into without it.
//! What a driver does against the datasheet is counted as a [`Violation`], never a panic. Defects, unplugging and lies are told to it from
//! outside. Stock drivers run on it, over `pollring simulate`. Not there: legacy descriptors, header split, virtual functions and their
//! switch, flow control, time stamps, wake-up, management, loopback.

mod checksum;
mod config;
mod filter;
mod interrupt;
mod lying;
mod memory;
mod msix;
mod nvm;
mod offload;
mod others;
mod phy;
mod queue;
mod registers;
mod rss;
mod rx;
mod state;
mod statistics;
#[cfg(test)]
mod tests;
mod tx;
mod violation;

pub use violation::Violation;

use crate::hostile::{Lie, Lies};
use crate::wire::WireEnd;
use config::{BAR_BYTES, MSIX_BAR, MSIX_BAR_BYTES, VECTORS};
use msix::VectorTable;
use pollring::bus::RegisterFile;
use pollring::bus::simulated::{Interrupts, SimulatedIommu, SoftwareDevice};
use pollring_drivers::nic::igb::regs::{RDT, TDT};
use state::State;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// When descriptors are written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// In the step in which the frame moved, as QEMU's model does.
    Immediate,
    /// Up to `longest` steps later, in ring order within each queue and independently of the others; heads move at once. Silicon
    /// batches likewise, and races show.
    Delayed {
        /// Steps.
        longest: u32,
    },
}

/// How a device is made.
#[derive(Clone)]
pub struct IgbConfig {
    /// The permanent address, in its NVM.
    pub mac: [u8; 6],
    /// Its end of a wire.
    pub wire: WireEnd,
    /// When it writes back.
    pub timing: Timing,
    /// Decides the delays.
    pub seed: u64,
    /// Whether and how it lies.
    pub lies: Option<Lies>,
}

impl IgbConfig {
    /// An honest device that writes back at once.
    pub fn new(mac: [u8; 6], wire: WireEnd) -> IgbConfig {
        IgbConfig { mac, wire, timing: Timing::Immediate, seed: 0, lies: None }
    }
}

/// Something that never works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// CTRL.RST stays set after a reset.
    ResetNeverEnds,
    /// STATUS.GIO_MASTER_ENABLE stays set, although no DMA happens.
    MasterNeverStops,
    /// RAL0 and RAH0 are not loaded from the NVM at reset.
    AddressNotLoaded,
    /// EERD.DONE stays clear.
    NvmNeverDone,
    /// MDIC.READY stays clear.
    PhyNeverReady,
    /// The negotiation never ends.
    LinkNeverUp,
    /// RXDCTL.ENABLE reads as clear.
    RxNeverEnables,
    /// TXDCTL.ENABLE reads as clear.
    TxNeverEnables,
}

impl Defect {
    /// Every defect.
    pub const ALL: [Defect; 8] = [
        Defect::ResetNeverEnds,
        Defect::MasterNeverStops,
        Defect::AddressNotLoaded,
        Defect::NvmNeverDone,
        Defect::PhyNeverReady,
        Defect::LinkNeverUp,
        Defect::RxNeverEnables,
        Defect::TxNeverEnables,
    ];
}

/// How a bit answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Honest,
    Never,
}

/// What a device counts beside its own registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Steps.
    pub steps: u64,
    /// Frames put on the wire.
    pub frames_sent: u64,
    /// Frames of transmit rings that broke a rule or could not be read, and were not sent.
    pub frames_not_sent: u64,
    /// Frames written to memory.
    pub frames_received: u64,
    /// Frames for another address.
    pub filtered: u64,
    /// Frames whose receive descriptors could not be read.
    pub lost: u64,
    /// Frames that a reset found in the packet buffers.
    pub lost_in_reset: u64,
    /// DMA accesses that the IOMMU refused.
    pub dma_faults: u64,
    /// Interrupt vectors that it raised.
    pub interrupts: u64,
}

/// Frames a step, and steps, of [`Igb::run_until_idle`]; it gives up on a device that is never idle.
const IDLE_BUDGET: usize = 64;
const MOST_STEPS: usize = 1_000_000;

/// A software 82576.
pub struct Igb {
    bar: Arc<Bar>,
    vector_table: Arc<VectorTable>,
}

struct Bar {
    state: Mutex<State>,
    /// Tail words by queue: receive, transmit.
    tails: [Vec<Arc<AtomicU32>>; 2],
}

impl Bar {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Igb {
    /// A device after power-on.
    pub fn new(config: IgbConfig) -> Arc<Igb> {
        let state = State::new(config);
        let tails =
            [&state.rx, &state.tx].map(|queues| queues.iter().map(|queue| queue.tail().clone()).collect());
        let vector_table = Arc::new(VectorTable::default());
        Arc::new(Igb { bar: Arc::new(Bar { state: Mutex::new(state), tails }), vector_table })
    }

    /// Moves up to `budget_frames` frames in each direction and does the write-backs that are due; gives how much that was, 0 when there
    /// was nothing to do.
    pub fn step(&self, budget_frames: usize) -> usize {
        self.bar.lock().step(budget_frames)
    }

    /// Steps until there is nothing to do without something new from the driver or the wire; gives how much was done.
    pub fn run_until_idle(&self) -> usize {
        let mut all = 0;
        for _ in 0..MOST_STEPS {
            let mut state = self.bar.lock();
            let done = state.step(IDLE_BUDGET);
            all += done;
            if done == 0 && state.queued() == 0 {
                break;
            }
        }
        all
    }

    /// What is still to be done without anything new from outside: late write-backs, frames that the wire did not take, a negotiation.
    pub fn queued(&self) -> usize {
        self.bar.lock().queued()
    }

    /// How long an interrupt that is throttled has to wait for a step, if there is one.
    pub fn held_for(&self) -> Option<Duration> {
        self.bar.lock().held_for()
    }

    /// What it counted beside its registers.
    pub fn counters(&self) -> Counters {
        let state = self.bar.lock();
        let (dma_faults, interrupts) = (state.memory.faults(), state.interrupts.count());
        Counters { dma_faults, interrupts, ..state.counters }
    }

    /// Accesses of registers that the model does not know, by offset.
    pub fn unknown_registers(&self) -> Vec<(usize, u64)> {
        self.bar.lock().unknown.counts()
    }

    /// DMA accesses that the IOMMU refused.
    pub fn dma_faults(&self) -> u64 {
        self.bar.lock().memory.faults()
    }

    /// How often a driver broke a rule. A device that scribbles over its own rings counts what it made of them too.
    pub fn violations(&self) -> u64 {
        self.bar.lock().violations.counts().map(|(_, count)| count).sum()
    }

    /// Violations by kind, those that happened.
    pub fn violation_counts(&self) -> Vec<(Violation, u64)> {
        self.bar.lock().violations.counts().collect()
    }

    /// Lies by kind; empty for an honest device.
    pub fn lies_told(&self) -> Vec<(Lie, u64)> {
        self.bar.lock().lying.as_ref().map(|lying| lying.told()).unwrap_or_default()
    }

    /// Takes the device off its bus: all reads give all ones, writes and steps do nothing.
    pub fn unplug(&self) {
        self.bar.lock().unplug();
    }

    /// Puts the device back, as after power-on.
    pub fn replug(&self) {
        self.bar.lock().replug();
    }

    /// Unplugs the device after `accesses` more accesses of its registers and config space; stores to tail words do not count.
    pub fn fail_after(&self, accesses: u64) {
        self.bar.lock().fail_after(accesses);
    }

    /// From now on, `defect` is there.
    pub fn stick(&self, defect: Defect) {
        self.bar.lock().stick(defect);
    }

    /// `defect` is gone.
    pub fn heal(&self, defect: Defect) {
        self.bar.lock().heal(defect);
    }
}

impl SoftwareDevice for Igb {
    fn config_read32(&self, offset: u16) -> u32 {
        let mut state = self.bar.lock();
        if state.is_touched() { state.config.read(offset) } else { u32::MAX }
    }

    fn config_write32(&self, offset: u16, value: u32) {
        let mut state = self.bar.lock();
        if state.is_touched() {
            match state.config.write(offset, value) {
                config::Effect::None => state.set_gate(),
                config::Effect::Reset => {
                    state.reset_function();
                    self.vector_table.reset();
                }
            }
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
        let mut state = self.bar.lock();
        if state.is_touched() {
            state.reset_function();
            self.vector_table.reset();
        }
    }

    fn attach(&self, iommu: Arc<SimulatedIommu>) {
        self.bar.lock().memory.attach(iommu);
    }

    fn vectors(&self) -> u16 {
        VECTORS
    }

    fn connect(&self, interrupts: Arc<dyn Interrupts>) {
        self.bar.lock().interrupts.connect(interrupts);
    }
}

impl RegisterFile for Bar {
    fn read32(&self, offset: usize) -> u32 {
        self.lock().read(offset)
    }

    fn write32(&self, offset: usize, value: u32) {
        self.lock().write(offset, value);
    }

    fn doorbell(&self, offset: usize) -> Option<Arc<AtomicU32>> {
        let (register, index) = registers::lookup(offset)?;
        let tails = match register.offset {
            offset if offset == RDT.offset => &self.tails[0],
            offset if offset == TDT.offset => &self.tails[1],
            _ => return None,
        };
        tails.get(index).cloned()
    }
}
