//! The engine: all queue pairs of one worker, who of them wants to send, and whose clock runs.
//!
//! Packets go in by [`receive`](Engine::receive), time by [`expire`](Engine::expire), and packets come out by
//! [`transmit`](Engine::transmit), a few from each queue pair in turn. Whatever changes a queue pair ends with
//! [`touch`](Engine::touch), which puts it on the list of senders and sets its timer. Nothing here reads a clock or draws a number.

use super::counters::DropReason;
use super::memory::{Keys, NumberMap};
use super::qp::{Qp, Step};
use super::wire::Packet;
use super::wire::network::Arrival;
use super::world::{Output, World};
use pollring::rdma::{CqNumber, Layer, PKey, QpType, Qpn, State, Status, WorkQueue};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

/// Packets that one queue pair sends before the next one has its turn.
const QUANTUM_PACKETS: usize = 16;

/// See the file's head.
pub(crate) struct Engine {
    pub(crate) qps: NumberMap<Box<Qp>>,
    pub(crate) world: World,
    ready: VecDeque<Qpn>,
    /// Those that wait for a neighbour's address.
    parked: Vec<Qpn>,
    timers: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Engine {
    pub(crate) fn new(keys: Arc<Keys>) -> Engine {
        let world = World {
            now_ns: 0,
            cqs: Vec::new(),
            srqs: Vec::new(),
            keys,
            gids: Vec::new(),
            counters: super::counters::Counters::default(),
            events: VecDeque::new(),
            event_fd: pollring::os::EventFd::new().ok().map(Arc::new),
            overrun: Vec::new(),
        };
        let (ready, parked, timers) = (VecDeque::new(), Vec::new(), BinaryHeap::new());
        Engine { qps: NumberMap::default(), world, ready, parked, timers }
    }

    /// Takes a packet whose CRC and address were checked.
    pub(crate) fn receive(&mut self, arrival: &Arrival, packet: &Packet<'_>) {
        if arrival.marked {
            self.world.counters.marked += 1;
        }
        let number = packet.destination;
        let Some(qp) = self.qps.get_mut(&number.bits()) else {
            return self.world.counters.drop(DropReason::NoQp);
        };
        match accepts(qp, arrival, packet) {
            Err(reason) => return qp.drop_packet(&mut self.world, reason, packet.psn),
            Ok(()) => self.world.counters.received += 1,
        }
        match packet.shape {
            None => {
                self.world.counters.notifications += 1;
                qp.congested(self.world.now_ns);
            }
            Some(shape) if qp.config.kind == QpType::Ud => {
                qp.datagram(&mut self.world, arrival, shape, packet)
            }
            Some(shape) if shape.is_request() => qp.request(&mut self.world, shape, packet),
            Some(shape) => qp.answer(&mut self.world, shape, packet),
        }
        self.touch(number);
        self.fail_overrun();
    }

    /// Does what is due by `world.now_ns`.
    pub(crate) fn expire(&mut self) {
        let now_ns = self.world.now_ns;
        while let Some(Reverse((due_ns, number))) = self.timers.peek().copied() {
            if due_ns > now_ns {
                break;
            }
            self.timers.pop();
            let Some(qp) = self.qps.get_mut(&number).filter(|qp| qp.timer_ns == due_ns) else { continue };
            qp.timer_ns = u64::MAX;
            if qp.due_ns() <= now_ns {
                qp.expire(&mut self.world);
            }
            self.touch(Qpn::new(number));
        }
        self.fail_overrun();
    }

    /// When [`expire`](Engine::expire) has something to do at the earliest.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.timers.peek().map(|Reverse((due_ns, _))| *due_ns)
    }

    /// Whether something can be sent now, as far as is known.
    pub(crate) fn wants_to_send(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Sends until nothing is left, the port is full, or `budget` packets went out; gives how many.
    pub(crate) fn transmit(&mut self, budget: usize, out: &mut dyn Output) -> usize {
        let mut sent = 0;
        while sent < budget {
            let Some(number) = self.ready.pop_front() else { break };
            let Some(qp) = self.qps.get_mut(&number.bits()) else { continue };
            qp.queued = false;
            let (count, step) = turn(qp, &mut self.world, out, QUANTUM_PACKETS.min(budget - sent));
            sent += count;
            if step == Step::Parked {
                self.parked.push(number);
                self.set_timer(number);
                continue;
            }
            if step == Step::Full {
                qp.queued = true;
                self.ready.push_front(number);
                self.set_timer(number);
                break;
            }
            if step == Step::Sent {
                self.touch(number);
            } else {
                self.set_timer(number);
            }
        }
        self.fail_overrun();
        sent
    }

    /// A neighbour's address is known now, or known to be unknown.
    pub(crate) fn unpark(&mut self) {
        for number in std::mem::take(&mut self.parked) {
            self.touch(number);
        }
    }

    /// Puts a queue pair where its new state says it belongs.
    pub(crate) fn touch(&mut self, number: Qpn) {
        let Some(qp) = self.qps.get_mut(&number.bits()) else { return };
        if !qp.queued && qp.wants_to_send() {
            qp.queued = true;
            self.ready.push_back(number);
        }
        self.set_timer(number);
    }

    fn set_timer(&mut self, number: Qpn) {
        let Some(qp) = self.qps.get_mut(&number.bits()) else { return };
        let due_ns = qp.due_ns();
        // A timer that is early looks again; so each acknowledgement does not need one of its own.
        if due_ns < qp.timer_ns {
            qp.timer_ns = due_ns;
            self.timers.push(Reverse((due_ns, number.bits())));
        }
    }

    /// Ends the queue pairs of completion queues that overran.
    fn fail_overrun(&mut self) {
        while let Some(cq) = self.world.overrun.pop() {
            self.fail_users(cq, "its completion queue overran; make it larger, or poll it more often");
        }
    }

    /// Ends the queue pairs of a completion queue.
    pub(crate) fn fail_users(&mut self, cq: CqNumber, what: &str) {
        for qp in self.qps.values_mut() {
            if qp.config.send_cq == cq || qp.config.receive_cq == cq {
                let psn = qp.requester.unacknowledged;
                let status = Status::LocalQpOperation;
                qp.fail(&mut self.world, WorkQueue::Receive, status, Layer::Limits, psn, what);
            }
        }
    }
}

/// Lets one queue pair send; what it owes and what it asks take turns.
fn turn(qp: &mut Qp, world: &mut World, out: &mut dyn Output, quantum: usize) -> (usize, Step) {
    let mut sent = 0;
    while sent < quantum {
        let reply = qp.send_reply(world, out);
        sent += usize::from(reply == Step::Sent);
        if matches!(reply, Step::Full | Step::Parked) {
            return (sent, reply);
        }
        let request = qp.send_request(world, out);
        sent += usize::from(request == Step::Sent);
        if matches!(request, Step::Full | Step::Parked) {
            return (sent, request);
        }
        if (reply, request) == (Step::Idle, Step::Idle) {
            return (sent, Step::Idle);
        }
    }
    (sent, Step::Sent)
}

/// Whether a packet is for this queue pair in its state, from whom it may come.
#[inline]
fn accepts(qp: &Qp, arrival: &Arrival, packet: &Packet<'_>) -> Result<(), DropReason> {
    if !qp.p_key.admits(packet.p_key) {
        return Err(DropReason::PKey);
    }
    if packet.shape.is_some_and(|shape| shape.service != qp.config.kind) {
        return Err(DropReason::Service);
    }
    let answers = packet.shape.is_some_and(|shape| !shape.is_request());
    if !qp.receives_packets() || answers && !matches!(qp.state, State::Rts | State::Sqd) {
        return Err(DropReason::State);
    }
    let Some(peer) = &qp.peer else { return Ok(()) };
    let path = &peer.path;
    if (path.source, path.destination, path.vlan) != (arrival.destination, arrival.source, arrival.vlan) {
        return Err(DropReason::SourceAddress);
    }
    Ok(())
}

/// Whether this is a partition that the port has.
pub(crate) fn has_partition(index: u16) -> Option<PKey> {
    (index == 0).then_some(PKey::DEFAULT)
}
