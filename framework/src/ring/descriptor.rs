//! Descriptors in memory that the device may write at any time.
//!
//! Entries are read and written by relaxed atomic words of 8 bytes; order comes from [`fence`](super::fence), once a burst. Indices run
//! freely and are masked here, so no index reaches outside. The memory is counted: a ring keeps it mapped.

use super::RingMemory;
use crate::iova::Iova;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::{Immutable, IntoBytes};

/// A descriptor as a plain layout of a multiple of 8 bytes.
pub trait Descriptor: IntoBytes + Immutable + Copy {}

impl<D: IntoBytes + Immutable + Copy> Descriptor for D {}

/// A ring of descriptors of type `D`.
pub(super) struct DescriptorRing<D> {
    base: *mut D,
    mask: u32,
    iova: Iova,
    _memory: Arc<RingMemory>,
}

// SAFETY: `base` points into memory that `_memory` keeps mapped, reached by atomic words only.
unsafe impl<D> Send for DescriptorRing<D> {}

impl<D: Descriptor> DescriptorRing<D> {
    /// The ring of `entries` (a power of two) at `offset` of `memory`. Asserts that it lies inside.
    pub(super) fn new(memory: &Arc<RingMemory>, offset: usize, entries: usize) -> DescriptorRing<D> {
        const { assert!(size_of::<D>().is_multiple_of(8) && size_of::<D>() > 0) };
        let region = memory.placement().region();
        assert!(
            entries.is_power_of_two() && entries >= 2 && offset.is_multiple_of(8),
            "a ring of {entries} at {offset}"
        );
        assert!(offset + entries * size_of::<D>() <= region.bytes(), "a ring outside its memory");
        // SAFETY: the offset is inside the region, by the assertion above.
        let base = unsafe { region.base().as_ptr().add(offset) }.cast();
        let iova = Iova::new(memory.placement().iova().bits() + offset as u64);
        DescriptorRing { base, mask: entries as u32 - 1, iova, _memory: memory.clone() }
    }

    pub(super) fn iova(&self) -> Iova {
        self.iova
    }

    #[inline(always)]
    pub(super) fn mask(&self) -> u32 {
        self.mask
    }

    /// The slot of a free-running index.
    #[inline(always)]
    pub(super) fn slot(&self, index: u32) -> Slot<'_, D> {
        // SAFETY: the masked index is below the number of entries.
        Slot { at: unsafe { self.base.add((index & self.mask) as usize) }, ring: PhantomData }
    }

    /// Up to `count` slots from a free-running index on that lie one behind the other.
    #[inline(always)]
    pub(super) fn run(&self, index: u32, count: usize) -> Run<'_, D> {
        let start = index & self.mask;
        let slots = count.min((self.mask + 1 - start) as usize);
        Run { first: self.slot(index), start: start as usize, slots }
    }
}

/// Slots one behind the other.
#[derive(Clone, Copy)]
pub(super) struct Run<'a, D> {
    first: Slot<'a, D>,
    /// Position of the first in the ring.
    pub(super) start: usize,
    /// How many.
    pub(super) slots: usize,
}

impl<'a, D: Descriptor> Run<'a, D> {
    /// The slot numbered `at` of the run.
    ///
    /// # Safety
    /// `at` is below `slots`.
    #[inline(always)]
    pub(super) unsafe fn slot(&self, at: usize) -> Slot<'a, D> {
        debug_assert!(at < self.slots);
        // SAFETY: the run lies inside the ring, and the caller stays inside the run.
        Slot { at: unsafe { self.first.at.add(at) }, ring: PhantomData }
    }
}

/// One descriptor of a ring.
#[derive(Clone, Copy)]
pub struct Slot<'a, D> {
    at: *mut D,
    ring: PhantomData<&'a DescriptorRing<D>>,
}

impl<D: Descriptor> Slot<'_, D> {
    /// Loads the word numbered `at`, relaxed.
    #[inline(always)]
    pub fn word(&self, at: usize) -> u64 {
        assert!(at < size_of::<D>() / 8, "word {at} of a descriptor");
        // SAFETY: the word lies in the descriptor, which its ring keeps mapped; all accesses are atomic.
        unsafe { AtomicU64::from_ptr(self.at.cast::<u64>().add(at)) }.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn write(&self, descriptor: D) {
        for (at, word) in descriptor.as_bytes().as_chunks::<8>().0.iter().enumerate() {
            // SAFETY: as in `word`; the value has the descriptor's size.
            let target = unsafe { AtomicU64::from_ptr(self.at.cast::<u64>().add(at)) };
            target.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
    }
}
