//! Every frame that a [`Copier`] hands out lies in memory that its device cannot write, so what was checked stays as it was checked.
//!
//! It wraps a receive queue: a frame from the pool that the device fills is copied by a [`Channel`] into a frame of a pool that is mapped for
//! other devices only, and only for reading; the device's frame goes back. Nobody looks at a byte before it was copied. Order is kept,
//! since channels complete in order. Each turn of the worker is `refill` (spent frames go home, empty ones are taken) and `receive`
//! (finished copies go out, received frames go in). What is under way is bounded: 64 frames on either side and the channel's depth.
//!
//! A frame that cannot be copied is dropped and counted. A channel that halts makes the queue's health its own. Dropping the copier drops
//! the channel first, which ends its DMA, and then everything that was under way comes home.

use crate::buffer::{BURST, Burst, Caches, Frame, Pool, ToDevice};
use crate::bus::Health;
use crate::copy::{Channel, Completed, Completion, End, Kind, Operation, Status};
use crate::port::RxQueue;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a copier did.
#[derive(Debug, Default)]
pub struct CopierCounters {
    copied: AtomicU64,
    dropped: AtomicU64,
}

impl CopierCounters {
    /// Frames that were copied.
    pub fn copied(&self) -> u64 {
        self.copied.load(Ordering::Relaxed)
    }

    /// Frames that were not: the engine failed or refused, or the frame is longer than a buffer of the other pool.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// A receive queue whose frames no device can change any more.
pub struct Copier {
    // The engine stops before the memory that it moves is given back.
    channel: Box<dyn Channel>,
    inner: Box<dyn RxQueue>,
    pool: Pool<ToDevice>,
    depth: usize,
    /// Received, not submitted.
    waiting: Burst,
    /// Empty frames of `pool`.
    empty: Burst,
    completed: Completed,
    /// Frames that go home at the next refill.
    spent: Burst,
    counters: Arc<CopierCounters>,
}

impl Copier {
    /// Copies what `inner` receives by `channel` into frames of `pool`. No space of the device behind `inner` maps the pool but for
    /// reading, which its type says; an engine that works by device address needs both pools mapped, and this one writable, in its
    /// own space.
    pub fn new(inner: Box<dyn RxQueue>, channel: Box<dyn Channel>, pool: &Pool<ToDevice>) -> Copier {
        Copier {
            depth: channel.limits().depth,
            channel,
            inner,
            pool: pool.clone(),
            waiting: Burst::new(),
            empty: Burst::new(),
            completed: Completed::new(BURST),
            spent: Burst::new(),
            counters: Arc::default(),
        }
    }

    /// Its counters, for another thread to read.
    pub fn counters(&self) -> Arc<CopierCounters> {
        self.counters.clone()
    }

    /// Submits what waits, as long as there are empty frames and room in the channel.
    fn submit(&mut self) {
        let mut submitted = 0;
        while self.channel.outstanding() < self.depth && !self.waiting.is_empty() && !self.empty.is_empty() {
            let Some(source) = self.waiting.pop() else {
                // A frame of several buffers; no port receives them yet.
                drop(self.waiting.pop_chain());
                count(&self.counters.dropped);
                continue;
            };
            let Some(destination) = self.empty.pop() else { break };
            match pair(source, destination) {
                Ok(operation) => match self.channel.submit(operation) {
                    Ok(()) => submitted += 1,
                    Err(rejected) => self.drop_copy(rejected.operation),
                },
                Err(frames) => {
                    frames.into_iter().for_each(|frame| self.spend(frame));
                    count(&self.counters.dropped);
                }
            }
        }
        if submitted > 0 {
            self.channel.flush();
        }
    }

    /// Hands out finished copies, as many as fit.
    fn deliver(&mut self, burst: &mut Burst) -> usize {
        let mut delivered = 0;
        self.channel.poll(&mut self.completed);
        while burst.room() > 0 {
            let Some(Completion { status, operation }) = self.completed.pop() else { break };
            match (status, operation.kind) {
                (Status::Done, Kind::Copy { source: End::Frame(source), destination: End::Frame(copy) }) => {
                    self.spend(source);
                    // The room was looked at; a frame that comes back would go home as it is dropped.
                    delivered += usize::from(burst.push(copy).is_ok());
                    count(&self.counters.copied);
                }
                (_, kind) => self.drop_copy(Operation { kind, ..operation }),
            }
        }
        delivered
    }

    fn drop_copy(&mut self, operation: Operation) {
        if let Kind::Copy { source, destination } = operation.kind {
            for end in [source, destination] {
                if let End::Frame(frame) = end {
                    self.spend(frame);
                }
            }
        }
        count(&self.counters.dropped);
    }

    /// Keeps a frame for the next refill. When there are too many it goes home at once, by the slow way.
    fn spend(&mut self, frame: Frame) {
        drop(self.spent.push(frame));
    }
}

/// The copy of a frame to an empty one, with what the device said about it.
fn pair(source: Frame, mut destination: Frame) -> Result<Operation, [Frame; 2]> {
    if !destination.set_len(source.len()) {
        return Err([source, destination]);
    }
    destination.set_meta(source.meta());
    Ok(Operation::copy(source, destination, 0))
}

/// One writer, so a load and a store will do; readers want no order with anything else.
fn count(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

impl RxQueue for Copier {
    fn refill(&mut self, caches: &mut Caches) -> usize {
        caches.put_all(&mut self.spent);
        let room = self.empty.room();
        caches.take_into(&self.pool, &mut self.empty, room);
        self.inner.refill(caches)
    }

    fn receive(&mut self, burst: &mut Burst) -> usize {
        if self.waiting.is_empty() {
            self.inner.receive(&mut self.waiting);
        }
        self.submit();
        self.deliver(burst)
    }

    fn health(&self) -> Health {
        match self.inner.health() {
            Health::Running => self.channel.health(),
            health => health,
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::buffer::{Access, Both, PoolConfig};
    use crate::copy::MemcpyChannel;
    use pollring_hugepages::Pages;

    fn pool<D: Access>(name: &str, frames: usize) -> Pool<D> {
        let pages = Pages::Small4K { reason: "a unit test".into() };
        Pool::new(&PoolConfig { pages, ..PoolConfig::new(name, frames) }, &[]).unwrap()
    }

    /// Receives frames that carry their number, as long as its pool has some.
    struct Source {
        pool: Pool<Both>,
        frames: Burst,
        next: u8,
    }

    impl RxQueue for Source {
        fn refill(&mut self, caches: &mut Caches) -> usize {
            let room = self.frames.room();
            caches.take_into(&self.pool, &mut self.frames, room)
        }
        fn receive(&mut self, burst: &mut Burst) -> usize {
            let before = burst.len();
            while burst.room() > 0 {
                let Some(mut frame) = self.frames.pop() else { break };
                assert!(frame.fill_from(&[self.next; 60]));
                self.next = self.next.wrapping_add(1);
                burst.push(frame).unwrap();
            }
            burst.len() - before
        }
        fn health(&self) -> Health {
            Health::Running
        }
    }

    fn copier(source: &Pool<Both>, copies: &Pool<ToDevice>, depth: usize) -> Copier {
        let inner = Source { pool: source.clone(), frames: Burst::new(), next: 0 };
        Copier::new(Box::new(inner), Box::new(MemcpyChannel::new(depth)), copies)
    }

    fn assert_all_home(source: &Pool<Both>, copies: &Pool<ToDevice>) {
        assert_eq!((source.census().elsewhere(), copies.census().elsewhere()), (0, 0));
    }

    #[test]
    fn copies_come_in_order_from_the_other_pool_and_every_frame_comes_home() {
        let (source, copies) = (pool("source", 256), pool("copies", 256));
        for depth in [1, 7, 256] {
            let (mut caches, mut next) = (Caches::new("test"), 0u8);
            let mut copier = copier(&source, &copies, depth);
            for _ in 0..300 {
                copier.refill(&mut caches);
                let mut burst = Burst::new();
                copier.receive(&mut burst);
                while let Some(frame) = burst.pop() {
                    assert_eq!((frame.bytes(), frame.pool()), (&[next; 60][..], copies.id()));
                    next = next.wrapping_add(1);
                    caches.put(frame);
                }
            }
            assert!(copier.counters().copied() >= 299 && copier.counters().dropped() == 0);
            drop((copier, caches));
            assert_all_home(&source, &copies);
        }
    }

    #[test]
    fn without_empty_frames_or_room_nothing_is_lost() {
        let (source, copies) = (pool("source", 256), pool("copies", 32));
        let mut caches = Caches::new("test");
        let mut copier = copier(&source, &copies, 256);
        let mut held: Vec<Burst> = Vec::new();
        for _ in 0..10 {
            let mut burst = Burst::new();
            copier.refill(&mut caches);
            copier.receive(&mut burst);
            held.push(burst);
        }
        let order: Vec<u8> =
            held.iter_mut().flat_map(Burst::frames_mut).map(|frame| frame.bytes()[0]).collect();
        let total = copies.census().total;
        assert_eq!(order, (0..total as u8).collect::<Vec<_>>(), "as many as the pool has");
        held.iter_mut().for_each(|burst| caches.put_all(burst));
        copier.refill(&mut caches);
        copier.receive(&mut held[0]);
        let next = held[0].pop().unwrap();
        assert_eq!((next.bytes()[0], copier.counters().dropped()), (total as u8, 0));
        caches.put(next);
        drop((copier, held, caches));
        assert_all_home(&source, &copies);
    }

    #[test]
    fn a_halted_channel_drops_and_counts_and_shows_in_the_health() {
        let (source, copies) = (pool("source", 256), pool("copies", 256));
        let (mut caches, mut burst) = (Caches::new("test"), Burst::new());
        let mut copier = copier(&source, &copies, 256);
        copier.refill(&mut caches);
        assert_eq!((copier.receive(&mut burst), copier.health()), (64, Health::Running));
        copier.channel.halt();
        copier.refill(&mut caches);
        let mut none = Burst::new();
        assert_eq!((copier.receive(&mut none), copier.counters().dropped()), (0, 64));
        assert!(matches!(copier.health(), Health::Failed(_)));
        drop((copier, burst, caches));
        assert_all_home(&source, &copies);
    }
}
