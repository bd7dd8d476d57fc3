//! Connection management: how two sides learn each other's queue pair, PSN, MTU and depths.
//!
//! A manager speaks the messages of QP1 (IBTA chapter 12, with the IP addressing of annex A11), runs on its transport's
//! worker, and never touches a queue pair: it hands out a [`Setup`], and the owner applies it by
//! [`QueuePair::modify`](super::QueuePair::modify). The active side calls [`connect`](ConnectionManager::connect), applies the
//! setup of [`Event::Replied`], and calls [`ready`](Dialogue::ready). The passive side takes an [`Incoming`] from a
//! [`Listener`], applies its setup, and accepts; it may send once [`Event::Established`] came. Waiting is polling: nothing here
//! blocks, and every step ends within its time limit with an event.

use super::{AddressVector, Psn, QKey, QpType, Qpn, RdmaError, ReadyToReceive, ReadyToSend, Retry};
use std::net::SocketAddr;
use std::time::Duration;
use thiserror::Error;

/// The space of port numbers (`rdma_port_space` in rdma/rdma_cma.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum PortSpace {
    /// Connections.
    Tcp = 0x0106,
    /// Datagrams.
    Udp = 0x0111,
    /// Native InfiniBand.
    Ib = 0x013f,
}

impl PortSpace {
    /// The service id of a port (IBTA annex A11; `cma_get_service_id` in drivers/infiniband/core/cma.c).
    pub const fn service_id(self, port: u16) -> u64 {
        (self as u64) << 16 | port as u64
    }
}

/// A message that carries private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// REQ, behind the IP addressing header.
    Request,
    /// REP.
    Reply,
    /// RTU.
    Ready,
    /// REJ.
    Reject,
    /// DREQ.
    Disconnect,
    /// SIDR_REQ, behind the IP addressing header.
    Lookup,
    /// SIDR_REP.
    LookupReply,
}

impl Message {
    /// How many bytes of private data it carries (include/rdma/ib_cm.h; 36 less behind the header of include/rdma/rdma_cm_ib.h).
    pub const fn private_bytes(self) -> usize {
        match self {
            Message::Request => 56,
            Message::Reply => 196,
            Message::Ready => 224,
            Message::Reject => 148,
            Message::Disconnect => 220,
            Message::Lookup => 180,
            Message::LookupReply => 136,
        }
    }

    /// Whether `data` fits.
    ///
    /// # Errors
    /// It does not.
    pub fn check(self, data: &[u8]) -> Result<(), CmError> {
        let (asked, limit) = (data.len(), self.private_bytes());
        if asked > limit { Err(CmError::PrivateData { message: self, asked, limit }) } else { Ok(()) }
    }
}

/// The side of a connection that its owner brings.
#[derive(Clone, Debug)]
pub struct Local {
    /// Its queue pair, in INIT.
    pub qp: Qpn,
    /// The queue pair's service.
    pub kind: QpType,
    /// UD: which datagrams it takes.
    pub q_key: QKey,
    /// The first PSN that it sends; random.
    pub send_psn: Psn,
    /// READs and atomics that it serves at a time.
    pub responder_resources: u8,
    /// READs and atomics that it wants outstanding at a time; lowered to what the peer serves.
    pub initiator_depth: u8,
    /// Timers.
    pub retry: Retry,
    /// How long the peer waits when no receive is posted.
    pub min_rnr: Duration,
    /// For the peer's application; see [`Message::private_bytes`].
    pub private_data: Vec<u8>,
}

/// What a peer asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The peer.
    pub from: SocketAddr,
    /// Whom it asked for.
    pub to: SocketAddr,
    /// Service.
    pub kind: QpType,
    /// READs and atomics that the peer serves at a time.
    pub responder_resources: u8,
    /// READs and atomics that the peer wants outstanding at a time.
    pub initiator_depth: u8,
    /// From the peer's application.
    pub private_data: Vec<u8>,
}

/// What brings a connected queue pair from INIT to RTR and RTS. Depths and MTU are those that both sides can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// To RTR.
    pub receive: ReadyToReceive,
    /// To RTS.
    pub send: ReadyToSend,
}

/// Why a connection was refused, numbered as `ib_cm_rej_reason` (include/rdma/ib_cm.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// The peer gave up waiting.
    Timeout,
    /// The peer does not support the request.
    Unsupported,
    /// The peer does not know the connection.
    InvalidCommunicationId,
    /// Nobody listens there.
    InvalidServiceId,
    /// The listener has another service.
    InvalidTransport,
    /// The queue pair was in use until just now.
    StaleConnection,
    /// The peer does not know the address.
    InvalidGid,
    /// The path MTU is not possible.
    InvalidMtu,
    /// The peer cannot serve so many READs.
    ResponderResources,
    /// The peer's application refused.
    Consumer,
    /// Another one, by its number.
    Other(u16),
}

impl RejectReason {
    const NUMBERED: [(u16, RejectReason); 10] = [
        (4, RejectReason::Timeout),
        (5, RejectReason::Unsupported),
        (6, RejectReason::InvalidCommunicationId),
        (8, RejectReason::InvalidServiceId),
        (9, RejectReason::InvalidTransport),
        (10, RejectReason::StaleConnection),
        (12, RejectReason::InvalidGid),
        (26, RejectReason::InvalidMtu),
        (27, RejectReason::ResponderResources),
        (28, RejectReason::Consumer),
    ];

    /// The reason of a number on the wire.
    pub fn from_code(code: u16) -> RejectReason {
        let known = RejectReason::NUMBERED.into_iter().find(|(number, _)| *number == code);
        known.map_or(RejectReason::Other(code), |(_, reason)| reason)
    }

    /// The number on the wire.
    pub fn code(self) -> u16 {
        match self {
            RejectReason::Other(code) => code,
            _ => RejectReason::NUMBERED
                .into_iter()
                .find(|(_, reason)| *reason == self)
                .map_or(0, |(code, _)| code),
        }
    }
}

/// What happened to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Active side: the peer accepts. Apply the setup, then call [`Dialogue::ready`].
    Replied {
        /// For the queue pair.
        setup: Setup,
        /// From the peer's application.
        private_data: Vec<u8>,
    },
    /// Active side of a datagram service: where to send to.
    Found {
        /// The way.
        address: AddressVector,
        /// The queue pair.
        qp: Qpn,
        /// Which datagrams it takes.
        q_key: QKey,
        /// From the peer's application.
        private_data: Vec<u8>,
    },
    /// Passive side: the peer is ready, by its word or by its first packet.
    Established,
    /// The peer refused.
    Rejected {
        /// Why.
        reason: RejectReason,
        /// From the peer's application.
        private_data: Vec<u8>,
    },
    /// No answer from the peer, for so long.
    Unreachable(Duration),
    /// The peer, or this side, ended it. Move the queue pair to ERR.
    Disconnected,
    /// Late packets cannot come any more: the queue pair's number may be used again.
    TimeWaitOver,
}

/// A connection in the making, standing, or ending. Dropping it ends it as [`disconnect`](Dialogue::disconnect) does.
pub trait Dialogue: Send {
    /// The next event.
    fn poll(&mut self) -> Option<Event>;

    /// Active side: the queue pair is in RTS.
    ///
    /// # Errors
    /// Not replied yet, or over.
    fn ready(&mut self) -> Result<(), CmError>;

    /// Ends it; [`Event::Disconnected`] and [`Event::TimeWaitOver`] follow.
    fn disconnect(&mut self);
}

/// A peer that asked. Dropping it refuses it, as its application would.
pub trait Incoming: Send {
    /// What it asks for.
    fn request(&self) -> &Request;

    /// What the queue pair of `local` needs. Apply it before accepting: the peer may send at once. `None` for datagrams.
    fn setup(&self, local: &Local) -> Option<Setup>;

    /// Says yes.
    ///
    /// # Errors
    /// Private data that does not fit, or a peer that gave up.
    fn accept(self: Box<Self>, local: Local) -> Result<Box<dyn Dialogue>, CmError>;

    /// Says no.
    ///
    /// # Errors
    /// Private data that does not fit; it is refused without.
    fn reject(self: Box<Self>, reason: RejectReason, private_data: &[u8]) -> Result<(), CmError>;
}

/// A port that peers connect to, until dropped.
pub trait Listener: Send {
    /// Where it listens.
    fn address(&self) -> SocketAddr;

    /// The next peer that asked.
    fn poll(&mut self) -> Option<Box<dyn Incoming>>;
}

/// Makes connections over one device.
pub trait ConnectionManager: Send {
    /// Listens at an address of the device's port; port 0 takes a free one. Beyond `backlog` waiting peers, others are not
    /// answered and try again.
    ///
    /// # Errors
    /// Not an address of the port, or taken.
    fn listen(
        &mut self,
        at: SocketAddr,
        space: PortSpace,
        backlog: usize,
    ) -> Result<Box<dyn Listener>, CmError>;

    /// Asks the listener at `to`, from the address `from` of the device's port, and gives up after `within`.
    ///
    /// # Errors
    /// Not an address of the port, another family, or private data that does not fit.
    fn connect(
        &mut self,
        from: SocketAddr,
        to: SocketAddr,
        space: PortSpace,
        local: Local,
        within: Duration,
    ) -> Result<Box<dyn Dialogue>, CmError>;
}

/// Why a call of connection management failed.
#[derive(Debug, Error)]
pub enum CmError {
    /// More private data than the message carries.
    #[error("{asked} bytes of private data, {message:?} carries {limit}; send the rest once connected")]
    PrivateData {
        /// The message.
        message: Message,
        /// Bytes asked.
        asked: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// Somebody listens there.
    #[error("listen at {0}: taken; choose another port, or 0 for a free one")]
    Taken(SocketAddr),
    /// The call does not fit the state of the connection.
    #[error("{0}: the connection is not in a state for it; poll its events first")]
    OutOfTurn(&'static str),
    /// The device.
    #[error(transparent)]
    Device(#[from] RdmaError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_wire() {
        assert_eq!(PortSpace::Tcp.service_id(7174), 0x0106_1c06);
        for code in 0..64 {
            assert_eq!(RejectReason::from_code(code).code(), code);
        }
        assert_eq!(RejectReason::InvalidServiceId.code(), 8);
        assert!(Message::Request.check(&[0; 56]).is_ok());
        assert!(matches!(Message::Request.check(&[0; 57]), Err(CmError::PrivateData { limit: 56, .. })));
    }
}
