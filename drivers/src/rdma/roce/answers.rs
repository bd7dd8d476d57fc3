//! What the requester half does with answers: ACK, NAK, READ data, old values of atomics.
//!
//! Answers free the send queue from the front, in order: a request completes when its last PSN is acknowledged, a READ or an atomic
//! when its data came. An answer behind a READ that is not complete says that READ data was lost.

use super::counters::DropReason;
use super::memory::scatter;
use super::qp::Qp;
use super::requester::OperationExt;
use super::wire::{Answer, Operation, Packet, Shape};
use super::world::World;
use pollring::rdma::{Layer, Psn, Status};

impl Qp {
    /// Takes an answer of the peer's.
    pub(crate) fn answer(&mut self, world: &mut World, shape: Shape, packet: &Packet<'_>) {
        let psn = packet.psn;
        if !psn.precedes(self.requester.sent_end) {
            return self.drop_packet(world, DropReason::Ghost, psn);
        }
        let answer =
            if shape.has_aeth() { Answer::of(packet.syndrome) } else { Some(Answer::Ack { credits: None }) };
        let Some(answer) = answer else { return self.drop_packet(world, DropReason::Syndrome, psn) };
        if let (Answer::Ack { credits }, true) = (answer, shape.has_aeth()) {
            self.requester.credit_limit = credits.map(|credits| packet.msn.wrapping_add(credits));
        }
        if psn.precedes(self.requester.unacknowledged) {
            return self.drop_packet(world, DropReason::Duplicate, psn);
        }
        match shape.operation {
            Operation::Acknowledge => self.acknowledge(world, answer, psn),
            _ if !matches!(answer, Answer::Ack { .. }) => self.drop_packet(world, DropReason::Syndrome, psn),
            Operation::ReadResponse => self.read_data(world, shape, packet),
            _ => self.old_value(world, packet),
        }
    }

    fn acknowledge(&mut self, world: &mut World, answer: Answer, psn: Psn) {
        match answer {
            Answer::Ack { .. } => {
                if !self.advance(world, psn.plus(1)) {
                    self.response_gap(world, psn);
                }
            }
            Answer::NotReady { wait_ns } => {
                if self.advance(world, psn) {
                    self.peer_not_ready(world, wait_ns);
                } else {
                    self.response_gap(world, psn);
                }
            }
            Answer::SequenceError => {
                world.counters.sequence_naks += 1;
                self.advance(world, psn);
                self.rewind(world);
            }
            Answer::InvalidRequest => self.refused(world, psn, Status::RemoteInvalidRequest),
            Answer::RemoteAccess => self.refused(world, psn, Status::RemoteAccess),
            Answer::RemoteOperation => self.refused(world, psn, Status::RemoteOperation),
        }
    }

    fn refused(&mut self, world: &mut World, psn: Psn, status: Status) {
        self.advance(world, psn);
        let layer = if status == Status::RemoteAccess { Layer::Memory } else { Layer::Limits };
        self.fail_send(world, status, layer, &format!("the peer refused the request at PSN {psn}"));
    }

    /// Everything before `target` is acknowledged. False when READ data or an old value before it is missing.
    fn advance(&mut self, world: &mut World, target: Psn) -> bool {
        let before = self.requester.unacknowledged;
        let mut whole = true;
        while self.requester.unacknowledged != target {
            let Some(front) = self.requester.queue.front() else { break };
            if front.waits_for_data() {
                whole = false;
                break;
            }
            let end = front.end();
            let reached = if target.precedes(end) { target } else { end };
            self.reach(reached);
            if reached == end {
                self.complete_send(world);
            }
        }
        if self.requester.unacknowledged != before {
            self.progress(world);
        }
        whole
    }

    /// Moves the oldest unacknowledged PSN within the front request, and the cursor when that was behind.
    fn reach(&mut self, psn: Psn) {
        let requester = &mut self.requester;
        requester.unacknowledged = psn;
        if requester.cursor == 0 {
            let done = requester.queue.front().map_or(0, |wqe| psn.since(wqe.first)) as u32;
            requester.packet = requester.packet.max(done);
        }
    }

    /// Whether `psn` is the oldest unacknowledged one, and that of a READ or atomic, with what comes before acknowledged.
    fn is_expected(&mut self, world: &mut World, psn: Psn) -> bool {
        let reached = self.advance(world, psn) && self.requester.unacknowledged == psn;
        if !reached {
            self.response_gap(world, psn);
        }
        reached
    }

    fn read_data(&mut self, world: &mut World, shape: Shape, packet: &Packet<'_>) {
        if !self.is_expected(world, packet.psn) {
            return self.drop_packet(world, DropReason::Response, packet.psn);
        }
        let mtu = self.mtu;
        let requester = &mut self.requester;
        let Some(front) = requester.queue.front() else { return };
        let index = packet.psn.since(front.first) as u32;
        let (last, at) = (index + 1 == front.packets, index as usize * mtu);
        let bytes = if last { front.bytes as usize - at.min(front.bytes as usize) } else { mtu };
        let pieces = front.request.operation.pieces();
        let fits = packet.payload.len() == bytes && shape.position.ends() == last;
        let (Some(pieces), true, false) = (pieces, fits, front.request.operation.is_atomic()) else {
            let what = "READ data of another length or position than what was asked for";
            return self.fail_send(world, Status::BadResponse, Layer::Wire, what);
        };
        scatter(pieces, at, packet.payload);
        world.counters.copied_in_bytes += bytes as u64;
        if requester.cursor > 0 {
            requester.read_psns -= 1;
        }
        let newest = requester.newest_response;
        if newest.precedes(packet.psn) {
            requester.newest_response = packet.psn;
        }
        self.finish_packet(world, packet.psn, last);
    }

    fn old_value(&mut self, world: &mut World, packet: &Packet<'_>) {
        if !self.is_expected(world, packet.psn) {
            return self.drop_packet(world, DropReason::Response, packet.psn);
        }
        let requester = &mut self.requester;
        let Some(front) = requester.queue.front() else { return };
        let operation = &front.request.operation;
        let (Some(pieces), true) = (operation.pieces(), operation.is_atomic()) else {
            let what = "an old value of an atomic, where READ data was asked for";
            return self.fail_send(world, Status::BadResponse, Layer::Wire, what);
        };
        scatter(pieces, 0, &packet.original.to_ne_bytes());
        if requester.cursor > 0 {
            requester.read_psns -= 1;
        }
        self.finish_packet(world, packet.psn, true);
    }

    /// One packet of data is in its place.
    fn finish_packet(&mut self, world: &mut World, psn: Psn, last: bool) {
        self.reach(psn.plus(1));
        if last {
            self.complete_send(world);
        }
        self.progress(world);
    }
}
