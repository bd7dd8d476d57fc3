//! One ring as the device sees it (82576 datasheet 7.1.4, 7.2.2).
//!
//! The device owns the slots from head to tail. Base and length are latched when the queue is enabled; the tail is a word that the
//! driver stores into at any time. Descriptors are fetched up to 64 at a time and kept until they are used. A tail outside the ring
//! is ignored: the last good one stays.

use super::memory::Memory;
use super::violation::{Violation, Violations};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Descriptors fetched at a time.
const FETCH: u32 = 64;

/// Bytes of a descriptor.
const DESCRIPTOR: usize = 16;

/// The base registers ignore these bits, and the length must be a multiple.
const ALIGN: u32 = 128;

/// A descriptor that was taken from the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fetched {
    /// Its device address.
    pub address: u64,
    /// What the driver wrote.
    pub words: [u64; 2],
}

/// What taking a descriptor gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Descriptor(Fetched),
    /// Memory could not be read; the descriptors are passed over.
    Lost,
    /// The ring is empty.
    Empty,
}

/// A descriptor that waits to be written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WriteBack {
    /// Device address of the descriptor.
    pub address: u64,
    /// What to write; word 1 holds the done bit and goes last.
    pub words: [u64; 2],
}

impl WriteBack {
    pub(super) fn perform(&self, memory: &mut Memory) {
        // A posted write has no answer, so a device never learns that it was refused.
        let _ = memory.write_pair(self.address, self.words);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ring {
    pub base: u64,
    pub entries: u32,
}

/// One queue.
pub(super) struct Queue {
    tail: Arc<AtomicU32>,
    enabled: bool,
    ring: Option<Ring>,
    head: u32,
    good_tail: u32,
    reported_tail: u32,
    fetched: Vec<[u64; 2]>,
    used: usize,
    /// Write-backs that are put off, and the step in which each is due.
    pub late: VecDeque<(u64, WriteBack)>,
}

impl Queue {
    pub(super) fn new() -> Queue {
        Queue {
            tail: Arc::new(AtomicU32::new(0)),
            enabled: false,
            ring: None,
            head: 0,
            good_tail: 0,
            reported_tail: 0,
            fetched: Vec::with_capacity(FETCH as usize),
            used: 0,
            late: VecDeque::new(),
        }
    }

    /// As after power-on; `enabled` is true for queue 0, which then has no ring yet (8.10.10).
    pub(super) fn reset(&mut self, enabled: bool) {
        self.disable();
        self.enabled = enabled;
        self.head = 0;
        self.tail.store(0, Ordering::Release);
    }

    pub(super) fn tail(&self) -> &Arc<AtomicU32> {
        &self.tail
    }

    pub(super) fn head(&self) -> u32 {
        self.head
    }

    /// A queue that runs does not let its head be set.
    pub(super) fn set_head(&mut self, value: u32) {
        if self.ring.is_none() {
            self.head = value & 0xffff;
        }
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.enabled
    }

    #[inline]
    pub(super) fn ring(&self) -> Option<Ring> {
        self.ring
    }

    pub(super) fn disable(&mut self) {
        self.enabled = false;
        self.ring = None;
        self.fetched.clear();
        self.used = 0;
        self.late.clear();
    }

    /// Latches base and length. A ring that cannot be is reported, and the queue then does nothing.
    pub(super) fn enable(&mut self, base: u64, bytes: u32, violations: &mut Violations) {
        if self.enabled && self.ring.is_some() {
            return;
        }
        self.enabled = true;
        let entries = bytes / DESCRIPTOR as u32;
        if bytes == 0 || !bytes.is_multiple_of(ALIGN) {
            return violations.report(Violation::RingLength);
        }
        if !base.is_multiple_of(u64::from(ALIGN)) {
            violations.report(Violation::RingBase);
        }
        if self.head >= entries {
            return violations.report(Violation::HeadOutsideRing);
        }
        (self.good_tail, self.reported_tail) = (self.head, 0);
        self.ring = Some(Ring { base: base & !u64::from(ALIGN - 1), entries });
    }

    /// Slots that the driver gave and the device has not taken.
    #[inline]
    pub(super) fn available(&mut self, violations: &mut Violations) -> u32 {
        let Some(ring) = self.ring else { return 0 };
        // Acquire: the descriptors that were stored before this tail are visible now.
        let tail = self.tail.load(Ordering::Acquire);
        if tail < ring.entries {
            self.good_tail = tail;
        } else if tail != self.reported_tail {
            self.reported_tail = tail;
            violations.report(Violation::TailOutsideRing);
        }
        let ahead = if self.good_tail < self.head { ring.entries } else { 0 };
        self.good_tail + ahead - self.head
    }

    /// Takes the next descriptor; the head moves past it.
    #[inline]
    pub(super) fn next(&mut self, memory: &mut Memory, violations: &mut Violations) -> Next {
        let Some(ring) = self.ring else { return Next::Empty };
        if self.used == self.fetched.len() {
            let count = self.available(violations).min(FETCH).min(ring.entries - self.head);
            if count == 0 {
                return Next::Empty;
            }
            if !self.fetch(ring, count, memory) {
                self.advance(ring, count);
                return Next::Lost;
            }
        }
        let words = self.fetched[self.used];
        self.used += 1;
        let address = ring.base + u64::from(self.head) * DESCRIPTOR as u64;
        self.advance(ring, 1);
        Next::Descriptor(Fetched { address, words })
    }

    fn fetch(&mut self, ring: Ring, count: u32, memory: &mut Memory) -> bool {
        let mut bytes = [0; FETCH as usize * DESCRIPTOR];
        let bytes = &mut bytes[..count as usize * DESCRIPTOR];
        self.fetched.clear();
        self.used = 0;
        if memory.read(ring.base + u64::from(self.head) * DESCRIPTOR as u64, bytes).is_err() {
            return false;
        }
        let words = bytes.as_chunks::<8>().0.as_chunks::<2>().0;
        self.fetched.extend(words.iter().map(|words| words.map(u64::from_le_bytes)));
        true
    }

    fn advance(&mut self, ring: Ring, count: u32) {
        let head = self.head + count;
        self.head = if head >= ring.entries { head - ring.entries } else { head };
    }

    /// Performs the write-backs that are due; gives how many.
    #[inline]
    pub(super) fn write_back_due(&mut self, now: u64, memory: &mut Memory) -> usize {
        let mut done = 0;
        while let Some((due, write_back)) = self.late.front()
            && *due <= now
        {
            write_back.perform(memory);
            self.late.pop_front();
            done += 1;
        }
        done
    }
}
