//! The stack on a port: frames of bursts in, frames of a pool out.
//!
//! [`Endpoint::accept`] takes its own frames out of a burst and leaves the others in order; [`Endpoint::transmit`] sends what is
//! due. An app with the queues in its hands calls both itself. [`RocePoller`] is for a worker without such an app: it owns the
//! queues, and hands what is not RoCE to a function.

use super::memory::Gather;
use super::stack::{FrameSink, Stack, Verdict};
use pollring::buffer::{BURST, Burst, Caches, Chain, Frame, Pool, Segment, Span, ToDevice};
use pollring::port::{Capabilities, RxQueue, TxQueue};
use pollring::worker::{Poller, Progress, Turn};
use std::time::Instant;

/// Header, pieces and trailer of a gathered frame at most.
const MAX_SEGMENTS: usize = 16;

/// See the file's head.
pub struct Endpoint {
    stack: Stack,
    pool: Pool<ToDevice>,
    max_segments: usize,
    out: Burst,
    /// Frames of the burst under way; empty between calls.
    incoming: Vec<Frame>,
}

impl Endpoint {
    /// A stack that sends through a port with these capabilities, from frames of `pool`. Its buffers must hold a full frame; memory
    /// that the port's devices do not reach is copied.
    pub fn new(stack: Stack, pool: Pool<ToDevice>, port: &Capabilities) -> Endpoint {
        let max_segments = port.max_segments.min(MAX_SEGMENTS);
        Endpoint { stack, pool, max_segments, out: Burst::new(), incoming: Vec::with_capacity(BURST) }
    }

    /// Takes its own frames out of `burst`, at the time `now_ns`; the others stay, in order.
    pub fn accept(&mut self, now_ns: u64, burst: &mut Burst, caches: &mut Caches) -> usize {
        let (mut whole, mut frames) = (std::mem::take(burst), std::mem::take(&mut self.incoming));
        while !whole.is_empty() {
            match whole.pop() {
                Some(frame) => frames.push(frame),
                None => whole.pop_chain().into_iter().for_each(|chain| {
                    // As many come out as went in, so there is room.
                    let _ = burst.push_chain(chain);
                }),
            }
        }
        let mut verdicts = [Verdict::Foreign; BURST];
        let bytes = frames.iter().map(Frame::bytes);
        self.stack.receive_all(now_ns, bytes, |number, verdict| verdicts[number] = verdict);
        let mut taken = 0;
        for (frame, verdict) in frames.drain(..).zip(verdicts) {
            if verdict == Verdict::Taken {
                taken += 1;
                caches.put(frame);
            } else {
                let _ = burst.push(frame);
            }
        }
        self.incoming = frames;
        taken
    }

    /// Sends what is due at `now_ns` through `queue`, at most a burst; gives how many frames went out.
    pub fn transmit(&mut self, now_ns: u64, queue: &mut dyn TxQueue, caches: &mut Caches) -> usize {
        let (pool, max_segments) = (&self.pool, self.max_segments);
        let mut sink = Sink { out: &mut self.out, pool, caches, max_segments };
        self.stack.transmit(now_ns, BURST, &mut sink);
        let sent = queue.send(&mut self.out, caches);
        queue.reclaim(caches);
        // Spans hold their memory themselves, so nothing waits for their cookies.
        drop(caches.take_cookies());
        sent
    }

    /// When [`transmit`](Endpoint::transmit) is due next.
    pub fn due_ns(&self) -> Option<u64> {
        if self.out.is_empty() { self.stack.due_ns() } else { Some(0) }
    }
}

/// Frames of a pool, into a burst.
struct Sink<'a> {
    out: &'a mut Burst,
    pool: &'a Pool<ToDevice>,
    caches: &'a mut Caches,
    max_segments: usize,
}

impl Sink<'_> {
    fn frame(&mut self, bytes: &[u8]) -> Option<Frame> {
        let mut frame = self.caches.take(self.pool)?;
        frame.fill_from(bytes).then_some(frame)
    }

    fn chain(&mut self, header: &[u8], payload: Gather<'_>, trailer: &[u8]) -> Option<Chain> {
        let mut chain = Chain::from(self.frame(header)?);
        for (memory, offset, bytes) in payload.pieces() {
            let span = Span::new(memory, offset, u16::try_from(bytes).ok()?, 0).ok()?;
            chain.push(Segment::Span(span)).ok()?;
        }
        chain.push(Segment::Frame(self.frame(trailer)?)).ok()?;
        Some(chain)
    }
}

impl FrameSink for Sink<'_> {
    fn has_room(&self) -> bool {
        self.out.room() > 0
    }

    fn push(&mut self, bytes: usize, fill: &mut dyn FnMut(&mut [u8])) {
        // A pool that is empty loses the packet, as a wire would; what is reliable is sent again.
        let Some(mut frame) = self.caches.take(self.pool) else { return };
        if frame.set_len(bytes) {
            fill(frame.bytes_mut());
            let _ = self.out.push(frame);
        }
    }

    fn gathers(&self) -> bool {
        self.max_segments >= 3
    }

    fn push_gathered(&mut self, header: &[u8], payload: Gather<'_>, trailer: &[u8]) -> bool {
        if payload.pieces().count() + 2 > self.max_segments {
            return false;
        }
        let Some(chain) = self.chain(header, payload, trailer) else { return false };
        self.out.push_chain(chain).is_ok()
    }
}

/// What gets the frames that are not RoCE's; what it leaves in the burst is dropped.
pub type Others = Box<dyn FnMut(&mut Burst, &mut Caches) + Send>;

/// An endpoint with the queues of its port, as a poller of their worker.
pub struct RocePoller {
    endpoint: Endpoint,
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    others: Others,
    burst: Burst,
    started: Instant,
}

impl RocePoller {
    /// A poller that gives `others` what is not its own.
    pub fn new(endpoint: Endpoint, rx: Box<dyn RxQueue>, tx: Box<dyn TxQueue>, others: Others) -> RocePoller {
        RocePoller { endpoint, rx, tx, others, burst: Burst::new(), started: Instant::now() }
    }

    /// Gives the queues back, to stop their port.
    pub fn into_queues(self) -> (Box<dyn RxQueue>, Box<dyn TxQueue>) {
        (self.rx, self.tx)
    }
}

impl Poller for RocePoller {
    fn name(&self) -> &str {
        "roce"
    }

    fn poll(&mut self, turn: &mut Turn<'_>) -> Progress {
        let now_ns = self.started.elapsed().as_nanos() as u64;
        let received = self.rx.receive(&mut self.burst);
        if received > 0 {
            self.endpoint.accept(now_ns, &mut self.burst, turn.caches);
            (self.others)(&mut self.burst, turn.caches);
            turn.caches.put_all(&mut self.burst);
        }
        self.rx.refill(turn.caches);
        let sent = self.endpoint.transmit(now_ns, &mut *self.tx, turn.caches);
        if received + sent > 0 { Progress::Busy } else { Progress::Idle }
    }
}
