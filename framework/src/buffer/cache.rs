//! A worker's stock of frames: one [`Cache`] for each pool that it meets, and no lock on the way.
//!
//! [`Caches`] belongs to one worker and is passed to every queue operation. A cache gives the frame that came back last, which
//! the core's own cache still holds. When it runs empty it takes a magazine from its pool's depot, when it runs full it gives
//! half of itself back. Dropping it returns all.

use super::magazine::MAGAZINE;
use super::pool::{Handle, Level};
use super::{Access, BURST, Burst, Chain, Frame, Pool, Segment, pool, pool_of};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Frames that a cache holds at most.
const CAPACITY: usize = 512;

/// Frames of one pool, owned by one worker.
pub(crate) struct Cache {
    handle: Arc<Handle>,
    level: Level,
    keep: u64,
    home: u64,
    len: usize,
    stack: Box<[u64; CAPACITY]>,
}

impl Cache {
    fn new(handle: Arc<Handle>, owner: &str) -> Cache {
        let (keep, home) = handle.0.masks();
        let level = handle.0.enlist(owner);
        Cache { handle, level, keep, home, len: 0, stack: Box::new([0; CAPACITY]) }
    }

    /// Takes up to `wanted` frames (at most 64) in their home form; fewer when the pool is empty.
    #[inline]
    pub(crate) fn take(&mut self, wanted: usize) -> &[u64] {
        debug_assert!(wanted <= BURST);
        if self.len < wanted {
            self.restock(wanted);
        }
        let taken = wanted.min(self.len);
        let end = self.len;
        self.len = end - taken;
        self.level.1.store(self.len, Ordering::Relaxed);
        &self.stack[end - taken..end]
    }

    /// Makes room for `more` frames (at most 64) and gives the slots for them with the masks of their home form; all of them
    /// must be filled.
    #[inline]
    pub(crate) fn slots(&mut self, more: usize) -> (&mut [u64], u64, u64) {
        debug_assert!(more <= BURST);
        if self.len + more > CAPACITY {
            self.relieve();
        }
        let start = self.len;
        self.len = start + more;
        self.level.1.store(self.len, Ordering::Relaxed);
        (&mut self.stack[start..start + more], self.keep, self.home)
    }

    /// Undoes the last [`Cache::slots`].
    #[cold]
    fn forget(&mut self, slots: usize) {
        self.len -= slots;
    }

    #[cold]
    fn restock(&mut self, wanted: usize) {
        let mut frames = [0; MAGAZINE];
        while self.len < wanted {
            let taken = self.handle.0.take(&mut frames);
            if taken == 0 {
                return;
            }
            self.stack[self.len..self.len + taken].copy_from_slice(&frames[..taken]);
            self.len += taken;
        }
    }

    #[cold]
    fn relieve(&mut self) {
        // The oldest frames go: they are the coldest.
        let (old, _) = self.stack.as_chunks::<MAGAZINE>();
        old[..CAPACITY / MAGAZINE / 2].iter().for_each(|frames| self.handle.0.give(frames));
        self.stack.copy_within(CAPACITY / 2..self.len, 0);
        self.len -= CAPACITY / 2;
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let (full, rest) = self.stack[..self.len].as_chunks::<MAGAZINE>();
        full.iter().for_each(|frames| self.handle.0.give(frames));
        self.handle.0.stray(rest);
    }
}

/// All caches of one worker, and what came back that is not a frame.
pub struct Caches {
    owner: String,
    by_pool: Box<[Option<Box<Cache>>; 256]>,
    cookies: Vec<u64>,
}

impl Default for Caches {
    fn default() -> Caches {
        Caches::new("main")
    }
}

impl Caches {
    /// Empty caches; `owner` appears in each pool's census.
    pub fn new(owner: &str) -> Caches {
        Caches { owner: owner.to_owned(), by_pool: Box::new([const { None }; 256]), cookies: Vec::new() }
    }

    /// Takes one frame, empty, with the pool's headroom in front. `None` when the pool has none left.
    pub fn take<D: Access>(&mut self, pool: &Pool<D>) -> Option<Frame> {
        let word = *self.of(pool.id())?.take(1).first()?;
        Some(Frame::from_word(word))
    }

    /// Takes up to `count` frames into `burst`, as many as there are and as fit; gives how many.
    pub fn take_into<D: Access>(&mut self, pool: &Pool<D>, burst: &mut Burst, count: usize) -> usize {
        let wanted = count.min(burst.room());
        let Some(cache) = self.of(pool.id()) else { return 0 };
        let words = cache.take(wanted);
        // Not a memcpy: its wide loads would wait for the narrower stores with which these frames were just put back.
        let ((blocks, rest), slots) = (words.as_chunks::<4>(), burst.slots());
        let (slot_blocks, _) = slots.as_chunks_mut::<4>();
        slot_blocks.iter_mut().zip(blocks).for_each(|(slot, block)| *slot = *block);
        slots[words.len() - rest.len()..words.len()].copy_from_slice(rest);
        burst.filled(words.len());
        words.len()
    }

    /// Gives a frame back.
    pub fn put(&mut self, frame: Frame) {
        self.put_word(frame.into_word());
    }

    /// Gives every frame of a burst back, spans' cookies included.
    pub fn put_all(&mut self, burst: &mut Burst) {
        if burst.is_plain() && self.put_block(burst.words()) {
            burst.advance(BURST);
        }
        while !burst.is_empty() {
            match burst.pop() {
                Some(frame) => self.put(frame),
                None => burst.pop_chain().into_iter().for_each(|chain| self.put_chain(chain)),
            }
        }
    }

    /// Gives all frames back to their pools. The caches stay usable.
    pub fn flush(&mut self) {
        self.by_pool.fill_with(|| None);
    }

    /// Cookies of spans that a port no longer needs; they are taken out.
    pub fn take_cookies(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.cookies)
    }

    pub(crate) fn put_chain(&mut self, chain: Chain) {
        chain.into_segments().for_each(|segment| self.put_segment(segment));
    }

    pub(crate) fn put_segment(&mut self, segment: Segment) {
        match segment {
            Segment::Frame(frame) => self.put(frame),
            Segment::Span(span) => self.cookies.push(span.cookie),
        }
    }

    pub(crate) fn put_word(&mut self, word: u64) {
        match self.of(pool_of(word)) {
            Some(cache) => {
                let (slots, keep, home) = cache.slots(1);
                slots[0] = word & keep | home;
            }
            // The pool has no handle left, so its frames go straight home.
            None => pool::take_stray(word),
        }
    }

    /// Gives back up to 64 frames of one pool, in one go. False, and nothing done, when they are of several pools or no frames.
    #[inline]
    pub(crate) fn put_block(&mut self, words: &[u64]) -> bool {
        let Some(cache) = words.first().and_then(|word| self.of(pool_of(*word))) else { return false };
        let (slots, keep, home) = cache.slots(words.len());
        let mut foreign = 0;
        for (slot, word) in slots.iter_mut().zip(words) {
            foreign |= word ^ home;
            *slot = word & keep | home;
        }
        let all_of_one = pool_of(foreign) == 0;
        if !all_of_one {
            cache.forget(words.len());
        }
        all_of_one
    }

    /// The cache of one pool, made when it is first met. `None` when the pool has no handle left.
    #[inline]
    pub(crate) fn of(&mut self, pool: u8) -> Option<&mut Cache> {
        if self.by_pool[usize::from(pool)].is_none() {
            self.meet(pool);
        }
        self.by_pool[usize::from(pool)].as_deref_mut()
    }

    #[cold]
    fn meet(&mut self, pool: u8) {
        let handle = Handle::reopen(pool);
        self.by_pool[usize::from(pool)] = handle.map(|handle| Box::new(Cache::new(handle, &self.owner)));
    }
}
