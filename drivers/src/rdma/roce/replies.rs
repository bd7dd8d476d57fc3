//! What the responder half owes its peer, in the order of the requests.
//!
//! Acknowledgements that follow each other become one. A READ's data leaves packet by packet; its handle to the region is held
//! until the last one. A queue pair in error still sends what it owes, so that its peer learns why.

use super::memory::Gather;
use super::qp::{Qp, Step};
use super::responder::Served;
use super::wire::{Aeth, Answer, AtomicAckEth, Bth, Extra, Headers, Operation, Position, Shape};
use super::world::{Output, Readiness, World};
use pollring::rdma::{Psn, QpType, Sge};
use std::collections::VecDeque;
use zerocopy::big_endian::U64;

/// Replies that wait at most before duplicates are dropped; what is new is bounded by the responder resources.
const FULL: usize = 300;

/// One thing owed.
pub(crate) struct Reply {
    /// Of the answer, or of the next packet of data.
    pub(crate) psn: Psn,
    pub(crate) msn: u32,
    pub(crate) kind: ReplyKind,
}

pub(crate) enum ReplyKind {
    /// ACK or NAK.
    Answer(Answer),
    /// The old value of an atomic.
    Original(u64),
    /// Data of a READ: how many of its packets went out, of how many, and all its bytes.
    Data { source: Option<Sge>, index: u32, packets: u32, bytes: u32 },
}

impl Reply {
    pub(crate) fn read(served: &Served, source: Option<Sge>) -> Reply {
        let kind = ReplyKind::Data { source, index: 0, packets: served.packets, bytes: served.bytes };
        Reply { psn: served.psn, msn: served.msn, kind }
    }

    pub(crate) fn original(served: &Served, original: u64) -> Reply {
        Reply { psn: served.psn, msn: served.msn, kind: ReplyKind::Original(original) }
    }
}

/// A queue of them.
#[derive(Default)]
pub(crate) struct Replies(VecDeque<Reply>);

impl Replies {
    /// Appends a reply. An answer that finds the queue full is left out: the peer asks again.
    pub(crate) fn push(&mut self, reply: Reply) {
        if self.is_full() && matches!(reply.kind, ReplyKind::Answer(_)) {
            return;
        }
        if let (Some(last), ReplyKind::Answer(Answer::Ack { .. })) = (self.0.back_mut(), &reply.kind)
            && matches!(last.kind, ReplyKind::Answer(Answer::Ack { .. }))
        {
            *last = reply;
            return;
        }
        self.0.push_back(reply);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= FULL
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// READs and atomics among them.
    pub(crate) fn reads(&self) -> usize {
        self.0.iter().filter(|reply| !matches!(reply.kind, ReplyKind::Answer(_))).count()
    }

    /// Leaves out data up to the PSN before `end`, which is about to be sent anew.
    pub(crate) fn supersede(&mut self, end: Psn) {
        self.0.retain(|reply| match reply.kind {
            ReplyKind::Data { index, packets, .. } => reply.psn.plus(packets - index) != end,
            _ => true,
        });
    }

    /// Whether data or an old value for `psn` is still to go out.
    pub(crate) fn will_send(&self, psn: Psn) -> bool {
        self.0.iter().any(|reply| match reply.kind {
            ReplyKind::Answer(_) => false,
            ReplyKind::Original(_) => reply.psn == psn,
            ReplyKind::Data { index, packets, .. } => psn.is_within(reply.psn, packets - index),
        })
    }
}

impl Qp {
    /// Sends the next packet that is owed.
    pub(crate) fn send_reply(&mut self, world: &mut World, out: &mut dyn Output) -> Step {
        let (Some(reply), Some(peer)) = (self.responder.replies.0.front(), &self.peer) else {
            return Step::Idle;
        };
        match out.readiness(&peer.path) {
            Readiness::Full => return Step::Full,
            Readiness::Resolving => return Step::Parked,
            Readiness::Unreachable => {
                self.responder.replies.clear();
                return Step::Idle;
            }
            Readiness::Ready => {}
        }
        let (operation, position, payload) = self.outline(reply);
        let shape = Shape { service: QpType::Rc, operation, position, extra: Extra::None };
        let mut bth = Bth::new(shape.opcode(), self.p_key.0, peer.connection.destination, reply.psn);
        bth.mark(false, false, payload.pad());
        let mut headers = Headers::new(&bth);
        if shape.has_aeth() {
            headers.push(&self.aeth(reply));
        }
        if let ReplyKind::Original(original) = reply.kind {
            headers.push(&AtomicAckEth { original: U64::new(original) });
        }
        out.send(&peer.path, &headers, payload, &mut world.counters);
        self.replied();
        Step::Sent
    }

    fn outline<'a>(&self, reply: &'a Reply) -> (Operation, Position, Gather<'a>) {
        match &reply.kind {
            ReplyKind::Answer(_) => (Operation::Acknowledge, Position::Only, Gather::EMPTY),
            ReplyKind::Original(_) => (Operation::AtomicAcknowledge, Position::Only, Gather::EMPTY),
            ReplyKind::Data { source, index, packets, bytes } => {
                let skip = *index as usize * self.mtu;
                let part = (*bytes as usize).saturating_sub(skip).min(self.mtu);
                let source = source.as_ref().map_or(&[][..], std::slice::from_ref);
                let position = Position::of(*index, *packets);
                (Operation::ReadResponse, position, Gather::list(source, skip, part))
            }
        }
    }

    fn aeth(&self, reply: &Reply) -> Aeth {
        let answer =
            if let ReplyKind::Answer(answer) = reply.kind { answer } else { Answer::Ack { credits: None } };
        Aeth { syndrome: answer.syndrome(self.responder.rnr_code), msn: super::wire::to_24(reply.msn) }
    }

    fn replied(&mut self) {
        let replies = &mut self.responder.replies.0;
        let Some(reply) = replies.front_mut() else { return };
        reply.psn = reply.psn.plus(1);
        let more = match &mut reply.kind {
            ReplyKind::Data { index, packets, .. } => {
                *index += 1;
                index < packets
            }
            _ => false,
        };
        if !more {
            replies.pop_front();
        }
    }
}
