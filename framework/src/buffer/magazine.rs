//! The depot of a pool: full magazines of 64 frames that cross between cores without a lock.
//!
//! Magazines lie in one array and are on one of two stacks, full or empty. A magazine that is on neither belongs to the thread
//! that popped it. A stack's head is one word: index and a tag that each push and pop raises, so a head that was popped and
//! pushed back meanwhile is not taken for the old one (ABA).

use crate::sync::UnsafeCell;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Frames in a magazine.
pub(crate) const MAGAZINE: usize = 64;

/// No magazine: the end of a stack.
const NONE: u32 = u32::MAX;

struct Magazine {
    next: AtomicU32,
    frames: UnsafeCell<[u64; MAGAZINE]>,
}

impl Magazine {
    /// Reaches the frames of a magazine that the caller popped.
    fn access(&self, work: impl FnOnce(&mut [u64; MAGAZINE])) {
        // SAFETY: a popped magazine is on no stack, so it is this thread's alone; the pop acquired what its last owner wrote.
        #[cfg(loom)]
        self.frames.with_mut(|frames| work(unsafe { &mut *frames }));
        // SAFETY: as above.
        #[cfg(not(loom))]
        work(unsafe { &mut *self.frames.get() });
    }
}

/// Full and empty magazines.
pub(crate) struct Depot {
    magazines: Box<[Magazine]>,
    full: AtomicU64,
    empty: AtomicU64,
}

// SAFETY: the frames of a magazine are touched only by the thread that popped it; the stacks are atomic words.
unsafe impl Sync for Depot {}

impl Depot {
    /// A depot that can hold `count` full magazines, all empty now.
    pub(crate) fn new(count: usize) -> Depot {
        let magazine = |index: usize| Magazine {
            next: AtomicU32::new(if index == 0 { NONE } else { index as u32 - 1 }),
            frames: UnsafeCell::new([0; MAGAZINE]),
        };
        let first = if count == 0 { NONE } else { count as u32 - 1 };
        Depot {
            magazines: (0..count).map(magazine).collect(),
            full: AtomicU64::new(u64::from(NONE)),
            empty: AtomicU64::new(u64::from(first)),
        }
    }

    /// Takes a full magazine's frames; false when there is none.
    pub(crate) fn take(&self, into: &mut [u64; MAGAZINE]) -> bool {
        let Some(index) = self.pop(&self.full) else { return false };
        self.magazines[index as usize].access(|frames| *into = *frames);
        self.push(&self.empty, index);
        true
    }

    /// Gives a full magazine; false when no empty one is there, which happens only while others are between the two stacks.
    pub(crate) fn give(&self, from: &[u64; MAGAZINE]) -> bool {
        let Some(index) = self.pop(&self.empty) else { return false };
        self.magazines[index as usize].access(|frames| *frames = *from);
        self.push(&self.full, index);
        true
    }

    fn pop(&self, stack: &AtomicU64) -> Option<u32> {
        // Acquire: the frames and `next` that the pusher wrote are visible to this thread.
        let mut head = stack.load(Ordering::Acquire);
        loop {
            let index = head as u32;
            let next = self.magazines.get(index as usize)?.next.load(Ordering::Relaxed);
            let new = (head & !0xffff_ffff).wrapping_add(1 << 32) | u64::from(next);
            match stack.compare_exchange_weak(head, new, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(index),
                Err(found) => head = found,
            }
        }
    }

    fn push(&self, stack: &AtomicU64, index: u32) {
        let mut head = stack.load(Ordering::Relaxed);
        loop {
            self.magazines[index as usize].next.store(head as u32, Ordering::Relaxed);
            let new = (head & !0xffff_ffff).wrapping_add(1 << 32) | u64::from(index);
            // Release: the frames and `next` are visible to whoever pops this magazine.
            match stack.compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(found) => head = found,
            }
        }
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;

    #[test]
    fn two_threads_never_hold_one_magazine() {
        loom::model(|| {
            let depot = Arc::new(Depot::new(2));
            assert!(depot.give(&[1; MAGAZINE]) && depot.give(&[2; MAGAZINE]));
            let work = |depot: &Depot| {
                let mut frames = [0; MAGAZINE];
                depot.take(&mut frames).then(|| {
                    assert!(frames.iter().all(|frame| *frame == frames[0]), "torn magazine");
                    assert!(depot.give(&frames));
                })
            };
            let other = depot.clone();
            let thread = loom::thread::spawn(move || work(&other).is_some());
            work(&depot);
            thread.join().unwrap();
            let (mut first, mut second) = ([0; MAGAZINE], [0; MAGAZINE]);
            assert!(depot.take(&mut first) && depot.take(&mut second));
            assert_eq!(first[0] + second[0], 3, "a magazine was lost or doubled");
            assert!(!depot.take(&mut first));
        });
    }
}
