//! Layouts of the transport headers, big-endian as on the wire (IBTA 9.2 and 9.3; include/rdma/ib_pack.h). No logic but the
//! packing of fields that share a word.

use pollring::rdma::{Psn, Qpn};
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

macro_rules! layout {
    ($(#[$doc:meta])* $name:ident, $bytes:literal { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        pub(crate) struct $name { $($(#[$field_doc])* pub(crate) $field: $kind,)* }
        const _: () = assert!(size_of::<$name>() == $bytes);
    };
}

layout! {
    /// Base transport header.
    Bth, 12 {
        /// Service and operation.
        opcode: u8,
        /// Solicited event 1, MigReq 1, pad 2, version 4.
        flags: u8,
        /// Partition.
        p_key: U16,
        /// FECN 1, BECN 1, reserved 6.
        congestion: u8,
        /// Destination queue pair.
        destination: [u8; 3],
        /// AckReq 1, reserved 7.
        acknowledge: u8,
        /// Sequence number.
        psn: [u8; 3],
    }
}

layout! {
    /// Datagram extended header.
    Deth, 8 {
        /// Q_Key.
        q_key: U32,
        /// Reserved.
        reserved: u8,
        /// Source queue pair.
        source: [u8; 3],
    }
}

layout! {
    /// RDMA extended header.
    Reth, 16 {
        /// Address of the first byte.
        address: U64,
        /// Key.
        rkey: U32,
        /// Length of the whole message.
        bytes: U32,
    }
}

layout! {
    /// Acknowledge extended header.
    Aeth, 4 {
        /// What kind of answer.
        syndrome: u8,
        /// Messages completed.
        msn: [u8; 3],
    }
}

layout! {
    /// Atomic extended header.
    AtomicEth, 28 {
        /// Address of the word.
        address: U64,
        /// Key.
        rkey: U32,
        /// The new value, or what to add.
        swap_or_add: U64,
        /// What a swap expects.
        compare: U64,
    }
}

layout! {
    /// Atomic acknowledge extended header.
    AtomicAckEth, 8 {
        /// What was there before.
        original: U64,
    }
}

impl Bth {
    const SOLICITED: u8 = 1 << 7;
    const MIGRATION: u8 = 1 << 6;

    pub(crate) fn solicited(&self) -> bool {
        self.flags & Bth::SOLICITED != 0
    }

    pub(crate) fn pad(&self) -> usize {
        usize::from(self.flags >> 4 & 3)
    }

    pub(crate) fn version(&self) -> u8 {
        self.flags & 15
    }

    pub(crate) fn ack_request(&self) -> bool {
        self.acknowledge & 1 << 7 != 0
    }

    pub(crate) fn destination(&self) -> Qpn {
        Qpn::new(from_24(self.destination))
    }

    pub(crate) fn psn(&self) -> Psn {
        Psn::new(from_24(self.psn))
    }

    /// A header with MigReq set, as hardware sends it and demands it.
    pub(crate) fn new(opcode: u8, p_key: u16, destination: Qpn, psn: Psn) -> Bth {
        Bth {
            opcode,
            flags: Bth::MIGRATION,
            p_key: U16::new(p_key),
            congestion: 0,
            destination: to_24(destination.bits()),
            acknowledge: 0,
            psn: to_24(psn.bits()),
        }
    }

    pub(crate) fn mark(&mut self, solicited: bool, ack_request: bool, pad: usize) {
        self.flags |= u8::from(solicited) << 7 | (pad as u8 & 3) << 4;
        self.acknowledge = u8::from(ack_request) << 7;
    }
}

/// A 24-bit field as a number.
pub(crate) fn from_24(bytes: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]])
}

/// The low 24 bits as a field.
pub(crate) fn to_24(number: u32) -> [u8; 3] {
    let [_, high, middle, low] = number.to_be_bytes();
    [high, middle, low]
}

/// The transport headers of one packet, one after another. The longest are those of an atomic request, 40 bytes.
#[derive(Clone, Copy)]
pub(crate) struct Headers {
    bytes: [u8; Headers::MAX_BYTES],
    len: u8,
}

impl Headers {
    /// BTH and AtomicETH.
    pub(crate) const MAX_BYTES: usize = 40;

    pub(crate) fn new(bth: &Bth) -> Headers {
        let mut headers = Headers { bytes: [0; Headers::MAX_BYTES], len: 0 };
        headers.push(bth);
        headers
    }

    /// Appends a header. Our own code never exceeds the longest.
    pub(crate) fn push(&mut self, header: &(impl IntoBytes + Immutable)) {
        let (bytes, start) = (header.as_bytes(), usize::from(self.len));
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len() as u8;
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}
