//! Requests that were carried out before (IBTA 9.7.5.1.3): a SEND or WRITE is acknowledged again, a READ is read again, an
//! atomic gets its kept old value. Nothing is done twice.

use super::counters::DropReason;
use super::qp::Qp;
use super::replies::Reply;
use super::responder::{Refusal, Served};
use super::wire::{Operation, Packet, Shape};
use super::world::World;

impl Qp {
    pub(crate) fn duplicate(&mut self, world: &mut World, shape: Shape, packet: &Packet<'_>) {
        if self.responder.replies.is_full() {
            return self.drop_packet(world, DropReason::Duplicate, packet.psn);
        }
        match shape.operation {
            Operation::Send | Operation::Write => {
                if packet.ack_request {
                    self.acknowledge_all();
                }
                self.history.note(
                    world.now_ns,
                    super::counters::QpEvent::Dropped(DropReason::Duplicate),
                    packet.psn,
                );
            }
            Operation::ReadRequest => self.read_again(world, packet),
            _ => self.old_value_again(world, packet),
        }
    }

    fn find_served(&self, packet: &Packet<'_>) -> Option<Served> {
        let mut served = self.responder.served.iter().rev();
        served.find(|served| packet.psn.is_within(served.psn, served.packets)).copied()
    }

    /// A READ may be repeated from any of its packets on, with the address and length that belong to it.
    fn read_again(&mut self, world: &mut World, packet: &Packet<'_>) {
        let found = self.find_served(packet).filter(|served| served.original.is_none());
        let rest = found.and_then(|served| {
            let index = packet.psn.since(served.psn) as u32;
            let skip = index * self.mtu as u32;
            let left = served.bytes.checked_sub(skip)?;
            let same = packet.address == served.address.wrapping_add(u64::from(skip))
                && packet.rkey == served.rkey
                && packet.dma_bytes == left;
            let packets = served.packets - index;
            same.then_some(Served {
                psn: packet.psn,
                packets,
                address: packet.address,
                bytes: left,
                ..served
            })
        });
        let Some(rest) = rest else { return self.drop_packet(world, DropReason::Duplicate, packet.psn) };
        if self.responder.replies.will_send(packet.psn) {
            return;
        }
        match self.authorize_read(world, packet) {
            Ok(source) => {
                self.responder.replies.supersede(packet.psn.plus(rest.packets));
                self.responder.replies.push(Reply::read(&rest, source));
            }
            Err(Refusal::NotReady) => {}
            Err(refusal) => self.refuse(world, packet.psn, refusal),
        }
    }

    fn old_value_again(&mut self, world: &mut World, packet: &Packet<'_>) {
        let found = self.find_served(packet);
        let same = found.filter(|served| served.address == packet.address && served.rkey == packet.rkey);
        match same.and_then(|served| Some((served, served.original?))) {
            Some(_) if self.responder.replies.will_send(packet.psn) => {}
            Some((served, original)) => self.responder.replies.push(Reply::original(&served, original)),
            None => self.drop_packet(world, DropReason::Duplicate, packet.psn),
        }
    }
}
