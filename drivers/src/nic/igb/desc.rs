//! Descriptors of the 82576: layouts, no logic (datasheet 7.1.5 advanced receive, 7.2.2 advanced transmit).

use pollring::iova::Iova;
use zerocopy::{Immutable, IntoBytes};

/// Advanced receive descriptor as software writes it (7.1.5.1).
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
pub struct RxRead {
    /// Where the packet goes.
    pub packet: Iova,
    /// Header buffer, unused with one buffer a packet; bit 0 is the done bit, so it must be written as zero.
    pub header: u64,
}

/// The word of the write-back that holds done bit, errors and length (7.1.5.2).
pub const RX_STATUS_WORD: usize = 1;
/// Word 0 of the write-back: RSS hash in bits 63:32, packet type in bits 16:4.
pub const RX_INFO_WORD: usize = 0;

/// Bits of word 1 of the receive write-back.
pub mod rx {
    /// The device wrote the descriptor back.
    pub const DONE: u64 = 1 << 0;
    /// Last descriptor of the packet.
    pub const END_OF_PACKET: u64 = 1 << 1;
    /// Error from the PHY or MAC; other error bits speak of checksums only.
    pub const RX_ERROR: u64 = 1 << 31;
    /// Length in bits 47:32, bytes.
    pub const LENGTH_SHIFT: u32 = 32;
    /// VLAN tag in bits 63:48.
    pub const VLAN_SHIFT: u32 = 48;
}

/// Advanced transmit data descriptor as software writes it (7.2.2.3).
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
pub struct TxData {
    /// Where the bytes are.
    pub address: Iova,
    /// Length, type, command, payload length.
    pub command: u64,
}

/// The word of the transmit write-back that holds the done bit.
pub const TX_STATUS_WORD: usize = 1;

/// Bits of word 1 of the transmit data descriptor.
pub mod tx {
    /// Length of this buffer in bits 15:0, bytes.
    pub const LENGTH_MASK: u64 = 0xffff;
    /// Advanced data descriptor: type 3 in bits 23:20 and the extension bit.
    pub const DATA: u64 = 3 << 20 | 1 << 29;
    /// Last descriptor of the packet.
    pub const END_OF_PACKET: u64 = 1 << 24;
    /// The device appends the CRC.
    pub const INSERT_CRC: u64 = 1 << 25;
    /// Report status: write the descriptor back when done.
    pub const REPORT_STATUS: u64 = 1 << 27;
    /// Written back: done.
    pub const DONE: u64 = 1 << 32;
    /// Length of the whole packet in bits 63:46, bytes.
    pub const PAYLOAD_SHIFT: u32 = 46;
}

const _: () = assert!(size_of::<RxRead>() == 16 && size_of::<TxData>() == 16);
