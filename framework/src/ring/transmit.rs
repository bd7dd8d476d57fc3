//! A transmit ring: the descriptors, and the record of whose bytes each slot points to.
//!
//! `clean <= tail`, both free-running; the slots between them belong to the device. A *block* is what one write-back covers: up to 32
//! descriptors of which the last asks for it. `block_end` says, for the first slot of each block, which slot that is; so
//! reclaiming looks at one descriptor a block and never at a register.

use super::descriptor::{Descriptor, DescriptorRing, Slot};
use super::{Lease, RingMemory, fence};
use crate::buffer::{Burst, Caches, Chain, Frame, POOL_SHIFT, SPAN_MARK, Segment, Span, TAG};
use crate::buffer::{iova_at, iova_base, length_of, pool_of};
use crate::iova::Iova;
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Descriptors that one write-back covers at most.
const BLOCK: usize = 32;

/// Whether a descriptor must be written back when done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// No.
    Silent,
    /// Yes: it ends a block.
    WriteBack,
}

/// One descriptor to write.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing {
    /// Where the bytes are.
    pub iova: Iova,
    /// How many, at most 65535.
    pub bytes: u32,
    /// Length of the whole frame that it belongs to.
    pub frame_bytes: u32,
    /// Whether it is the last one of its frame.
    pub last: bool,
    /// Whether to ask for a write-back.
    pub report: Report,
}

/// What a send pass did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sent {
    /// Frames taken from the burst.
    pub frames: usize,
    /// Those of them that the device is not asked to send.
    pub rejected: usize,
    /// Bytes of the others.
    pub bytes: u64,
}

/// What a device can send.
#[derive(Clone, Debug)]
pub struct SendLimits {
    /// Frame lengths, bytes.
    pub lengths: RangeInclusive<u16>,
    /// Segments of one frame.
    pub segments: usize,
}

/// A transmit ring of descriptors of type `D`.
pub struct TransmitRing<D> {
    ring: DescriptorRing<D>,
    /// By slot, a frame's word, or the mark of a span.
    entries: Box<[u64]>,
    /// By first slot of a block, the free-running index of its last.
    block_end: Box<[u32]>,
    clean: u32,
    tail: u32,
    limits: SendLimits,
    /// Spans in ring order; each has one mark in `entries`.
    spans: VecDeque<Span>,
    lease: Lease,
}

impl<D: Descriptor> TransmitRing<D> {
    /// A ring of `entries` slots (a power of two) at `offset` of `memory`.
    pub fn new(
        memory: &Arc<RingMemory>,
        offset: usize,
        entries: usize,
        limits: SendLimits,
        lease: Lease,
    ) -> Self {
        TransmitRing {
            ring: DescriptorRing::new(memory, offset, entries),
            entries: vec![0; entries].into_boxed_slice(),
            block_end: vec![0; entries].into_boxed_slice(),
            clean: 0,
            tail: 0,
            limits,
            spans: VecDeque::new(),
            lease,
        }
    }

    /// Its device address.
    pub fn iova(&self) -> Iova {
        self.ring.iova()
    }

    /// The lease under which it works.
    #[inline]
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The slot that is written next, as the device counts: what the tail register takes.
    #[inline]
    pub fn tail(&self) -> u32 {
        self.tail & self.ring.mask()
    }

    /// Slots that can be written. One always stays empty, since a full ring looks like an empty one to the device.
    #[inline]
    pub fn vacant(&self) -> usize {
        self.ring.mask() as usize - self.pending()
    }

    /// Descriptors that the device may still read.
    #[inline]
    pub fn pending(&self) -> usize {
        self.tail.wrapping_sub(self.clean) as usize
    }

    /// Takes frames from the front of `burst`, as many as fit, with the descriptor that `describe` makes of each. A frame that the
    /// device cannot send is taken and goes back to its pool.
    #[inline(always)]
    pub fn send(&mut self, burst: &mut Burst, caches: &mut Caches, describe: impl Fn(Outgoing) -> D) -> Sent {
        let mut done = Sent::default();
        if burst.is_plain() {
            self.send_plain(burst, &mut done, &describe);
        }
        if !burst.is_empty() && self.vacant() > 0 {
            self.send_each(burst, caches, &mut done, &describe);
        }
        done
    }

    /// The short way: single frames of a good length. It stops at the first other one, or when the ring is full.
    #[inline(always)]
    fn send_plain(&mut self, burst: &mut Burst, done: &mut Sent, describe: &impl Fn(Outgoing) -> D) {
        let words = burst.words();
        let mut rest = &words[..words.len().min(self.vacant())];
        let (shortest, longest) = (*self.limits.lengths.start(), *self.limits.lengths.end());
        while let Some(first) = rest.first() {
            let run = self.ring.run(self.tail, rest.len().min(BLOCK));
            let base = iova_base(pool_of(*first));
            // One comparison tells that a frame is of the first one's pool and of a good length.
            let lowest = u32::from(pool_of(*first)) << POOL_SHIFT | u32::from(shortest);
            let entries = &mut self.entries[run.start..run.start + run.slots];
            let mut bytes = 0;
            let mut count = run.slots;
            for (at, (entry, word)) in entries.iter_mut().zip(rest).enumerate() {
                let over = (*word as u32 & TAG).wrapping_sub(lowest);
                if over > u32::from(longest - shortest) {
                    count = at;
                    break;
                }
                let length = over + u32::from(shortest);
                *entry = *word;
                // SAFETY: `entries` and so the loop are as long as the run.
                unsafe { run.slot(at) }.write(describe(single(base, *word, length, Report::Silent)));
                bytes += u64::from(length);
            }
            done.frames += count;
            done.bytes += bytes;
            self.close_block(base, count, describe);
            rest = if count == 0 { &[] } else { &rest[count..] };
        }
        burst.advance(done.frames);
    }

    /// Has the last of the `count` descriptors behind the tail written back, notes it as the end of a block and moves the tail.
    #[inline(always)]
    fn close_block(&mut self, base: u64, count: usize, describe: &impl Fn(Outgoing) -> D) {
        if count > 0 {
            let (first, last) = (self.tail, self.tail.wrapping_add(count as u32 - 1));
            let word = self.entries[(last & self.ring.mask()) as usize];
            let length = u32::from(length_of(word));
            self.ring.slot(last).write(describe(single(base, word, length, Report::WriteBack)));
            self.block_end[(first & self.ring.mask()) as usize] = last;
            self.tail = last.wrapping_add(1);
        }
    }

    /// The long way, one by one: chains, and frames that the device cannot send. Each frame is a block of its own.
    #[cold]
    #[inline(never)]
    fn send_each(
        &mut self,
        burst: &mut Burst,
        caches: &mut Caches,
        done: &mut Sent,
        describe: &impl Fn(Outgoing) -> D,
    ) {
        loop {
            let segments = burst.first_chain().map_or(1, |chain| chain.segments().len());
            if segments <= self.limits.segments && segments > self.vacant() {
                return;
            }
            let Some(chain) = burst.pop_chain() else { return };
            done.frames += 1;
            if self.suits(&chain) {
                done.bytes += chain.len() as u64;
                self.write_chain(chain, describe);
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

    fn write_chain(&mut self, chain: Chain, describe: &impl Fn(Outgoing) -> D) {
        let (first, frame_bytes, count) = (self.tail, chain.len() as u32, chain.segments().len());
        for (at, segment) in chain.into_segments().enumerate() {
            let last = at + 1 == count;
            let report = if last { Report::WriteBack } else { Report::Silent };
            let (iova, bytes) = (segment.iova(), segment.len() as u32);
            self.ring.slot(self.tail).write(describe(Outgoing { iova, bytes, frame_bytes, last, report }));
            self.entries[(self.tail & self.ring.mask()) as usize] = match segment {
                Segment::Frame(frame) => frame.into_word(),
                Segment::Span(span) => {
                    self.spans.push_back(span);
                    SPAN_MARK
                }
            };
            self.tail = self.tail.wrapping_add(1);
        }
        self.block_end[(first & self.ring.mask()) as usize] = self.tail.wrapping_sub(1);
    }

    /// Sends home what the device is done with; `is_done` reads the done bit of a slot. Gives how many descriptors.
    #[inline(always)]
    pub fn reclaim(&mut self, caches: &mut Caches, is_done: impl Fn(Slot<'_, D>) -> bool) -> usize {
        let first = self.clean;
        let mut end = first;
        while end != self.tail {
            let last = self.block_end[(end & self.ring.mask()) as usize];
            if !is_done(self.ring.slot(last)) {
                break;
            }
            end = last.wrapping_add(1);
        }
        if end != first {
            // The done bits that were seen come before any reuse of the buffers.
            fence::after_done_bit();
            self.release(end, caches);
        }
        end.wrapping_sub(first) as usize
    }

    #[cfg(test)]
    pub(super) fn start_at(&mut self, index: u32) {
        (self.clean, self.tail) = (index, index);
    }

    #[cfg(test)]
    pub(super) fn oldest(&self) -> u32 {
        self.clean
    }

    /// The last slot of each block that the device may still read.
    #[cfg(test)]
    pub(super) fn block_ends(&self) -> Vec<u32> {
        let (mut ends, mut next) = (Vec::new(), self.clean);
        while next != self.tail {
            ends.push(self.block_end[(next & self.ring.mask()) as usize]);
            next = self.block_end[(next & self.ring.mask()) as usize].wrapping_add(1);
        }
        ends
    }

    #[inline]
    fn release(&mut self, end: u32, caches: &mut Caches) {
        while self.clean != end {
            let run = self.ring.run(self.clean, (end.wrapping_sub(self.clean) as usize).min(BLOCK));
            let words = &self.entries[run.start..run.start + run.slots];
            if !caches.put_block(words) {
                put_each(words, caches, &mut self.spans);
            }
            self.clean = self.clean.wrapping_add(run.slots as u32);
        }
    }
}

#[inline(always)]
fn single(base: u64, word: u64, bytes: u32, report: Report) -> Outgoing {
    Outgoing { iova: iova_at(base, word), bytes, frame_bytes: bytes, last: true, report }
}

#[cold]
#[inline(never)]
fn put_each(words: &[u64], caches: &mut Caches, spans: &mut VecDeque<Span>) {
    for word in words {
        match *word {
            SPAN_MARK => {
                spans.pop_front().into_iter().for_each(|span| caches.put_segment(Segment::Span(span)))
            }
            word => caches.put_word(word),
        }
    }
}

impl<D> Drop for TransmitRing<D> {
    fn drop(&mut self) {
        let (entries, mask) = (&self.entries, self.entries.len() as u32 - 1);
        let slots = (0..self.tail.wrapping_sub(self.clean)).map(|at| self.clean.wrapping_add(at));
        let words = slots.map(|slot| entries[(slot & mask) as usize]).filter(|word| *word != SPAN_MARK);
        self.lease.surrender(words.map(Frame::from_word), self.spans.drain(..));
    }
}
