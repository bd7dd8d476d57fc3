//! A split queue's memory: descriptors, available ring, used ring (Virtio 1.2, 2.7).
//!
//! Each index stands alone in its cache line, and the elements behind it start at the next, so that neither side's index makes the other one's
//! elements travel. The available ring holds the numbers of the slots in order and is rewritten only after chains shifted them.

use super::format::{Format, QueuePlaces, Suppression, flags::NEXT, mask_of, passes, sealed};
use super::words::Words;
use crate::ring::{RingMemory, fence};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Available ring flag: used buffers need no interrupt (2.7.7). We poll.
const NO_INTERRUPT: u16 = 1;
/// Used ring flag: available buffers need no notification (2.7.10).
const NO_NOTIFY: u16 = 1;
/// From a ring's start (flags, index) to its elements.
const ELEMENTS: usize = 4;
const LINE: usize = 64;

/// A split queue.
pub struct Split {
    words: Words,
    mask: u32,
    available: usize,
    used: usize,
    suppression: Suppression,
}

impl sealed::Sealed for Split {}

/// Offsets of the elements of both rings, and the end.
fn layout(entries: usize) -> (usize, usize, usize) {
    let available = entries * 16 + LINE;
    let used = (available + entries * 2 + 2).next_multiple_of(LINE) + LINE;
    (available, used, (used + entries * 8 + 2).next_multiple_of(LINE))
}

impl Split {
    fn event_at(&self) -> usize {
        self.used + (self.mask as usize + 1) * 8
    }
}

impl Format for Split {
    const USED_MASK: u64 = 0xffff_ffff;
    const USED_STEP: u64 = 1;
    const LENGTH_SHIFT: u32 = 32;
    const SECOND_STEP: u64 = 0;
    const COUNTED: bool = true;
    const KEEPS_SECOND: bool = true;

    fn bytes(entries: usize) -> usize {
        layout(entries).2
    }

    fn new(memory: &Arc<RingMemory>, offset: usize, entries: usize, suppression: Suppression) -> Split {
        let mask = mask_of(entries);
        let (available, used, bytes) = layout(entries);
        let words = Words::new(memory, offset, bytes);
        let split = Split { words, mask, available, used, suppression };
        split.reset();
        split
    }

    fn reset(&self) {
        self.words.clear();
        for slot in 0..=self.mask {
            self.set_available(slot, slot);
        }
        // SAFETY: both words lie inside, by the layout.
        let (flags, event) = unsafe {
            (
                self.words.word16(self.available - ELEMENTS),
                self.words.word16(self.available + (self.mask as usize + 1) * 2),
            )
        };
        flags.store(NO_INTERRUPT, Ordering::Relaxed);
        // With event indexes the flag means nothing; an event that has just passed is asked for once in 65536 buffers.
        event.store(u16::MAX, Ordering::Relaxed);
    }

    fn places(&self) -> QueuePlaces {
        QueuePlaces {
            entries: (self.mask + 1) as u16,
            descriptors: self.words.iova(0),
            driver: self.words.iova(self.available - ELEMENTS),
            device: self.words.iova(self.used - ELEMENTS),
        }
    }

    #[inline(always)]
    fn mask(&self) -> u32 {
        self.mask
    }

    #[inline(always)]
    fn second(&self, index: u32, length: u32, flags: u16, _id: u32) -> u64 {
        let next = index.wrapping_add(1) & self.mask;
        let next = if flags & NEXT == 0 { 0 } else { u64::from(next) };
        u64::from(length) | u64::from(flags) << 32 | next << 48
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
    fn set_available(&self, available: u32, slot: u32) {
        let at = self.available + (available & self.mask) as usize * 2;
        // SAFETY: the masked number is below the number of entries.
        unsafe { self.words.word16(at) }.store(slot as u16, Ordering::Relaxed);
    }

    #[inline(always)]
    fn publish(&self, head: u32, second: u64, available: u32) {
        // SAFETY: the masked index is below the number of entries.
        unsafe { self.words.write_second((head & self.mask) as usize, second) };
        fence::before_doorbell();
        // SAFETY: the index of the available ring.
        let index = unsafe { self.words.word16(self.available - ELEMENTS + 2) };
        index.store(available as u16, Ordering::Relaxed);
    }

    #[inline(always)]
    fn counted(&self, used: u32) -> u32 {
        // SAFETY: the index of the used ring.
        let index = unsafe { self.words.word16(self.used - ELEMENTS + 2) }.load(Ordering::Relaxed);
        // Entries below the index that was seen are visible from here on, and what the device wrote to their buffers.
        fence::after_done_bit();
        u32::from(index.wrapping_sub(used as u16))
    }

    #[inline(always)]
    unsafe fn used(&self, slot: usize) -> u64 {
        // SAFETY: the slot is inside, as the caller says.
        unsafe { self.words.word64(self.used + slot * 8) }.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn used_in_order(&self, index: u32) -> u64 {
        u64::from(index & self.mask)
    }

    #[inline(always)]
    fn is_used(&self, _entry: u64, _index: u32) -> bool {
        true
    }

    #[inline(always)]
    fn id(entry: u64) -> u32 {
        entry as u32
    }

    #[inline]
    fn kick_due(&self, old: u32, new: u32) -> bool {
        // The index was stored before; what the device asks for is read after. It does the same the other way round, so one of the
        // two sees the other's.
        fence::store_then_load();
        // SAFETY: both words lie inside, by the layout.
        let (flags, event) =
            unsafe { (self.words.word16(self.used - ELEMENTS), self.words.word16(self.event_at())) };
        match self.suppression {
            Suppression::Flags => flags.load(Ordering::Relaxed) & NO_NOTIFY == 0,
            Suppression::EventIndex => passes(event.load(Ordering::Relaxed), old as u16, new as u16),
        }
    }

    fn notification_data(&self, queue: u16, new: u32) -> u32 {
        u32::from(queue) | (new & 0xffff) << 16
    }
}
