//! What each request looks like on the wire: headers and payload of its packets. Pure; the order is requester.rs's.

use super::memory::Gather;
use super::qp::Qp;
use super::requester::{ACK_EVERY_PACKETS, Wqe};
use super::wire::{AtomicEth, Bth, Deth, Extra, Headers, Operation, Position, Reth, Shape};
use super::world::{Output, World};
use pollring::rdma::{Attached, Payload, QpType, Remote, SendFlags, SendOperation};
use zerocopy::big_endian::{U32, U64};

fn part(payload: &Payload, skip: usize, bytes: usize) -> Gather<'_> {
    match payload {
        Payload::Gather(list) => Gather::list(list.as_slice(), skip, bytes),
        Payload::Inline(inline) => Gather::inline(inline.as_slice(), skip, bytes),
    }
}

fn extra(attached: Attached) -> (Extra, u32) {
    match attached {
        Attached::Nothing => (Extra::None, 0),
        Attached::Immediate(value) => (Extra::Immediate, value),
        Attached::Invalidate(key) => (Extra::Invalidate, key.0),
    }
}

fn reth(remote: &Remote, skip: u32, bytes: u32) -> Reth {
    let address = U64::new(remote.address.wrapping_add(u64::from(skip)));
    Reth { address, rkey: U32::new(remote.rkey.0), bytes: U32::new(bytes) }
}

impl Qp {
    /// Builds the packet at the cursor and gives it to `out`.
    pub(crate) fn emit(&self, world: &mut World, out: &mut dyn Output) {
        let requester = &self.requester;
        let Some(wqe) = requester.queue.get(requester.cursor) else { return };
        let (index, psn) = (requester.packet, requester.next());
        if psn.precedes(requester.sent_end) {
            world.counters.retransmitted += 1;
        }
        let (path, destination) = match (&wqe.request.operation, &self.peer) {
            (SendOperation::SendDatagram { to, .. }, _) => match self.path_of_next() {
                Some(path) => (path, to.qp),
                None => return,
            },
            (_, Some(peer)) => (&peer.path, peer.connection.destination),
            (_, None) => return,
        };
        let skip = index as usize * self.mtu;
        let (shape, attached, payload) = self.shape(wqe, index, skip);
        let solicited = shape.position.ends() && wqe.request.flags.contains(SendFlags::SOLICITED);
        let ask = shape.position.ends()
            || (index + 1).is_multiple_of(ACK_EVERY_PACKETS)
            || requester.in_flight() + 1 >= requester.window;
        let mut bth = Bth::new(shape.opcode(), self.p_key.0, destination, psn);
        bth.mark(solicited, ask && self.config.kind == QpType::Rc, payload.pad());
        let mut headers = Headers::new(&bth);
        self.extend(&mut headers, wqe, shape, skip as u32);
        if shape.extra != Extra::None {
            headers.push(&U32::new(attached));
        }
        out.send(path, &headers, payload, &mut world.counters);
    }

    fn shape<'a>(&self, wqe: &'a Wqe, index: u32, skip: usize) -> (Shape, u32, Gather<'a>) {
        let position = Position::of(index, wqe.packets);
        let bytes = (wqe.bytes as usize).saturating_sub(skip).min(self.mtu);
        let last = |(extra, value)| if position.ends() { (extra, value) } else { (Extra::None, 0) };
        let immediate =
            |value: &Option<u32>| value.map_or((Extra::None, 0), |value| (Extra::Immediate, value));
        let (operation, position, (extra, value), payload) = match &wqe.request.operation {
            SendOperation::Send { payload, attached } => {
                (Operation::Send, position, last(extra(*attached)), part(payload, skip, bytes))
            }
            SendOperation::SendDatagram { payload, immediate: value, .. } => {
                (Operation::Send, Position::Only, immediate(value), part(payload, skip, bytes))
            }
            SendOperation::Write { payload, immediate: value, .. } => {
                (Operation::Write, position, last(immediate(value)), part(payload, skip, bytes))
            }
            SendOperation::Read { .. } => {
                (Operation::ReadRequest, Position::Only, (Extra::None, 0), Gather::EMPTY)
            }
            SendOperation::CompareAndSwap { .. } => {
                (Operation::CompareAndSwap, Position::Only, (Extra::None, 0), Gather::EMPTY)
            }
            SendOperation::FetchAndAdd { .. } => {
                (Operation::FetchAndAdd, Position::Only, (Extra::None, 0), Gather::EMPTY)
            }
        };
        (Shape { service: self.config.kind, operation, position, extra }, value, payload)
    }

    fn extend(&self, headers: &mut Headers, wqe: &Wqe, shape: Shape, skip: u32) {
        match &wqe.request.operation {
            SendOperation::SendDatagram { to, .. } => {
                let q_key = if to.q_key.0 >> 31 == 1 { self.q_key } else { to.q_key };
                let source = super::wire::to_24(self.number.bits());
                headers.push(&Deth { q_key: U32::new(q_key.0), reserved: 0, source });
            }
            SendOperation::Write { remote, .. } if shape.position.begins() => {
                headers.push(&reth(remote, 0, wqe.bytes));
            }
            SendOperation::Read { remote, .. } => headers.push(&reth(remote, skip, wqe.bytes - skip)),
            SendOperation::CompareAndSwap { remote, compare, swap, .. } => {
                headers.push(&atomic(remote, *swap, *compare));
            }
            SendOperation::FetchAndAdd { remote, add, .. } => headers.push(&atomic(remote, *add, 0)),
            _ => {}
        }
    }
}

fn atomic(remote: &Remote, swap_or_add: u64, compare: u64) -> AtomicEth {
    AtomicEth {
        address: U64::new(remote.address),
        rkey: U32::new(remote.rkey.0),
        swap_or_add: U64::new(swap_or_add),
        compare: U64::new(compare),
    }
}
