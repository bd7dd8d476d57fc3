//! A receive queue: a format, and the record of which frame lies in which slot.
//!
//! `head <= used <= tail`, all free-running; slots from `head` to `tail` hold frames that the device may fill, and `used` counts the used
//! entries that were read. `head` is behind `used` only while a device that works in any order left a gap. Each buffer starts with the
//! header, which lies in the frame's headroom and is never read on the short path: a device must fill every buffer of a merged frame
//! but the last one to its end (Virtio 1.2, 5.1.6.3.2), so a buffer that is not full is a frame of its own.

use super::format::{Format, Order, QueueOptions, QueuePlaces, flags};
use super::{HEADER_BYTES, header_fits};
use crate::buffer::{BURST, Both, Burst, Caches, Chain, Frame, Pool, SPAN_MARK, Segment};
use crate::buffer::{cpu_base, iova_at, iova_base, pool_of, shared::copy_from_shared};
use crate::ring::{Collected, Lease, RingMemory, fence};
use std::sync::Arc;

/// Stands in the shadow for a frame that was taken out of order; no frame has this word.
const TAKEN: u64 = SPAN_MARK;

/// Where `num_buffers` stands in the header (5.1.6).
const NUM_BUFFERS_AT: usize = 10;

/// Buffers of one frame at most; what has more is dropped.
const MOST_BUFFERS: usize = 16;

/// Whether a frame may lie in several buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merging {
    /// No.
    Off,
    /// Yes (VIRTIO_NET_F_MRG_RXBUF).
    On,
}

/// A receive queue.
pub struct ReceiveQueue<F: Format> {
    format: F,
    /// By slot, the word of the frame that lies there, in its home form.
    frames: Box<[u64]>,
    head: u32,
    used: u32,
    tail: u32,
    /// Up to where the device was told.
    told: u32,
    pool: u8,
    room: u32,
    /// The longest frame that cannot be the first part of a longer one.
    longest_single: u32,
    order: Order,
    /// Buffers of bad frames.
    spare: Vec<u64>,
    lease: Lease,
}

/// The next used entry, looked at with care.
enum Used {
    /// None yet.
    Nothing,
    /// It speaks of a buffer that the device does not have.
    Lie,
    /// A frame's word and how many bytes the device says that it wrote.
    Buffer(u64, u32),
}

impl<F: Format> ReceiveQueue<F> {
    /// A queue of `entries` slots (a power of two) at `offset` of `memory`, filled from `pool`, which has room for the header.
    pub fn new(
        memory: &Arc<RingMemory>,
        offset: usize,
        entries: usize,
        options: QueueOptions,
        merging: Merging,
        pool: &Pool<Both>,
        lease: Lease,
    ) -> ReceiveQueue<F> {
        assert!(header_fits(pool), "no room for the header in front of a frame");
        let room = pool.room_bytes() as u32;
        let queue = ReceiveQueue {
            format: F::new(memory, offset, entries, options.suppression),
            frames: vec![TAKEN; entries].into_boxed_slice(),
            head: 0,
            used: 0,
            tail: 0,
            told: 0,
            pool: pool.id(),
            room,
            longest_single: room - u32::from(merging == Merging::On),
            order: options.order,
            spare: Vec::with_capacity(BURST),
            lease,
        };
        queue.write_lengths();
        queue
    }

    /// Where the device finds it.
    pub fn places(&self) -> QueuePlaces {
        self.format.places()
    }

    /// The lease under which it works.
    #[inline]
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Slots that are empty.
    #[inline]
    pub fn vacant(&self) -> usize {
        self.frames.len() - self.posted()
    }

    /// Frames that the device may fill.
    #[inline]
    pub fn posted(&self) -> usize {
        self.tail.wrapping_sub(self.head) as usize
    }

    /// Posts up to `count` frames (at most 64); gives how many.
    #[inline(always)]
    pub fn post(&mut self, caches: &mut Caches, count: usize) -> usize {
        if !self.spare.is_empty() {
            self.return_spare(caches);
        }
        let count = count.min(self.vacant()).min(BURST);
        let Some(cache) = caches.of(self.pool) else { return 0 };
        let (words, base) = (cache.take(count), iova_base(self.pool).wrapping_sub(HEADER_BYTES as u64));
        let Some(first) = words.first() else { return 0 };
        let (tail, mask) = (self.tail, self.format.mask());
        let before_wrap = words.len().min((mask + 1 - (tail & mask)) as usize);
        self.write_run(tail.wrapping_add(1), &words[1..before_wrap], base);
        self.write_run(tail.wrapping_add(before_wrap as u32), &words[before_wrap..], base);
        self.frames[(tail & mask) as usize] = *first;
        // SAFETY: the masked index is below the number of entries.
        unsafe { self.format.write_address((tail & mask) as usize, iova_at(base, *first).bits()) };
        self.tail = tail.wrapping_add(words.len() as u32);
        self.format.publish(tail, self.second(tail), self.tail);
        words.len()
    }

    /// Writes descriptors of slots one behind the other, from index `first` on.
    #[inline(always)]
    fn write_run(&mut self, first: u32, words: &[u64], base: u64) {
        let (start, mut second) = ((first & self.format.mask()) as usize, self.second(first));
        if words.is_empty() {
            return;
        }
        let frames = &mut self.frames[start..start + words.len()];
        for (at, (frame, word)) in frames.iter_mut().zip(words).enumerate() {
            *frame = *word;
            let address = iova_at(base, *word).bits();
            // SAFETY: the shadow has a slot for each entry, and `frames` is a part of it.
            unsafe {
                match F::KEEPS_SECOND {
                    true => self.format.write_address(start + at, address),
                    false => self.format.write(start + at, address, second),
                }
            }
            second = second.wrapping_add(F::SECOND_STEP);
        }
    }

    #[inline(always)]
    fn second(&self, index: u32) -> u64 {
        self.format.second(index, self.room + HEADER_BYTES as u32, flags::WRITE, index)
    }

    /// Whether the device must be notified of what was posted since the last call.
    #[inline]
    pub fn kick_due(&mut self) -> bool {
        let told = std::mem::replace(&mut self.told, self.tail);
        told != self.tail && self.format.kick_due(told, self.tail)
    }

    /// What the notification carries.
    pub fn notification_data(&self, queue: u16) -> u32 {
        self.format.notification_data(queue, self.tail)
    }

    /// Takes filled frames into `burst`, until the device has used no more or the burst is full.
    #[inline(always)]
    pub fn collect(&mut self, burst: &mut Burst) -> Collected {
        let mut done = Collected::default();
        let Some(mut left) = self.used_entries() else {
            done.bad = 1;
            return done;
        };
        while left > 0 {
            let slots = burst.slots();
            let limit = left.min(slots.len());
            let (taken, bytes) =
                if self.used == self.head { self.take_good(&mut slots[..limit]) } else { (0, 0) };
            burst.filled(taken);
            (done.frames, done.bytes) = (done.frames + taken, done.bytes + bytes);
            left -= taken;
            if taken == limit || !self.take_odd(burst, &mut done, &mut left) {
                break;
            }
        }
        // The used entries that were seen come before any read of what the device wrote.
        fence::after_done_bit();
        done
    }

    /// Used entries that may be looked at; `None` when the device claims more than it was given.
    #[inline(always)]
    fn used_entries(&self) -> Option<usize> {
        let given = self.tail.wrapping_sub(self.used);
        match F::COUNTED {
            true => {
                Some(self.format.counted(self.used)).filter(|counted| *counted <= given).map(|n| n as usize)
            }
            false => Some(given as usize),
        }
    }

    /// The short way: frames of one buffer, used in ring order, up to the first other entry; gives how many and their bytes.
    #[inline(always)]
    fn take_good(&mut self, free: &mut [u64]) -> (usize, u64) {
        let mask = self.format.mask();
        let before_wrap = free.len().min((mask + 1 - (self.head & mask)) as usize);
        let (now, later) = free.split_at_mut(before_wrap);
        let (taken, bytes) = self.take_run(now);
        if taken < before_wrap || later.is_empty() {
            return (taken, bytes);
        }
        let (rest, more) = self.take_run(later);
        (taken + rest, bytes + more)
    }

    #[inline(always)]
    fn take_run(&mut self, free: &mut [u64]) -> (usize, u64) {
        let start = (self.head & self.format.mask()) as usize;
        let (mut expected, mut bytes, mut taken) = (self.format.used_in_order(self.head), 0, free.len());
        let (longest, frames) = (self.longest_single, &self.frames[start..start + free.len()]);
        for (at, (slot, word)) in free.iter_mut().zip(frames).enumerate() {
            // SAFETY: the shadow has a slot for each entry, and `frames` is a part of it.
            let entry = unsafe { self.format.used(start + at) };
            let length = ((entry >> F::LENGTH_SHIFT) as u32).wrapping_sub(HEADER_BYTES as u32);
            if entry & F::USED_MASK != expected || length > longest {
                taken = at;
                break;
            }
            // A frame at home has length 0, so adding sets it.
            *slot = word + u64::from(length);
            bytes += u64::from(length);
            expected = expected.wrapping_add(F::USED_STEP);
        }
        self.head = self.head.wrapping_add(taken as u32);
        self.used = self.used.wrapping_add(taken as u32);
        (taken, bytes)
    }

    /// The long way, for one frame: out of order, of several buffers, bad or a lie. False when there is none.
    #[cold]
    #[inline(never)]
    fn take_odd(&mut self, burst: &mut Burst, done: &mut Collected, left: &mut usize) -> bool {
        let before = self.used;
        match self.take_used() {
            Used::Nothing => return false,
            Used::Lie => done.bad += 1,
            Used::Buffer(word, bytes) => self.take_frame(word, bytes, burst, done),
        }
        // A merged frame may take entries beyond those that were counted: a packed queue's, or a lie.
        *left = left.saturating_sub(self.used.wrapping_sub(before) as usize);
        true
    }

    fn take_frame(&mut self, word: u64, bytes: u32, burst: &mut Burst, done: &mut Collected) {
        let Some(length) = bytes.checked_sub(HEADER_BYTES as u32).filter(|length| *length <= self.room)
        else {
            self.spare.push(word);
            done.bad += 1;
            return;
        };
        let buffers = if length > self.longest_single { num_buffers(word) } else { 1 };
        if buffers == 1 {
            burst.push_word(word + u64::from(length));
            (done.frames, done.bytes) = (done.frames + 1, done.bytes + u64::from(length));
            return;
        }
        match self.take_rest(word + u64::from(length), usize::from(buffers)) {
            Some(chain) => {
                let bytes = chain.len() as u64;
                // There is room: the burst was not full.
                let pushed = burst.push_chain(chain);
                debug_assert!(pushed.is_ok());
                (done.frames, done.bytes) = (done.frames + 1, done.bytes + bytes);
            }
            None => done.bad += 1,
        }
    }

    /// The buffers of a merged frame behind its first one. An honest device makes all of them visible at once, so a missing one is a
    /// lie; all of its buffers come back then.
    fn take_rest(&mut self, first: u64, buffers: usize) -> Option<Chain> {
        let (mut words, mut good) = (vec![first], (2..=MOST_BUFFERS).contains(&buffers));
        for at in 1..buffers {
            if F::COUNTED && self.format.counted(self.used) == 0 || self.used == self.tail {
                good = false;
                break;
            }
            match self.take_used() {
                Used::Buffer(word, bytes) if bytes <= self.room + HEADER_BYTES as u32 => {
                    let whole = at + 1 == buffers || bytes == self.room + HEADER_BYTES as u32;
                    good &= whole && bytes > 0 && bytes <= u32::from(u16::MAX);
                    // Later buffers have no header, so their bytes start where the first one's header does.
                    words.push(word - ((HEADER_BYTES as u64) << 24) + u64::from(bytes as u16));
                }
                Used::Buffer(word, _) => {
                    self.spare.push(word);
                    good = false;
                }
                Used::Lie => good = false,
                Used::Nothing => {
                    good = false;
                    break;
                }
            }
        }
        if !good {
            self.spare.append(&mut words);
            return None;
        }
        let mut chain = Chain::new();
        for word in words {
            // At most 16, as checked above.
            let pushed = chain.push(Segment::Frame(Frame::from_word(word)));
            debug_assert!(pushed.is_ok());
        }
        Some(chain)
    }

    /// Takes one used entry. The caller made sure that one may be there.
    fn take_used(&mut self) -> Used {
        let mask = self.format.mask();
        // SAFETY: the masked index is below the number of entries.
        let entry = unsafe { self.format.used((self.used & mask) as usize) };
        if self.used == self.tail || !self.format.is_used(entry, self.used) {
            return Used::Nothing;
        }
        // The entry was seen as used; what the device wrote before is visible from here on.
        fence::after_done_bit();
        self.used = self.used.wrapping_add(1);
        let (id, bytes) = (F::id(entry), (entry >> F::LENGTH_SHIFT) as u32);
        if self.order == Order::InOrder {
            // The entry's place says which buffer it is; an id that says otherwise makes it a bad one.
            let word = std::mem::replace(&mut self.frames[(self.head & mask) as usize], TAKEN);
            let honest = id == self.head & mask;
            self.head = self.head.wrapping_add(1);
            if !honest {
                self.spare.push(word);
                return Used::Lie;
            }
            return Used::Buffer(word, bytes);
        }
        let posted = self.posted();
        match self.frames.get_mut(id as usize) {
            Some(word) if *word != TAKEN && (id.wrapping_sub(self.head) & mask) < posted as u32 => {
                let word = std::mem::replace(word, TAKEN);
                while self.head != self.tail && self.frames[(self.head & mask) as usize] == TAKEN {
                    self.head = self.head.wrapping_add(1);
                }
                Used::Buffer(word, bytes)
            }
            _ => Used::Lie,
        }
    }

    /// Takes back every buffer and empties the queue. Only when the device no longer works on it.
    pub fn recall(&mut self, caches: &mut Caches) {
        self.posted_words().for_each(|word| caches.put_word(word));
        self.return_spare(caches);
        (self.head, self.used, self.tail, self.told) = (0, 0, 0, 0);
        self.frames.fill(TAKEN);
        self.format.reset();
        self.write_lengths();
    }

    /// Second words that never change are written here.
    fn write_lengths(&self) {
        for index in 0..if F::KEEPS_SECOND { self.frames.len() as u32 } else { 0 } {
            // SAFETY: the index is below the number of entries.
            unsafe { self.format.write(index as usize, 0, self.second(index)) };
        }
    }

    fn posted_words(&self) -> impl Iterator<Item = u64> {
        let (frames, mask) = (&self.frames, self.frames.len() as u32 - 1);
        let posted = (0..self.posted() as u32).map(|at| self.head.wrapping_add(at));
        posted.map(move |index| frames[(index & mask) as usize]).filter(|word| *word != TAKEN)
    }

    #[cold]
    fn return_spare(&mut self, caches: &mut Caches) {
        self.spare.drain(..).for_each(|word| caches.put_word(word));
    }

    #[cfg(test)]
    pub(super) fn start_at(&mut self, index: u32) {
        (self.head, self.used, self.tail, self.told) = (index, index, index, index);
    }
}

/// What the header of a frame says about its buffers. The device may still lie about it: its caller checks.
fn num_buffers(word: u64) -> u16 {
    let first = cpu_base(pool_of(word)).wrapping_add((word >> 24) as usize);
    let mut bytes = [0; 2];
    // SAFETY: the header lies in the headroom of a frame that we own, since `new` checked the pool.
    unsafe { copy_from_shared(first.wrapping_sub(HEADER_BYTES - NUM_BUFFERS_AT), &mut bytes) };
    u16::from_le_bytes(bytes)
}

impl<F: Format> Drop for ReceiveQueue<F> {
    fn drop(&mut self) {
        let words = self.posted_words().chain(self.spare.iter().copied());
        self.lease.surrender(words.map(Frame::from_word), std::iter::empty());
    }
}
