//! The thread that steps a served device and its wire, and sleeps when there is nothing to do.
//!
//! Idle, it yields for a few turns, then says that it sleeps, looks once more, and waits for the [`Waker`], for a descriptor of one of its
//! parts, or until a part wants its next turn. A register write wakes it only when it sleeps, so a busy device costs no system call.
//! Dropping the stepper ends the thread and waits for it.

use crate::igb::Igb;
use crate::wire::WireEnd;
use pollring::os::{EventFd, wait_any};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::JoinHandle;
use std::time::Duration;

/// Turns without work before the thread sleeps.
const PATIENCE_TURNS: u32 = 50;

/// Longest sleep; nothing depends on its end.
const LONGEST_REST: Duration = Duration::from_millis(100);

/// Frames that a part moves in one turn, at most.
const BUDGET_FRAMES: usize = 64;

/// Something that does a bounded piece of work when it is its turn.
pub trait Steps: Send {
    /// Does it; gives how much that was, 0 when there was nothing to do.
    fn step(&mut self) -> usize;

    /// How long it can be left alone after a turn in which there was nothing to do.
    fn rest(&self) -> Duration {
        LONGEST_REST
    }

    /// A descriptor that becomes readable when there is work again.
    fn readable(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Wakes a stepper.
pub struct Waker {
    asleep: AtomicBool,
    event: EventFd,
}

impl Waker {
    /// A waker for one stepper.
    ///
    /// # Errors
    /// The errno of eventfd(2).
    pub fn new() -> io::Result<Arc<Waker>> {
        Ok(Arc::new(Waker { asleep: AtomicBool::new(false), event: EventFd::new()? }))
    }

    /// There is work: what this thread stored before is seen by the next turn.
    pub fn wake(&self) {
        // Store-load barrier: either this load sees that the stepper sleeps, or its last look sees what was stored before.
        fence(Ordering::SeqCst);
        if self.asleep.swap(false, Ordering::SeqCst) {
            // A counter that is full is readable already.
            let _ = self.event.signal();
        }
    }

    fn set_asleep(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}

/// A running thread.
pub struct Stepper {
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl Stepper {
    /// Starts a thread that gives each of `parts` its turn.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(waker: Arc<Waker>, parts: Vec<Box<dyn Steps>>) -> io::Result<Stepper> {
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, woken) = (stop.clone(), waker.clone());
        let run = move || run(&seen, &woken, parts);
        let thread = std::thread::Builder::new().name("device".into()).spawn(run)?;
        Ok(Stepper { stop, waker, thread: Some(thread) })
    }

    /// Whether the thread still runs; false after a part panicked.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Stepper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.waker.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the device's thread panicked; its message stands above");
        }
    }
}

fn run(stop: &AtomicBool, waker: &Waker, mut parts: Vec<Box<dyn Steps>>) {
    let mut idle_turns = 0;
    while !stop.load(Ordering::Relaxed) {
        if turn(&mut parts) > 0 {
            idle_turns = 0;
            continue;
        }
        idle_turns += 1;
        if idle_turns < PATIENCE_TURNS {
            std::thread::yield_now();
            continue;
        }
        waker.set_asleep(true);
        if turn(&mut parts) == 0 && !stop.load(Ordering::Relaxed) {
            sleep(waker, &parts);
        }
        waker.set_asleep(false);
        // A signal that nobody waits for any more would end the next sleep at once, and no more.
        let _ = waker.event.drain();
    }
}

fn turn(parts: &mut [Box<dyn Steps>]) -> usize {
    parts.iter_mut().map(|part| part.step()).sum()
}

fn sleep(waker: &Waker, parts: &[Box<dyn Steps>]) {
    let rest = parts.iter().map(|part| part.rest()).min().unwrap_or(LONGEST_REST);
    if rest.is_zero() {
        return;
    }
    let fds = parts.iter().filter_map(|part| part.readable());
    let fds: Vec<BorrowedFd<'_>> = std::iter::once(waker.event.as_fd()).chain(fds).collect();
    if wait_any(&fds, rest.min(LONGEST_REST)).is_err() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// An igb as a part.
pub struct IgbSteps(pub Arc<Igb>);

impl Steps for IgbSteps {
    fn step(&mut self) -> usize {
        self.0.step(BUDGET_FRAMES)
    }

    fn rest(&self) -> Duration {
        if self.0.queued() > 0 { Duration::ZERO } else { self.0.held_for().unwrap_or(LONGEST_REST) }
    }
}

/// A far end that sends back what it receives.
pub struct Echo(pub WireEnd);

impl Steps for Echo {
    fn step(&mut self) -> usize {
        let mut frame = Vec::new();
        let mut done = 0;
        while done < BUDGET_FRAMES && self.0.room() > 0 && self.0.receive_into(&mut frame) {
            // This thread alone sends here, so there is room as it was seen.
            let _ = self.0.transmit(&frame);
            done += 1;
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::time::Instant;

    /// Does what others asked for.
    struct Work {
        asked: Arc<AtomicUsize>,
        turns: Arc<AtomicUsize>,
        done: usize,
    }

    impl Steps for Work {
        fn step(&mut self) -> usize {
            self.turns.fetch_add(1, Ordering::Relaxed);
            let more = self.asked.load(Ordering::Acquire) - self.done;
            self.done += more;
            more
        }

        fn rest(&self) -> Duration {
            Duration::from_secs(60)
        }
    }

    fn wait(done: impl Fn() -> bool) -> bool {
        let start = Instant::now();
        while !done() && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
        done()
    }

    #[test]
    fn it_sleeps_and_no_wake_is_lost() {
        let waker = Waker::new().unwrap();
        let (asked, turns): (Arc<AtomicUsize>, Arc<AtomicUsize>) = Default::default();
        let work = Work { asked: asked.clone(), turns: turns.clone(), done: 0 };
        let stepper = Stepper::start(waker.clone(), vec![Box::new(work)]).unwrap();
        assert!(wait(|| waker.asleep.load(Ordering::SeqCst)));
        for _ in 0..2000 {
            asked.fetch_add(1, Ordering::Release);
            waker.wake();
        }
        assert!(wait(|| waker.asleep.load(Ordering::SeqCst)));
        let before = turns.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(150));
        // The longest sleep ends once or twice meanwhile.
        assert!(turns.load(Ordering::Relaxed) < before + 10 * PATIENCE_TURNS as usize);
        assert!(stepper.is_running());
        let start = Instant::now();
        drop(stepper);
        assert!(start.elapsed() < Duration::from_secs(5));
    }
}
