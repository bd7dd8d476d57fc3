//! Words in ring memory, which a device may write at any time: relaxed atomic accesses only, order comes from [`fence`](crate::ring::fence).

use crate::iova::Iova;
use crate::ring::RingMemory;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

/// A part of a port's ring memory.
pub(super) struct Words {
    base: *mut u8,
    bytes: usize,
    iova: u64,
    _memory: Arc<RingMemory>,
}

// SAFETY: `base` points into memory that `_memory` keeps mapped, reached by atomic words only.
unsafe impl Send for Words {}

impl Words {
    /// `bytes` at `offset` of `memory`. Asserts that they lie inside and start at a cache line.
    pub(super) fn new(memory: &Arc<RingMemory>, offset: usize, bytes: usize) -> Words {
        let region = memory.placement().region();
        assert!(offset.is_multiple_of(64) && offset + bytes <= region.bytes(), "a queue outside its memory");
        // SAFETY: the offset is inside the region, by the assertion above.
        let base = unsafe { region.base().as_ptr().add(offset) };
        Words { base, bytes, iova: memory.placement().iova().bits() + offset as u64, _memory: memory.clone() }
    }

    pub(super) fn iova(&self, at: usize) -> Iova {
        assert!(at < self.bytes, "byte {at} of {}", self.bytes);
        Iova::new(self.iova + at as u64)
    }

    pub(super) fn clear(&self) {
        for at in (0..self.bytes & !7).step_by(8) {
            // SAFETY: the word lies inside, and the base is a multiple of 64.
            unsafe { self.word64(at) }.store(0, Ordering::Relaxed);
        }
    }

    /// # Safety
    /// `at` is a multiple of 8 and the word ends inside.
    #[inline(always)]
    pub(super) unsafe fn word64(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at.is_multiple_of(8) && at + 8 <= self.bytes);
        // SAFETY: inside memory that stays mapped, aligned, and reached by atomic accesses only.
        unsafe { AtomicU64::from_ptr(self.base.add(at).cast()) }
    }

    /// # Safety
    /// `at` is a multiple of 4 and the word ends inside.
    #[inline(always)]
    pub(super) unsafe fn word32(&self, at: usize) -> &AtomicU32 {
        debug_assert!(at.is_multiple_of(4) && at + 4 <= self.bytes);
        // SAFETY: as in `word64`.
        unsafe { AtomicU32::from_ptr(self.base.add(at).cast()) }
    }

    /// # Safety
    /// `at` is a multiple of 2 and the word ends inside.
    #[inline(always)]
    pub(super) unsafe fn word16(&self, at: usize) -> &AtomicU16 {
        debug_assert!(at.is_multiple_of(2) && at + 2 <= self.bytes);
        // SAFETY: as in `word64`.
        unsafe { AtomicU16::from_ptr(self.base.add(at).cast()) }
    }

    /// Writes the address of the descriptor in `slot`; descriptors of 16 bytes stand first.
    ///
    /// # Safety
    /// There are more descriptors than `slot`.
    #[inline(always)]
    pub(super) unsafe fn write_address(&self, slot: usize, address: u64) {
        // SAFETY: the descriptor lies inside, as the caller says.
        unsafe { self.word64(slot * 16) }.store(address, Ordering::Relaxed);
    }

    /// Writes the second word of the descriptor in `slot`.
    ///
    /// # Safety
    /// There are more descriptors than `slot`.
    #[inline(always)]
    pub(super) unsafe fn write_second(&self, slot: usize, second: u64) {
        // SAFETY: the descriptor lies inside, as the caller says.
        unsafe { self.word64(slot * 16 + 8) }.store(second, Ordering::Relaxed);
    }

    /// Writes bytes one by one. Asserts that they lie inside.
    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.bytes, "bytes behind the end");
        // SAFETY: inside memory that stays mapped, by the assertion; nobody has references to it.
        unsafe { crate::buffer::shared::copy_to_shared(bytes, self.base.add(at)) };
    }

    /// Reads one byte. Asserts that it lies inside.
    pub(super) fn byte(&self, at: usize) -> u8 {
        let mut byte = [0];
        assert!(at < self.bytes, "a byte behind the end");
        // SAFETY: as in `write`.
        unsafe { crate::buffer::shared::copy_from_shared(self.base.add(at), &mut byte) };
        byte[0]
    }
}
