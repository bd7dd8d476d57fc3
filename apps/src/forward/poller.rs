//! The data path of `pollring forward`: one receive queue, one transmit queue, and what happens to a frame between them.
//!
//! A [`Forwarder`] owns its two queues while its worker runs. Each turn is one screen: refill, receive, rewrite, send, reclaim. What
//! a transmit ring does not take stays in the burst and is sent first the next time; nothing more is received meanwhile, so a
//! slow port slows its partner down instead of losing frames. When a forwarder is dropped, on whatever thread, its queues
//! go home through a channel; after a panic they are dropped instead, and their port must be aborted.

use super::options::Mode;
use pollring::buffer::{Burst, Pool, ToDevice};
use pollring::port::{MacAddress, RxQueue, TxQueue};
use pollring::worker::{Poller, Progress, Turn};
use std::sync::mpsc::Sender;

/// What is done to each frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rewrite {
    /// Nothing: no byte of the frame is touched.
    Nothing,
    /// Source and destination change places.
    Swap,
    /// Destination and source, as they stand on the wire.
    Addresses([u8; 12]),
}

impl Rewrite {
    /// What `mode` means for frames that leave by a port with address `source`.
    pub(crate) fn new(mode: Mode, source: MacAddress, destination: MacAddress) -> Rewrite {
        match mode {
            Mode::Io => Rewrite::Nothing,
            Mode::MacSwap => Rewrite::Swap,
            Mode::MacRewrite => {
                let mut addresses = [0; 12];
                addresses[..6].copy_from_slice(&destination.0);
                addresses[6..].copy_from_slice(&source.0);
                Rewrite::Addresses(addresses)
            }
        }
    }

    /// Rewrites the frames of a burst. A frame that ends inside its addresses is left as it is.
    #[inline]
    fn apply(self, burst: &mut Burst) {
        match self {
            Rewrite::Nothing => {}
            Rewrite::Swap => burst.frames_mut().for_each(|frame| {
                if let Some(addresses) = frame.bytes_mut().first_chunk_mut::<12>() {
                    let [destination @ .., _, _, _, _, _, _] = *addresses;
                    addresses.copy_within(6.., 0);
                    addresses[6..].copy_from_slice(&destination);
                }
            }),
            Rewrite::Addresses(new) => burst.frames_mut().for_each(|frame| {
                if let Some(addresses) = frame.bytes_mut().first_chunk_mut::<12>() {
                    *addresses = new;
                }
            }),
        }
    }
}

/// Which queue of which port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueOf {
    /// Position of the port on the command line.
    pub(crate) port: usize,
    /// Queue pair.
    pub(crate) pair: usize,
}

/// A queue that came home.
pub(crate) enum Returned {
    /// A receiving half.
    Rx(QueueOf, Box<dyn RxQueue>),
    /// A sending half.
    Tx(QueueOf, Box<dyn TxQueue>),
}

/// Frames that a port sends once, at the start.
pub(crate) struct Primer {
    /// Where they lie; no device fills this memory.
    pub(crate) pool: Pool<ToDevice>,
    /// How many are still to go.
    pub(crate) left: u64,
    /// What each of them holds.
    pub(crate) bytes: Vec<u8>,
}

impl Primer {
    /// Puts the next frames into `burst`, as many as the pool has now.
    #[cold]
    fn load(&mut self, burst: &mut Burst, turn: &mut Turn<'_>, count: usize) {
        let wanted = self.left.min(count as u64) as usize;
        turn.caches.take_into(&self.pool, burst, wanted);
        for frame in burst.frames_mut() {
            // The pool's buffers hold any frame that the port can send.
            let filled = frame.fill_from(&self.bytes);
            debug_assert!(filled, "a primer of {} bytes", self.bytes.len());
            self.left -= 1;
        }
    }
}

/// What a worker does after turns without frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manners {
    /// It keeps its core.
    Keep,
    /// It lets other threads run, since there are fewer cores than threads that poll.
    Yield,
}

/// How a forwarder works; the same for all of a run but for the names.
pub(crate) struct ForwarderConfig {
    pub(crate) from: QueueOf,
    pub(crate) to: QueueOf,
    pub(crate) rewrite: Rewrite,
    /// Frames that are rewritten and sent together, 1 to 64.
    pub(crate) burst: usize,
    pub(crate) primer: Option<Primer>,
    pub(crate) manners: Manners,
    pub(crate) home: Sender<Returned>,
}

/// Idle turns before a polite worker lets others run: about as long as a device needs for a burst.
const PATIENCE_TURNS: u32 = 64;

/// Receives from one queue, sends to another.
pub(crate) struct Forwarder {
    name: String,
    config: ForwarderConfig,
    rx: Option<Box<dyn RxQueue>>,
    tx: Option<Box<dyn TxQueue>>,
    /// Received, not rewritten: more than one burst may arrive at once.
    arrived: Burst,
    /// Rewritten, not sent.
    leaving: Burst,
    idle_turns: u32,
}

impl Forwarder {
    /// A forwarder between two queues.
    pub(crate) fn new(rx: Box<dyn RxQueue>, tx: Box<dyn TxQueue>, config: ForwarderConfig) -> Forwarder {
        let ForwarderConfig { from, to, .. } = config;
        let name = format!("forward port {} queue {} to port {}", from.port, from.pair, to.port);
        let (arrived, leaving) = (Burst::new(), Burst::new());
        Forwarder { name, config, rx: Some(rx), tx: Some(tx), arrived, leaving, idle_turns: 0 }
    }

    fn forward(&mut self, turn: &mut Turn<'_>) -> Progress {
        let (Some(rx), Some(tx)) = (&mut self.rx, &mut self.tx) else { return Progress::Idle };
        rx.refill(turn.caches);
        if self.leaving.is_empty() {
            // A primer takes every other turn, so that what comes back meanwhile is not lost.
            match &mut self.config.primer {
                Some(primer) if turn.number.is_multiple_of(2) => {
                    primer.load(&mut self.leaving, turn, self.config.burst)
                }
                _ => {
                    if self.arrived.is_empty() {
                        rx.receive(&mut self.arrived);
                    }
                    take_front(&mut self.arrived, &mut self.leaving, self.config.burst);
                    self.config.rewrite.apply(&mut self.leaving);
                }
            }
        }
        let sent = tx.send(&mut self.leaving, turn.caches);
        let reclaimed = tx.reclaim(turn.caches);
        if sent + reclaimed > 0 { Progress::Busy } else { Progress::Idle }
    }

    fn rest(&mut self) {
        self.idle_turns += 1;
        if self.idle_turns >= PATIENCE_TURNS {
            self.idle_turns = 0;
            std::thread::yield_now();
        }
    }
}

/// Moves up to `count` frames from the front of `from` to the end of `to`.
#[inline]
fn take_front(from: &mut Burst, to: &mut Burst, count: usize) {
    for _ in 0..count.min(to.room()) {
        let Some(frame) = from.pop() else { return };
        let pushed = to.push(frame);
        debug_assert!(pushed.is_ok(), "the room was counted");
    }
}

impl Poller for Forwarder {
    fn name(&self) -> &str {
        &self.name
    }

    fn poll(&mut self, turn: &mut Turn<'_>) -> Progress {
        let progress = self.forward(turn);
        match (progress, self.config.manners) {
            (Progress::Busy, _) => self.idle_turns = 0,
            (Progress::Idle, Manners::Yield) => self.rest(),
            (Progress::Idle, Manners::Keep) => {}
        }
        progress
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // When nobody waits for them any more, the queues are dropped here.
        if let Some(rx) = self.rx.take() {
            let _ = self.config.home.send(Returned::Rx(self.config.from, rx));
        }
        if let Some(tx) = self.tx.take() {
            let _ = self.config.home.send(Returned::Tx(self.config.to, tx));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollring::buffer::{Access, Both, Caches, PoolConfig};
    use pollring::bus::Health;
    use pollring::bus::simulated::SimulatedIommu;
    use pollring::hugepages::Pages;
    use pollring::iova::AddressSpace;
    use std::sync::mpsc::{Receiver, channel};
    use std::sync::{Arc, Mutex};

    fn pool<D: Access>(name: &str) -> Pool<D> {
        let space = AddressSpace::new("test", Arc::new(SimulatedIommu::default()));
        let pages = Pages::Small4K { reason: "a unit test".into() };
        Pool::new(&PoolConfig { pages, ..PoolConfig::new(name, 64) }, &[&space]).unwrap()
    }

    /// Gives what lies in it.
    struct Source(Burst);

    impl RxQueue for Source {
        fn refill(&mut self, _: &mut Caches) -> usize {
            0
        }
        fn receive(&mut self, burst: &mut Burst) -> usize {
            let before = burst.len();
            take_front(&mut self.0, burst, 64);
            burst.len() - before
        }
        fn health(&self) -> Health {
            Health::Running
        }
    }

    /// What a sink took: the sizes of its bursts, and the frames.
    #[derive(Default)]
    struct Seen {
        room: usize,
        offered: Vec<usize>,
        frames: Vec<Vec<u8>>,
    }

    struct Sink(Arc<Mutex<Seen>>);

    impl TxQueue for Sink {
        fn send(&mut self, burst: &mut Burst, caches: &mut Caches) -> usize {
            let mut seen = self.0.lock().unwrap();
            seen.offered.push(burst.len());
            let count = burst.len().min(seen.room);
            for _ in 0..count {
                let frame = burst.pop().unwrap();
                seen.frames.push(frame.bytes().to_vec());
                caches.put(frame);
            }
            count
        }
        fn reclaim(&mut self, _: &mut Caches) -> usize {
            0
        }
        fn health(&self) -> Health {
            Health::Running
        }
    }

    struct Bench {
        forwarder: Forwarder,
        caches: Caches,
        seen: Arc<Mutex<Seen>>,
        home: Receiver<Returned>,
        turn: u64,
    }

    impl Bench {
        /// A forwarder whose source has `frames` frames of 60 bytes, each with its number in its last byte.
        fn new(pool: &Pool<Both>, frames: u8, change: impl FnOnce(&mut ForwarderConfig)) -> Bench {
            let (mut caches, mut burst) = (Caches::new("test"), Burst::new());
            caches.take_into(pool, &mut burst, usize::from(frames));
            for (number, frame) in burst.frames_mut().enumerate() {
                let mut bytes = [0; 60];
                bytes[..12].copy_from_slice(&[1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2]);
                bytes[59] = number as u8;
                assert!(frame.fill_from(&bytes));
            }
            let (home, receiver) = channel();
            let (from, to) = (QueueOf { port: 0, pair: 0 }, QueueOf { port: 1, pair: 0 });
            let (rewrite, manners) = (Rewrite::Nothing, Manners::Yield);
            let mut config = ForwarderConfig { from, to, rewrite, burst: 32, primer: None, manners, home };
            change(&mut config);
            let seen = Arc::new(Mutex::new(Seen { room: 64, ..Seen::default() }));
            let forwarder = Forwarder::new(Box::new(Source(burst)), Box::new(Sink(seen.clone())), config);
            Bench { forwarder, caches, seen, home: receiver, turn: 0 }
        }

        fn turn(&mut self) -> Progress {
            let mut turn = Turn { caches: &mut self.caches, number: self.turn };
            self.turn += 1;
            self.forwarder.poll(&mut turn)
        }
    }

    fn numbers(seen: &Mutex<Seen>) -> Vec<u8> {
        seen.lock().unwrap().frames.iter().map(|frame| frame[59]).collect()
    }

    #[test]
    fn frames_leave_in_order_and_in_bursts_of_the_size_asked() {
        let pool = pool("bursts");
        let mut bench = Bench::new(&pool, 50, |config| config.burst = 20);
        let turns: Vec<_> = (0..4).map(|_| bench.turn()).collect();
        assert_eq!(turns, [Progress::Busy, Progress::Busy, Progress::Busy, Progress::Idle]);
        assert_eq!(bench.seen.lock().unwrap().offered, [20, 20, 10, 0]);
        assert_eq!(numbers(&bench.seen), (0..50).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_not_taken_leaves_first_and_nothing_more_is_received_meanwhile() {
        let pool = pool("pressure");
        let mut bench = Bench::new(&pool, 60, |config| config.rewrite = Rewrite::Swap);
        bench.seen.lock().unwrap().room = 5;
        bench.turn();
        bench.seen.lock().unwrap().room = 0;
        assert_eq!([bench.turn(), bench.turn()], [Progress::Idle; 2]);
        assert_eq!(bench.seen.lock().unwrap().offered, [32, 27, 27]);
        bench.seen.lock().unwrap().room = 64;
        for _ in 0..3 {
            bench.turn();
        }
        assert_eq!(numbers(&bench.seen), (0..60).collect::<Vec<_>>());
        // Swapped once each, also those that waited.
        let seen = bench.seen.lock().unwrap();
        assert!(seen.frames.iter().all(|frame| frame[..12] == [2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1]));
    }

    #[test]
    fn each_mode_changes_what_it_says() {
        let (source, destination) = (MacAddress([2, 0, 0, 0, 0, 9]), MacAddress([2, 0, 0, 0, 0, 1]));
        for (mode, expected) in [
            (Mode::Io, [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2]),
            (Mode::MacSwap, [2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1]),
            (Mode::MacRewrite, [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9]),
        ] {
            let pool = pool("modes");
            let mut bench =
                Bench::new(&pool, 3, |config| config.rewrite = Rewrite::new(mode, source, destination));
            bench.turn();
            let seen = bench.seen.lock().unwrap();
            assert_eq!(seen.frames.len(), 3);
            assert!(
                seen.frames.iter().all(|frame| frame[..12] == expected && frame[12..59] == [0; 47]),
                "{mode:?}"
            );
        }
    }

    #[test]
    fn a_frame_that_ends_inside_its_addresses_is_left_alone() {
        let pool: Pool<Both> = pool("short");
        for rewrite in [Rewrite::Swap, Rewrite::Addresses([7; 12])] {
            let mut caches = Caches::new("test");
            let mut burst = Burst::new();
            caches.take_into(&pool, &mut burst, 1);
            assert!(burst.frames_mut().all(|frame| frame.fill_from(&[1, 2, 3, 4, 5])));
            rewrite.apply(&mut burst);
            assert_eq!(burst.pop().unwrap().bytes(), [1, 2, 3, 4, 5]);
        }
    }

    #[test]
    fn a_primer_sends_its_frames_once_and_the_others_go_on() {
        let (pool, primed) = (pool("received"), pool::<ToDevice>("primed"));
        let primer = Primer { pool: primed.clone(), left: 40, bytes: vec![9; 60] };
        let mut bench = Bench::new(&pool, 10, |config| config.primer = Some(primer));
        for _ in 0..8 {
            bench.turn();
        }
        let frames = bench.seen.lock().unwrap().frames.clone();
        let (from_primer, forwarded): (Vec<_>, Vec<_>) =
            frames.iter().partition(|frame| frame[..] == [9; 60]);
        assert_eq!((from_primer.len(), forwarded.len()), (40, 10));
        drop(bench);
        assert_eq!(primed.census().home, 64);
    }

    #[test]
    fn queues_go_home_when_the_forwarder_is_dropped_and_frames_too() {
        let pool = pool("home");
        let mut bench = Bench::new(&pool, 50, |config| config.burst = 8);
        bench.seen.lock().unwrap().room = 3;
        bench.turn();
        let Bench { forwarder, caches, home, .. } = bench;
        drop((forwarder, caches));
        let returned: Vec<_> = home.try_iter().collect();
        assert!(matches!(
            returned[..],
            [Returned::Rx(QueueOf { port: 0, .. }, _), Returned::Tx(QueueOf { port: 1, .. }, _)]
        ));
        drop(returned);
        assert_eq!(pool.census().home, 64);
    }

    #[test]
    fn after_a_panic_the_queues_do_not_go_home() {
        let pool = pool("panic");
        let Bench { forwarder, home, caches, .. } = Bench::new(&pool, 4, |_| {});
        let died = std::thread::spawn(move || {
            let _forwarder = forwarder;
            panic!("on purpose");
        });
        assert!(died.join().is_err());
        drop(caches);
        assert_eq!((home.try_iter().count(), pool.census().home), (0, 64));
    }
}
