//! How an igb lies: what each [`Lie`] does to its descriptors, frames and registers.
//!
//! Lies go through the same gates as everything else: a closed gate or the IOMMU stops them. What was put off is forgotten when its queue
//! is disabled and at reset.

use super::memory::Memory;
use super::queue::WriteBack;
use super::state::{Side, State};
use crate::hostile::{Liar, Lie};
use pollring::bus::Register;
use pollring_drivers::nic::igb::desc::{rx, tx};
use pollring_drivers::nic::igb::regs::{RDH, TDH};

const RX_LIES: &[Lie] = &[
    Lie::Length,
    Lie::DoneUnfilled,
    Lie::DoneLate,
    Lie::OutOfOrder,
    Lie::ErrorBits,
    Lie::NoEndOfPacket,
    Lie::Scribble,
    Lie::RewriteAfterDone,
    Lie::RegistersOnes,
    Lie::RegistersRandom,
    Lie::HeadNonsense,
    Lie::StrayWrite,
];
const TX_LIES: &[Lie] = &[
    Lie::DoneLate,
    Lie::OutOfOrder,
    Lie::Scribble,
    Lie::DoneEarly,
    Lie::RegistersOnes,
    Lie::RegistersRandom,
    Lie::HeadNonsense,
    Lie::StrayWrite,
];

/// Error bits of the receive write-back: bits 31:20 of word 1 (82576 datasheet 7.1.5.2).
const ERROR_SHIFT: u32 = 20;
const ERROR_BITS: u64 = 0xfff;
/// Steps by which a done bit is late at most.
const LATEST_STEPS: u64 = 256;
/// Register reads that a lie about registers lasts at most.
const LONGEST_READS: u64 = 64;
/// Descriptors scribbled over at a time at most.
const MOST_SCRIBBLES: u64 = 8;

struct Late {
    due: u64,
    side: Side,
    queue: usize,
    what: What,
}

enum What {
    Descriptor(WriteBack),
    Bytes { address: u64, bytes: [u8; 8] },
}

/// The state of a device that lies.
pub(super) struct Lying {
    liar: Liar,
    late: Vec<Late>,
    ones_left: u64,
    random_left: u64,
    heads_left: u64,
}

impl Lying {
    pub(super) fn new(liar: Liar) -> Lying {
        Lying { liar, late: Vec::new(), ones_left: 0, random_left: 0, heads_left: 0 }
    }

    pub(super) fn told(&self) -> Vec<(Lie, u64)> {
        self.liar.told()
    }

    /// Writes that are put off.
    pub(super) fn late(&self) -> usize {
        self.late.len()
    }

    /// Forgets the writes that were put off for the queues that `which` names.
    pub(super) fn forget(&mut self, which: impl Fn(Side, usize) -> bool) {
        self.late.retain(|late| !which(late.side, late.queue));
    }

    /// Does the writes that are due; gives how many.
    pub(super) fn write_due(&mut self, now: u64, memory: &mut Memory) -> usize {
        let before = self.late.len();
        self.late.retain(|late| {
            let due = late.due <= now;
            match &late.what {
                What::Descriptor(write_back) if due => write_back.perform(memory),
                What::Bytes { address, bytes } if due => {
                    // Refused writes have no answer.
                    let _ = memory.write(*address, bytes);
                }
                _ => {}
            }
            !due
        });
        before - self.late.len()
    }

    /// What a register reads as, if that is a lie now.
    fn register(&mut self, register: &Register) -> Option<u32> {
        let head = register.offset == RDH.offset || register.offset == TDH.offset;
        if self.ones_left > 0 {
            self.ones_left -= 1;
            Some(u32::MAX)
        } else if self.random_left > 0 {
            self.random_left -= 1;
            Some(self.liar.random.next() as u32)
        } else if head && self.heads_left > 0 {
            self.heads_left -= 1;
            Some(self.liar.random.next() as u32)
        } else {
            None
        }
    }

    fn reads(&mut self) -> u64 {
        1 + self.liar.random.below(LONGEST_READS)
    }
}

impl State {
    pub(super) fn lie_about_register(&mut self, register: &Register) -> Option<u32> {
        self.lying.as_mut().and_then(|lying| lying.register(register))
    }

    /// Tells a lie with this write-back, or not. True when the write-back was put off.
    #[cold]
    pub(super) fn lie_about_write_back(
        &mut self,
        side: Side,
        queue: usize,
        write_back: &mut WriteBack,
        frame: (u64, usize),
    ) -> bool {
        let Some(mut lying) = self.lying.take() else { return false };
        let kinds = if side == Side::Rx { RX_LIES } else { TX_LIES };
        let lie = lying.liar.tempted(kinds);
        let put_off = lie.is_some_and(|lie| self.tell(&mut lying, lie, (side, queue), write_back, frame));
        self.lying = Some(lying);
        put_off
    }

    fn tell(
        &mut self,
        lying: &mut Lying,
        lie: Lie,
        (side, queue): (Side, usize),
        write_back: &mut WriteBack,
        frame: (u64, usize),
    ) -> bool {
        let random = &mut lying.liar.random;
        match lie {
            Lie::Length => {
                let field = 0xffff << rx::LENGTH_SHIFT;
                write_back.words[1] =
                    write_back.words[1] & !field | random.below(0x10000) << rx::LENGTH_SHIFT;
            }
            Lie::ErrorBits => {
                let errors = 1 + random.below(ERROR_BITS);
                write_back.words[1] |= errors << ERROR_SHIFT;
            }
            Lie::NoEndOfPacket => write_back.words[1] &= !rx::END_OF_PACKET,
            Lie::DoneLate | Lie::OutOfOrder => {
                let steps = if lie == Lie::OutOfOrder { 0 } else { 1 + random.below(LATEST_STEPS) };
                let what = What::Descriptor(*write_back);
                lying.late.push(Late { due: self.now + steps, side, queue, what });
                return true;
            }
            Lie::RewriteAfterDone => {
                let address = frame.0 + random.below(frame.1 as u64);
                let what = What::Bytes { address, bytes: random.next().to_le_bytes() };
                lying.late.push(Late { due: self.now + random.below(8), side, queue, what });
            }
            Lie::RegistersOnes => lying.ones_left = lying.reads(),
            Lie::RegistersRandom => lying.random_left = lying.reads(),
            Lie::HeadNonsense => lying.heads_left = lying.reads(),
            Lie::DoneUnfilled | Lie::DoneEarly | Lie::Scribble | Lie::StrayWrite => {
                self.write_lie(lying, lie, (side, queue));
            }
        }
        false
    }

    /// Lies that write where nothing was asked for.
    fn write_lie(&mut self, lying: &mut Lying, lie: Lie, (side, queue): (Side, usize)) {
        let random = &mut lying.liar.random;
        let Some(ring) = self.queue(side, queue).ring() else { return };
        let slots = u64::from(ring.entries);
        match lie {
            Lie::DoneUnfilled => {
                let status = rx::DONE | rx::END_OF_PACKET | random.below(0x10000) << rx::LENGTH_SHIFT;
                let address = ring.base + random.below(slots) * 16;
                WriteBack { address, words: [random.next(), status] }.perform(&mut self.memory);
            }
            Lie::DoneEarly => {
                let unread = u64::from(self.tx[queue].available(&mut self.violations)).max(1);
                let slot = (u64::from(self.tx[queue].head()) + random.below(unread)) % slots;
                let _ = self.memory.write(ring.base + slot * 16 + 8, &tx::DONE.to_le_bytes());
            }
            Lie::Scribble => {
                for _ in 0..=random.below(MOST_SCRIBBLES) {
                    let address = ring.base + random.below(slots * 2) * 8;
                    let _ = self.memory.write(address, &random.next().to_le_bytes());
                }
            }
            _ => {
                let _ = self.memory.write(random.next() & !7, &random.next().to_le_bytes());
            }
        }
    }
}
