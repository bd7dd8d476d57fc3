//! A device that rewrites frames after handing them over does no harm behind a copier, and does without one.
//!
//! The device is a thread that writes to its pool's file, as a peer with the memfd does: at a moment that the test chooses, after a frame
//! was checked and before it is sent, it writes over the whole pool.

// Helpers of tests, which the lint does not take for tests.
#![allow(clippy::unwrap_used, clippy::panic)]

use pollring::buffer::{Access, Both, Burst, Caches, Pool, PoolConfig, ToDevice};
use pollring::bus::Health;
use pollring::copy::MemcpyChannel;
use pollring::hugepages::Pages;
use pollring::port::RxQueue;
use pollring::port::wrap::Copier;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

const FRAMES: usize = 128;
const ROUNDS: usize = 500;

fn pool<D: Access>(name: &str) -> Pool<D> {
    let pages = Pages::Small4K { reason: "a test".into() };
    Pool::new(&PoolConfig { pages, ..PoolConfig::new(name, FRAMES) }, &[]).unwrap()
}

/// Writes over all that it can reach, each time it is told to.
struct Scribbler {
    now: Option<Sender<u8>>,
    done: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Scribbler {
    fn new(pool: &Pool<Both>) -> Scribbler {
        let file = File::from(pool.region().fd().try_clone_to_owned().unwrap());
        let bytes = pool.region().bytes();
        let ((now, told), (finished, done)) = (channel::<u8>(), channel());
        let thread = std::thread::spawn(move || {
            for value in told {
                file.write_all_at(&vec![value; bytes], 0).unwrap();
                finished.send(()).unwrap();
            }
        });
        Scribbler { now: Some(now), done, thread: Some(thread) }
    }

    fn scribble(&self, value: u8) {
        self.now.as_ref().unwrap().send(value).unwrap();
        self.done.recv().unwrap();
    }
}

impl Drop for Scribbler {
    fn drop(&mut self) {
        self.now.take();
        self.thread.take().unwrap().join().unwrap();
    }
}

/// A queue of the scribbling device: honest when it hands a frame over.
struct Device {
    pool: Pool<Both>,
    posted: Burst,
}

impl RxQueue for Device {
    fn refill(&mut self, caches: &mut Caches) -> usize {
        let room = self.posted.room();
        caches.take_into(&self.pool, &mut self.posted, room)
    }

    fn receive(&mut self, burst: &mut Burst) -> usize {
        let before = burst.len();
        while burst.room() > 0 {
            let Some(mut frame) = self.posted.pop() else { break };
            assert!(frame.fill_from(&[0x11; 200]));
            burst.push(frame).unwrap();
        }
        burst.len() - before
    }

    fn health(&self) -> Health {
        Health::Running
    }
}

/// How many frames were checked, and how many of them were other frames when they would have been sent.
fn run(source: &Pool<Both>, rx: &mut dyn RxQueue) -> (usize, usize) {
    let scribbler = Scribbler::new(source);
    let (mut caches, mut burst) = (Caches::new("test"), Burst::new());
    let (mut checked, mut rewritten) = (0, 0);
    for round in 0..ROUNDS {
        rx.refill(&mut caches);
        rx.receive(&mut burst);
        let seen: Vec<Vec<u8>> = burst.frames_mut().map(|frame| frame.bytes().to_vec()).collect();
        assert!(seen.iter().all(|bytes| bytes == &[0x11; 200]), "handed over as the device received it");
        scribbler.scribble(0x80 | round as u8);
        let changed = |(frame, seen): (&mut pollring::buffer::Frame, &Vec<u8>)| frame.bytes() != seen;
        rewritten += burst.frames_mut().zip(&seen).filter_map(|pair| changed(pair).then_some(())).count();
        checked += seen.len();
        caches.put_all(&mut burst);
    }
    (checked, rewritten)
}

#[test]
fn behind_the_copier_the_bytes_that_were_checked_are_the_bytes_that_are_sent() {
    let (source, copies) = (pool::<Both>("device"), pool::<ToDevice>("copies"));
    let device = Box::new(Device { pool: source.clone(), posted: Burst::new() });
    let mut copier = Copier::new(device, Box::new(MemcpyChannel::new(256)), &copies);
    let counters = copier.counters();
    let (checked, rewritten) = run(&source, &mut copier);
    assert!(checked > ROUNDS, "{checked}");
    assert_eq!((rewritten, counters.copied(), counters.dropped()), (0, checked as u64, 0));
    drop(copier);
    assert_eq!((source.census().elsewhere(), copies.census().elsewhere()), (0, 0));
}

#[test]
fn without_the_copier_the_same_device_gets_every_frame_past_the_check() {
    let source = pool::<Both>("device");
    let mut device = Device { pool: source.clone(), posted: Burst::new() };
    let (checked, rewritten) = run(&source, &mut device);
    assert!(checked > ROUNDS && rewritten == checked, "{rewritten} of {checked}");
}
