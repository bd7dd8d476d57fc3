//! The responder half: requests of the peer, each checked and carried out once.
//!
//! RC: the expected PSN is carried out and answered, an earlier one is a duplicate (duplicates.rs), a later one a gap, for which
//! the missing PSN is asked for once. UC: a gap ends the message under way, and the next message begins anew; nothing is
//! answered. A peer's access is authorized as a whole when its message begins and again for each packet, so nothing of a
//! message outside its region is written, and a revoked key ends a message between two packets.

use super::counters::{DropReason, QpEvent};
use super::memory::{self, scatter};
use super::qp::Qp;
use super::replies::{Replies, Reply, ReplyKind};
use super::wire::{Answer, Extra, Operation, Packet, Position, Shape};
use super::world::World;
use pollring::rdma::{Access, AccessError, Attached, Layer, Opcode, Psn, QpType, RKey, ReceiveRequest};
use pollring::rdma::{RemoteAccess, Sge, Status};
use std::collections::VecDeque;

/// A SEND or WRITE of several packets.
pub(crate) struct Message {
    operation: Operation,
    /// WRITE: where to.
    address: u64,
    rkey: RKey,
    /// WRITE: how much in all.
    total: u32,
    received: u32,
}

/// A READ or atomic that was served, for duplicates of its request.
#[derive(Clone, Copy)]
pub(crate) struct Served {
    pub(crate) psn: Psn,
    pub(crate) packets: u32,
    pub(crate) address: u64,
    pub(crate) rkey: RKey,
    pub(crate) bytes: u32,
    pub(crate) msn: u32,
    /// Atomics: the old value.
    pub(crate) original: Option<u64>,
}

/// See the file's head.
pub(crate) struct Responder {
    pub(crate) expected: Psn,
    /// Messages completed.
    pub(crate) msn: u32,
    /// Whether the peer was told about the packet that is expected now.
    pub(crate) told: bool,
    pub(crate) message: Option<Message>,
    /// The receive that the message under way fills, or that a lost message left.
    pub(crate) held: Option<ReceiveRequest>,
    pub(crate) resources: u8,
    pub(crate) rnr_code: u8,
    pub(crate) served: VecDeque<Served>,
    pub(crate) replies: Replies,
}

impl Default for Responder {
    fn default() -> Responder {
        Responder {
            expected: Psn::new(0),
            msn: 0,
            told: false,
            message: None,
            held: None,
            resources: 0,
            rnr_code: 1,
            served: VecDeque::new(),
            replies: Replies::default(),
        }
    }
}

/// Why a request was not carried out.
pub(crate) enum Refusal {
    /// No receive is posted.
    NotReady,
    /// It is wrong: what the peer is told, what is counted, and how the receive under way completes.
    Wrong(Answer, DropReason, Option<(Status, &'static str)>),
}

use Refusal::{NotReady, Wrong};

const INVALID: Answer = Answer::InvalidRequest;
const SEQUENCE: Refusal = Wrong(INVALID, DropReason::Sequence, None);
const LENGTH: Refusal = Wrong(INVALID, DropReason::Length, None);

/// What a denied access is answered by.
pub(crate) fn denied(error: AccessError) -> Refusal {
    match error {
        AccessError::Misaligned { .. } => Wrong(INVALID, DropReason::Bounds, None),
        AccessError::Bounds { .. } => Wrong(Answer::RemoteAccess, DropReason::Bounds, None),
        _ => Wrong(Answer::RemoteAccess, DropReason::RKey, None),
    }
}

impl Qp {
    /// Takes a request of the peer's.
    pub(crate) fn request(&mut self, world: &mut World, shape: Shape, packet: &Packet<'_>) {
        self.heard_from_peer(world);
        if self.config.kind == QpType::Uc {
            return self.unreliable(world, shape, packet);
        }
        let ahead = packet.psn.since(self.responder.expected);
        if ahead < 0 {
            return self.duplicate(world, shape, packet);
        }
        if ahead > 0 {
            if !self.responder.told {
                self.responder.told = true;
                self.history.note(world.now_ns, QpEvent::AskedAgain, self.responder.expected);
                self.reply_at(self.responder.expected, Answer::SequenceError);
            }
            return self.drop_packet(world, DropReason::PsnGap, packet.psn);
        }
        match self.carry_out(world, shape, packet) {
            Ok(packets) => {
                self.responder.told = false;
                self.responder.expected = self.responder.expected.plus(packets);
                if packet.ack_request && matches!(shape.operation, Operation::Send | Operation::Write) {
                    self.acknowledge_all();
                }
            }
            Err(refusal) => self.refuse(world, packet.psn, refusal),
        }
    }

    pub(crate) fn refuse(&mut self, world: &mut World, psn: Psn, refusal: Refusal) {
        match refusal {
            NotReady => {
                self.responder.told = true;
                self.history.note(world.now_ns, QpEvent::NotReady, psn);
                self.reply_at(psn, Answer::NotReady { wait_ns: 0 });
                self.drop_packet(world, DropReason::NotReady, psn);
            }
            Wrong(answer, reason, receive) => {
                self.reply_at(psn, answer);
                self.drop_packet(world, reason, psn);
                let (status, what) =
                    receive.unwrap_or((Status::WorkRequestFlushed, "a request of the peer was refused"));
                let memory = matches!(reason, DropReason::RKey | DropReason::Bounds);
                let layer = if memory { Layer::Memory } else { Layer::Wire };
                self.fail_receive(world, status, layer, &format!("{what}: {}", reason.name()));
            }
        }
    }

    fn reply_at(&mut self, psn: Psn, answer: Answer) {
        let msn = self.responder.msn;
        self.responder.replies.push(Reply { psn, msn, kind: ReplyKind::Answer(answer) });
    }

    /// Acknowledges everything up to now.
    pub(crate) fn acknowledge_all(&mut self) {
        self.reply_at(self.responder.expected.minus(1), Answer::Ack { credits: None });
    }

    fn unreliable(&mut self, world: &mut World, shape: Shape, packet: &Packet<'_>) {
        if packet.psn != self.responder.expected {
            self.responder.message = None;
            if !shape.position.begins() {
                self.drop_packet(world, DropReason::PsnGap, packet.psn);
                self.responder.expected = packet.psn.plus(1);
                return;
            }
        }
        self.responder.expected = packet.psn.plus(1);
        if let Err(refusal) = self.carry_out(world, shape, packet) {
            self.responder.message = None;
            let reason = if let Wrong(_, reason, _) = refusal { reason } else { DropReason::NotReady };
            self.drop_packet(world, reason, packet.psn);
        }
    }

    /// Does what a packet with the expected PSN asks; gives how many PSNs it takes.
    fn carry_out(&mut self, world: &mut World, shape: Shape, packet: &Packet<'_>) -> Result<u32, Refusal> {
        let open = self.responder.message.as_ref().map(|message| message.operation);
        let follows = match open {
            Some(operation) => operation == shape.operation && !shape.position.begins(),
            None => shape.position.begins(),
        };
        if !follows {
            return Err(SEQUENCE);
        }
        let (bytes, mtu) = (packet.payload.len(), self.mtu);
        let right = match shape.position {
            Position::First | Position::Middle => bytes == mtu,
            Position::Last => (1..=mtu).contains(&bytes),
            Position::Only => bytes <= mtu,
        };
        if !right {
            return Err(LENGTH);
        }
        match shape.operation {
            Operation::Send => self.receive_send(world, shape, packet).map(|()| 1),
            Operation::Write => self.receive_write(world, shape, packet).map(|()| 1),
            Operation::ReadRequest => self.serve_read(world, packet),
            _ => self.serve_atomic(world, shape, packet).map(|()| 1),
        }
    }

    fn receive_send(&mut self, world: &mut World, shape: Shape, packet: &Packet<'_>) -> Result<(), Refusal> {
        if shape.position.begins() {
            let receive = self.take_receive(world).ok_or(NotReady)?;
            let allowed = memory::check(receive.into.as_slice(), &self.pd, Access::LOCAL_WRITE);
            self.responder.held = Some(receive);
            let what = "a posted receive has a piece that may not be written";
            let refusal =
                Wrong(Answer::RemoteOperation, DropReason::RKey, Some((Status::LocalProtection, what)));
            allowed.map_err(|_| refusal)?;
            self.open(Operation::Send, packet);
        }
        let received = self.responder.message.as_ref().map_or(0, |message| message.received);
        let Some(held) = &self.responder.held else { return Err(SEQUENCE) };
        let end = u64::from(received) + packet.payload.len() as u64;
        if end > held.into.bytes() || end > u64::from(u32::MAX) {
            let what = "a message is longer than its receive";
            return Err(Wrong(INVALID, DropReason::ReceiveTooSmall, Some((Status::LocalLength, what))));
        }
        if shape.extra == Extra::Invalidate {
            self.invalidate(world, RKey(packet.attached))?;
        }
        scatter(held.into.as_slice(), received as usize, packet.payload);
        self.received(world, packet);
        if shape.position.ends() {
            self.complete_receive(world, shape, packet, end as u32, Opcode::Receive);
        }
        Ok(())
    }

    fn invalidate(&self, world: &World, rkey: RKey) -> Result<(), Refusal> {
        let region = world.keys.find(rkey).filter(|region| region.pd().is(&self.pd));
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let region = region.filter(|region| region.access().intersects(remote));
        let refusal = Wrong(Answer::RemoteAccess, DropReason::RKey, None);
        region.map(|region| region.invalidate()).ok_or(refusal)
    }

    fn receive_write(&mut self, world: &mut World, shape: Shape, packet: &Packet<'_>) -> Result<(), Refusal> {
        if shape.position.begins() {
            let whole = self.remote(packet.address, packet.rkey, packet.dma_bytes, Access::REMOTE_WRITE);
            world.keys.authorize(&whole, &self.pd, self.access).map_err(denied)?;
            if shape.extra == Extra::Immediate {
                self.hold_receive(world)?;
            }
            self.open(Operation::Write, packet);
        } else if shape.extra == Extra::Immediate {
            self.hold_receive(world)?;
        }
        let Some(message) = &self.responder.message else { return Err(SEQUENCE) };
        let (total, received) = (message.total, message.received);
        let end = u64::from(received) + packet.payload.len() as u64;
        if end > u64::from(total) || shape.position.ends() != (end == u64::from(total)) {
            return Err(LENGTH);
        }
        let address = message.address.wrapping_add(u64::from(received));
        let part = self.remote(address, message.rkey, packet.payload.len() as u32, Access::REMOTE_WRITE);
        let place = world.keys.authorize(&part, &self.pd, self.access).map_err(denied)?;
        if let Some(place) = place {
            scatter(std::slice::from_ref(&place), 0, packet.payload);
        }
        self.received(world, packet);
        if shape.position.ends() {
            if shape.extra == Extra::Immediate {
                return {
                    self.complete_receive(world, shape, packet, total, Opcode::ReceiveWrite);
                    Ok(())
                };
            }
            self.close();
        }
        Ok(())
    }

    fn hold_receive(&mut self, world: &mut World) -> Result<(), Refusal> {
        let receive = self.take_receive(world).ok_or(NotReady)?;
        self.responder.held = Some(receive);
        Ok(())
    }

    fn remote(&self, address: u64, rkey: RKey, bytes: u32, needed: Access) -> RemoteAccess {
        RemoteAccess { address, rkey, bytes, needed }
    }

    fn open(&mut self, operation: Operation, packet: &Packet<'_>) {
        let (address, rkey, total) = (packet.address, packet.rkey, packet.dma_bytes);
        self.responder.message = Some(Message { operation, address, rkey, total, received: 0 });
    }

    fn received(&mut self, world: &mut World, packet: &Packet<'_>) {
        world.counters.copied_in_bytes += packet.payload.len() as u64;
        if let Some(message) = &mut self.responder.message {
            message.received += packet.payload.len() as u32;
        }
    }

    fn close(&mut self) {
        self.responder.message = None;
        self.responder.msn = self.responder.msn.wrapping_add(1) & 0xff_ffff;
    }

    fn complete_receive(
        &mut self,
        world: &mut World,
        shape: Shape,
        packet: &Packet<'_>,
        bytes: u32,
        opcode: Opcode,
    ) {
        self.close();
        let Some(receive) = self.responder.held.take() else { return };
        let mut completion = self.completion(receive.id, Status::Success, opcode);
        completion.bytes = bytes;
        completion.attached = match shape.extra {
            Extra::None => Attached::Nothing,
            Extra::Immediate => Attached::Immediate(packet.attached),
            Extra::Invalidate => Attached::Invalidate(RKey(packet.attached)),
        };
        world.complete(self.config.receive_cq, completion, packet.solicited);
    }

    /// Whether one more READ or atomic is served at a time.
    fn check_resources(&self) -> Result<(), Refusal> {
        let full = self.responder.replies.reads() >= usize::from(self.responder.resources);
        if full { Err(Wrong(INVALID, DropReason::Resources, None)) } else { Ok(()) }
    }

    fn serve_read(&mut self, world: &mut World, packet: &Packet<'_>) -> Result<u32, Refusal> {
        self.check_resources()?;
        let packets = packet.dma_bytes.div_ceil(self.mtu as u32).max(1);
        if packets > super::requester::MAX_MESSAGE_PACKETS {
            return Err(LENGTH);
        }
        let source = self.authorize_read(world, packet)?;
        self.responder.msn = self.responder.msn.wrapping_add(1) & 0xff_ffff;
        let served = self.serve(packet, packets, packet.dma_bytes, None);
        self.responder.replies.push(Reply::read(&served, source));
        Ok(packets)
    }

    pub(crate) fn authorize_read(&self, world: &World, packet: &Packet<'_>) -> Result<Option<Sge>, Refusal> {
        let asked = self.remote(packet.address, packet.rkey, packet.dma_bytes, Access::REMOTE_READ);
        world.keys.authorize(&asked, &self.pd, self.access).map_err(denied)
    }

    fn serve_atomic(&mut self, world: &mut World, shape: Shape, packet: &Packet<'_>) -> Result<(), Refusal> {
        self.check_resources()?;
        let asked = self.remote(packet.address, packet.rkey, 8, Access::REMOTE_ATOMIC);
        let place = world.keys.authorize(&asked, &self.pd, self.access).map_err(denied)?;
        let Some(Sge { region, offset, .. }) = place else { return Err(LENGTH) };
        let memory = region.memory();
        let original = if shape.operation == Operation::FetchAndAdd {
            memory.fetch_add_u64(offset, packet.swap_or_add)
        } else {
            memory.compare_exchange_u64(offset, packet.compare, packet.swap_or_add)
        };
        let original = original.map_err(|_| Wrong(INVALID, DropReason::Bounds, None))?;
        self.responder.msn = self.responder.msn.wrapping_add(1) & 0xff_ffff;
        let served = self.serve(packet, 1, 8, Some(original));
        self.responder.replies.push(Reply::original(&served, original));
        Ok(())
    }

    /// Remembers a READ or atomic until as many later ones were served as may be outstanding.
    fn serve(&mut self, packet: &Packet<'_>, packets: u32, bytes: u32, original: Option<u64>) -> Served {
        let (psn, address, rkey) = (packet.psn, packet.address, packet.rkey);
        let served = Served { psn, packets, address, rkey, bytes, msn: self.responder.msn, original };
        if self.responder.served.len() >= usize::from(self.responder.resources) {
            self.responder.served.pop_front();
        }
        self.responder.served.push_back(served);
        served
    }
}
