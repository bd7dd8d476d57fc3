//! The requester half: the send queue, and the packets that it becomes.
//!
//! Every request gets its range of PSNs when it is posted. Packets leave in order of `queue`, from `cursor` on; answers free the
//! queue from the front (answers.rs), and going back moves `cursor` to the front again (retry.rs):
//!
//! ```text
//!  front            cursor                    back
//!  | unacknowledged | being sent | not begun |
//!  unacknowledged   next         sent_end     end      (PSNs)
//! ```
//!
//! A READ takes one packet out and a PSN for each packet that comes back.

use super::memory;
use super::qp::{Qp, Step};
use super::wire::network::Path;
use super::world::{Output, Readiness, World};
use pollring::rdma::{Access, Layer, Opcode, Payload, Psn, QpType, Retry, SendFlags};
use pollring::rdma::{SendOperation, SendRequest, Sge, SgeList, Signalling, State, Status};
use std::collections::VecDeque;

/// Data packets on the way at most, as long as the network does not complain.
pub(crate) const WINDOW_PACKETS: u32 = 128;

/// An acknowledgement is asked for at least this often within a message.
pub(crate) const ACK_EVERY_PACKETS: u32 = 32;

/// Half of the PSN space: what is outstanding must be less for a comparison to be right.
const MAX_OUTSTANDING_PSNS: i32 = (1 << 23) - 1;

/// The largest number of packets in one message.
pub(crate) const MAX_MESSAGE_PACKETS: u32 = 1 << 22;

/// A posted request.
pub(crate) struct Wqe {
    pub(crate) request: SendRequest,
    pub(crate) first: Psn,
    pub(crate) packets: u32,
    pub(crate) bytes: u32,
    /// Its number in the peer's count of messages.
    sequence: u32,
}

impl Wqe {
    pub(crate) fn end(&self) -> Psn {
        self.first.plus(self.packets)
    }

    /// Whether it is done only when a response brought data.
    pub(crate) fn waits_for_data(&self) -> bool {
        use SendOperation::{CompareAndSwap, FetchAndAdd, Read};
        matches!(self.request.operation, Read { .. } | CompareAndSwap { .. } | FetchAndAdd { .. })
    }

    /// Whether it uses up a receive of the peer's.
    fn needs_receive(&self) -> bool {
        use SendOperation::{Send, Write};
        matches!(self.request.operation, Send { .. } | Write { immediate: Some(_), .. })
    }
}

/// See the file's head.
pub(crate) struct Requester {
    pub(crate) queue: VecDeque<Wqe>,
    /// The request whose packets are being sent, as an index of `queue`.
    pub(crate) cursor: usize,
    /// Its packets that were sent in this pass.
    pub(crate) packet: u32,
    /// The oldest PSN that is not acknowledged.
    pub(crate) unacknowledged: Psn,
    /// Behind the newest PSN that was ever sent.
    pub(crate) sent_end: Psn,
    /// Behind the newest PSN that a request has.
    pub(crate) end: Psn,
    /// READs and atomics before `cursor`.
    pub(crate) reads: u32,
    /// Their PSNs that are not answered.
    pub(crate) read_psns: u32,
    pub(crate) depth: u8,
    /// Data packets that may be on the way.
    pub(crate) window: u32,
    posted: u32,
    /// Up to which message the peer has receives; `None` when it does not say.
    pub(crate) credit_limit: Option<u32>,
    /// The newest response seen; see `Qp::response_gap`.
    pub(crate) newest_response: Psn,
    pub(crate) retry: Option<Retry>,
    pub(crate) retries_left: u8,
    pub(crate) rnr_left: u8,
    /// When the peer's silence is too long.
    pub(crate) deadline_ns: Option<u64>,
    /// Until when the peer asked to be left alone.
    pub(crate) wait_until_ns: Option<u64>,
    /// Since when there was no progress.
    pub(crate) progress_ns: u64,
    /// Whether the peer said last that it had no receive.
    pub(crate) peer_not_ready: bool,
}

impl Default for Requester {
    fn default() -> Requester {
        let psn = Psn::new(0);
        Requester {
            queue: VecDeque::new(),
            cursor: 0,
            packet: 0,
            unacknowledged: psn,
            sent_end: psn,
            end: psn,
            reads: 0,
            read_psns: 0,
            depth: 0,
            window: WINDOW_PACKETS,
            posted: 0,
            credit_limit: None,
            newest_response: psn,
            retry: None,
            retries_left: 0,
            rnr_left: 0,
            deadline_ns: None,
            wait_until_ns: None,
            progress_ns: 0,
            peer_not_ready: false,
        }
    }
}

impl Requester {
    /// Starts at `psn`, with nothing posted.
    pub(crate) fn start(&mut self, psn: Psn) {
        (self.unacknowledged, self.sent_end, self.end) = (psn, psn, psn);
        self.newest_response = psn.minus(1);
    }

    /// Appends a request that was checked.
    pub(crate) fn post(&mut self, request: SendRequest, mtu: usize) {
        let bytes = request.operation.bytes();
        let packets = if request.operation.is_atomic() { 1 } else { bytes.div_ceil(mtu as u32).max(1) };
        self.posted = self.posted.wrapping_add(1);
        self.queue.push_back(Wqe { request, first: self.end, packets, bytes, sequence: self.posted });
        self.end = self.end.plus(packets);
    }

    /// The PSN of the next packet.
    pub(crate) fn next(&self) -> Psn {
        self.queue.get(self.cursor).map_or(self.end, |wqe| wqe.first.plus(self.packet))
    }

    pub(crate) fn is_outstanding(&self) -> bool {
        self.unacknowledged != self.sent_end
    }

    pub(crate) fn wants_to_send(&self) -> bool {
        self.cursor < self.queue.len() && self.wait_until_ns.is_none()
    }

    /// Takes the oldest request out, done or not.
    pub(crate) fn pop(&mut self) -> Option<Wqe> {
        let wqe = self.queue.pop_front()?;
        if self.cursor > 0 {
            self.cursor -= 1;
            self.reads -= u32::from(wqe.waits_for_data());
        } else {
            self.packet = 0;
        }
        Some(wqe)
    }

    /// Takes the oldest request out, to be completed with an error.
    pub(crate) fn abandon(&mut self) -> Option<SendRequest> {
        self.pop().map(|wqe| wqe.request)
    }

    /// Nothing is outstanding any more, and nothing is waited for.
    pub(crate) fn stop(&mut self) {
        (self.unacknowledged, self.sent_end) = (self.end, self.end);
        (self.reads, self.read_psns) = (0, 0);
        (self.deadline_ns, self.wait_until_ns) = (None, None);
    }

    /// Whether the request at `cursor` may begin, as far as others before it are concerned.
    fn may_begin(&self, wqe: &Wqe) -> bool {
        let fenced = wqe.request.flags.contains(SendFlags::FENCE) && self.reads > 0;
        let deep = wqe.waits_for_data() && self.reads >= u32::from(self.depth);
        let far = wqe.end().since(self.unacknowledged) > MAX_OUTSTANDING_PSNS
            || wqe.end().precedes(self.unacknowledged);
        let no_credit = wqe.needs_receive()
            && self.cursor > 0
            && self.credit_limit.is_some_and(|limit| (wqe.sequence.wrapping_sub(limit) << 8) as i32 > 0);
        !(fenced || deep || far || no_credit)
    }

    pub(crate) fn in_flight(&self) -> u32 {
        (self.next().since(self.unacknowledged) as u32).saturating_sub(self.read_psns)
    }
}

/// The operation of a request as the engine needs it.
pub(crate) trait OperationExt {
    fn bytes(&self) -> u32;
    fn is_atomic(&self) -> bool;
    fn pieces(&self) -> Option<&[Sge]>;
}

impl OperationExt for SendOperation {
    fn bytes(&self) -> u32 {
        match self {
            SendOperation::Send { payload, .. }
            | SendOperation::SendDatagram { payload, .. }
            | SendOperation::Write { payload, .. } => payload.bytes() as u32,
            SendOperation::Read { into, .. } => into.bytes() as u32,
            SendOperation::CompareAndSwap { .. } | SendOperation::FetchAndAdd { .. } => 8,
        }
    }

    fn is_atomic(&self) -> bool {
        matches!(self, SendOperation::CompareAndSwap { .. } | SendOperation::FetchAndAdd { .. })
    }

    /// Where responses go.
    fn pieces(&self) -> Option<&[Sge]> {
        match self {
            SendOperation::Read { into, .. } => Some(into.as_slice()),
            SendOperation::CompareAndSwap { into, .. } | SendOperation::FetchAndAdd { into, .. } => {
                Some(std::slice::from_ref(into))
            }
            _ => None,
        }
    }
}

/// The pieces that a request is sent from.
fn source(operation: &SendOperation) -> &[Sge] {
    match operation {
        SendOperation::Send { payload: Payload::Gather(list), .. }
        | SendOperation::SendDatagram { payload: Payload::Gather(list), .. }
        | SendOperation::Write { payload: Payload::Gather(list), .. } => SgeList::as_slice(list),
        _ => &[],
    }
}

impl Qp {
    /// Sends the next packet of the send queue, if it may go now.
    pub(crate) fn send_request(&mut self, world: &mut World, out: &mut dyn Output) -> Step {
        let requester = &self.requester;
        let Some(wqe) = requester.queue.get(requester.cursor) else { return Step::Idle };
        if requester.wait_until_ns.is_some() || !matches!(self.state, State::Rts | State::Sqd) {
            return Step::Idle;
        }
        if self.requester.packet == 0 {
            let new = !wqe.first.precedes(requester.sent_end);
            if new && self.state == State::Sqd || !requester.may_begin(wqe) {
                return Step::Idle;
            }
            if let Err(what) = self.check_local(wqe) {
                if requester.cursor == 0 {
                    self.fail_send(world, Status::LocalProtection, Layer::Memory, &what);
                }
                return Step::Idle;
            }
        }
        let data = !wqe.waits_for_data();
        if data && self.config.kind == QpType::Rc && requester.in_flight() >= requester.window {
            return Step::Idle;
        }
        match self.way(out) {
            Readiness::Full => return Step::Full,
            Readiness::Resolving => {
                self.start_clock(world.now_ns);
                return Step::Parked;
            }
            Readiness::Unreachable if self.config.kind == QpType::Rc => {
                self.start_clock(world.now_ns);
                return Step::Parked;
            }
            Readiness::Unreachable => world.counters.drop(super::counters::DropReason::Unreachable),
            Readiness::Ready => self.emit(world, out),
        }
        self.sent(world);
        Step::Sent
    }

    fn check_local(&self, wqe: &Wqe) -> Result<(), String> {
        let operation = &wqe.request.operation;
        let read = memory::check(source(operation), &self.pd, Access::empty());
        let written = operation.pieces().unwrap_or(&[]);
        read.and_then(|()| memory::check(written, &self.pd, Access::LOCAL_WRITE))
            .map_err(|error| format!("{}: {error}", operation.name()))
    }

    fn way(&self, out: &mut dyn Output) -> Readiness {
        match (self.path_of_next(), &self.peer) {
            (Some(path), _) => out.readiness(path),
            (None, Some(peer)) => out.readiness(&peer.path),
            (None, None) => Readiness::Unreachable,
        }
    }

    /// Where the datagram at the cursor goes.
    pub(crate) fn path_of_next(&self) -> Option<&Path> {
        match &self.requester.queue.get(self.requester.cursor)?.request.operation {
            SendOperation::SendDatagram { to, .. } => to.address.provider().downcast_ref(),
            _ => None,
        }
    }

    /// Moves the cursor on behind a packet that went out.
    fn sent(&mut self, world: &mut World) {
        self.start_clock(world.now_ns);
        let requester = &mut self.requester;
        let Some(wqe) = requester.queue.get(requester.cursor) else { return };
        let reads = wqe.waits_for_data();
        let taken = if reads { wqe.packets - requester.packet } else { 1 };
        if reads {
            requester.reads += 1;
            requester.read_psns += taken;
        }
        requester.packet += taken;
        if requester.packet == wqe.packets {
            (requester.cursor, requester.packet) = (requester.cursor + 1, 0);
        }
        let next = requester.next();
        if requester.sent_end.precedes(next) {
            requester.sent_end = next;
        }
        if self.config.kind != QpType::Rc {
            self.requester.unacknowledged = next;
            if self.requester.cursor > 0 {
                self.complete_send(world);
            }
        }
    }

    /// The oldest request succeeded.
    pub(crate) fn complete_send(&mut self, world: &mut World) {
        let Some(wqe) = self.requester.pop() else { return };
        let flags = wqe.request.flags;
        if self.config.signalling == Signalling::OnRequest && !flags.contains(SendFlags::SIGNALLED) {
            return;
        }
        let opcode = wqe.request.operation.opcode();
        let mut completion = self.completion(wqe.request.id, Status::Success, opcode);
        if !matches!(opcode, Opcode::Send | Opcode::Write) {
            completion.bytes = wqe.bytes;
        }
        world.complete(self.config.send_cq, completion, false);
    }
}
