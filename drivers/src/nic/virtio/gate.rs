//! How control stops the queues for a while when a backend went away, without taking them from their workers.
//!
//! Control sets an epoch, odd to pause and even to go on; each queue looks at it once an operation. A queue that sees a pause takes its
//! frames back, empties its ring and answers with the epoch; only when all have answered may the next backend see the rings. A
//! queue that is gone has answered for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The answer of a queue that was dropped.
const GONE: u32 = u32::MAX;

#[derive(Default)]
struct Shared {
    wanted: AtomicU32,
    answered: AtomicU32,
}

/// Control's end of one queue.
pub(super) struct Gate(Arc<Shared>);

/// A queue's end.
pub(super) struct Turnstile {
    shared: Arc<Shared>,
    epoch: u32,
}

/// What a queue has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Work.
    Go,
    /// Take everything back, then answer.
    Recall,
    /// Nothing: no backend is there.
    Wait,
}

pub(super) fn gate() -> (Gate, Turnstile) {
    let shared = Arc::new(Shared::default());
    (Gate(shared.clone()), Turnstile { shared, epoch: 0 })
}

impl Gate {
    /// Sets the epoch.
    pub(super) fn set(&self, epoch: u32) {
        // Release: a queue that sees an even epoch sees the rings that the new backend was told of.
        self.0.wanted.store(epoch, Ordering::Release);
    }

    /// Whether the queue has taken everything back for `epoch`, or is gone.
    pub(super) fn is_at(&self, epoch: u32) -> bool {
        // Acquire: the emptied ring is visible to who is told of it next.
        matches!(self.0.answered.load(Ordering::Acquire), answered if answered == epoch || answered == GONE)
    }
}

impl Turnstile {
    /// What to do now.
    #[inline(always)]
    pub(super) fn turn(&mut self) -> Turn {
        let wanted = self.shared.wanted.load(Ordering::Relaxed);
        if wanted == self.epoch && wanted & 1 == 0 { Turn::Go } else { self.changed() }
    }

    #[cold]
    fn changed(&mut self) -> Turn {
        let wanted = self.shared.wanted.load(Ordering::Acquire);
        match (wanted == self.epoch, wanted & 1 == 0) {
            (true, _) => Turn::Wait,
            (false, true) => {
                self.epoch = wanted;
                Turn::Go
            }
            (false, false) => Turn::Recall,
        }
    }

    /// Everything was taken back.
    pub(super) fn answer(&mut self) {
        self.epoch = self.shared.wanted.load(Ordering::Relaxed);
        self.shared.answered.store(self.epoch, Ordering::Release);
    }
}

impl Drop for Turnstile {
    fn drop(&mut self) {
        self.shared.answered.store(GONE, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_answers_before_the_next_epoch() {
        let (control, mut queue) = gate();
        assert_eq!(queue.turn(), Turn::Go);
        control.set(1);
        assert!(!control.is_at(1));
        assert_eq!((queue.turn(), queue.turn()), (Turn::Recall, Turn::Recall));
        queue.answer();
        assert!(control.is_at(1));
        assert_eq!(queue.turn(), Turn::Wait);
        control.set(2);
        assert_eq!(queue.turn(), Turn::Go);
        control.set(3);
        drop(queue);
        assert!(control.is_at(3));
    }
}
