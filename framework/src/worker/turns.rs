//! The worker's side: what happens on its thread, from the first turn to the last.
//!
//! [`run`] owns the pollers and the caches. A turn is mailbox, then every poller once; an idle turn is followed by the
//! idle policy. At the end, whether asked for or by a panic, no job, poller or frame stays behind unnoticed: after a stop
//! the posted jobs still run and the pollers go back; after a panic the pollers are dropped here, then the jobs; in both
//! cases the caches give their frames back last.

use super::{Armed, IdlePolicy, Job, Poller, Progress, Shared, Turn};
use crate::buffer::Caches;
use crate::os;
use std::any::Any;
use std::collections::VecDeque;
use std::hint;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Where a panic came from, and its text.
pub(super) struct Death {
    pub(super) poller: String,
    pub(super) message: String,
}

/// Turns until the stop flag is set or something panics.
pub(super) fn run(
    worker: &str,
    shared: &Shared,
    idle: IdlePolicy,
    pollers: Vec<Box<dyn Poller>>,
) -> Result<Vec<Box<dyn Poller>>, Death> {
    let mut crew = Crew {
        shared,
        idle,
        pollers,
        caches: Caches::new(worker),
        jobs: VecDeque::new(),
        at: At::Mailbox,
        idle_turns: 0,
        turns: 0,
        busy_turns: 0,
        sleeps: 0,
    };
    // Unwind safe: after a panic the pollers are only named and dropped, and the caches only flushed.
    let outcome = catch_unwind(AssertUnwindSafe(|| crew.work()));
    let outcome = outcome.map_err(|payload| crew.bury(payload.as_ref()));
    crew.caches.flush();
    outcome.map(|()| crew.pollers)
}

/// What a panic would be blamed on.
enum At {
    Mailbox,
    Poller(usize),
}

struct Crew<'a> {
    shared: &'a Shared,
    idle: IdlePolicy,
    pollers: Vec<Box<dyn Poller>>,
    caches: Caches,
    jobs: VecDeque<Job>,
    at: At,
    idle_turns: u32,
    turns: u64,
    busy_turns: u64,
    sleeps: u64,
}

impl Crew<'_> {
    fn work(&mut self) {
        loop {
            // Acquire: the jobs that were posted before the stop are visible to this turn's mailbox.
            let last = self.shared.stop.load(Ordering::Acquire);
            let progress = self.turn();
            if last {
                break;
            }
            match progress {
                Progress::Busy => self.idle_turns = 0,
                Progress::Idle => self.rest(),
            }
        }
        self.jobs = self.shared.mailbox.close();
        self.run_jobs();
    }

    fn turn(&mut self) -> Progress {
        self.at = At::Mailbox;
        self.jobs = self.shared.mailbox.take();
        let mut progress = if self.jobs.is_empty() { Progress::Idle } else { Progress::Busy };
        self.run_jobs();
        for (index, poller) in self.pollers.iter_mut().enumerate() {
            self.at = At::Poller(index);
            let mut turn = Turn { caches: &mut self.caches, number: self.turns };
            if poller.poll(&mut turn) == Progress::Busy {
                progress = Progress::Busy;
            }
        }
        self.turns += 1;
        self.busy_turns += u64::from(progress == Progress::Busy);
        self.publish();
        progress
    }

    fn run_jobs(&mut self) {
        self.at = At::Mailbox;
        while let Some(job) = self.jobs.pop_front() {
            job(&mut self.pollers, &mut self.caches);
        }
    }

    fn publish(&self) {
        let counters = &self.shared.counters;
        // Relaxed: they are for people to read and order nothing.
        counters.turns.store(self.turns, Ordering::Relaxed);
        counters.busy_turns.store(self.busy_turns, Ordering::Relaxed);
        counters.sleeps.store(self.sleeps, Ordering::Relaxed);
    }

    fn rest(&mut self) {
        match self.idle {
            IdlePolicy::Spin => {}
            IdlePolicy::Pause => hint::spin_loop(),
            IdlePolicy::Sleep { after_turns, at_most } => {
                self.idle_turns = self.idle_turns.saturating_add(1);
                if self.idle_turns > after_turns {
                    self.sleep(at_most);
                } else {
                    hint::spin_loop();
                }
            }
        }
    }

    /// Arm, look again, sleep: the order that `idle` explains.
    fn sleep(&mut self, at_most: Duration) {
        let shared = self.shared;
        if self.arm() == Armed::MustPoll {
            // Arming costs the pollers register writes: not again before as many idle turns.
            self.idle_turns = 0;
            self.disarm();
            return;
        }
        let armed = shared.waker.bell().doze.arm();
        // Acquire: who set the flag wakes us, or we see it here.
        if self.turn() == Progress::Idle && !shared.stop.load(Ordering::Acquire) {
            armed.sleep(|| self.wait(at_most));
        } else {
            self.idle_turns = 0;
        }
        self.disarm();
    }

    fn arm(&mut self) -> Armed {
        for (index, poller) in self.pollers.iter_mut().enumerate() {
            self.at = At::Poller(index);
            if poller.arm() == Armed::MustPoll {
                return Armed::MustPoll;
            }
        }
        Armed::Sleepable
    }

    fn disarm(&mut self) {
        for (index, poller) in self.pollers.iter_mut().enumerate() {
            self.at = At::Poller(index);
            poller.disarm();
        }
    }

    fn wait(&mut self, at_most: Duration) {
        let event = &self.shared.waker.bell().event;
        let mut fds = vec![event.as_fd()];
        for (index, poller) in self.pollers.iter().enumerate() {
            self.at = At::Poller(index);
            poller.wake_fds(&mut fds);
        }
        let waited = os::wait_any(&fds, at_most).and_then(|_| event.drain());
        if let Err(error) = waited {
            tracing::warn!(%error, descriptors = fds.len(), "the worker cannot sleep and pauses from now on");
            self.idle = IdlePolicy::Pause;
        }
        self.sleeps += 1;
    }

    /// After a panic: ends what the pollers own on this thread, then the jobs, and says who it was.
    fn bury(&mut self, payload: &(dyn Any + Send)) -> Death {
        let poller = match self.at {
            At::Mailbox => "the mailbox".to_owned(),
            At::Poller(index) => self.name(index),
        };
        for poller in self.pollers.drain(..) {
            quietly(|| drop(poller));
        }
        let jobs = [std::mem::take(&mut self.jobs), self.shared.mailbox.close()];
        for job in jobs.into_iter().flatten() {
            quietly(|| drop(job));
        }
        Death { poller, message: text(payload) }
    }

    fn name(&self, index: usize) -> String {
        let name =
            catch_unwind(AssertUnwindSafe(|| self.pollers.get(index).map(|poller| poller.name().to_owned())));
        name.ok().flatten().unwrap_or_else(|| format!("number {index}"))
    }
}

/// One panic ends a worker; a second one, in what is dropped because of it, must not keep the rest from its end.
fn quietly(drop: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(drop)).is_err() {
        tracing::error!("a drop panicked while a worker ended after a panic");
    }
}

/// The text of a panic, if it had one.
pub(super) fn text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a value that is not text").to_owned()
}
