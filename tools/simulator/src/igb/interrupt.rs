//! Interrupts: from causes to vectors (82576 datasheet 7.3, 8.8).
//!
//! Queues and other events set causes while a step runs or a register is written; [`State::interrupt`] then raises what is
//! unmasked and was not raised before. With several vectors, EICR has a bit for each, and IVAR says which one a queue's write-backs
//! set; with one, ICR tells what happened. A vector whose EITR has an interval is held back until that has passed since
//! it was raised last, which is the only place where the device looks at a clock. A driver that polls masks everything, and pays for
//! two comparisons a step.

use super::others::{self, gpie};
use super::state::{QUEUES, Side, State};
use pollring::bus::simulated;
use pollring_drivers::nic::igb::regs::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Causes that EICR has a bit for.
const CAUSES: usize = 25;

/// Bits of EICR that stand for vectors.
const VECTOR_BITS: u32 = (1 << CAUSES) - 1;

/// An entry of IVAR counts.
const VALID: u8 = 1 << 7;

/// EITR: the interval in bits 14:2, microseconds.
const INTERVAL_SHIFT: u32 = 2;
const INTERVAL_MASK: u32 = 0x1fff;

/// The byte of IVAR_MISC for other causes.
const OTHER_BYTE: usize = 1;

const ICR_AT: usize = ICR.offset;
const IMS_AT: usize = others::IMS.offset;
const EICR_AT: usize = others::EICR.offset;
const EIMS_AT: usize = others::EIMS.offset;

/// What is known about interrupts beside the registers.
#[derive(Default)]
pub(super) struct Line {
    sink: Option<Arc<dyn simulated::Interrupts>>,
    /// Queues with write-backs since the last look: receive in bits 15:0, transmit in bits 31:16.
    written_back: u32,
    /// Bits of EICR, or of ICR with a single vector, that were raised and not cleared since.
    raised: u32,
    /// Bits of ICR that were handed on to EICR and not cleared since.
    handed_on: u32,
    /// Vectors that wait for their interval.
    held: u32,
    allowed_at: [Option<Instant>; CAUSES],
    count: u64,
}

impl Line {
    pub(super) fn connect(&mut self, sink: Arc<dyn simulated::Interrupts>) {
        self.sink = Some(sink);
    }

    /// A descriptor of this queue was written back.
    #[inline]
    pub(super) fn note(&mut self, side: Side, queue: usize) {
        self.written_back |= 1 << (queue + if side == Side::Tx { QUEUES } else { 0 });
    }

    /// As after a reset; who listens stays.
    pub(super) fn reset(&mut self) {
        *self = Line { sink: self.sink.take(), count: self.count, ..Line::default() };
    }

    /// Vectors raised.
    pub(super) fn count(&self) -> u64 {
        self.count
    }
}

impl State {
    /// Raises what a step or a register write brought about.
    #[inline]
    pub(super) fn interrupt(&mut self) {
        let news = self.registers[ICR_AT] & self.registers[IMS_AT] & !self.interrupts.handed_on;
        if self.interrupts.written_back != 0 || news != 0 || self.interrupts.held != 0 {
            self.set_causes();
            self.raise();
        }
    }

    /// How long the next vector is held back, if one is.
    pub(super) fn held_for(&self) -> Option<Duration> {
        let times = self.interrupts.allowed_at.iter().enumerate();
        let held = times.filter(|(vector, _)| self.interrupts.held >> vector & 1 != 0);
        let first = held.filter_map(|(_, at)| *at).min()?;
        Some(first.saturating_duration_since(Instant::now()))
    }

    /// Write-backs and events become bits of ICR and EICR.
    fn set_causes(&mut self) {
        let queues = std::mem::take(&mut self.interrupts.written_back);
        let (rx, tx) = (queues & 0xffff, queues >> QUEUES);
        let mut vectors = self.vectors_of(rx, 0) | self.vectors_of(tx, 1);
        if rx != 0 {
            self.registers[ICR_AT] |= others::icr::RX_WRITTEN_BACK;
        }
        if tx != 0 {
            self.registers[ICR_AT] |= others::icr::TX_WRITTEN_BACK;
        }
        let causes = self.registers[ICR_AT];
        if causes & self.registers[IMS_AT] & !self.interrupts.handed_on != 0 {
            vectors |= bit_of(self.registers[others::IVAR_MISC.offset].to_le_bytes()[OTHER_BYTE]);
        }
        // What is masked now shall count when it is unmasked.
        self.interrupts.handed_on |= causes & self.registers[IMS_AT];
        self.registers[EICR_AT] |= vectors;
    }

    /// The bits of EICR for queues; `half` is 0 for receive and 1 for transmit. IVAR n has queues n and n + 8.
    fn vectors_of(&self, mut queues: u32, half: usize) -> u32 {
        let mut vectors = 0;
        while queues != 0 {
            let queue = queues.trailing_zeros() as usize;
            queues &= queues - 1;
            let entry = self.registers[others::IVAR.at(queue % 8)].to_le_bytes()[queue / 8 * 2 + half];
            vectors |= bit_of(entry);
        }
        vectors
    }

    /// Raises vectors that are unmasked and were not raised since their cause came up.
    fn raise(&mut self) {
        if self.registers[others::GPIE.offset] & gpie::MULTIPLE_MSIX == 0 {
            return self.raise_single();
        }
        let pending = self.registers[EICR_AT] & self.registers[EIMS_AT] & VECTOR_BITS;
        self.interrupts.raised &= pending;
        let mut wanted = pending & !self.interrupts.raised;
        self.interrupts.held = 0;
        while wanted != 0 {
            let vector = wanted.trailing_zeros() as usize;
            wanted &= wanted - 1;
            self.raise_vector(vector);
        }
    }

    fn raise_vector(&mut self, vector: usize) {
        let bit = 1 << vector;
        let interval = self.registers[others::EITR.at(vector)] >> INTERVAL_SHIFT & INTERVAL_MASK;
        if interval > 0 {
            let now = Instant::now();
            if self.interrupts.allowed_at[vector].is_some_and(|at| now < at) {
                self.interrupts.held |= bit;
                return;
            }
            self.interrupts.allowed_at[vector] = Some(now + Duration::from_micros(u64::from(interval)));
        }
        self.interrupts.raised |= bit;
        let cleared = bit & self.registers[others::EIAC.offset];
        self.registers[EICR_AT] &= !cleared;
        if self.registers[others::GPIE.offset] & gpie::AUTO_MASK != 0 {
            self.registers[EIMS_AT] &= !(bit & self.registers[others::EIAM.offset]);
        }
        self.interrupts.raised &= self.registers[EICR_AT] & self.registers[EIMS_AT];
        self.send(vector as u16);
    }

    /// With one vector every new cause is a message.
    fn raise_single(&mut self) {
        let pending = self.registers[ICR_AT] & self.registers[IMS_AT]
            | self.registers[EICR_AT] & self.registers[EIMS_AT] & VECTOR_BITS;
        let news = pending & !self.interrupts.raised;
        self.interrupts.raised = pending;
        self.interrupts.held = 0;
        if news != 0 {
            self.send(0);
        }
    }

    fn send(&mut self, vector: u16) {
        self.interrupts.count += 1;
        if let Some(sink) = &self.interrupts.sink {
            sink.raise(vector);
        }
    }

    /// Reading ICR clears it, and the mask as well where the driver asked for that.
    pub(super) fn read_causes(&mut self) -> u32 {
        let causes = std::mem::take(&mut self.registers[ICR_AT]);
        self.interrupts.handed_on = 0;
        if self.registers[others::GPIE.offset] & gpie::MULTIPLE_MSIX == 0 {
            self.interrupts.raised &= !causes;
        }
        let asserted = causes & self.registers[IMS_AT] != 0;
        if self.registers[CTRL_EXT.offset] & others::CTRL_EXT_AUTO_MASK != 0 {
            self.registers[IMS_AT] &= !self.registers[others::IAM.offset];
        }
        causes | if asserted { others::icr::ASSERTED } else { 0 }
    }

    /// Reading EICR clears it.
    pub(super) fn read_extended_causes(&mut self) -> u32 {
        let causes = std::mem::take(&mut self.registers[EICR_AT]);
        self.interrupts.raised &= !causes;
        causes
    }

    /// Writes of the interrupt registers that are not plain; whether `offset` was one.
    pub(super) fn write_interrupt(&mut self, offset: usize, value: u32) -> bool {
        let registers = &mut self.registers;
        if offset == ICR_AT {
            registers[ICR_AT] &= !value;
            self.interrupts.handed_on &= !value;
            self.interrupts.raised &= registers[ICR_AT] | registers[EICR_AT];
        } else if offset == others::ICS.offset {
            registers[ICR_AT] |= value;
            self.interrupts.handed_on &= !value;
            self.interrupts.raised &= !value;
        } else if offset == IMS_AT {
            registers[IMS_AT] |= value;
        } else if offset == IMC.offset {
            registers[IMS_AT] &= !value;
            self.interrupts.handed_on &= !value;
        } else if offset == others::EICS.offset {
            registers[EICR_AT] |= value & VECTOR_BITS;
            self.interrupts.raised &= !value;
        } else if offset == EIMS_AT {
            registers[EIMS_AT] |= value & VECTOR_BITS;
        } else if offset == EIMC.offset {
            registers[EIMS_AT] &= !value;
        } else if offset == EICR_AT {
            registers[EICR_AT] &= !value;
        } else {
            return false;
        }
        self.set_causes();
        self.raise();
        true
    }
}

/// The bit of EICR that an entry of IVAR names.
fn bit_of(entry: u8) -> u32 {
    if entry & VALID != 0 { 1 << (entry & 0x1f) & VECTOR_BITS } else { 0 }
}
