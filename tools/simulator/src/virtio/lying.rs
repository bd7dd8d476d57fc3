//! How a virtio device lies: about ids and lengths, in the rings, in registers, and with writes to where it was not sent.

use super::memory::Memory;
use super::state::Slot;
use crate::hostile::{Liar, Lie, Lies};

/// Lies told with a used entry.
const ENTRY_LIES: &[Lie] = &[Lie::Length, Lie::DoneUnfilled, Lie::OutOfOrder];
/// Lies told in a step.
const STEP_LIES: &[Lie] = &[Lie::Scribble, Lie::DoneEarly, Lie::StrayWrite];
/// Lies told by registers.
const REGISTER_LIES: &[Lie] = &[Lie::RegistersOnes, Lie::RegistersRandom];
/// Registers lie so much less than rings, or no start would ever succeed.
const REGISTERS_HONEST: u64 = 50;

pub(super) struct Lying {
    liar: Liar,
}

impl Lying {
    pub(super) fn new(lies: Lies) -> Lying {
        Lying { liar: Liar::new(lies) }
    }

    pub(super) fn told(&self) -> Vec<(Lie, u64)> {
        self.liar.told()
    }

    /// What a used entry says.
    pub(super) fn entry(&mut self, id: u16, bytes: u32) -> (u16, u32) {
        match self.liar.tempted(ENTRY_LIES) {
            Some(Lie::Length) => (id, self.liar.random.next() as u32 >> self.liar.random.below(32)),
            Some(Lie::DoneUnfilled) => (self.liar.random.next() as u16, bytes),
            Some(_) => (id ^ 1 << self.liar.random.below(10), bytes),
            None => (id, bytes),
        }
    }

    /// What a register says.
    pub(super) fn register(&mut self, honest: u32) -> u32 {
        if self.liar.random.below(REGISTERS_HONEST) > 0 {
            return honest;
        }
        match self.liar.tempted(REGISTER_LIES) {
            Some(Lie::RegistersOnes) => u32::MAX,
            Some(_) => self.liar.random.next() as u32,
            None => honest,
        }
    }

    /// Writes over rings and elsewhere.
    pub(super) fn mischief(&mut self, memory: &mut Memory, queues: &[Slot]) {
        for slot in queues.iter().filter(|slot| slot.engine.is_some()) {
            let Some(lie) = self.liar.tempted(STEP_LIES) else { continue };
            let (place, word) = (slot.place, self.liar.random.next());
            let target = match lie {
                Lie::Scribble => place.descriptors + self.liar.random.below(u64::from(place.entries) * 2) * 8,
                // The used index of a split queue, or a packed one's event word.
                Lie::DoneEarly => place.device,
                _ => self.liar.random.next(),
            };
            let bytes = if lie == Lie::DoneEarly { 4 } else { 8 };
            // The IOMMU refuses what was not given; that is counted there.
            let _ = memory.write(target, &word.to_le_bytes()[..bytes]);
        }
    }
}
