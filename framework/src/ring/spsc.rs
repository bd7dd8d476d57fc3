//! A bounded ring between one producing and one consuming thread.
//!
//! [`channel`] makes both ends. The [`Producer`] is the only writer of `tail` and of the free slots, the [`Consumer`]
//! the only writer of `head` and the only reader of the filled slots; an end may move to another thread, and `&mut self`
//! keeps it on one at a time. Indices run freely and wrap with `usize`; `index & mask` names the slot, so all `capacity`
//! slots can be filled. Each end remembers the other's index as it last saw it and reads the shared word only when that
//! is not enough, so while there is room and work the two cores exchange slots and one index line each.
//!
//! Items are `Copy`: what is left in the ring when both ends are gone is forgotten. Who sends frames drains the ring
//! first. An end that was dropped is seen by the other through `is_closed`.

use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Arc, UnsafeCell};
use crossbeam_utils::CachePadded;
use std::fmt;
use std::mem::MaybeUninit;

/// Makes a ring of `capacity` items and hands out its two ends.
///
/// # Panics
/// If `capacity` is not a power of two; `usize::next_power_of_two` makes one.
pub fn channel<T: Copy + Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    starting_at(capacity, 0)
}

fn starting_at<T: Copy + Send>(capacity: usize, start: usize) -> (Producer<T>, Consumer<T>) {
    assert!(capacity.is_power_of_two(), "a ring's capacity is a power of two, not {capacity}");
    let slots = (0..capacity).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
    let shared = Arc::new(Shared {
        slots: Slots { cells: slots },
        head: CachePadded::new(Side::new(start)),
        tail: CachePadded::new(Side::new(start)),
    });
    let producer = Producer { shared: shared.clone(), tail: start, seen_head: start };
    (producer, Consumer { shared, head: start, seen_tail: start })
}

/// What both ends reach. `head` and `tail` have a cache line each, apart from the slots' address, which nobody writes.
struct Shared<T> {
    slots: Slots<T>,
    head: CachePadded<Side>,
    tail: CachePadded<Side>,
}

// SAFETY: the cells are the only part that is not `Sync` by itself. A cell is written only by the one producer while
// its index is in `tail..head + capacity`, and read only by the one consumer while it is in `head..tail`; an index moves
// from one range to the other by a release store that the other end acquires. The items move between threads: `T: Send`.
unsafe impl<T: Send> Sync for Shared<T> {}

/// One end's published state, written by that end only.
struct Side {
    index: AtomicUsize,
    gone: AtomicBool,
}

impl Side {
    fn new(start: usize) -> Side {
        Side { index: AtomicUsize::new(start), gone: AtomicBool::new(false) }
    }
}

/// The end that fills the ring. Dropping it tells the consumer; items that are in the ring can still be taken out.
#[repr(align(128))] // its indices are written at each call: two handles in one array must not share a line
pub struct Producer<T> {
    shared: Arc<Shared<T>>,
    tail: usize,
    seen_head: usize,
}

impl<T: Copy + Send> Producer<T> {
    /// Copies as many of `items` as fit, from the front, and returns how many.
    #[inline]
    pub fn enqueue(&mut self, items: &[T]) -> usize {
        let (shared, tail) = (&*self.shared, self.tail);
        let mut free = shared.slots.capacity() - tail.wrapping_sub(self.seen_head);
        if free < items.len() {
            // Acquire: the consumer's copies out of the slots up to `head` are over before we write there.
            self.seen_head = shared.head.index.load(Ordering::Acquire);
            free = shared.slots.capacity() - tail.wrapping_sub(self.seen_head);
        }
        let count = items.len().min(free);
        if count > 0 {
            // SAFETY: `count <= free`, so the consumer is done with these slots and this is the only producer.
            unsafe { shared.slots.fill(tail, &items[..count]) };
            self.tail = tail.wrapping_add(count);
            // Release: the items are in their slots for a consumer that acquires this index.
            shared.tail.index.store(self.tail, Ordering::Release);
        }
        count
    }

    /// How many items fit now; only this end makes it smaller.
    #[inline]
    pub fn free(&self) -> usize {
        // Acquire, as in `enqueue`; `head` is never past our own `tail`.
        let head = self.shared.head.index.load(Ordering::Acquire);
        self.capacity() - self.tail.wrapping_sub(head)
    }

    /// How many items the ring holds when full.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.shared.slots.capacity()
    }

    /// Whether the consumer is gone: what is enqueued from now on, nobody takes out.
    #[inline]
    pub fn is_closed(&self) -> bool {
        // Acquire: the consumer's last `head` is visible with the flag.
        self.shared.head.gone.load(Ordering::Acquire)
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        // Release: a consumer that sees the flag also sees the last `tail` and the items before it.
        self.shared.tail.gone.store(true, Ordering::Release);
    }
}

impl<T> fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("tail", &self.tail).field("seen_head", &self.seen_head).finish()
    }
}

/// The end that empties the ring. Dropping it tells the producer.
#[repr(align(128))] // as for `Producer`
pub struct Consumer<T> {
    shared: Arc<Shared<T>>,
    head: usize,
    seen_tail: usize,
}

impl<T: Copy + Send> Consumer<T> {
    /// Copies the oldest items into the front of `items`, as many as there are or fit, and returns how many.
    #[inline]
    pub fn dequeue(&mut self, items: &mut [T]) -> usize {
        let (shared, head) = (&*self.shared, self.head);
        let mut filled = self.seen_tail.wrapping_sub(head);
        if filled < items.len() {
            // Acquire: the producer's items in the slots before `tail` are visible to the copy below.
            self.seen_tail = shared.tail.index.load(Ordering::Acquire);
            filled = self.seen_tail.wrapping_sub(head);
        }
        let count = items.len().min(filled);
        if count > 0 {
            // SAFETY: `count <= filled`, so these slots hold items, and this is the only consumer.
            unsafe { shared.slots.take(head, &mut items[..count]) };
            self.head = head.wrapping_add(count);
            // Release: our copies are over for a producer that acquires this index and then overwrites the slots.
            shared.head.index.store(self.head, Ordering::Release);
        }
        count
    }

    /// How many items wait now; only this end makes it smaller.
    #[inline]
    pub fn len(&self) -> usize {
        // Acquire, as in `dequeue`; `tail` is never before our own `head`.
        self.shared.tail.index.load(Ordering::Acquire).wrapping_sub(self.head)
    }

    /// Whether no item waits now.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many items the ring holds when full.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.shared.slots.capacity()
    }

    /// Whether the producer is gone. Ask this first and dequeue after: when it is true, what `dequeue` then finds are
    /// the last items, and an empty ring stays empty.
    #[inline]
    pub fn is_closed(&self) -> bool {
        // Acquire: the producer's last `tail` and its items are visible with the flag.
        self.shared.tail.gone.load(Ordering::Acquire)
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        // Release: a producer that sees the flag also sees the last `head`, so `free` is exact from then on.
        self.shared.head.gone.store(true, Ordering::Release);
    }
}

impl<T> fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("head", &self.head).field("seen_tail", &self.seen_tail).finish()
    }
}

/// The slots, `capacity` of them, a power of two.
struct Slots<T> {
    cells: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

impl<T: Copy> Slots<T> {
    #[inline]
    fn capacity(&self) -> usize {
        self.cells.len()
    }

    /// Copies `items` to the slots from `index` on, around the end at most once.
    ///
    /// # Safety
    /// `items` fit, and until this returns no other thread touches those slots.
    #[cfg(not(loom))]
    #[inline]
    unsafe fn fill(&self, index: usize, items: &[T]) {
        let first = index & (self.capacity() - 1);
        let before_end = items.len().min(self.capacity() - first);
        let slots = self.cells.as_ptr().cast::<T>().cast_mut();
        // SAFETY: `first + before_end <= capacity`, and the rest is at most `first` long, since the items fit. A cell
        // is laid out as its `T` and may be written through a shared reference. The caller keeps others out.
        unsafe {
            slots.add(first).copy_from_nonoverlapping(items.as_ptr(), before_end);
            if before_end < items.len() {
                slots.copy_from_nonoverlapping(items.as_ptr().add(before_end), items.len() - before_end);
            }
        }
    }

    /// Copies the slots from `index` on into `items`, around the end at most once.
    ///
    /// # Safety
    /// The slots hold items, `items` is not longer than the ring, and until this returns nobody writes those slots.
    #[cfg(not(loom))]
    #[inline]
    unsafe fn take(&self, index: usize, items: &mut [T]) {
        let first = index & (self.capacity() - 1);
        let before_end = items.len().min(self.capacity() - first);
        let slots = self.cells.as_ptr().cast::<T>();
        // SAFETY: the bounds are those of `fill`; the slots are initialized and the caller keeps writers out.
        unsafe {
            items.as_mut_ptr().copy_from_nonoverlapping(slots.add(first), before_end);
            if before_end < items.len() {
                items.as_mut_ptr().add(before_end).copy_from_nonoverlapping(slots, items.len() - before_end);
            }
        }
    }

    /// The same, slot by slot, through loom's cells: they fail the test when two threads meet in one.
    ///
    /// # Safety
    /// As above.
    #[cfg(loom)]
    unsafe fn fill(&self, index: usize, items: &[T]) {
        for (offset, item) in items.iter().enumerate() {
            let cell = &self.cells[index.wrapping_add(offset) & (self.capacity() - 1)];
            // SAFETY: the caller keeps others out.
            cell.with_mut(|slot| unsafe { slot.write(MaybeUninit::new(*item)) });
        }
    }

    /// The same, slot by slot, through loom's cells.
    ///
    /// # Safety
    /// As above.
    #[cfg(loom)]
    unsafe fn take(&self, index: usize, items: &mut [T]) {
        for (offset, item) in items.iter_mut().enumerate() {
            let cell = &self.cells[index.wrapping_add(offset) & (self.capacity() - 1)];
            // SAFETY: the slot holds an item and the caller keeps writers out.
            *item = cell.with(|slot| unsafe { (*slot).assume_init() });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::thread;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn every_slot_can_be_filled() {
        let (mut producer, mut consumer) = channel::<u32>(4);
        assert_eq!((producer.capacity(), producer.free(), consumer.len()), (4, 4, 0));
        assert_eq!(producer.enqueue(&[1, 2, 3, 4, 5]), 4);
        assert_eq!((producer.free(), consumer.len(), producer.enqueue(&[5])), (0, 4, 0));
        let mut out = [0; 3];
        assert_eq!((consumer.dequeue(&mut out), out), (3, [1, 2, 3]));
        assert_eq!(producer.enqueue(&[5, 6, 7, 8]), 3);
        let mut out = [0; 8];
        assert_eq!(consumer.dequeue(&mut out), 4);
        assert_eq!(out[..4], [4, 5, 6, 7]);
        assert!(consumer.is_empty());
    }

    #[test]
    fn empty_slices_change_nothing() {
        let (mut producer, mut consumer) = channel::<u64>(1);
        assert_eq!((producer.enqueue(&[]), consumer.dequeue(&mut [])), (0, 0));
        assert_eq!((producer.enqueue(&[7]), consumer.dequeue(&mut []), consumer.len()), (1, 0, 1));
    }

    #[test]
    fn each_end_knows_that_the_other_is_gone() {
        let (mut producer, mut consumer) = channel::<u64>(2);
        assert!(!producer.is_closed() && !consumer.is_closed());
        producer.enqueue(&[9]);
        drop(producer);
        assert!(consumer.is_closed());
        let mut out = [0; 2];
        assert_eq!((consumer.dequeue(&mut out), out[0]), (1, 9));
        let (producer, consumer) = channel::<u64>(2);
        drop(consumer);
        assert!(producer.is_closed());
    }

    #[test]
    #[should_panic(expected = "power of two, not 3")]
    fn other_capacities_are_refused() {
        channel::<u8>(3);
    }

    #[test]
    fn two_threads_see_every_item_in_order() {
        let last = if cfg!(miri) { 500 } else { 1_000_000_u64 };
        let (mut producer, mut consumer) = starting_at::<u64>(64, usize::MAX - 100);
        let sender = thread::spawn(move || {
            let mut next = 0;
            while next < last {
                let burst: Vec<u64> = (next..last.min(next + 1 + next % 40)).collect();
                next += producer.enqueue(&burst) as u64;
                if producer.free() == 0 {
                    thread::yield_now();
                }
            }
        });
        let (mut expected, mut items) = (0, [0; 48]);
        loop {
            let closed = consumer.is_closed();
            let room = 1 + expected as usize % 48;
            let count = consumer.dequeue(&mut items[..room]);
            for item in &items[..count] {
                assert_eq!(*item, expected);
                expected += 1;
            }
            match (count, closed) {
                (0, true) => break,
                (0, false) => thread::yield_now(),
                _ => {}
            }
        }
        sender.join().unwrap();
        assert_eq!(expected, last);
    }

    fn start() -> impl Strategy<Value = usize> {
        let bases = prop_oneof![Just(0), Just(u32::MAX as usize), Just(usize::MAX)];
        (bases, 0..40_usize).prop_map(|(base, back)| base.wrapping_sub(back))
    }

    proptest! {
        #[test]
        fn behaves_like_a_bounded_queue(
            start in start(),
            shift in 0..5_u32,
            steps in prop::collection::vec((any::<bool>(), 0..40_usize), 0..60),
        ) {
            let capacity = 1_usize << shift;
            let (mut producer, mut consumer) = starting_at::<u64>(capacity, start);
            let (mut model, mut next) = (VecDeque::new(), 0_u64);
            for (enqueue, length) in steps {
                if enqueue {
                    let items: Vec<u64> = (next..next + length as u64).collect();
                    let count = producer.enqueue(&items);
                    prop_assert_eq!(count, length.min(capacity - model.len()));
                    model.extend(&items[..count]);
                    next += count as u64;
                } else {
                    let mut items = vec![0; length];
                    let count = consumer.dequeue(&mut items);
                    prop_assert_eq!(count, length.min(model.len()));
                    let expected: Vec<u64> = model.drain(..count).collect();
                    prop_assert_eq!(&items[..count], &expected[..]);
                }
                prop_assert_eq!(consumer.len(), model.len());
                prop_assert_eq!(producer.free(), capacity - model.len());
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::thread;

    /// Three items through two slots, so that a slot is used twice; the consumer ends when the ring is closed and empty.
    #[test]
    fn items_cross_in_order_and_closing_loses_none() {
        loom::model(|| {
            let (mut producer, mut consumer) = starting_at::<u32>(2, usize::MAX);
            let sender = thread::spawn(move || {
                let mut sent = producer.enqueue(&[1, 2]);
                while sent < 3 && !producer.is_closed() {
                    sent += producer.enqueue(&[3]);
                    thread::yield_now();
                }
            });
            let (mut received, mut items) = (Vec::new(), [0; 2]);
            loop {
                let closed = consumer.is_closed();
                let count = consumer.dequeue(&mut items);
                received.extend_from_slice(&items[..count]);
                if closed && count == 0 {
                    break;
                }
                thread::yield_now();
            }
            sender.join().unwrap();
            assert_eq!(received, [1, 2, 3]);
        });
    }

    /// One look, without a loop: loom lets no load that follows a yield return old values.
    #[test]
    fn who_sees_the_end_sees_the_last_item() {
        loom::model(|| {
            let (mut producer, mut consumer) = channel::<u32>(2);
            let sender = thread::spawn(move || producer.enqueue(&[1]));
            let closed = consumer.is_closed();
            let count = consumer.dequeue(&mut [0; 2]);
            assert!(count == 1 || !closed);
            sender.join().unwrap();
        });
    }

    #[test]
    fn a_dropped_consumer_stops_the_producer() {
        loom::model(|| {
            let (mut producer, mut consumer) = channel::<u32>(2);
            let receiver = thread::spawn(move || consumer.dequeue(&mut [0; 1]));
            assert_eq!(producer.enqueue(&[1, 2]), 2);
            while !producer.is_closed() {
                thread::yield_now();
            }
            let free = producer.free();
            assert_eq!(producer.enqueue(&[3, 4]), free);
            assert_eq!(receiver.join().unwrap(), free);
        });
    }
}
