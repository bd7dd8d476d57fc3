//! Datagrams: one packet, one receive, no promise. The receive gets 40 bytes of network header in front of the data.

use super::counters::DropReason;
use super::memory::{self, scatter};
use super::qp::Qp;
use super::wire::network::Arrival;
use super::wire::{Extra, Packet, Shape};
use super::world::World;
use pollring::rdma::{Access, Attached, CompletionFlags, Opcode, Status};

impl Qp {
    /// Takes a datagram. One that does not fit its receive is dropped, and the receive waits for the next: a stranger's
    /// datagram must not end a queue pair.
    pub(crate) fn datagram(
        &mut self,
        world: &mut World,
        arrival: &Arrival,
        shape: Shape,
        packet: &Packet<'_>,
    ) {
        let psn = packet.psn;
        if packet.q_key != self.q_key {
            return self.drop_packet(world, DropReason::QKey, psn);
        }
        if packet.payload.len() > self.mtu {
            return self.drop_packet(world, DropReason::Length, psn);
        }
        let Some(receive) = self.take_receive(world) else {
            return self.drop_packet(world, DropReason::NotReady, psn);
        };
        let allowed = memory::check(receive.into.as_slice(), &self.pd, Access::LOCAL_WRITE);
        let header = &arrival.network_header;
        let bytes = header.len() + packet.payload.len();
        let fits = bytes as u64 <= receive.into.bytes();
        let receive = self.responder.held.insert(receive);
        if let Err(error) = allowed {
            let what = format!("a posted receive: {error}");
            return self.fail_receive(world, Status::LocalProtection, pollring::rdma::Layer::Memory, &what);
        }
        if !fits {
            return self.drop_packet(world, DropReason::ReceiveTooSmall, psn);
        }
        scatter(receive.into.as_slice(), 0, header);
        scatter(receive.into.as_slice(), header.len(), packet.payload);
        world.counters.copied_in_bytes += packet.payload.len() as u64;
        let Some(receive) = self.responder.held.take() else { return };
        let mut completion = self.completion(receive.id, Status::Success, Opcode::Receive);
        completion.bytes = bytes as u32;
        completion.source = Some(packet.source);
        completion.flags = CompletionFlags::NETWORK_HEADER;
        if shape.extra == Extra::Immediate {
            completion.attached = Attached::Immediate(packet.attached);
        }
        world.complete(self.config.receive_cq, completion, packet.solicited);
    }
}
