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
