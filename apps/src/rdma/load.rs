//! The load of `rdma perf`: requests in, completions out, and the check of what they did to memory.
//!
//! [`Load`] is a poller of the worker that runs both endpoints. Each of its lanes is a connected pair of queue pairs; the operation numbered n
//! of a lane uses place n modulo depth, here and there. A reliable connection completes in order, so a place is free when the
//! operation that had it last came back. Until one window of them came back the load warms up: addresses are resolved, memory is touched,
//! and nothing counts.

use super::connect::Cqs;
use super::latency::Latencies;
use super::options::Operation;
use super::pattern;
use pollring::copy::Fifo;
use pollring::rdma::{Attached, Completion, Completions, MemoryRegion, Payload, QueuePair};
use pollring::rdma::{ReceiveRequest, Remote, SendFlags, SendOperation, SendRequest, Sge, SgeList, Status};
use pollring::worker::{Poller, Progress, Turn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// How long nothing may come back while something is outstanding. The transport gives a peer up before that.
const SILENCE_LIMIT: Duration = Duration::from_secs(15);

/// Requests and bytes that one turn posts at most, over all lanes but at least one of each: the endpoints wait meanwhile.
const TURN_REQUESTS: usize = 32;
const TURN_BYTES: usize = 64 << 10;

/// What is done, how much at a time, and how often.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) operation: Operation,
    /// Bytes of an operation.
    pub(super) size: usize,
    /// Operations of a lane that are outstanding at a time.
    pub(super) depth: usize,
    pub(super) verify: bool,
    pub(super) duration: Duration,
}

impl Shape {
    /// Distance of two places in memory: a whole number of cache lines.
    pub(super) fn stride(&self) -> usize {
        self.size.next_multiple_of(64)
    }
}

/// A connected pair: `near` asks, `far` answers.
pub(super) struct Lane {
    pub(super) near: Box<dyn QueuePair>,
    pub(super) far: Box<dyn QueuePair>,
    posted: u64,
    done: u64,
    posted_at: Box<[Instant]>,
}

impl Lane {
    pub(super) fn new(near: Box<dyn QueuePair>, far: Box<dyn QueuePair>, depth: usize) -> Lane {
        Lane { near, far, posted: 0, done: 0, posted_at: vec![Instant::now(); depth].into() }
    }
}

/// What came of it.
pub(super) struct Outcome {
    /// Operations that count, and the time from the first one's start to the last one's end.
    pub(super) operations: u64,
    pub(super) elapsed: Duration,
    pub(super) latencies: Latencies,
    /// Operations whose memory was compared, those of the warm-up too.
    pub(super) verified: u64,
    pub(super) corrupt: u64,
    /// Why it ended early.
    pub(super) failure: Option<String>,
}

/// What the main thread sees and says.
pub(super) struct Control {
    pub(super) done: Arc<AtomicU64>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) home: Sender<Outcome>,
}

/// See the file's head. Queue pairs are dropped before their completion queues.
pub(super) struct Load {
    lanes: Vec<Lane>,
    cqs: Cqs,
    memory: [MemoryRegion; 2],
    shape: Shape,
    control: Control,
    completions: Completions,
    requests: Fifo<SendRequest>,
    receives: Fifo<ReceiveRequest>,
    expected: Vec<u8>,
    found: Vec<u8>,
    outstanding: u64,
    /// When counting began; `None` while it warms up.
    since: Option<Instant>,
    last_news: Instant,
    /// Sent home at the end; `None` from then on.
    outcome: Option<Outcome>,
}

impl Load {
    /// A load on lanes that are connected, with memory for all places on both sides.
    pub(super) fn new(
        shape: Shape,
        lanes: Vec<Lane>,
        cqs: Cqs,
        memory: [MemoryRegion; 2],
        control: Control,
    ) -> Load {
        let (latencies, elapsed) = (Latencies::new(), Duration::ZERO);
        let lanes_times_depth = lanes.len() * shape.depth;
        let outcome = Outcome { operations: 0, elapsed, latencies, verified: 0, corrupt: 0, failure: None };
        let mut load = Load {
            lanes,
            cqs,
            memory,
            shape,
            control,
            completions: Fifo::new(lanes_times_depth),
            requests: Fifo::new(TURN_REQUESTS),
            receives: Fifo::new(shape.depth),
            expected: vec![0; shape.size],
            found: vec![0; shape.size],
            outstanding: 0,
            since: None,
            last_news: Instant::now(),
            outcome: Some(outcome),
        };
        if shape.operation == Operation::Send {
            load.post_first_receives();
        }
        load
    }

    fn post_first_receives(&mut self) {
        for lane in 0..self.lanes.len() {
            for number in 0..self.shape.depth as u64 {
                self.add_receive(lane, number);
            }
            self.flush_receives(lane);
        }
    }

    fn add_receive(&mut self, lane: usize, number: u64) {
        let request = ReceiveRequest { id: self.id(lane, number), into: self.piece(1, lane, number).into() };
        let pushed = self.receives.push(request);
        debug_assert!(pushed.is_ok(), "as many as there are places");
    }

    fn flush_receives(&mut self, lane: usize) {
        let far = &mut self.lanes[lane].far;
        if let Err(refused) = far.post_receive(&mut self.receives) {
            self.fail(refused.to_string());
            return;
        }
        far.flush();
    }

    /// Numbers of different lanes interleave, so that an id tells both.
    fn id(&self, lane: usize, number: u64) -> u64 {
        number * self.lanes.len() as u64 + lane as u64
    }

    fn of_id(&self, id: u64) -> (usize, u64) {
        let lanes = self.lanes.len() as u64;
        ((id % lanes) as usize, id / lanes)
    }

    fn place(&self, lane: usize, number: u64) -> usize {
        let depth = self.shape.depth;
        (lane * depth + (number % depth as u64) as usize) * self.shape.stride()
    }

    fn piece(&self, side: usize, lane: usize, number: u64) -> Sge {
        let (region, offset) = (self.memory[side].clone(), self.place(lane, number));
        Sge { region, offset, bytes: self.shape.size as u32 }
    }

    fn remote(&self, place: usize) -> Remote {
        let region = &self.memory[1];
        Remote { address: region.base() + place as u64, rkey: region.rkey() }
    }

    /// The next operation of a lane. Atomics count one word of the lane up, by both of their kinds in turns.
    fn operation(&self, lane: usize, number: u64) -> SendOperation {
        let near = self.piece(0, lane, number);
        let remote = self.remote(self.place(lane, number));
        let word = self.remote(self.place(lane, 0));
        match self.shape.operation {
            Operation::Write => {
                SendOperation::Write { payload: Payload::Gather(near.into()), remote, immediate: None }
            }
            Operation::Read => SendOperation::Read { into: SgeList::One(near), remote },
            Operation::Send => {
                SendOperation::Send { payload: Payload::Gather(near.into()), attached: Attached::Nothing }
            }
            Operation::Atomic if number.is_multiple_of(2) => {
                SendOperation::FetchAndAdd { into: near, remote: word, add: 1 }
            }
            Operation::Atomic => {
                SendOperation::CompareAndSwap { into: near, remote: word, compare: number, swap: number + 1 }
            }
        }
    }

    /// Posts what fits to one lane; gives how many.
    fn post(&mut self, lane: usize, most: usize) -> usize {
        let free = self.shape.depth as u64 - (self.lanes[lane].posted - self.lanes[lane].done);
        for number in (self.lanes[lane].posted..).take(most.min(free as usize)) {
            self.prepare(lane, number);
            let (id, operation) = (self.id(lane, number), self.operation(lane, number));
            let pushed = self.requests.push(SendRequest { id, operation, flags: SendFlags::SIGNALLED });
            debug_assert!(pushed.is_ok(), "most is at most its capacity");
        }
        let at = &mut self.lanes[lane];
        let now = Instant::now();
        let taken = at.near.post_send(&mut self.requests);
        at.near.flush();
        let count = taken.unwrap_or_else(|refused| refused.accepted);
        for _ in 0..count {
            let place = (at.posted % self.shape.depth as u64) as usize;
            at.posted_at[place] = now;
            at.posted += 1;
        }
        // What the queue pair left is made anew next time.
        self.requests.drain().for_each(drop);
        self.outstanding += count as u64;
        if let Err(refused) = taken {
            self.fail(refused.to_string());
        }
        count
    }

    /// With --verify every operation has bytes of its own.
    fn prepare(&mut self, lane: usize, number: u64) {
        let source = match self.shape.operation {
            Operation::Write | Operation::Send => 0,
            Operation::Read => 1,
            Operation::Atomic => return,
        };
        if self.shape.verify {
            let (id, place) = (self.id(lane, number), self.place(lane, number));
            pattern::fill(&mut self.expected, id);
            let copied = self.memory[source].memory().copy_in(place, &self.expected);
            debug_assert!(copied.is_ok(), "places lie in the region");
        }
    }

    fn verify(&mut self, side: usize, lane: usize, number: u64) {
        let (id, place) = (self.id(lane, number), self.place(lane, number));
        let memory = self.memory[side].memory();
        let right = if self.shape.operation == Operation::Atomic {
            memory.load_u64(place) == Ok(number)
        } else {
            pattern::fill(&mut self.expected, id);
            memory.copy_out(place, &mut self.found).is_ok() && self.found == self.expected
        };
        if let Some(outcome) = &mut self.outcome {
            outcome.verified += 1;
            outcome.corrupt += u64::from(!right);
        }
    }

    /// Takes back receives, checks them and posts them again; before sends, so that a send always finds one.
    fn poll_receives(&mut self) -> usize {
        let count = self.cqs[1].poll(&mut self.completions);
        while let Some(completion) = self.completions.pop() {
            let (lane, number) = self.of_id(completion.id);
            if self.is_failed(&completion, lane) {
                continue;
            }
            if self.shape.verify {
                self.verify(1, lane, number);
            }
            self.add_receive(lane, number + self.shape.depth as u64);
            self.flush_receives(lane);
        }
        count
    }

    fn poll_sends(&mut self) -> usize {
        let count = self.cqs[0].poll(&mut self.completions);
        let now = Instant::now();
        while let Some(completion) = self.completions.pop() {
            let (lane, number) = self.of_id(completion.id);
            if !self.is_failed(&completion, lane) {
                self.end(lane, number, now);
            }
        }
        count
    }

    fn end(&mut self, lane: usize, number: u64, now: Instant) {
        let at = &mut self.lanes[lane];
        at.done += 1;
        let latency = now - at.posted_at[(number % self.shape.depth as u64) as usize];
        self.outstanding -= 1;
        self.last_news = now;
        if let Some(outcome) = &mut self.outcome {
            outcome.operations += 1;
            outcome.latencies.note(latency);
            match self.since {
                Some(since) => outcome.elapsed = now - since,
                None if outcome.operations >= (self.lanes.len() * self.shape.depth) as u64 => {
                    outcome.operations = 0;
                    outcome.latencies.clear();
                    self.since = Some(now);
                }
                None => {}
            }
        }
        self.control.done.fetch_add(1, Ordering::Relaxed);
        match self.shape.operation {
            Operation::Write if self.shape.verify => self.verify(1, lane, number),
            Operation::Read | Operation::Atomic if self.shape.verify => self.verify(0, lane, number),
            _ => {}
        }
    }

    /// The first failure ends the run; those that follow it were flushed by it.
    fn is_failed(&mut self, completion: &Completion, lane: usize) -> bool {
        if completion.status == Status::Success {
            return false;
        }
        let pair = &self.lanes[lane];
        let failure = pair.near.failure().or_else(|| pair.far.failure());
        self.fail(failure.map_or_else(|| completion.status.to_string(), |failure| failure.to_string()));
        true
    }

    fn fail(&mut self, text: String) {
        if let Some(outcome) = &mut self.outcome {
            outcome.failure.get_or_insert(text);
        }
    }

    /// Whether new operations are wanted.
    fn goes_on(&self) -> bool {
        let in_time = self.since.is_none_or(|since| since.elapsed() < self.shape.duration);
        in_time && !self.control.stop.load(Ordering::Relaxed)
    }

    fn post_all(&mut self) -> usize {
        let share = TURN_REQUESTS / self.lanes.len();
        let most = share.min(TURN_BYTES / (self.shape.size * self.lanes.len())).max(1);
        (0..self.lanes.len()).map(|lane| self.post(lane, most)).sum()
    }

    /// Sends the outcome home when nothing more will come.
    fn end_if_over(&mut self, goes_on: bool) {
        if self.outstanding > 0 && self.last_news.elapsed() > SILENCE_LIMIT {
            let (count, seconds) = (self.outstanding, SILENCE_LIMIT.as_secs());
            self.fail(format!("{count} operations did not come back for {seconds} s; please report it"));
        }
        let failed = self.outcome.as_ref().is_some_and(|outcome| outcome.failure.is_some());
        if failed || self.outstanding == 0 && !goes_on {
            if self.shape.operation == Operation::Atomic && !failed {
                self.verify_words();
            }
            if let Some(outcome) = self.outcome.take() {
                // Nobody waits any more: then nobody asks either.
                let _ = self.control.home.send(outcome);
            }
        }
    }

    /// Each word must have counted every atomic of its lane, exactly once.
    fn verify_words(&mut self) {
        for lane in 0..self.lanes.len() {
            let (word, posted) = (self.place(lane, 0), self.lanes[lane].posted);
            let found = self.memory[1].memory().load_u64(word);
            if found != Ok(posted) {
                self.fail(format!("{posted} atomics counted a word to {found:?}; please report it"));
            }
        }
    }
}

impl Poller for Load {
    fn name(&self) -> &str {
        "load"
    }

    fn poll(&mut self, _turn: &mut Turn<'_>) -> Progress {
        if self.outcome.is_none() {
            return Progress::Idle;
        }
        let back = self.poll_receives() + self.poll_sends();
        let goes_on = self.goes_on();
        if self.outstanding == 0 {
            self.last_news = Instant::now();
        }
        let posted = if goes_on { self.post_all() } else { 0 };
        self.end_if_over(goes_on);
        if back + posted > 0 { Progress::Busy } else { Progress::Idle }
    }
}
