//! Jobs for a worker, posted by any thread, run by the worker between two turns, in the order of posting.
//!
//! An empty mailbox costs the worker one load a turn. Who posts also wakes the worker (see `idle`). The worker closes
//! the mailbox when it ends: what is still inside comes out then, and a later post gets its job back.

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::mem;
use std::sync::PoisonError;

/// A queue of jobs `J` with one reader.
pub(super) struct Mailbox<J> {
    waiting: AtomicBool,
    contents: Mutex<Contents<J>>,
}

struct Contents<J> {
    jobs: VecDeque<J>,
    closed: bool,
}

impl<J> Mailbox<J> {
    pub(super) fn new() -> Mailbox<J> {
        let contents = Contents { jobs: VecDeque::new(), closed: false };
        Mailbox { waiting: AtomicBool::new(false), contents: Mutex::new(contents) }
    }

    /// Puts `job` behind the others, or gives it back if the mailbox is closed.
    pub(super) fn push(&self, job: J) -> Result<(), J> {
        let mut contents = self.contents();
        if contents.closed {
            return Err(job);
        }
        contents.jobs.push_back(job);
        // Release: the reader that sees the word takes the lock next, and the lock shows it the job.
        self.waiting.store(true, Ordering::Release);
        Ok(())
    }

    /// Takes what was posted.
    #[inline]
    pub(super) fn take(&self) -> VecDeque<J> {
        // Acquire: what the poster wrote before is visible from here on, even before the lock is ours.
        if self.waiting.load(Ordering::Acquire) { self.empty() } else { VecDeque::new() }
    }

    /// Refuses further posts and takes what was posted before.
    pub(super) fn close(&self) -> VecDeque<J> {
        self.contents().closed = true;
        self.empty()
    }

    #[cold]
    fn empty(&self) -> VecDeque<J> {
        let mut contents = self.contents();
        // Relaxed: written under the lock like the other store, so they cannot change places.
        self.waiting.store(false, Ordering::Relaxed);
        mem::take(&mut contents.jobs)
    }

    fn contents(&self) -> MutexGuard<'_, Contents<J>> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn jobs_come_out_in_order_and_once() {
        let mailbox = Mailbox::new();
        assert!(mailbox.take().is_empty());
        mailbox.push(1).unwrap();
        mailbox.push(2).unwrap();
        assert_eq!(mailbox.take(), [1, 2]);
        assert!(mailbox.take().is_empty());
    }

    #[test]
    fn a_closed_mailbox_gives_jobs_back() {
        let mailbox = Mailbox::new();
        mailbox.push(1).unwrap();
        assert_eq!(mailbox.close(), [1]);
        assert_eq!(mailbox.push(2), Err(2));
        assert!(mailbox.take().is_empty());
    }
}
