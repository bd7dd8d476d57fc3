//! A receive ring: the descriptors, and the record of which frame lies in which slot.
//!
//! `head <= tail`, both free-running; the slots between them hold frames that the device may fill, the others hold nothing. Only the
//! driver moves them: [`ReceiveRing::post`] moves `tail`, [`ReceiveRing::collect`] moves `head`, in ring order. A device can lie about
//! when and with what it filled a slot, never about which frame is in it or how large that is.

use super::descriptor::{Descriptor, DescriptorRing, Run};
use super::{Lease, RingMemory, fence};
use crate::buffer::{BURST, Both, Burst, Caches, Frame, Pool, iova_at, iova_base};
use crate::iova::Iova;
use std::sync::Arc;

/// A receive descriptor, as its driver describes it.
pub trait ReceiveDescriptor: Descriptor {
    /// The word of 8 bytes in which the device says that and what it filled. It must be the last one that an honest device writes.
    const STATUS_WORD: usize;
    /// The descriptor that posts a buffer; it must not read as done.
    fn post(buffer: Iova) -> Self;
    /// The length in bytes, if the status says that a whole and good frame is there.
    fn good_length(status: u64) -> Option<u16>;
    /// Whether the device is done with the slot, for better or worse.
    fn is_done(status: u64) -> bool;
}

/// What a receive pass did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Collected {
    /// Good frames handed out.
    pub frames: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Slots whose descriptor was bad, or spoke of more bytes than the buffer has.
    pub bad: usize,
}

/// A receive ring of descriptors of type `D`.
pub struct ReceiveRing<D> {
    ring: DescriptorRing<D>,
    /// By slot, the word of the frame that lies there, in its home form.
    frames: Box<[u64]>,
    head: u32,
    tail: u32,
    pool: u8,
    room: u16,
    /// Buffers of bad frames.
    spare: Vec<u64>,
    lease: Lease,
}

impl<D: ReceiveDescriptor> ReceiveRing<D> {
    /// A ring of `entries` slots (a power of two) at `offset` of `memory`, filled from `pool`.
    pub fn new(
        memory: &Arc<RingMemory>,
        offset: usize,
        entries: usize,
        pool: &Pool<Both>,
        lease: Lease,
    ) -> Self {
        ReceiveRing {
            ring: DescriptorRing::new(memory, offset, entries),
            frames: vec![0; entries].into_boxed_slice(),
            head: 0,
            tail: 0,
            pool: pool.id(),
            room: pool.room_bytes() as u16,
            spare: Vec::with_capacity(BURST),
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

    /// The slot that is posted next, as the device counts: what the tail register takes.
    #[inline]
    pub fn tail(&self) -> u32 {
        self.tail & self.ring.mask()
    }

    /// Slots that are empty. One always stays so, since a full ring looks like an empty one to the device.
    #[inline]
    pub fn vacant(&self) -> usize {
        self.ring.mask() as usize - self.posted()
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
        let (words, base) = (cache.take(count), iova_base(self.pool));
        let mut rest = words;
        while !rest.is_empty() {
            let run = self.ring.run(self.tail, rest.len());
            let (now, later) = rest.split_at(run.slots);
            let frames = &mut self.frames[run.start..run.start + run.slots];
            for (at, (frame, word)) in frames.iter_mut().zip(now).enumerate() {
                *frame = *word;
                // SAFETY: `frames` and so the loop are as long as the run.
                unsafe { run.slot(at) }.write(D::post(iova_at(base, *word)));
            }
            self.tail = self.tail.wrapping_add(now.len() as u32);
            rest = later;
        }
        words.len()
    }

    /// Takes filled frames in ring order into `burst`, until a slot is not done, the burst is full or nothing is posted.
    #[inline(always)]
    pub fn collect(&mut self, burst: &mut Burst) -> Collected {
        let slots = burst.slots();
        let mut done = Collected::default();
        let mut left = self.posted().min(slots.len());
        while left > 0 {
            let run = self.ring.run(self.head, left);
            let frames = &self.frames[run.start..run.start + run.slots];
            let (taken, bytes) = take_good(run, frames, &mut slots[done.frames..], self.room);
            let stopped = taken < run.slots;
            self.head = self.head.wrapping_add(taken as u32);
            done.frames += taken;
            done.bytes += bytes;
            left -= taken;
            if stopped {
                let status = self.ring.slot(self.head).word(D::STATUS_WORD);
                // The slot may have been filled since it was read as not done: the next call takes it then.
                if !D::is_done(status) || D::good_length(status).is_some_and(|length| length <= self.room) {
                    break;
                }
                self.skip_bad();
                done.bad += 1;
                left -= 1;
            }
        }
        // The done bits that were seen come before any read of what the device wrote.
        fence::after_done_bit();
        burst.filled(done.frames);
        done
    }

    #[cfg(test)]
    pub(super) fn start_at(&mut self, index: u32) {
        (self.head, self.tail) = (index, index);
    }

    #[cold]
    fn skip_bad(&mut self) {
        self.spare.push(self.frames[(self.head & self.ring.mask()) as usize]);
        self.head = self.head.wrapping_add(1);
    }

    #[cold]
    fn return_spare(&mut self, caches: &mut Caches) {
        self.spare.drain(..).for_each(|word| caches.put_word(word));
    }
}

/// Takes good frames from the front of a run, up to the first slot that has none; gives how many and their bytes.
#[inline(always)]
fn take_good<D: ReceiveDescriptor>(
    run: Run<'_, D>,
    frames: &[u64],
    free: &mut [u64],
    room: u16,
) -> (usize, u64) {
    let mut bytes = 0;
    for (at, (slot, word)) in free.iter_mut().zip(frames).enumerate() {
        // SAFETY: `frames` and so the loop are as long as the run.
        let status = unsafe { run.slot(at) }.word(D::STATUS_WORD);
        match D::good_length(status) {
            Some(length) if length <= room => {
                // A frame at home has length 0, so adding sets it.
                *slot = word + u64::from(length);
                bytes += u64::from(length);
            }
            _ => return (at, bytes),
        }
    }
    (frames.len(), bytes)
}

impl<D> Drop for ReceiveRing<D> {
    fn drop(&mut self) {
        let (frames, mask) = (&self.frames, self.frames.len() as u32 - 1);
        let posted = (0..self.tail.wrapping_sub(self.head)).map(|at| self.head.wrapping_add(at));
        let words = posted.map(|slot| frames[(slot & mask) as usize]).chain(self.spare.iter().copied());
        self.lease.surrender(words.map(Frame::from_word), std::iter::empty());
    }
}
