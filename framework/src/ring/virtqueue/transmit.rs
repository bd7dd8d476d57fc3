//! A transmit queue: a format, and the record of whose bytes each slot points to.
//!
//! `clean <= tail`, both free-running; the slots between them belong to the device. The header of a frame is written into its
//! headroom, so that one descriptor covers both; where there is none, a descriptor of zeros goes in front. Headers are read
//! before they are written: a buffer that was only ever sent has a header of zeros, and a line that nobody writes stays in both
//! cores' caches.

use super::HEADER_BYTES;
use super::format::{Format, Order, QueueOptions, QueuePlaces, flags};
use super::words::Words;
use crate::buffer::{Burst, Caches, Chain, Frame, POOL_SHIFT, SPAN_MARK, Segment, Span, TAG};
use crate::buffer::{buffer_bytes, cpu_base, iova_at, iova_base, length_of, pool_of};
use crate::ring::{Lease, RingMemory, SendLimits, Sent, fence};
use std::collections::VecDeque;
use std::sync::Arc;

/// Slots that are given back in one go.
const BLOCK: usize = 32;

/// Stands in the shadow for a descriptor that points to the header of zeros.
const HEADER_MARK: u64 = SPAN_MARK | 1;

/// In `chains`: a slot inside a chain.
const INSIDE: u8 = u8::MAX;

/// What a reclaim pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Slots that are free again.
    pub slots: usize,
    /// Used entries that the device had no right to write.
    pub lies: usize,
}

/// A transmit queue.
pub struct TransmitQueue<F: Format> {
    format: F,
    zeros: Words,
    /// By slot, a frame's word, or a mark.
    entries: Box<[u64]>,
    /// By slot: 0 for a frame of one descriptor; for a chain, its length at its head and [`INSIDE`] behind.
    chains: Box<[u8]>,
    /// By slot, whether the device used it before the ones in front of it.
    early: Box<[bool]>,
    clean: u32,
    tail: u32,
    /// Used entries that were read: a number of buffers, or in a packed queue an index.
    used: u32,
    /// Buffers made available.
    available: u32,
    told: u32,
    told_tail: u32,
    /// Chains under way.
    chained: usize,
    /// Whether chains shifted the numbers of buffers against slots.
    skewed: bool,
    order: Order,
    limits: SendLimits,
    spans: VecDeque<Span>,
    lease: Lease,
}

/// A packed queue's `used` moves by slots, a split one's by buffers.
fn step<F: Format>(slots: u32) -> u32 {
    if F::COUNTED { 1 } else { slots }
}

impl<F: Format> TransmitQueue<F> {
    /// Memory for `entries` slots, bytes.
    pub fn bytes(entries: usize) -> usize {
        F::bytes(entries).next_multiple_of(64) + 64
    }

    /// A queue of `entries` slots (a power of two) at `offset` of `memory`.
    pub fn new(
        memory: &Arc<RingMemory>,
        offset: usize,
        entries: usize,
        options: QueueOptions,
        limits: SendLimits,
        lease: Lease,
    ) -> TransmitQueue<F> {
        let zeros = Words::new(memory, offset + F::bytes(entries).next_multiple_of(64), 64);
        zeros.clear();
        TransmitQueue {
            format: F::new(memory, offset, entries, options.suppression),
            zeros,
            entries: vec![0; entries].into_boxed_slice(),
            chains: vec![0; entries].into_boxed_slice(),
            early: vec![false; entries].into_boxed_slice(),
            clean: 0,
            tail: 0,
            used: 0,
            available: 0,
            told: 0,
            told_tail: 0,
            chained: 0,
            skewed: false,
            order: options.order,
            limits,
            spans: VecDeque::new(),
            lease,
        }
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

    /// Slots that can be written.
    #[inline]
    pub fn vacant(&self) -> usize {
        self.entries.len() - self.pending()
    }

    /// Slots that the device may still read.
    #[inline]
    pub fn pending(&self) -> usize {
        self.tail.wrapping_sub(self.clean) as usize
    }

    /// Takes frames from the front of `burst`, as many as fit. What the device cannot send is taken and goes back to its pool.
    #[inline(always)]
    pub fn send(&mut self, burst: &mut Burst, caches: &mut Caches) -> Sent {
        let mut done = Sent::default();
        if burst.is_plain() {
            self.send_plain(burst, &mut done);
        }
        if !burst.is_empty() && self.vacant() > 0 {
            self.send_each(burst, caches, &mut done);
        }
        done
    }

    /// The short way: single frames of a good length with room for the header. It stops at the first other one, or when the queue is
    /// full.
    #[inline(always)]
    fn send_plain(&mut self, burst: &mut Burst, done: &mut Sent) {
        let words = burst.words();
        let mut rest = &words[..words.len().min(self.vacant())];
        while let Some(first) = rest.first() {
            let pool = pool_of(*first);
            let (count, bytes) = self.suitable(rest, pool);
            if count == 0 {
                break;
            }
            self.write_frames(&rest[..count], pool);
            (done.frames, done.bytes) = (done.frames + count, done.bytes + bytes);
            rest = &rest[count..];
        }
        burst.advance(done.frames);
    }

    /// How many frames from the front are of `pool`, of a good length and with room for the header, and their bytes.
    #[inline(always)]
    fn suitable(&self, words: &[u64], pool: u8) -> (usize, u64) {
        let (shortest, longest) = (*self.limits.lengths.start(), *self.limits.lengths.end());
        // One comparison tells that a frame is of the pool and of a good length.
        let lowest = u32::from(pool) << POOL_SHIFT | u32::from(shortest);
        let inside = buffer_bytes(pool) as u32 - 1;
        let fits = |word: u64| {
            let over = (word as u32 & TAG).wrapping_sub(lowest);
            let headroom = (word >> 24) as u32 & inside;
            (over <= u32::from(longest - shortest)) & (headroom >= HEADER_BYTES as u32)
        };
        let (mut all, mut bytes) = (true, 0);
        for word in words {
            all &= fits(*word);
            bytes += u64::from(length_of(*word));
        }
        if all {
            return (words.len(), bytes);
        }
        let count = words.iter().take_while(|word| fits(**word)).count();
        (count, words[..count].iter().map(|word| u64::from(length_of(*word))).sum())
    }

    #[inline(always)]
    fn write_frames(&mut self, words: &[u64], pool: u8) {
        let (tail, mask) = (self.tail, self.format.mask());
        let before_wrap = words.len().min((mask + 1 - (tail & mask)) as usize);
        self.write_run(tail.wrapping_add(1), &words[1..before_wrap], pool);
        self.write_run(tail.wrapping_add(before_wrap as u32), &words[before_wrap..], pool);
        self.write_run(tail, &words[..1], pool);
        if self.skewed {
            self.number(words.len() as u32);
        }
        self.available = self.available.wrapping_add(words.len() as u32);
        self.tail = tail.wrapping_add(words.len() as u32);
        let second = self.format.second(tail, sent_bytes(words[0]), 0, tail);
        self.format.publish(tail, second, self.available);
    }

    /// Writes frames and their headers into slots one behind the other, from index `first` on. The head's descriptor is not complete
    /// before it is published.
    #[inline(always)]
    fn write_run(&mut self, first: u32, words: &[u64], pool: u8) {
        let start = (first & self.format.mask()) as usize;
        if words.is_empty() {
            return;
        }
        let head = first == self.tail;
        let mut second = self.format.second(first, 0, 0, first);
        let base = iova_base(pool).wrapping_sub(HEADER_BYTES as u64);
        let headers = cpu_base(pool).wrapping_sub(HEADER_BYTES);
        let entries = &mut self.entries[start..start + words.len()];
        for (at, (entry, word)) in entries.iter_mut().zip(words).enumerate() {
            *entry = *word;
            // SAFETY: the frame is ours and has room for a header in front of it, as the caller checked.
            unsafe { clear_header(headers.wrapping_add((word >> 24) as usize)) };
            let address = iova_at(base, *word).bits();
            // SAFETY: the shadow has a slot for each entry, and `entries` is a part of it.
            unsafe {
                match head {
                    true => self.format.write_address(start + at, address),
                    false => self.format.write(start + at, address, second + u64::from(sent_bytes(*word))),
                }
            }
            second = second.wrapping_add(F::SECOND_STEP);
        }
    }

    /// Writes the slots of the next `count` buffers, one each, into the available ring.
    #[cold]
    fn number(&mut self, count: u32) {
        for at in 0..count {
            let slot = self.tail.wrapping_add(at) & self.format.mask();
            self.format.set_available(self.available.wrapping_add(at), slot);
        }
    }

    /// The long way, one by one: chains, frames without room for a header, frames that the device cannot send.
    #[cold]
    #[inline(never)]
    fn send_each(&mut self, burst: &mut Burst, caches: &mut Caches, done: &mut Sent) {
        loop {
            // One more for a header of its own.
            let segments = burst.first_chain().map_or(1, |chain| chain.segments().len()) + 1;
            if segments <= self.limits.segments + 1 && segments > self.vacant() {
                return;
            }
            let Some(chain) = burst.pop_chain() else { return };
            done.frames += 1;
            if self.suits(&chain) {
                done.bytes += chain.len() as u64;
                self.write_chain(chain);
            } else {
                done.rejected += 1;
                caches.put_chain(chain);
            }
        }
    }

    fn suits(&self, chain: &Chain) -> bool {
        let length = u16::try_from(chain.len()).is_ok_and(|length| self.limits.lengths.contains(&length));
        let segments = chain.segments();
        length && segments.len() <= self.limits.segments && segments.iter().all(|segment| !segment.is_empty())
    }

    fn write_chain(&mut self, chain: Chain) {
        let segments = chain.segments().len() as u32;
        let room = matches!(&chain.segments()[0], Segment::Frame(frame) if frame.headroom() >= HEADER_BYTES);
        let total = segments + u32::from(!room);
        let (head, slot) = (self.tail, (self.tail & self.format.mask()) as usize);
        // The head is complete only when it is published: before, the device must not see what follows it.
        let mut first = (self.zeros.iova(0).bits(), HEADER_BYTES as u32);
        let mut at = 0;
        if !room {
            self.note(head, HEADER_MARK);
            at = 1;
        }
        for segment in chain.into_segments() {
            let front = if at == 0 { HEADER_BYTES } else { 0 };
            let part = (segment.iova().bits() - front as u64, (segment.len() + front) as u32);
            match segment {
                Segment::Frame(frame) => self.note(head.wrapping_add(at), header_of(frame, front)),
                Segment::Span(span) => {
                    self.spans.push_back(span);
                    self.note(head.wrapping_add(at), SPAN_MARK);
                }
            }
            match at {
                0 => first = part,
                _ => self.write_part(head, at, total, part),
            }
            at += 1;
        }
        // SAFETY: the masked index is below the number of entries.
        unsafe { self.format.write_address(slot, first.0) };
        if total > 1 {
            self.chains[slot] = total as u8;
            (self.chained, self.skewed) = (self.chained + 1, F::COUNTED);
        }
        self.format.set_available(self.available, slot as u32);
        self.available = self.available.wrapping_add(1);
        self.tail = head.wrapping_add(total);
        let second = self.part_second(head, 0, total, first.1);
        self.format.publish(head, second, self.available);
    }

    /// Writes part `at` of a chain of `total`, behind its head.
    fn write_part(&mut self, head: u32, at: u32, total: u32, (address, bytes): (u64, u32)) {
        let slot = (head.wrapping_add(at) & self.format.mask()) as usize;
        let second = self.part_second(head, at, total, bytes);
        // SAFETY: the masked index is below the number of entries.
        unsafe { self.format.write(slot, address, second) };
        self.chains[slot] = INSIDE;
    }

    fn part_second(&self, head: u32, at: u32, total: u32, bytes: u32) -> u64 {
        let flags = if at + 1 == total { 0 } else { flags::NEXT };
        self.format.second(head.wrapping_add(at), bytes, flags, head)
    }

    fn note(&mut self, index: u32, word: u64) {
        self.entries[(index & self.format.mask()) as usize] = word;
    }

    /// Whether the device must be notified of what was sent since the last call.
    #[inline]
    pub fn kick_due(&mut self) -> bool {
        let (new, old) = (self.available, std::mem::replace(&mut self.told, self.available));
        let (tail, told_tail) = (self.tail, std::mem::replace(&mut self.told_tail, self.tail));
        match F::COUNTED {
            true => new != old && self.format.kick_due(old, new),
            false => tail != told_tail && self.format.kick_due(told_tail, tail),
        }
    }

    /// What the notification carries.
    pub fn notification_data(&self, queue: u16) -> u32 {
        self.format.notification_data(queue, if F::COUNTED { self.available } else { self.tail })
    }

    /// Sends home what the device is done with.
    #[inline(always)]
    pub fn reclaim(&mut self, caches: &mut Caches) -> Reclaimed {
        let (first, mut lies) = (self.clean, 0);
        if first == self.tail {
            return Reclaimed::default();
        }
        let end = match (F::COUNTED, self.order) {
            (true, Order::InOrder) => self.end_by_count(&mut lies),
            (false, Order::InOrder) => self.end_by_entries(&mut lies),
            (_, Order::Any) => self.end_by_marks(&mut lies),
        };
        if end != first {
            // The used entries that were seen come before any reuse of the buffers.
            fence::after_done_bit();
            self.release(end, caches);
        }
        Reclaimed { slots: end.wrapping_sub(first) as usize, lies }
    }

    /// In ring order and counted: the index says it all, and the entries need not be read (2.7.9).
    #[inline(always)]
    fn end_by_count(&mut self, lies: &mut usize) -> u32 {
        let count = self.format.counted(self.used);
        if count > self.available.wrapping_sub(self.used) {
            *lies += 1;
            return self.clean;
        }
        self.used = self.used.wrapping_add(count);
        if self.chained == 0 {
            return self.clean.wrapping_add(count);
        }
        (0..count).fold(self.clean, |end, _| end.wrapping_add(self.slots_of(end)))
    }

    /// In ring order: an entry speaks for all buffers up to its own (2.8.9).
    #[inline(always)]
    fn end_by_entries(&mut self, lies: &mut usize) -> u32 {
        let (mut end, mask) = (self.clean, self.format.mask());
        while end != self.tail {
            // SAFETY: the masked index is below the number of entries.
            let entry = unsafe { self.format.used((end & mask) as usize) };
            if !self.format.is_used(entry, end) {
                break;
            }
            let ahead = F::id(entry).wrapping_sub(end) & mask;
            let last = end.wrapping_add(ahead);
            if ahead >= self.tail.wrapping_sub(end) || self.chains[(last & mask) as usize] == INSIDE {
                *lies += 1;
                break;
            }
            end = last.wrapping_add(self.slots_of(last));
        }
        self.used = end;
        end
    }

    /// In any order: marks what is used, and frees from the front.
    #[inline(never)]
    fn end_by_marks(&mut self, lies: &mut usize) -> u32 {
        let (mask, given) = (self.format.mask(), self.available.wrapping_sub(self.used));
        let behind = self.tail.wrapping_sub(self.used);
        let mut left = if F::COUNTED { self.format.counted(self.used) } else { behind };
        if F::COUNTED && left > given {
            *lies += 1;
            left = 0;
        }
        while left > 0 {
            // SAFETY: the masked index is below the number of entries.
            let entry = unsafe { self.format.used((self.used & mask) as usize) };
            if !self.format.is_used(entry, self.used) {
                break;
            }
            let (id, pending) = (F::id(entry), self.pending() as u32);
            let ours = id <= mask && (id.wrapping_sub(self.clean) & mask) < pending;
            if !ours || self.chains[id as usize] == INSIDE || self.early[id as usize] {
                *lies += 1;
                self.used = self.used.wrapping_add(u32::from(F::COUNTED));
                // A packed queue's next entry is found by the slots of this one, so a lie ends it.
                left = if F::COUNTED { left - 1 } else { 0 };
                continue;
            }
            self.early[id as usize] = true;
            let passed = step::<F>(self.slots_of(id));
            self.used = self.used.wrapping_add(passed);
            left = left.saturating_sub(passed);
        }
        let mut end = self.clean;
        while end != self.tail && std::mem::take(&mut self.early[(end & mask) as usize]) {
            end = end.wrapping_add(self.slots_of(end));
        }
        end
    }

    /// Slots of the buffer whose head is at an index.
    #[inline(always)]
    fn slots_of(&self, index: u32) -> u32 {
        u32::from(self.chains[(index & self.format.mask()) as usize]).max(1)
    }

    #[inline]
    fn release(&mut self, end: u32, caches: &mut Caches) {
        if self.chained > 0 {
            self.unchain(end);
        }
        let mask = self.format.mask();
        while self.clean != end {
            let start = (self.clean & mask) as usize;
            let count = (end.wrapping_sub(self.clean) as usize).min(BLOCK).min(self.entries.len() - start);
            let words = &self.entries[start..start + count];
            if !caches.put_block(words) {
                put_each(words, caches, &mut self.spans);
            }
            self.clean = self.clean.wrapping_add(count as u32);
        }
    }

    #[cold]
    fn unchain(&mut self, end: u32) {
        let mut index = self.clean;
        while index != end {
            let chain = std::mem::take(&mut self.chains[(index & self.format.mask()) as usize]);
            self.chained -= usize::from(chain != 0 && chain != INSIDE);
            index = index.wrapping_add(1);
        }
    }

    /// Takes back every buffer and empties the queue. Only when the device no longer works on it.
    pub fn recall(&mut self, caches: &mut Caches) {
        self.release(self.tail, caches);
        (self.clean, self.tail, self.used, self.available) = (0, 0, 0, 0);
        (self.told, self.told_tail, self.skewed) = (0, 0, false);
        self.early.fill(false);
        self.format.reset();
    }

    #[cfg(test)]
    pub(super) fn start_at(&mut self, index: u32) {
        (self.clean, self.tail, self.used) = (index, index, index);
        (self.available, self.told, self.told_tail) = (index, index, index);
    }
}

/// Length of a frame with its header.
#[inline(always)]
fn sent_bytes(word: u64) -> u32 {
    u32::from(length_of(word)) + HEADER_BYTES as u32
}

/// Makes a header all zeros: no offload is asked for (5.1.6.2).
///
/// # Safety
/// The 12 bytes from `at` on are mapped and belong to the caller alone.
#[inline(always)]
unsafe fn clear_header(at: *mut u8) {
    // SAFETY: the caller's promise; both accesses stay inside the 12 bytes.
    unsafe {
        let (first, rest) = (at.cast::<u32>(), at.add(4).cast::<u64>());
        if u64::from(first.read_unaligned()) | rest.read_unaligned() != 0 {
            first.write_unaligned(0);
            rest.write_unaligned(0);
        }
    }
}

/// The word of a frame; where `front` bytes of its headroom carry the header, they are cleared.
fn header_of(frame: Frame, front: usize) -> u64 {
    let word = frame.into_word();
    if front > 0 {
        let first = cpu_base(pool_of(word)).wrapping_add((word >> 24) as usize);
        // SAFETY: the caller saw that the frame has this much headroom, and the frame was ours.
        unsafe { clear_header(first.wrapping_sub(front)) };
    }
    word
}

#[cold]
#[inline(never)]
fn put_each(words: &[u64], caches: &mut Caches, spans: &mut VecDeque<Span>) {
    for word in words {
        match *word {
            HEADER_MARK => {}
            SPAN_MARK => {
                spans.pop_front().into_iter().for_each(|span| caches.put_segment(Segment::Span(span)))
            }
            word => caches.put_word(word),
        }
    }
}

impl<F: Format> Drop for TransmitQueue<F> {
    fn drop(&mut self) {
        let (entries, mask) = (&self.entries, self.entries.len() as u32 - 1);
        let slots = (0..self.tail.wrapping_sub(self.clean)).map(|at| self.clean.wrapping_add(at));
        let words = slots.map(|slot| entries[(slot & mask) as usize]);
        let frames = words.filter(|word| *word != SPAN_MARK && *word != HEADER_MARK);
        self.lease.surrender(frames.map(Frame::from_word), self.spans.drain(..));
    }
}
