//! What the engine is given to do, and the check of what it did. The operation numbered n uses place n modulo depth; completions come in
//! order, so a place is free when the operation that had it last came back.

use super::Op;
use super::engine::Opened;
use pollring::bus::Health;
use pollring::copy::{Completed, Completion, Operation, Status};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long an engine may be silent with work outstanding.
const SILENCE_LIMIT: Duration = Duration::from_secs(5);

/// A run.
pub(super) struct Work {
    opened: Opened,
    completed: Completed,
    size: usize,
    depth: usize,
    ops: Vec<Op>,
    verify: bool,
    next: u64,
    last_news: Instant,
    silent: bool,
    expected: Vec<u8>,
    found: Vec<u8>,
    pub(super) done: u64,
    pub(super) verified: u64,
    pub(super) corrupt: u64,
    pub(super) failed: BTreeMap<String, u64>,
}

impl Work {
    pub(super) fn new(opened: Opened, size: usize, depth: usize, ops: &[Op], verify: bool) -> Work {
        let depth = depth.min(opened.channel.limits().depth);
        Work {
            opened,
            completed: Completed::new(depth),
            size,
            depth,
            ops: ops.to_vec(),
            verify,
            next: 0,
            last_news: Instant::now(),
            silent: false,
            expected: vec![0; size],
            found: vec![0; size],
            done: 0,
            verified: 0,
            corrupt: 0,
            failed: BTreeMap::new(),
        }
    }

    /// Whether the engine works.
    pub(super) fn goes_on(&self) -> bool {
        !self.silent && !matches!(self.opened.channel.health(), Health::Failed(_) | Health::Gone)
    }

    /// How the engine is.
    pub(super) fn health(&self) -> String {
        if self.silent {
            return format!("silent for {} s, halted", SILENCE_LIMIT.as_secs());
        }
        self.opened.channel.health().to_string()
    }

    /// Gives the engine what fits and takes back what ended.
    pub(super) fn turn(&mut self) {
        while self.opened.channel.outstanding() < self.depth && self.submit() {}
        self.opened.channel.flush();
        self.poll();
    }

    /// Takes back everything.
    pub(super) fn finish(&mut self) {
        while self.opened.channel.outstanding() > 0 {
            self.poll();
        }
    }

    fn submit(&mut self) -> bool {
        let Some(operation) = self.operation(self.next) else { return false };
        let taken = self.opened.channel.submit(operation);
        if let Err(rejected) = &taken {
            *self.failed.entry(rejected.reason.to_string()).or_default() += 1;
            self.silent = true;
            self.opened.channel.halt();
        }
        self.next += 1;
        taken.is_ok()
    }

    fn operation(&mut self, number: u64) -> Option<Operation> {
        let place = self.place(number);
        let Opened { sources, results, .. } = &self.opened;
        let destination = results.slice(place, self.size).ok()?;
        if self.op(number) == Op::Fill {
            return Some(Operation::fill(destination, pattern(number), number));
        }
        if self.verify {
            expect(&mut self.expected, number, Op::Copy);
            sources.copy_in(place, &self.expected).ok()?;
        }
        Some(Operation::copy(sources.slice(place, self.size).ok()?, destination, number))
    }

    fn place(&self, number: u64) -> usize {
        (number % self.depth as u64) as usize * self.size
    }

    fn op(&self, number: u64) -> Op {
        let turn = (number % self.ops.len().max(1) as u64) as usize;
        self.ops.get(turn).copied().unwrap_or(Op::Copy)
    }

    fn poll(&mut self) {
        if self.opened.channel.poll(&mut self.completed) > 0 {
            self.last_news = Instant::now();
        } else if self.last_news.elapsed() > SILENCE_LIMIT && !self.silent {
            self.silent = true;
            self.opened.channel.halt();
        }
        while let Some(completion) = self.completed.pop() {
            self.end(&completion);
        }
    }

    fn end(&mut self, completion: &Completion) {
        if completion.status != Status::Done {
            *self.failed.entry(completion.status.to_string()).or_default() += 1;
            return;
        }
        self.done += 1;
        if self.verify {
            let number = completion.cookie();
            let (place, op) = (self.place(number), self.op(number));
            expect(&mut self.expected, number, op);
            let read = self.opened.results.copy_out(place, &mut self.found).is_ok();
            self.verified += 1;
            self.corrupt += u64::from(!read || self.found != self.expected);
        }
    }
}

/// The pattern of a number, which no other near it has (splitmix64's finalizer).
fn pattern(number: u64) -> u64 {
    let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 27
}

/// What the result of an operation must be.
fn expect(bytes: &mut [u8], number: u64, op: Op) {
    for (at, part) in bytes.chunks_mut(8).enumerate() {
        let word = match op {
            Op::Copy => pattern(number ^ (at as u64) << 32),
            Op::Fill => pattern(number),
        };
        part.copy_from_slice(&word.to_le_bytes()[..part.len()]);
    }
}
