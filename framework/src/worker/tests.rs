//! Workers with real threads: the orders that the module promises, and that nothing hangs.

use super::*;
use crate::ring::spsc;
use std::sync::atomic::AtomicU32;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const SLEEPY: IdlePolicy = IdlePolicy::Sleep { after_turns: 3, at_most: Duration::from_secs(600) };
const SOON: Duration = Duration::from_secs(20);

fn config(name: &str, idle: IdlePolicy) -> WorkerConfig {
    WorkerConfig { name: name.to_owned(), core: None, idle }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < SOON, "waited too long for: {what}");
        thread::yield_now();
    }
}

/// Takes numbers from a ring and adds them up; can be woken by who fills the ring.
struct Adder {
    ring: spsc::Consumer<u64>,
    sum: Arc<AtomicU64>,
    armed: Armed,
}

impl Poller for Adder {
    fn name(&self) -> &str {
        "adder"
    }

    fn poll(&mut self, _: &mut Turn<'_>) -> Progress {
        let mut items = [0; 4];
        let count = self.ring.dequeue(&mut items);
        self.sum.fetch_add(items[..count].iter().sum(), Ordering::SeqCst);
        if count > 0 { Progress::Busy } else { Progress::Idle }
    }

    fn arm(&mut self) -> Armed {
        self.armed
    }
}

fn adder(armed: Armed) -> (Box<dyn Poller>, spsc::Producer<u64>, Arc<AtomicU64>) {
    let (producer, ring) = spsc::channel(8);
    let sum = Arc::new(AtomicU64::new(0));
    (Box::new(Adder { ring, sum: sum.clone(), armed }), producer, sum)
}

/// Panics at a given turn; remembers on which thread it was dropped.
struct Bomb {
    at_turn: u64,
    dropped_on: Arc<Mutex<Option<String>>>,
}

impl Poller for Bomb {
    fn name(&self) -> &str {
        "bomb"
    }

    fn poll(&mut self, turn: &mut Turn<'_>) -> Progress {
        assert!(turn.number < self.at_turn, "a bad length of {}", 9000);
        Progress::Idle
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        let name = thread::current().name().map(str::to_owned);
        *self.dropped_on.lock().unwrap_or_else(PoisonError::into_inner) = name;
    }
}

fn bomb(at_turn: u64) -> (Box<dyn Poller>, Arc<Mutex<Option<String>>>) {
    let dropped_on = Arc::new(Mutex::new(None));
    (Box::new(Bomb { at_turn, dropped_on: dropped_on.clone() }), dropped_on)
}

/// Sleeps on an eventfd, as a queue on its interrupt does.
struct Interrupted {
    event: EventFd,
    seen: Arc<AtomicU64>,
}

impl Poller for Interrupted {
    fn name(&self) -> &str {
        "interrupted"
    }

    fn poll(&mut self, _: &mut Turn<'_>) -> Progress {
        Progress::Idle
    }

    fn arm(&mut self) -> Armed {
        Armed::Sleepable
    }

    fn disarm(&mut self) {
        self.seen.fetch_add(self.event.drain().unwrap_or(0), Ordering::SeqCst);
    }

    fn wake_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        fds.push(std::os::fd::AsFd::as_fd(&self.event));
    }
}

#[test]
fn every_policy_polls_runs_jobs_and_gives_the_pollers_back() {
    for idle in [IdlePolicy::Spin, IdlePolicy::Pause, SLEEPY] {
        let (poller, mut producer, sum) = adder(Armed::Sleepable);
        let worker = Worker::start(config("w", idle), vec![poller]).unwrap();
        producer.enqueue(&[1, 2, 3, 4, 5]);
        worker.waker().wake();
        until("the sum", || sum.load(Ordering::SeqCst) == 15);
        let ran = Arc::new(AtomicU32::new(0));
        let theirs = ran.clone();
        let (second, ..) = adder(Armed::Sleepable);
        let job = move |pollers: &mut Vec<Box<dyn Poller>>, _: &mut Caches| {
            pollers.push(second);
            theirs.fetch_add(1, Ordering::SeqCst);
        };
        worker.post(Box::new(job)).unwrap();
        assert!(worker.is_alive());
        let pollers = worker.stop().unwrap();
        assert_eq!((pollers.len(), ran.load(Ordering::SeqCst)), (2, 1));
    }
}

#[test]
fn a_sleeper_is_woken_by_a_ring_a_job_and_a_stop() {
    let (poller, mut producer, sum) = adder(Armed::Sleepable);
    let worker = Worker::start(config("sleeper", SLEEPY), vec![poller]).unwrap();
    let waker = worker.waker();
    for round in 1..=200 {
        if round % 50 == 0 {
            let before = worker.counters().sleeps;
            until("a sleep", || worker.counters().sleeps > before || worker.is_dozing());
        }
        assert_eq!(producer.enqueue(&[1]), 1);
        waker.wake();
        until("the item", || sum.load(Ordering::SeqCst) == round);
    }
    let (done, ran) = mpsc::channel();
    worker.post(Box::new(move |_, _| done.send(()).unwrap())).unwrap();
    ran.recv_timeout(SOON).unwrap();
    until("the last sleep", || worker.is_dozing());
    let counters = worker.counters();
    assert!(
        counters.sleeps > 0 && counters.busy_turns > 200 && counters.turns > counters.busy_turns,
        "{counters:?}"
    );
    worker.stop().unwrap();
}

#[test]
fn an_eventfd_of_a_poller_ends_the_sleep() {
    let event = EventFd::new().unwrap();
    let seen = Arc::new(AtomicU64::new(0));
    let poller = Interrupted { event: event.try_clone().unwrap(), seen: seen.clone() };
    let worker = Worker::start(config("irq", SLEEPY), vec![Box::new(poller)]).unwrap();
    for round in 1..=50 {
        event.signal().unwrap();
        until("the interrupt", || seen.load(Ordering::SeqCst) == round);
    }
    worker.stop().unwrap();
}

#[test]
fn a_poller_that_cannot_be_woken_keeps_the_worker_awake() {
    let (poller, mut producer, sum) = adder(Armed::MustPoll);
    let worker = Worker::start(config("awake", SLEEPY), vec![poller]).unwrap();
    until("many idle turns", || worker.turn() > 1000);
    producer.enqueue(&[7]);
    until("the item, without a wake-up", || sum.load(Ordering::SeqCst) == 7);
    assert_eq!(worker.counters().sleeps, 0);
    worker.stop().unwrap();
}

#[test]
fn a_panic_ends_the_worker_names_the_poller_and_drops_all_on_its_thread() {
    let (poller, dropped_on) = bomb(5);
    let (first, mut producer, _) = adder(Armed::Sleepable);
    let worker = Worker::start(config("doomed", IdlePolicy::Pause), vec![first, poller]).unwrap();
    until("the end", || !worker.is_alive());
    assert_eq!(dropped_on.lock().unwrap().as_deref(), Some("doomed"));
    assert!(producer.is_closed() && producer.enqueue(&[1]) == 1);
    let back = worker.post(Box::new(|_, _| {})).unwrap_err();
    assert!(back.to_string().contains("`doomed`"), "{back}");
    let text = worker.stop().map(|_| ()).unwrap_err().to_string();
    assert!(text.starts_with("worker `doomed` is dead: bomb panicked: a bad length of 9000;"), "{text}");
}

#[test]
fn a_panicking_job_is_blamed_on_the_mailbox() {
    let (poller, dropped_on) = bomb(u64::MAX);
    let worker = Worker::start(config("jobs", SLEEPY), vec![poller]).unwrap();
    worker.post(Box::new(|_, _| assert!(thread::current().name().is_none(), "no such route"))).unwrap();
    let error = worker.stop().map(|_| ()).unwrap_err();
    assert!(matches!(&error, WorkerError::Panicked { poller, .. } if poller == "the mailbox"), "{error}");
    assert!(error.to_string().contains("no such route") && dropped_on.lock().unwrap().is_some());
}

#[test]
fn the_worker_is_pinned_and_its_creator_is_not() {
    let before = allowed_cores().unwrap();
    let core = *before.as_slice().last().unwrap();
    let worker =
        Worker::start(WorkerConfig { core: Some(core), ..config("pinned", SLEEPY) }, vec![]).unwrap();
    let (report, cores) = mpsc::channel();
    worker.post(Box::new(move |_, _| report.send(allowed_cores().unwrap()).unwrap())).unwrap();
    assert_eq!(cores.recv_timeout(SOON).unwrap().as_slice(), [core]);
    assert_eq!(allowed_cores().unwrap(), before);
    let absent = WorkerConfig { core: Some(9999), ..config("absent", SLEEPY) };
    let error = Worker::start(absent, vec![]).unwrap_err();
    assert!(matches!(error, WorkerError::Pin { .. }) && error.to_string().contains("core 9999"), "{error}");
}

#[test]
fn dropping_a_sleeping_worker_joins_it() {
    let (poller, producer, _) = adder(Armed::Sleepable);
    let worker = Worker::start(config("dropped", SLEEPY), vec![poller]).unwrap();
    until("a sleep", || worker.is_dozing());
    drop(worker);
    assert!(producer.is_closed());
}

#[test]
fn a_worker_that_is_stopped_by_itself_ends_without_a_deadlock() {
    let worker = Worker::start(config("own", SLEEPY), vec![]).unwrap();
    let (give, take) = mpsc::channel::<Worker>();
    let (report, outcome) = mpsc::channel();
    let job = move |_: &mut Vec<Box<dyn Poller>>, _: &mut Caches| {
        let own = take.recv().unwrap();
        report.send(own.stop().map(|_| ())).unwrap();
    };
    worker.post(Box::new(job)).unwrap();
    give.send(worker).unwrap();
    assert!(matches!(outcome.recv_timeout(SOON).unwrap(), Err(WorkerError::OwnThread { .. })));
}

#[test]
fn a_grace_period_ends_after_the_swaps_and_counts_the_dead_as_passed() {
    let (poller, _) = bomb(0);
    let dead = Worker::start(config("dead", IdlePolicy::Spin), vec![poller]).unwrap();
    let alive = Worker::start(config("alive", SLEEPY), vec![]).unwrap();
    let table = Arc::new(5);
    for worker in [&dead, &alive] {
        let old = table.clone();
        let _ = worker.post(Box::new(move |_, _| drop(old)));
    }
    let grace = Grace::begin([&dead, &alive]);
    assert!(grace.wait(SOON) && grace.is_over());
    assert_eq!(Arc::strong_count(&table), 1);
    let (release, held) = mpsc::channel::<()>();
    alive.post(Box::new(move |_, _| held.recv().unwrap())).unwrap();
    let grace = Grace::begin([&alive]);
    assert!(!grace.is_over() && !grace.wait(Duration::from_millis(5)));
    release.send(()).unwrap();
    assert!(grace.wait(SOON));
}

impl Worker {
    /// True while it sleeps or is about to: it is armed, and nobody has roused it.
    fn is_dozing(&self) -> bool {
        self.shared.waker.bell().doze.is_armed()
    }
}
