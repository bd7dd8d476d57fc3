//! Traffic at the far ends of a machine's wires: seeded frames, each checked byte for byte.
//!
//! A [`Direction`] keeps at most a window under way, since the device models drop in silence what no ring takes.

use pollring_simulator::traffic::{Addresses, Checker, Counts, Generator, TrafficConfig};
use pollring_vm::Wire;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Frames under way in one direction at most: less than any ring on the way has.
pub const WINDOW: u64 = 64;

/// From one wire to another.
pub struct Direction {
    generator: Generator,
    checker: Checker,
    from: usize,
    to: usize,
    given_up: u64,
    frame: Vec<u8>,
    /// A frame that the wire did not take yet.
    waiting: bool,
}

impl Direction {
    /// Frames of 60 to 1514 bytes with random payload, untouched on their way.
    pub fn new(seed: u64, from: usize, to: usize) -> Direction {
        let config = TrafficConfig::new(seed);
        let checker = Checker::new(config.clone(), Addresses::Untouched);
        let (given_up, frame, waiting) = (0, Vec::new(), false);
        Direction { generator: Generator::new(config), checker, from, to, given_up, frame, waiting }
    }

    pub fn sent(&self) -> u64 {
        self.generator.sent()
    }

    pub fn counts(&self) -> Counts {
        self.checker.counts()
    }

    fn under_way(&self) -> u64 {
        self.sent().saturating_sub(self.counts().received + self.given_up)
    }

    /// What is under way was lost, as when a forwarder was killed.
    pub fn give_up(&mut self) {
        self.given_up += self.under_way();
    }

    /// Receives what came and sends what the window allows, up to `total` frames in all; gives how much it did.
    pub fn step(&mut self, wires: &mut [Wire], total: u64) -> usize {
        let mut done = 0;
        while let Some(frame) = wires[self.to].receive(Duration::ZERO).unwrap() {
            self.checker.check(frame);
            done += 1;
        }
        while self.waiting || self.sent() < total && self.under_way() < WINDOW {
            if !self.waiting {
                self.generator.generate(&mut self.frame);
            }
            self.waiting = !wires[self.from].send(&self.frame).unwrap();
            if self.waiting {
                break;
            }
            done += 1;
        }
        done
    }
}

/// Moves frames until each direction has `total` sent and back, or nothing came for `limit`.
pub fn run(wires: &mut [Wire], directions: &mut [Direction], total: u64, limit: Duration) {
    let mut moved = Instant::now();
    while directions.iter().any(|direction| direction.sent() < total || direction.under_way() > 0) {
        let done: usize = directions.iter_mut().map(|direction| direction.step(wires, total)).sum();
        if done > 0 {
            moved = Instant::now();
        } else if moved.elapsed() > limit {
            return;
        } else {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}

/// Joins two wires, as a cable would, until `enough`; gives how many frames crossed.
pub fn join(wires: &mut [Wire], enough: &AtomicBool) -> u64 {
    let (mut frame, mut frames) = (Vec::new(), 0);
    while !enough.load(Ordering::Relaxed) {
        let before = frames;
        for (from, to) in [(0, 1), (1, 0)] {
            while let Some(received) = wires[from].receive(Duration::ZERO).unwrap() {
                frame.clear();
                frame.extend_from_slice(received);
                wires[to].send(&frame).unwrap();
                frames += 1;
            }
        }
        if frames == before {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    frames
}
