//! A packed queue's memory: one ring of descriptors that both sides write, and two event words (Virtio 1.2, 2.8).
//!
//! A descriptor is available when its AVAIL flag equals the driver's wrap counter and its USED flag does not, and used when
//! both equal the device's. Both counters are one at first and turn with each round, so they follow from the free-running index. The
//! head of what is made available is written last, behind a fence: before, the device cannot see what follows it.

use super::format::{Format, QueuePlaces, Suppression, mask_of, passes, sealed};
use super::words::Words;
use crate::ring::{RingMemory, fence};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Descriptor flags AVAIL and USED, in the second word (2.8.1).
const AVAIL: u64 = 1 << (48 + 7);
const USED: u64 = 1 << (48 + 15);
/// Where the second word has the buffer's id.
const ID_SHIFT: u32 = 32;

/// Event flags (2.8.14): no notifications; notifications from a descriptor on.
const DISABLE: u32 = 1;
const DESCRIPTOR: u32 = 2;
const LINE: usize = 64;

/// A packed queue.
pub struct Packed {
    words: Words,
    mask: u32,
    suppression: Suppression,
}

impl sealed::Sealed for Packed {}

impl Packed {
    fn driver_event(&self) -> usize {
        (self.mask as usize + 1).next_multiple_of(4) * 16
    }

    /// Whether the wrap counter at an index is one.
    #[inline(always)]
    fn wrap(&self, index: u32) -> bool {
        index & (self.mask + 1) == 0
    }
}

impl Format for Packed {
    const USED_MASK: u64 = AVAIL | USED | 0xffff << ID_SHIFT;
    const USED_STEP: u64 = 1 << ID_SHIFT;
    const LENGTH_SHIFT: u32 = 0;
    const SECOND_STEP: u64 = 1 << ID_SHIFT;
    const COUNTED: bool = false;
    const KEEPS_SECOND: bool = false;

    fn bytes(entries: usize) -> usize {
        entries.next_multiple_of(4) * 16 + 2 * LINE
    }

    fn new(memory: &Arc<RingMemory>, offset: usize, entries: usize, suppression: Suppression) -> Packed {
        let mask = mask_of(entries);
        let words = Words::new(memory, offset, Packed::bytes(entries));
        let packed = Packed { words, mask, suppression };
        packed.reset();
        packed
    }

    fn reset(&self) {
        self.words.clear();
        // SAFETY: the word lies inside, by the layout. We poll, so used buffers need no interrupt.
        unsafe { self.words.word32(self.driver_event()) }.store(DISABLE << 16, Ordering::Relaxed);
    }

    fn places(&self) -> QueuePlaces {
        QueuePlaces {
            entries: (self.mask + 1) as u16,
            descriptors: self.words.iova(0),
            driver: self.words.iova(self.driver_event()),
            device: self.words.iova(self.driver_event() + LINE),
        }
    }

    #[inline(always)]
    fn mask(&self) -> u32 {
        self.mask
    }

    #[inline(always)]
    fn second(&self, index: u32, length: u32, flags: u16, id: u32) -> u64 {
        let state = if self.wrap(index) { AVAIL } else { USED };
        u64::from(length) | u64::from(id & self.mask) << ID_SHIFT | u64::from(flags) << 48 | state
    }

    #[inline(always)]
    unsafe fn write(&self, slot: usize, address: u64, second: u64) {
        // SAFETY: the slot is inside, as the caller says.
        unsafe {
            self.words.write_address(slot, address);
            self.words.write_second(slot, second);
        }
    }

    #[inline(always)]
    unsafe fn write_address(&self, slot: usize, address: u64) {
        // SAFETY: the slot is inside, as the caller says.
        unsafe { self.words.write_address(slot, address) };
    }

    #[inline(always)]
    fn set_available(&self, _available: u32, _slot: u32) {}

    #[inline(always)]
    fn publish(&self, head: u32, second: u64, _available: u32) {
        fence::before_doorbell();
        // SAFETY: the masked index is below the number of entries.
        unsafe { self.words.write_second((head & self.mask) as usize, second) };
    }

    #[inline(always)]
    fn counted(&self, _used: u32) -> u32 {
        u32::MAX
    }

    #[inline(always)]
    unsafe fn used(&self, slot: usize) -> u64 {
        // SAFETY: the slot is inside, as the caller says.
        unsafe { self.words.word64(slot * 16 + 8) }.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn used_in_order(&self, index: u32) -> u64 {
        let state = if self.wrap(index) { AVAIL | USED } else { 0 };
        state | u64::from(index & self.mask) << ID_SHIFT
    }

    #[inline(always)]
    fn is_used(&self, entry: u64, index: u32) -> bool {
        let state = if self.wrap(index) { AVAIL | USED } else { 0 };
        entry & (AVAIL | USED) == state
    }

    #[inline(always)]
    fn id(entry: u64) -> u32 {
        u32::from((entry >> ID_SHIFT) as u16)
    }

    #[inline]
    fn kick_due(&self, old: u32, new: u32) -> bool {
        // As in a split queue: first our descriptors, then what the device asks for.
        fence::store_then_load();
        // SAFETY: the device's event word, by the layout.
        let event = unsafe { self.words.word32(self.driver_event() + LINE) }.load(Ordering::Relaxed);
        let (at, wrap, flags) = (event & 0x7fff, event & 0x8000 != 0, event >> 16 & 3);
        if flags != DESCRIPTOR || self.suppression == Suppression::Flags {
            return flags != DISABLE;
        }
        // An event in the round before lies below zero, seen from this one (2.8.21.3.1 and its example code).
        let round = if wrap == self.wrap(new) { 0 } else { self.mask + 1 };
        let slot = new & self.mask;
        let start = slot.wrapping_sub(new.wrapping_sub(old));
        passes(at.wrapping_sub(round) as u16, start as u16, slot as u16)
    }

    fn notification_data(&self, queue: u16, new: u32) -> u32 {
        u32::from(queue) | (new & self.mask) << 16 | u32::from(self.wrap(new)) << 31
    }
}
