//! A thread that steps devices and traffic until it is stopped.
//!
//! Each task is a closure that does a bounded piece of work and gives how much it did. All are called in turn. When none had work,
//! the thread first yields and then sleeps for a short while, so that an idle device leaves its core to others. Dropping or
//! stopping the runner ends the thread and waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use thiserror::Error;

/// A piece of work; gives how much was done, 0 when there was nothing to do.
pub type Task = Box<dyn FnMut() -> usize + Send>;

/// Turns without work before the thread sleeps.
const PATIENCE_TURNS: u32 = 200;

/// How long an idle thread sleeps.
const NAP: Duration = Duration::from_micros(50);

/// Why a runner did not run.
#[derive(Debug, Error)]
pub enum RunnerError {
    /// No thread.
    #[error("start the device thread `{name}`: {error}; the limit of threads may be reached (ulimit -u)")]
    Start {
        /// The thread.
        name: String,
        /// The errno.
        error: std::io::Error,
    },
    /// A task panicked; its message went to standard error.
    #[error(
        "the device thread `{name}` panicked; its message stands above, and the devices stood still from then on"
    )]
    Panicked {
        /// The thread.
        name: String,
    },
}

/// A running thread.
pub struct Runner {
    name: String,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Runner {
    /// Starts a thread that calls `tasks` in turn. `name` is the thread's and appears in errors.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(name: &str, tasks: Vec<Task>) -> Result<Runner, RunnerError> {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        // Linux keeps 15 bytes of a thread's name.
        let short = name.chars().filter(char::is_ascii).take(15).collect();
        let thread = std::thread::Builder::new().name(short).spawn(move || run(&seen, tasks));
        let name = name.to_owned();
        match thread {
            Ok(thread) => Ok(Runner { name, stop, thread: Some(thread) }),
            Err(error) => Err(RunnerError::Start { name, error }),
        }
    }

    /// Whether the thread still runs; false after a task panicked.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Ends the thread after the turn under way, waits for it and drops the tasks.
    ///
    /// # Errors
    /// A task panicked.
    pub fn stop(mut self) -> Result<(), RunnerError> {
        if self.join() { Ok(()) } else { Err(RunnerError::Panicked { name: self.name.clone() }) }
    }

    fn join(&mut self) -> bool {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().is_none_or(|thread| thread.join().is_ok())
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        if !self.join() {
            tracing::error!(thread = self.name, "device thread panicked");
        }
    }
}

fn run(stop: &AtomicBool, mut tasks: Vec<Task>) {
    let mut idle_turns = 0;
    while !stop.load(Ordering::Relaxed) {
        let done: usize = tasks.iter_mut().map(|task| task()).sum();
        idle_turns = if done > 0 { 0 } else { idle_turns + 1 };
        match idle_turns {
            0 => {}
            1..=PATIENCE_TURNS => std::thread::yield_now(),
            _ => std::thread::sleep(NAP),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::time::Instant;

    fn wait(done: impl Fn() -> bool) -> bool {
        let start = Instant::now();
        while !done() && start.elapsed() < Duration::from_secs(10) {
            std::thread::yield_now();
        }
        done()
    }

    #[test]
    fn every_task_runs_until_the_runner_stops() {
        let counts: [Arc<AtomicUsize>; 2] = Default::default();
        let tasks = counts.iter().cloned().map(|count| {
            Box::new(move || {
                count.fetch_add(1, Ordering::Relaxed);
                0usize
            }) as Task
        });
        let runner = Runner::start("counting", tasks.collect()).unwrap();
        assert!(wait(|| counts.iter().all(|count| count.load(Ordering::Relaxed) > 300)));
        assert!(runner.is_running());
        runner.stop().unwrap();
        let after = counts[0].load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(counts[0].load(Ordering::Relaxed), after);
        assert_eq!(Arc::strong_count(&counts[0]), 1);
    }

    #[test]
    fn a_panic_ends_the_thread_and_is_told() {
        let runner =
            Runner::start("a name that is too long", vec![Box::new(|| panic!("on purpose"))]).unwrap();
        assert!(wait(|| !runner.is_running()));
        assert!(runner.stop().unwrap_err().to_string().contains("too long"));
    }
}
