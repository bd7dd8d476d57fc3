//! The wire of RoCEv2: what a packet is, without any state.
//!
//! Bytes come in through `network::classify` (Ethernet to UDP) and [`Packet::parse`] (BTH to ICRC). Both copy header fields
//! into values, check each one, and give a typed [`DropReason`](super::counters::DropReason); neither panics, whatever the
//! bytes are. Bytes go out through `network::Path::write` and `Headers`.

mod headers;
pub(crate) mod icrc;
pub(crate) mod network;
mod opcode;
mod packet;
mod timers;

pub(crate) use headers::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Headers, Reth, to_24};
pub use opcode::{Extra, Operation, Position, Shape};
pub use packet::Packet;
pub(crate) use timers::{Answer, rnr_code, rnr_nanoseconds};

/// Bytes of the invariant CRC at the end of each packet.
pub const ICRC_BYTES: usize = 4;

/// UDP destination port of RoCEv2 (IBTA annex A17).
pub const UDP_PORT: u16 = 4791;
