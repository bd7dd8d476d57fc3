//! Work requests: what a queue pair is asked to do, and with which memory.
//!
//! A request owns counted handles to its regions, so nothing that was posted can be freed. Inline data is part of the request
//! and needs no region. [`SendRequest::check`] holds what is an immediate error of the post; what concerns
//! memory is an error of the completion, by [`Sge::check`].

use super::{
    Access, AccessError, AddressHandle, Attached, MemoryRegion, ProtectionDomain, QKey, QpType, Qpn, RKey,
};
use super::{Opcode, State, WorkQueue};
use bitflags::bitflags;
use thiserror::Error;

/// A piece of registered memory of this side.
#[derive(Clone)]
pub struct Sge {
    /// The region.
    pub region: MemoryRegion,
    /// Where in it, in bytes from its start.
    pub offset: usize,
    /// Length.
    pub bytes: u32,
}

impl Sge {
    /// Whether a queue pair of `pd` may use it, with `needed` rights: [`Access::LOCAL_WRITE`] for receives, READs and atomics.
    ///
    /// # Errors
    /// The first rule that it breaks; the completion says [`Status::LocalProtection`](super::Status::LocalProtection).
    pub fn check(&self, pd: &ProtectionDomain, needed: Access) -> Result<(), AccessError> {
        self.region.check_local(pd, self.offset, self.bytes as usize, needed)
    }
}

/// Scatter-gather pieces, in order. One piece needs no allocation.
#[derive(Clone, Default)]
pub enum SgeList {
    /// No bytes.
    #[default]
    Empty,
    /// One piece.
    One(Sge),
    /// Several.
    Many(Vec<Sge>),
}

impl SgeList {
    /// The pieces.
    #[inline]
    pub fn as_slice(&self) -> &[Sge] {
        match self {
            SgeList::Empty => &[],
            SgeList::One(sge) => std::slice::from_ref(sge),
            SgeList::Many(list) => list,
        }
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.as_slice().iter().map(|sge| u64::from(sge.bytes)).sum()
    }
}

impl From<Sge> for SgeList {
    fn from(sge: Sge) -> SgeList {
        SgeList::One(sge)
    }
}

/// Data that travels in the request itself.
#[derive(Clone, Copy)]
pub struct Inline {
    data: [u8; Inline::MAX_BYTES],
    bytes: u8,
}

impl Inline {
    /// The most that fits, a cache line; a transport may take less.
    pub const MAX_BYTES: usize = 64;

    /// A copy of `data`; `None` when it is too long.
    #[inline]
    pub fn new(data: &[u8]) -> Option<Inline> {
        let mut copy = [0; Inline::MAX_BYTES];
        copy.get_mut(..data.len())?.copy_from_slice(data);
        Some(Inline { data: copy, bytes: data.len() as u8 })
    }

    /// The data.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.data[..usize::from(self.bytes)]
    }
}

/// The data of a SEND or WRITE.
#[derive(Clone)]
pub enum Payload {
    /// Gathered from memory while the request is outstanding.
    Gather(SgeList),
    /// In the request.
    Inline(Inline),
}

impl Payload {
    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Payload::Gather(list) => list.bytes(),
            Payload::Inline(inline) => u64::from(inline.bytes),
        }
    }

    fn check(&self, limits: &QpLimits) -> Result<(), PostError> {
        match self {
            Payload::Gather(list) => check_pieces(list, limits.send_sges),
            Payload::Inline(inline) if u32::from(inline.bytes) > limits.inline_bytes => {
                Err(PostError::Inline { asked: usize::from(inline.bytes), limit: limits.inline_bytes })
            }
            Payload::Inline(_) => Ok(()),
        }
    }
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address of the first byte.
    pub address: u64,
    /// Its key.
    pub rkey: RKey,
}

/// To whom a datagram goes.
#[derive(Clone)]
pub struct Destination {
    /// The way.
    pub address: AddressHandle,
    /// The queue pair; [`Qpn::MULTICAST`] for a group.
    pub qp: Qpn,
    /// Which receivers take it. With the top bit set, that of the sending queue pair is used instead.
    pub q_key: QKey,
}

/// What to do.
#[derive(Clone)]
pub enum SendOperation {
    /// SEND to a receive of the peer.
    Send {
        /// Data.
        payload: Payload,
        /// With immediate, or with invalidate.
        attached: Attached,
    },
    /// SEND of one packet to anyone; UD.
    SendDatagram {
        /// Data, at most the path MTU.
        payload: Payload,
        /// With immediate.
        immediate: Option<u32>,
        /// To whom.
        to: Destination,
    },
    /// WRITE to the peer's memory.
    Write {
        /// Data.
        payload: Payload,
        /// Where to.
        remote: Remote,
        /// With immediate: uses up a receive of the peer's.
        immediate: Option<u32>,
    },
    /// READ from the peer's memory.
    Read {
        /// Where to.
        into: SgeList,
        /// Where from.
        remote: Remote,
    },
    /// Swaps a word of the peer's if it is as expected.
    CompareAndSwap {
        /// Where the old value goes, 8 bytes, in this side's byte order.
        into: Sge,
        /// The word, at a multiple of 8.
        remote: Remote,
        /// What it must be.
        compare: u64,
        /// What it becomes.
        swap: u64,
    },
    /// Adds to a word of the peer's, wrapping.
    FetchAndAdd {
        /// Where the old value goes, 8 bytes, in this side's byte order.
        into: Sge,
        /// The word, at a multiple of 8.
        remote: Remote,
        /// What is added.
        add: u64,
    },
}

bitflags! {
    /// How a request is treated (`ibv_send_flags`). Inline data is a kind of [`Payload`].
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u8 {
        /// A success completes too. Failures always do.
        const SIGNALLED = 1;
        /// It begins when all earlier READs and atomics of this queue pair are done.
        const FENCE = 1 << 1;
        /// The peer's completion wakes who waits for solicited ones.
        const SOLICITED = 1 << 2;
    }
}

/// A request for the send queue.
#[derive(Clone)]
pub struct SendRequest {
    /// The caller's own word, which comes back in the completion (`wr_id`).
    pub id: u64,
    /// What to do.
    pub operation: SendOperation,
    /// How.
    pub flags: SendFlags,
}

/// A request for the receive queue.
#[derive(Clone)]
pub struct ReceiveRequest {
    /// The caller's own word, which comes back in the completion (`wr_id`).
    pub id: u64,
    /// Where the message goes; for UD after 40 bytes of network header.
    pub into: SgeList,
}

/// The size of a queue pair (`ibv_qp_cap`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpLimits {
    /// Send requests outstanding.
    pub send_requests: u32,
    /// Receive requests outstanding; 0 with a shared receive queue.
    pub receive_requests: u32,
    /// Pieces of a send request.
    pub send_sges: u16,
    /// Pieces of a receive request.
    pub receive_sges: u16,
    /// Bytes of inline data.
    pub inline_bytes: u32,
}

/// Why a request was not taken. It stays at the front of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PostError {
    /// Nothing can be posted to this queue in this state.
    #[error("the queue pair is in {0:?}; move it on before posting")]
    State(State),
    /// The service has no such operation.
    #[error("{operation} is not an operation of {kind:?} queue pairs; use another service or operation")]
    Operation {
        /// The operation.
        operation: &'static str,
        /// The service.
        kind: QpType,
    },
    /// More pieces than the queue pair was made for.
    #[error("{asked} pieces, the queue pair was created for {limit}; create it with more, or join buffers")]
    Sges {
        /// Pieces asked.
        asked: usize,
        /// Pieces allowed.
        limit: u16,
    },
    /// More inline data than the queue pair was made for.
    #[error("{asked} bytes inline, the queue pair was created for {limit}; send them from registered memory")]
    Inline {
        /// Bytes asked.
        asked: usize,
        /// Bytes allowed.
        limit: u32,
    },
    /// A longer message than the service can carry.
    #[error("a message of {asked} bytes, this queue pair carries {limit}; split it")]
    Message {
        /// Bytes asked.
        asked: u64,
        /// Bytes allowed: the device's for connections, the path MTU for datagrams.
        limit: u32,
    },
    /// The old value of an atomic needs exactly 8 bytes.
    #[error("the old value of an atomic goes to 8 bytes, not {0}; give a piece of 8")]
    AtomicBuffer(u32),
    /// An address handle of another domain.
    #[error("the address handle belongs to another protection domain; create it in the queue pair's")]
    Domain,
    /// The device is gone or failed.
    #[error("the device failed; see its health")]
    Device,
}

impl SendRequest {
    /// Whether a queue pair takes it; `max_message_bytes` is the path MTU for UD.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn check(
        &self,
        kind: QpType,
        state: State,
        limits: &QpLimits,
        max_message_bytes: u32,
    ) -> Result<(), PostError> {
        if !state.accepts(WorkQueue::Send) {
            return Err(PostError::State(state));
        }
        if !self.operation.is_of(kind) {
            return Err(PostError::Operation { operation: self.operation.name(), kind });
        }
        let asked = match &self.operation {
            SendOperation::Send { payload, .. }
            | SendOperation::SendDatagram { payload, .. }
            | SendOperation::Write { payload, .. } => {
                payload.check(limits)?;
                payload.bytes()
            }
            SendOperation::Read { into, .. } => {
                check_pieces(into, limits.send_sges)?;
                into.bytes()
            }
            SendOperation::CompareAndSwap { into, .. } | SendOperation::FetchAndAdd { into, .. } => {
                return if into.bytes == 8 { Ok(()) } else { Err(PostError::AtomicBuffer(into.bytes)) };
            }
        };
        let limit = max_message_bytes;
        if asked > u64::from(limit) { Err(PostError::Message { asked, limit }) } else { Ok(()) }
    }
}

impl SendOperation {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            SendOperation::Send { attached: Attached::Nothing, .. } => "SEND",
            SendOperation::Send { attached: Attached::Immediate(_), .. } => "SEND with immediate",
            SendOperation::Send { attached: Attached::Invalidate(_), .. } => "SEND with invalidate",
            SendOperation::SendDatagram { .. } => "SEND of a datagram",
            SendOperation::Write { immediate: None, .. } => "WRITE",
            SendOperation::Write { immediate: Some(_), .. } => "WRITE with immediate",
            SendOperation::Read { .. } => "READ",
            SendOperation::CompareAndSwap { .. } => "compare-and-swap",
            SendOperation::FetchAndAdd { .. } => "fetch-and-add",
        }
    }

    /// What its completion calls it.
    pub fn opcode(&self) -> Opcode {
        match self {
            SendOperation::Send { .. } | SendOperation::SendDatagram { .. } => Opcode::Send,
            SendOperation::Write { .. } => Opcode::Write,
            SendOperation::Read { .. } => Opcode::Read,
            SendOperation::CompareAndSwap { .. } => Opcode::CompareAndSwap,
            SendOperation::FetchAndAdd { .. } => Opcode::FetchAndAdd,
        }
    }

    /// Whether the service has it (ibv_post_send(3)).
    pub fn is_of(&self, kind: QpType) -> bool {
        match self {
            SendOperation::SendDatagram { .. } => kind == QpType::Ud,
            SendOperation::Send { attached: Attached::Invalidate(_), .. }
            | SendOperation::Read { .. }
            | SendOperation::CompareAndSwap { .. }
            | SendOperation::FetchAndAdd { .. } => kind == QpType::Rc,
            SendOperation::Send { .. } | SendOperation::Write { .. } => kind != QpType::Ud,
        }
    }
}

impl ReceiveRequest {
    /// Whether a queue with `max_sges` pieces takes it.
    ///
    /// # Errors
    /// Too many pieces.
    pub fn check(&self, max_sges: u16) -> Result<(), PostError> {
        check_pieces(&self.into, max_sges)
    }
}

fn check_pieces(list: &SgeList, limit: u16) -> Result<(), PostError> {
    let asked = list.as_slice().len();
    if asked > usize::from(limit) { Err(PostError::Sges { asked, limit }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: QpLimits =
        QpLimits { send_requests: 8, receive_requests: 8, send_sges: 1, receive_sges: 1, inline_bytes: 4 };
    const REMOTE: Remote = Remote { address: 0, rkey: RKey(1) };

    fn check(operation: SendOperation, kind: QpType) -> Result<(), PostError> {
        SendRequest { id: 0, operation, flags: SendFlags::SIGNALLED }.check(
            kind,
            State::Rts,
            &LIMITS,
            1 << 20,
        )
    }

    fn send(data: &[u8], attached: Attached) -> SendOperation {
        SendOperation::Send { payload: Payload::Inline(Inline::new(data).unwrap()), attached }
    }

    fn write(immediate: Option<u32>) -> SendOperation {
        SendOperation::Write { payload: Payload::Gather(SgeList::Empty), remote: REMOTE, immediate }
    }

    #[test]
    fn each_service_has_its_operations() {
        let read = || SendOperation::Read { into: SgeList::Empty, remote: REMOTE };
        let operations = [
            (send(b"", Attached::Nothing), [true, true, false]),
            (send(b"", Attached::Immediate(1)), [true, true, false]),
            (send(b"", Attached::Invalidate(RKey(1))), [true, false, false]),
            (write(None), [true, true, false]),
            (write(Some(1)), [true, true, false]),
            (read(), [true, false, false]),
        ];
        for (operation, expected) in operations {
            let of = [QpType::Rc, QpType::Uc, QpType::Ud].map(|kind| operation.is_of(kind));
            assert_eq!(of, expected, "{}", operation.name());
        }
        let operation = "READ";
        assert_eq!(check(read(), QpType::Uc), Err(PostError::Operation { operation, kind: QpType::Uc }));
    }

    #[test]
    fn inline_data_is_at_most_a_cache_line() {
        let data: Vec<u8> = (0..65).collect();
        assert_eq!(Inline::new(&data[..64]).unwrap().as_slice(), &data[..64]);
        assert!(Inline::new(&data).is_none());
        assert!(size_of::<SendRequest>() <= 128, "a request is two cache lines");
    }

    #[test]
    fn states_and_sizes_are_immediate_errors() {
        assert_eq!(check(send(b"four", Attached::Nothing), QpType::Rc), Ok(()));
        let inline = PostError::Inline { asked: 5, limit: 4 };
        assert_eq!(check(send(b"fives", Attached::Nothing), QpType::Rc), Err(inline));
        let request = SendRequest { id: 0, operation: write(None), flags: SendFlags::empty() };
        let early = request.check(QpType::Rc, State::Rtr, &LIMITS, 1);
        assert_eq!(early, Err(PostError::State(State::Rtr)));
        let request =
            SendRequest { id: 0, operation: send(b"ab", Attached::Nothing), flags: SendFlags::empty() };
        let long = request.check(QpType::Rc, State::Rts, &LIMITS, 1);
        assert_eq!(long, Err(PostError::Message { asked: 2, limit: 1 }));
    }
}
