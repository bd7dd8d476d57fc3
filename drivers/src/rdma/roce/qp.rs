//! A queue pair: its state, its two halves, and how it fails.
//!
//! The requester half sends requests and waits for answers, the responder half is the peer's counterpart. Both belong to the
//! engine of one worker. A failure completes the request that caused it, then flushes everything else in order.

use super::counters::{DropReason, History, QpEvent};
use super::requester::Requester;
use super::responder::Responder;
use super::wire::network::Path;
use super::world::World;
use pollring::rdma::{Access, AsyncEvent, Attached, Completion, CompletionFlags, Connection, Drain, Failure};
use pollring::rdma::{Layer, Opcode, PKey, ProtectionDomain, Psn, QKey, QpConfig, QpType, Qpn, Receives};
use pollring::rdma::{ReceiveRequest, State, Status, WorkQueue};
use std::collections::VecDeque;

/// The connected peer.
pub(crate) struct Peer {
    pub(crate) connection: Connection,
    pub(crate) path: Path,
}

/// What a call on a queue pair came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A packet went out.
    Sent,
    /// There is nothing to send now.
    Idle,
    /// The port takes nothing now.
    Full,
    /// The neighbour's address is not known yet.
    Parked,
}

/// See the file's head.
pub(crate) struct Qp {
    pub(crate) number: Qpn,
    pub(crate) pd: ProtectionDomain,
    pub(crate) config: QpConfig,
    pub(crate) state: State,
    pub(crate) p_key: PKey,
    pub(crate) access: Access,
    pub(crate) q_key: QKey,
    pub(crate) peer: Option<Box<Peer>>,
    /// Payload of a full packet.
    pub(crate) mtu: usize,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    pub(crate) receives: VecDeque<ReceiveRequest>,
    pub(crate) drain: Option<Drain>,
    pub(crate) established: bool,
    pub(crate) failure: Option<Failure>,
    pub(crate) history: History,
    /// Whether the engine has it in its list of those that want to send.
    pub(crate) queued: bool,
    /// When the engine's timer looks at it; `u64::MAX` for never.
    pub(crate) timer_ns: u64,
}

impl Qp {
    pub(crate) fn new(number: Qpn, pd: ProtectionDomain, config: QpConfig, mtu: usize) -> Qp {
        Qp {
            number,
            pd,
            config,
            state: State::Reset,
            p_key: PKey::DEFAULT,
            access: Access::empty(),
            q_key: QKey(0),
            peer: None,
            mtu,
            requester: Requester::default(),
            responder: Responder::default(),
            receives: VecDeque::new(),
            drain: None,
            established: false,
            failure: None,
            history: History::default(),
            queued: false,
            timer_ns: u64::MAX,
        }
    }

    /// Forgets everything but what it was made with.
    pub(crate) fn reset(&mut self) {
        let (queued, timer_ns) = (self.queued, self.timer_ns);
        *self = Qp { queued, timer_ns, ..Qp::new(self.number, self.pd.clone(), self.config, self.mtu) };
    }

    /// Whether packets of the peer are looked at.
    pub(crate) fn receives_packets(&self) -> bool {
        matches!(self.state, State::Rtr | State::Rts | State::Sqd | State::Sqe)
    }

    /// Whether there may be something to send.
    pub(crate) fn wants_to_send(&self) -> bool {
        !self.responder.replies.is_empty()
            || matches!(self.state, State::Rts | State::Sqd) && self.requester.wants_to_send()
    }

    pub(crate) fn drop_packet(&mut self, world: &mut World, reason: DropReason, psn: Psn) {
        world.counters.drop(reason);
        self.history.note(world.now_ns, QpEvent::Dropped(reason), psn);
    }

    /// The next receive: one that a lost message left, else the oldest posted.
    pub(crate) fn take_receive(&mut self, world: &mut World) -> Option<ReceiveRequest> {
        self.responder.held.take().or_else(|| match self.config.receives {
            Receives::Own => self.receives.pop_front(),
            Receives::Shared(srq) => world.take_shared(srq),
        })
    }

    /// A completion of this queue pair without anything in it.
    pub(crate) fn completion(&self, id: u64, status: Status, opcode: Opcode) -> Completion {
        Completion {
            id,
            status,
            opcode,
            bytes: 0,
            attached: Attached::Nothing,
            qp: self.number,
            source: None,
            flags: CompletionFlags::empty(),
            vendor_error: 0,
        }
    }

    /// A request of this side failed: it completes with `status`, and what comes after it is flushed.
    pub(crate) fn fail_send(&mut self, world: &mut World, status: Status, layer: Layer, what: &str) {
        let psn = self.requester.unacknowledged;
        if let Some(request) = self.requester.abandon() {
            let completion = self.completion(request.id, status, request.operation.opcode());
            world.complete(self.config.send_cq, completion, false);
        }
        self.fail(world, WorkQueue::Send, status, layer, psn, what);
    }

    /// A message of the peer's failed: the receive that it used completes with `status`.
    pub(crate) fn fail_receive(&mut self, world: &mut World, status: Status, layer: Layer, what: &str) {
        let psn = self.responder.expected;
        if let Some(receive) = self.responder.held.take() {
            let completion = self.completion(receive.id, status, Opcode::Receive);
            world.complete(self.config.receive_cq, completion, true);
        }
        self.fail(world, WorkQueue::Receive, status, layer, psn, what);
    }

    /// It fails as a whole, such as by a completion queue that is gone.
    pub(crate) fn fail(
        &mut self,
        world: &mut World,
        queue: WorkQueue,
        status: Status,
        layer: Layer,
        psn: Psn,
        what: &str,
    ) {
        if self.state == State::Err {
            return;
        }
        let peer = self.peer.as_ref().map(|peer| (peer.path.destination, peer.connection.destination));
        let (qp, what, remedy) = (self.number, what.to_owned(), remedy(status));
        self.failure.get_or_insert(Failure { layer, qp, peer, psn, status, what, remedy });
        self.history.note(world.now_ns, QpEvent::Failed, psn);
        self.state = self.state.after_failure(self.config.kind, queue);
        self.flush(world);
        if self.state == State::Err {
            world.event(AsyncEvent::QpFailed(self.number));
            self.tell_last_receive(world);
        }
    }

    /// Moves to ERR by its owner's wish.
    pub(crate) fn enter_error(&mut self, world: &mut World) {
        self.state = State::Err;
        self.responder.replies.clear();
        self.flush(world);
        self.tell_last_receive(world);
    }

    /// Completes as flushed whatever its state does not carry out: sends in SQE and ERR, receives in ERR.
    pub(crate) fn flush(&mut self, world: &mut World) {
        if matches!(self.state, State::Sqe | State::Err) {
            while let Some(request) = self.requester.abandon() {
                let opcode = request.operation.opcode();
                let completion = self.completion(request.id, Status::WorkRequestFlushed, opcode);
                world.complete(self.config.send_cq, completion, false);
            }
            self.requester.stop();
        }
        if self.state != State::Err {
            return;
        }
        while let Some(receive) = self.responder.held.take().or_else(|| self.receives.pop_front()) {
            let completion = self.completion(receive.id, Status::WorkRequestFlushed, Opcode::Receive);
            world.complete(self.config.receive_cq, completion, false);
        }
        self.responder.message = None;
    }

    fn tell_last_receive(&self, world: &mut World) {
        if matches!(self.config.receives, Receives::Shared(_)) {
            world.event(AsyncEvent::LastReceive(self.number));
        }
    }

    /// Tells that a drain is over, once.
    pub(crate) fn check_drained(&mut self, world: &mut World) {
        let over = self.state == State::Sqd && !self.requester.is_outstanding();
        if over && self.drain.take() == Some(Drain::Notify) {
            world.event(AsyncEvent::SendQueueDrained(self.number));
        }
    }

    /// The first packet of the peer came while only receiving.
    pub(crate) fn heard_from_peer(&mut self, world: &mut World) {
        if self.state == State::Rtr && !self.established && self.config.kind != QpType::Ud {
            self.established = true;
            world.event(AsyncEvent::QpEstablished(self.number));
        }
    }
}

/// What to do about a status.
fn remedy(status: Status) -> &'static str {
    match status {
        Status::RetryExceeded => "check that the peer runs, that UDP port 4791 reaches it, and the path MTU",
        Status::RnrRetryExceeded => "let the peer post more receives, or give it more time by `dead_after`",
        Status::RemoteAccess => "check address, length and key against the peer's region and its rights",
        Status::RemoteInvalidRequest => "check the peer's receive sizes and its responder resources",
        Status::RemoteOperation => "look at the peer: its own buffer denied what it posted",
        Status::LocalProtection => "check the region of each piece: domain, rights, bounds, not deregistered",
        Status::LocalLength => "post receives that are as long as the peer's messages",
        Status::BadResponse => "the peer breaks the protocol; look at its version and at the last events",
        _ => "look at the last events of the queue pair, reset it, and connect anew",
    }
}
