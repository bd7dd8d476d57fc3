//! What a worker does when no poller had work, and how it falls asleep without missing a wake-up.
//!
//! The sleeper's order is fixed: arm ([`Doze::arm`]), look for work once more, and only then sleep ([`Dozing::sleep`]).
//! Who has work for it first publishes the work and then calls [`Doze::rouse`]. Each side so writes its own word, passes
//! a SeqCst fence and reads the other's word; whichever fence is second in their single order, the read after it sees
//! the write before the other. So either the last look finds the work or the waker sees `asleep` and signals; both
//! seeing the old value, which acquire and release alone allow, is ruled out. The signal is sticky (an eventfd), so it
//! may also come before the sleep.

use crate::os::EventFd;
use crate::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::Arc;
use std::time::Duration;

/// What a worker does after a turn in which every poller was idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdlePolicy {
    /// Start the next turn at once: the lowest latency, a core at full power.
    Spin,
    /// Tell the core that this is a wait loop (x86 `pause`), which leaves more to its sibling hyperthread.
    Pause,
    /// Pause, and after enough idle turns in a row sleep until a descriptor of a poller or a [`Waker`] says that there
    /// is work. While a poller answers [`MustPoll`](super::Armed::MustPoll), the worker pauses instead.
    Sleep {
        /// Idle turns in a row before the first sleep.
        after_turns: u32,
        /// The longest sleep; pollers with timers run at least this often.
        at_most: Duration,
    },
}

/// The word that says whether the worker may be asleep. Both sides write it, and only by swaps: each write directly
/// follows the value that it replaced, so a waker's late `false` never hides the `true` of the next sleep. (The sleeper
/// could use plain stores in C++'s model, but loom does not order those after a concurrent swap.)
pub(super) struct Doze {
    asleep: AtomicBool,
}

impl Doze {
    pub(super) fn new() -> Doze {
        Doze { asleep: AtomicBool::new(false) }
    }

    /// Sleeper, step one: from now on wakers signal. The last look for work comes next.
    pub(super) fn arm(&self) -> Dozing<'_> {
        self.asleep.swap(true, Ordering::Relaxed);
        // SeqCst: a waker whose fence comes later sees `asleep`; of one whose fence came earlier, we see the work.
        fence(Ordering::SeqCst);
        Dozing { doze: self }
    }

    /// Whether the sleeper is armed and nobody has roused it.
    #[cfg(all(test, not(loom)))]
    pub(super) fn is_armed(&self) -> bool {
        self.asleep.load(Ordering::Relaxed)
    }

    /// Waker, after it published work: calls `signal` if the sleeper may miss that work, once per sleep.
    pub(super) fn rouse(&self, signal: impl FnOnce()) {
        // SeqCst: the pair of the fence in `arm`.
        fence(Ordering::SeqCst);
        // Relaxed: the signal itself carries what must be visible. The first look spares a busy worker's line the write.
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            signal();
        }
    }
}

/// An armed sleeper; dropping it disarms.
pub(super) struct Dozing<'a> {
    doze: &'a Doze,
}

impl Dozing<'_> {
    /// Step three, after the last look found nothing: waits for the signal.
    pub(super) fn sleep(self, wait: impl FnOnce()) {
        wait();
    }
}

impl Drop for Dozing<'_> {
    fn drop(&mut self) {
        // Relaxed: a waker that still sees `true` signals once too often, and the next sleep ends at once.
        self.doze.asleep.swap(false, Ordering::Relaxed);
    }
}

/// The word and the eventfd of one worker.
pub(super) struct Bell {
    pub(super) doze: Doze,
    pub(super) event: EventFd,
}

/// Wakes one worker. Who puts work where a poller of that worker finds it, a ring between two workers for instance,
/// keeps one of these; clones are handles to the same worker. A waker outlives its worker and then does nothing.
#[derive(Clone)]
pub struct Waker(Arc<Bell>);

impl Waker {
    pub(super) fn new(event: EventFd) -> Waker {
        Waker(Arc::new(Bell { doze: Doze::new(), event }))
    }

    pub(super) fn bell(&self) -> &Bell {
        &self.0
    }

    /// Call it after the work is published. Costs a full memory fence, and a system call only if the worker sleeps, so
    /// call it once a burst.
    pub fn wake(&self) {
        self.0.doze.rouse(|| {
            // Fails only if the descriptor is bad, which we own; and then the longest sleep bounds the harm.
            let _ = self.0.event.signal();
        });
    }
}

impl std::fmt::Debug for Waker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Waker").field(&self.0.event).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_an_armed_sleeper_is_signalled_and_only_once() {
        let (doze, mut signals) = (Doze::new(), 0);
        doze.rouse(|| signals += 1);
        assert_eq!(signals, 0);
        let armed = doze.arm();
        doze.rouse(|| signals += 1);
        doze.rouse(|| signals += 1);
        armed.sleep(|| {});
        assert_eq!(signals, 1);
        drop(doze.arm());
        doze.rouse(|| signals += 1);
        assert_eq!(signals, 1);
    }
}

/// A lost wake-up leaves the sleeper waiting for ever, which loom reports as a deadlock.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::atomic::AtomicUsize;
    use crate::sync::{Arc, thread};
    use crate::worker::mailbox::Mailbox;
    use loom::sync::Notify;

    /// Sleeps as the worker does until `found` says that all work was seen.
    fn work_until(doze: &Doze, event: &Notify, mut found: impl FnMut() -> bool) {
        while !found() {
            let armed = doze.arm();
            if found() {
                break;
            }
            armed.sleep(|| event.wait());
        }
    }

    #[test]
    fn a_published_word_is_never_slept_through() {
        loom::model(|| {
            let shared = Arc::new((Doze::new(), Notify::new(), AtomicUsize::new(0)));
            let waker = shared.clone();
            let publisher = thread::spawn(move || {
                for item in 1..=2 {
                    // Relaxed, weaker than any real publisher, so that only the fences order it.
                    waker.2.store(item, Ordering::Relaxed);
                    waker.0.rouse(|| waker.1.notify());
                }
            });
            work_until(&shared.0, &shared.1, || shared.2.load(Ordering::Relaxed) == 2);
            publisher.join().unwrap();
        });
    }

    #[test]
    fn two_posters_to_a_mailbox_both_wake_the_sleeper() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared = Arc::new((Doze::new(), Notify::new(), Mailbox::new()));
            let post = |item: u32| {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.2.push(item).unwrap();
                    shared.0.rouse(|| shared.1.notify());
                })
            };
            let posters = [post(1), post(2)];
            let mut sum = 0;
            work_until(&shared.0, &shared.1, || {
                sum += shared.2.take().into_iter().sum::<u32>();
                sum == 3
            });
            for poster in posters {
                poster.join().unwrap();
            }
        });
    }
}
