//! What split and packed queues have in common, seen from a shadow that hands out slots in ring order.
//!
//! Indices are free-running 32-bit numbers. What the device sees of them follows: the slot is the index modulo the size, a split
//! queue's 16-bit index its low half, a packed queue's wrap counter the bit above the slot. All of these wrap together. A *second
//! word* is the second half of a descriptor: length, flags and what else the format keeps there.

use crate::iova::Iova;
use crate::ring::RingMemory;
use std::sync::Arc;

/// In which order a device uses buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As they were made available (VIRTIO_F_IN_ORDER).
    InOrder,
    /// As it likes.
    Any,
}

/// How a device says which notifications it wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suppression {
    /// All or none, by a flag.
    Flags,
    /// From an index on (VIRTIO_F_EVENT_IDX).
    EventIndex,
}

/// What was negotiated for a queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueOptions {
    /// The device's order.
    pub order: Order,
    /// How it wants to be notified.
    pub suppression: Suppression,
}

/// Where a device finds the parts of a queue (Virtio 1.2, 2.6 and 2.8: descriptor area, driver area, device area).
#[derive(Clone, Copy, Debug)]
pub struct QueuePlaces {
    /// Slots.
    pub entries: u16,
    /// Descriptors.
    pub descriptors: Iova,
    /// What the driver writes.
    pub driver: Iova,
    /// What the device writes.
    pub device: Iova,
}

/// Descriptor flags of both formats (2.6.5, 2.8.10).
pub(super) mod flags {
    /// Another descriptor of the same buffer follows.
    pub(crate) const NEXT: u16 = 1;
    /// The device writes to the memory.
    pub(crate) const WRITE: u16 = 2;
}

/// The shared memory of one queue.
///
/// A *used entry* is the word in which the device says that it is done with a buffer. For a buffer of one descriptor that is used in
/// ring order, it equals [`Format::used_in_order`] under [`Format::USED_MASK`], and its length stands at
/// [`Format::LENGTH_SHIFT`].
pub trait Format: Send + Sized + 'static + sealed::Sealed {
    /// The bits of a used entry that tell that it is used, and by which buffer.
    const USED_MASK: u64;
    /// From one slot's [`Format::used_in_order`] to the next one's.
    const USED_STEP: u64;
    /// Where a used entry has its length, 32 bits.
    const LENGTH_SHIFT: u32;
    /// From one slot's second word to the next one's.
    const SECOND_STEP: u64;
    /// Whether an index counts used entries; otherwise each says by itself whether it is used.
    const COUNTED: bool;
    /// Whether the device leaves descriptors as they are, so that a second word that does not change is written once.
    const KEEPS_SECOND: bool;

    /// Memory for `entries` slots, bytes.
    fn bytes(entries: usize) -> usize;
    /// A queue of `entries` slots at `offset` of `memory`, empty.
    fn new(memory: &Arc<RingMemory>, offset: usize, entries: usize, suppression: Suppression) -> Self;
    /// Empties it: everything as after `new`. The device must not look meanwhile.
    fn reset(&self);
    /// Where the device finds it.
    fn places(&self) -> QueuePlaces;
    /// Slots minus one.
    fn mask(&self) -> u32;
    /// The second word of the descriptor at an index.
    fn second(&self, index: u32, length: u32, flags: u16, id: u32) -> u64;
    /// Writes a descriptor.
    ///
    /// # Safety
    /// `slot` is below the number of entries.
    unsafe fn write(&self, slot: usize, address: u64, second: u64);
    /// Writes a descriptor's address.
    ///
    /// # Safety
    /// `slot` is below the number of entries.
    unsafe fn write_address(&self, slot: usize, address: u64);
    /// Says which slot the buffer numbered `available` begins at, where it is not the slot of that number.
    fn set_available(&self, available: u32, slot: u32);
    /// Makes everything written so far available: from the descriptor at index `head`, whose second word this writes, up to
    /// `available` buffers in all.
    fn publish(&self, head: u32, second: u64, available: u32);
    /// Used entries behind `used`, if an index counts them; otherwise as many as may be.
    fn counted(&self, used: u32) -> u32;
    /// A used entry.
    ///
    /// # Safety
    /// `slot` is below the number of entries.
    unsafe fn used(&self, slot: usize) -> u64;
    /// The used entry of a buffer that is used in ring order at an index.
    fn used_in_order(&self, index: u32) -> u64;
    /// Whether the entry at an index says that it is used. True where entries are counted.
    fn is_used(&self, entry: u64, index: u32) -> bool;
    /// Which buffer a used entry speaks of.
    fn id(entry: u64) -> u32;
    /// Whether the device wants to hear of buffers from number `old` up to `new`; for a packed queue the numbers are indices.
    fn kick_due(&self, old: u32, new: u32) -> bool;
    /// What a notification carries with VIRTIO_F_NOTIFICATION_DATA (2.9).
    fn notification_data(&self, queue: u16, new: u32) -> u32;
}

pub(super) mod sealed {
    pub trait Sealed {}
}

/// Slots minus one. Asserts that there may be so many.
pub(super) fn mask_of(entries: usize) -> u32 {
    assert!(entries.is_power_of_two() && entries <= super::MOST_ENTRIES, "a queue of {entries}");
    entries as u32 - 1
}

/// Whether a peer that asked to hear when the index passes `event` must hear of a step from `old` to `new` (2.7.10). All three are
/// 16-bit numbers that wrap.
#[inline]
pub(super) fn passes(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests {
    use super::passes;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_step_passes_an_event_exactly_when_it_steps_over_it(event in any::<u16>(), old in any::<u16>(), by in 0u16..40000) {
            let stepped = (0..by).any(|step| old.wrapping_add(step) == event);
            prop_assert_eq!(passes(event, old, old.wrapping_add(by)), stepped);
        }
    }

    #[test]
    fn the_lost_kick_of_a_well_known_crate_is_not_lost() {
        // virtio-drivers compares `avail_idx >= avail_event + 1`, which fails across the wrap.
        assert!(passes(65530, 65529, 2));
    }
}
