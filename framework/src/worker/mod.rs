//! One pinned thread, its pollers, its mailbox and its idle policy.
//!
//! A [`Worker`] owns a thread that it created and pinned; it never pins its caller's. The pollers and the frame caches
//! belong to that thread while it runs, and everything else talks to it through the mailbox ([`Worker::post`]) or through
//! rings that its pollers read. The calls go: [`Worker::start`], any number of posts, [`Worker::stop`], which gives the
//! pollers back. A turn is the mailbox, then every poller once, then the idle policy. A poller that panics ends its
//! worker: the pollers are dropped on the worker's thread, and `stop` says who it was. Dropping a worker stops it too.

mod grace;
mod idle;
mod mailbox;
mod turns;

pub use grace::Grace;
pub use idle::{IdlePolicy, Waker};

use crate::buffer::Caches;
use crate::os::{AffinityError, EventFd, allowed_cores, pin_current_thread};
use crossbeam_utils::CachePadded;
use mailbox::Mailbox;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use thiserror::Error;
use turns::Death;

/// Work that a worker does a little of each turn: a port's queues, a copy channel, a protocol endpoint.
pub trait Poller: Send {
    /// What errors and statistics call it.
    fn name(&self) -> &str;

    /// Does what is ready now, at most a burst or so, and returns. It must not block: the worker's other pollers, its
    /// mailbox and its stop flag wait meanwhile.
    fn poll(&mut self, turn: &mut Turn<'_>) -> Progress;

    /// Prepares for a sleep: from now on new work signals a descriptor of [`Poller::wake_fds`] or a [`Waker`] of this
    /// worker. One more [`Poller::poll`] follows before the sleep, so work that came just before is not missed.
    fn arm(&mut self) -> Armed {
        Armed::MustPoll
    }

    /// Ends what `arm` began: masks interrupts, drains eventfds. Also called when `arm` was not, and then does nothing.
    fn disarm(&mut self) {}

    /// Adds the descriptors that are readable when there is work. Called between `arm` and `disarm`; they are lent for
    /// one sleep.
    fn wake_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        let _ = fds;
    }
}

/// Whether a poller found work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It did something; there may be more.
    Busy,
    /// There was nothing to do.
    Idle,
}

/// A poller's answer to [`Poller::arm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// Nothing can wake it: the worker pauses instead of sleeping.
    MustPoll,
    /// New work wakes the worker.
    Sleepable,
}

/// What a poller is given for one call.
pub struct Turn<'a> {
    /// The frame caches of this worker.
    pub caches: &'a mut Caches,
    /// Counts from 0; the same for all pollers of a turn.
    pub number: u64,
}

/// What a worker runs between two turns. It may change the list of pollers.
pub type Job = Box<dyn FnOnce(&mut Vec<Box<dyn Poller>>, &mut Caches) + Send>;

/// How to start a worker.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// For errors and logs; the thread gets it too, of which the kernel shows the first 15 bytes.
    pub name: String,
    /// The core to pin the thread to; `None` leaves it where the caller may run.
    pub core: Option<usize>,
    /// What to do when there is no work.
    pub idle: IdlePolicy,
}

/// Why a worker did not start or did not end well.
#[derive(Debug, Error)]
pub enum WorkerError {
    /// No eventfd to wake it with.
    #[error("start worker `{worker}`: eventfd: {error}; raise the limit of open files (`ulimit -n`)")]
    WakeFd {
        /// The worker.
        worker: String,
        /// The errno.
        error: io::Error,
    },
    /// No thread.
    #[error(
        "start worker `{worker}`: create its thread: {error}; see `ulimit -u` and the cgroup's `pids.max`"
    )]
    Spawn {
        /// The worker.
        worker: String,
        /// The errno.
        error: io::Error,
    },
    /// The thread could not be pinned, and has ended.
    #[error("start worker `{worker}`: {source}")]
    Pin {
        /// The worker.
        worker: String,
        /// What the kernel said, and the remedy.
        source: AffinityError,
    },
    /// A poller or a job panicked. The worker's pollers are dropped, so their ports need `abort()`.
    #[error(
        "worker `{worker}` is dead: {poller} panicked: {message}; its pollers were dropped: abort their ports, then \
         start a new worker"
    )]
    Panicked {
        /// The worker.
        worker: String,
        /// The poller's name, or `the mailbox` for a job.
        poller: String,
        /// The panic's text.
        message: String,
    },
    /// Stopped on its own thread, which cannot wait for itself. It ends after this turn and drops its pollers.
    #[error(
        "stop worker `{worker}`: called on its own thread; call it on the control thread to get the pollers back"
    )]
    OwnThread {
        /// The worker.
        worker: String,
    },
}

/// A job that came too late, and comes back.
#[derive(Error)]
#[error("post a job to worker `{worker}`: it has ended; `stop` says why; the job is in this error")]
pub struct Undelivered {
    /// The worker.
    pub worker: String,
    /// The job, not run.
    pub job: Job,
}

impl fmt::Debug for Undelivered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Undelivered").field("worker", &self.worker).finish_non_exhaustive()
    }
}

/// What a worker has done since its start; the three are read one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Turns.
    pub turns: u64,
    /// Turns in which a poller or a job did something.
    pub busy_turns: u64,
    /// Times it slept.
    pub sleeps: u64,
}

/// Written by the worker only, on a line of its own.
#[derive(Default)]
struct Published {
    turns: AtomicU64,
    busy_turns: AtomicU64,
    sleeps: AtomicU64,
}

/// What the control side and the thread share.
struct Shared {
    mailbox: Mailbox<Job>,
    waker: Waker,
    stop: AtomicBool,
    counters: CachePadded<Published>,
}

type Outcome = Result<Vec<Box<dyn Poller>>, Death>;

/// The control side of a running worker.
pub struct Worker {
    name: String,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Outcome>>,
}

impl Worker {
    /// Creates the thread, pins it and starts to turn.
    ///
    /// # Errors
    /// No eventfd, no thread, or it could not be pinned; the pollers are dropped then. To keep them in that case, start
    /// with none and post them.
    pub fn start(config: WorkerConfig, pollers: Vec<Box<dyn Poller>>) -> Result<Worker, WorkerError> {
        let WorkerConfig { name, core, idle } = config;
        let event = EventFd::new().map_err(|error| WorkerError::WakeFd { worker: name.clone(), error })?;
        let shared = Arc::new(Shared {
            mailbox: Mailbox::new(),
            waker: Waker::new(event),
            stop: AtomicBool::new(false),
            counters: CachePadded::default(),
        });
        let (report, pinned) = mpsc::channel();
        let (theirs, label) = (shared.clone(), name.clone());
        let body = move || match pin(&label, core) {
            Ok(()) => {
                drop(report);
                turns::run(&label, &theirs, idle, pollers)
            }
            Err(error) => {
                // The caller waits for it, so it arrives.
                let _ = report.send(error);
                Ok(pollers)
            }
        };
        // A thread's name goes to the kernel as a C string.
        let thread = thread::Builder::new().name(name.replace('\0', "?")).spawn(body);
        let thread = thread.map_err(|error| WorkerError::Spawn { worker: name.clone(), error })?;
        match pinned.recv() {
            Ok(source) => Err(WorkerError::Pin { worker: name, source }),
            Err(mpsc::RecvError) => Ok(Worker { name, shared, thread: Some(thread) }),
        }
    }

    /// The name from the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Has `job` run between two turns, after those posted before, and wakes the worker. What a job posts must not block,
    /// like a poller. A panic in it ends the worker.
    ///
    /// # Errors
    /// The worker has ended; the job comes back.
    pub fn post(&self, job: Job) -> Result<(), Undelivered> {
        let posted = self.shared.mailbox.push(job);
        posted.map_err(|job| Undelivered { worker: self.name.clone(), job })?;
        self.shared.waker.wake();
        Ok(())
    }

    /// A handle that wakes this worker, for who fills a ring that one of its pollers empties.
    pub fn waker(&self) -> Waker {
        self.shared.waker.clone()
    }

    /// Whether the thread still runs. It does not after a panic, once its pollers are dropped.
    pub fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// How many turns it has completed. It orders nothing; to free what a worker may still use, take a [`Grace`].
    pub fn turn(&self) -> u64 {
        self.shared.counters.turns.load(Ordering::Relaxed)
    }

    /// What it has done so far.
    pub fn counters(&self) -> Counters {
        let counters = &self.shared.counters;
        Counters {
            turns: self.turn(),
            busy_turns: counters.busy_turns.load(Ordering::Relaxed),
            sleeps: counters.sleeps.load(Ordering::Relaxed),
        }
    }

    /// Runs the jobs that were posted, ends the thread and gives the pollers back. Waits for the current turn, so for as
    /// long as the slowest `poll`; its frame caches are flushed then.
    ///
    /// # Errors
    /// It panicked before, or this is its own thread.
    pub fn stop(mut self) -> Result<Vec<Box<dyn Poller>>, WorkerError> {
        self.finish()
    }

    fn finish(&mut self) -> Result<Vec<Box<dyn Poller>>, WorkerError> {
        // Release: the turn that sees the flag sees the jobs that were posted before.
        self.shared.stop.store(true, Ordering::Release);
        self.shared.waker.wake();
        let worker = self.name.clone();
        let thread = self.thread.take().filter(|thread| thread.thread().id() != thread::current().id());
        let Some(thread) = thread else {
            return Err(WorkerError::OwnThread { worker });
        };
        let outcome = thread.join().unwrap_or_else(|payload| {
            // Only the worker's own code is left to panic outside of a turn.
            Err(Death { poller: "its thread".to_owned(), message: turns::text(payload.as_ref()) })
        });
        outcome.map_err(|Death { poller, message }| WorkerError::Panicked { worker, poller, message })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.thread.is_none() {
            return;
        }
        if let Err(error) = self.finish() {
            tracing::error!(%error, "a worker was dropped without `stop`");
        }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Worker");
        out.field("name", &self.name)
            .field("alive", &self.is_alive())
            .field("counters", &self.counters())
            .finish()
    }
}

/// On the new thread: pins it and says where it ended up.
fn pin(worker: &str, core: Option<usize>) -> Result<(), AffinityError> {
    if let Some(core) = core {
        pin_current_thread(core)?;
    }
    let cores = allowed_cores()?;
    tracing::info!(worker, %cores, pinned = core.is_some(), "worker runs");
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests;
