//! Up to 64 frames on their way from one queue to the next.
//!
//! A burst owns its frames. Receiving appends at the end, sending takes from the front and leaves the rest, so what did not fit
//! stays in order. An entry is a frame or, rarely, a [`Chain`]; a burst without chains is *plain*, and queues have a short path
//! for it.

use super::{BURST, Chain, Frame, POOL_SHIFT, table};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;

/// Marks an entry that is the next of `chains`.
const CHAIN: u64 = (table::POOLS as u64) << POOL_SHIFT;

/// Frames in order.
pub struct Burst {
    entries: [u64; BURST],
    head: usize,
    tail: usize,
    chains: VecDeque<Chain>,
}

impl Default for Burst {
    fn default() -> Burst {
        Burst::new()
    }
}

impl Burst {
    /// An empty burst.
    pub const fn new() -> Burst {
        Burst { entries: [0; BURST], head: 0, tail: 0, chains: VecDeque::new() }
    }

    /// How many frames it holds.
    #[inline]
    pub fn len(&self) -> usize {
        self.tail - self.head
    }

    /// Whether it holds none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// How many more fit.
    #[inline]
    pub fn room(&self) -> usize {
        BURST - self.len()
    }

    /// Whether no entry is a chain.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.chains.is_empty()
    }

    /// Appends a frame.
    ///
    /// # Errors
    /// The frame comes back when 64 are there.
    pub fn push(&mut self, frame: Frame) -> Result<(), Frame> {
        if self.room() == 0 {
            return Err(frame);
        }
        self.push_word(frame.into_word());
        Ok(())
    }

    /// Appends a chain, which leaves as one frame.
    ///
    /// # Errors
    /// The chain comes back when 64 entries are there.
    pub fn push_chain(&mut self, chain: Chain) -> Result<(), Chain> {
        if self.room() == 0 {
            return Err(chain);
        }
        self.chains.push_back(chain);
        self.push_word(CHAIN);
        Ok(())
    }

    /// Takes the first frame; `None` when there is none or when it is a chain ([`Burst::pop_chain`] takes both).
    pub fn pop(&mut self) -> Option<Frame> {
        let word = self.first()?;
        if word == CHAIN {
            return None;
        }
        self.advance(1);
        Some(Frame::from_word(word))
    }

    /// Takes the first entry, a single frame as a chain of one.
    pub fn pop_chain(&mut self) -> Option<Chain> {
        let word = self.first()?;
        self.advance(1);
        if word == CHAIN { self.chains.pop_front() } else { Some(Chain::from(Frame::from_word(word))) }
    }

    /// The frames that are not chains, in order, to look at and to change.
    pub fn frames_mut(&mut self) -> Frames<'_> {
        Frames(self.entries[self.head..self.tail].iter_mut())
    }

    /// Starts loading the first line of the frame at `position`, if there is one.
    #[inline]
    pub fn prefetch(&self, position: usize) {
        if let Some(word) = self.entries[self.head..self.tail].get(position).filter(|word| **word != CHAIN) {
            ManuallyDrop::new(Frame::from_word(*word)).prefetch();
        }
    }

    /// Whether the first entry is a chain.
    pub(crate) fn starts_with_chain(&self) -> bool {
        self.first() == Some(CHAIN)
    }

    /// The first entry's chain, to look at.
    pub(crate) fn first_chain(&self) -> Option<&Chain> {
        self.chains.front().filter(|_| self.starts_with_chain())
    }

    /// Appends a frame's word; the caller made sure of the room.
    #[inline]
    pub(crate) fn push_word(&mut self, word: u64) {
        let slots = self.slots();
        slots[0] = word;
        self.filled(1);
    }

    /// The free slots behind the last entry, as many as there is room. What is written there counts once [`Burst::filled`] says so.
    #[inline]
    pub(crate) fn slots(&mut self) -> &mut [u64] {
        if self.head == self.tail {
            (self.head, self.tail) = (0, 0);
        } else if self.head > 0 {
            self.entries.copy_within(self.head.., 0);
            (self.head, self.tail) = (0, self.tail - self.head);
        }
        &mut self.entries[self.tail..]
    }

    /// Counts `count` slots as filled with frames that the burst now owns.
    #[inline]
    pub(crate) fn filled(&mut self, count: usize) {
        self.tail = (self.tail + count).min(BURST);
    }

    /// The words of a plain burst, in order.
    #[inline]
    pub(crate) fn words(&self) -> &[u64] {
        &self.entries[self.head..self.tail]
    }

    /// Gives the first `count` words up: somebody else owns their frames now.
    #[inline]
    pub(crate) fn advance(&mut self, count: usize) {
        self.head = (self.head + count).min(self.tail);
    }

    fn first(&self) -> Option<u64> {
        self.words().first().copied()
    }
}

impl Drop for Burst {
    fn drop(&mut self) {
        // The chains drop with their deque.
        self.words().iter().filter(|word| **word != CHAIN).for_each(|word| drop(Frame::from_word(*word)));
    }
}

/// The frames of a burst, to change.
pub struct Frames<'a>(std::slice::IterMut<'a, u64>);

impl<'a> Iterator for Frames<'a> {
    type Item = &'a mut Frame;

    #[inline]
    fn next(&mut self) -> Option<&'a mut Frame> {
        let word = self.0.find(|word| **word != CHAIN)?;
        // SAFETY: `Frame` is a transparent u64, and an entry that is not the mark of a chain is the word of a frame that the burst
        // owns; the iterator borrows the burst, so nobody else uses it.
        Some(unsafe { &mut *std::ptr::from_mut(word).cast::<Frame>() })
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::buffer::{Caches, Pool, PoolConfig, Segment, ToDevice};
    use crate::hugepages::Pages;

    fn frames(count: usize) -> (Pool<ToDevice>, Vec<Frame>) {
        let pages = Pages::Small4K { reason: "a unit test".into() };
        let pool = Pool::new(&PoolConfig { pages, ..PoolConfig::new("burst", 128) }, &[]).unwrap();
        let mut caches = Caches::new("test");
        let numbered = |number: usize| {
            let mut frame = caches.take(&pool).unwrap();
            assert!(frame.set_len(number + 1));
            frame
        };
        let frames = (0..count).map(numbered).collect();
        (pool, frames)
    }

    #[test]
    fn order_holds_when_the_front_is_taken_and_the_end_filled() {
        let (pool, frames) = frames(100);
        let mut frames = frames.into_iter();
        let (mut burst, mut expected) = (Burst::new(), 1);
        for _ in 0..8 {
            while burst.room() > 0 {
                let Some(frame) = frames.next() else { break };
                burst.push(frame).unwrap();
            }
            for _ in 0..20.min(burst.len()) {
                assert_eq!(burst.pop().unwrap().len(), expected);
                expected += 1;
            }
        }
        assert_eq!((expected, burst.len()), (101, 0));
        assert_eq!(pool.census().home, 128);
    }

    #[test]
    fn a_full_burst_gives_the_frame_back() {
        let (_pool, mut frames) = frames(65);
        let mut burst = Burst::new();
        let last = frames.pop().unwrap();
        frames.into_iter().for_each(|frame| burst.push(frame).unwrap());
        assert_eq!(burst.push(last).unwrap_err().len(), 65);
    }

    #[test]
    fn chains_keep_their_place_among_frames() {
        let (pool, mut frames) = frames(4);
        let mut chain = Chain::from(frames.pop().unwrap());
        chain.push(Segment::Frame(frames.pop().unwrap())).unwrap_or_else(|_| panic!("room"));
        let mut burst = Burst::new();
        burst.push(frames.pop().unwrap()).unwrap();
        burst.push_chain(chain).unwrap_or_else(|_| panic!("room"));
        burst.push(frames.pop().unwrap()).unwrap();
        assert_eq!(burst.frames_mut().map(|frame| frame.len()).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(burst.pop().unwrap().len(), 2);
        assert!(burst.pop().is_none() && !burst.is_plain());
        assert_eq!(burst.pop_chain().unwrap().len(), 4 + 3);
        assert!(burst.is_plain());
        drop(burst);
        assert_eq!(pool.census().home, 128);
    }
}
