//! Registers of Intel I/OAT (QuickData, CBDMA) 3.2 and later, in BAR0, little-endian. Offsets and bits are those of the kernel's
//! `drivers/dma/ioat/registers.h`; the table's last column is the name there. Some registers are 8 or 16 bits wide, and are accessed
//! so. Those of a channel are of the function's only channel.

#![allow(missing_docs)]

use pollring::register_table;

register_table! {
    CHANCNT = 0x00, ReadOnly, "channels, 8 bits", "CHANCNT";
    XFERCAP = 0x01, ReadOnly, "longest transfer, log2 of bytes, 8 bits", "XFERCAP";
    INTRCTRL = 0x03, ReadWrite, "interrupt control, 8 bits", "INTRCTRL";
    ATTNSTATUS = 0x04, ReadClears, "channels that raised an interrupt", "ATTNSTATUS";
    CBVER = 0x08, ReadOnly, "version, major in bits 7:4, 8 bits", "CBVER";
    DMACAPABILITY = 0x10, ReadOnly, "what the engine has", "DMACAPABILITY";
    CHANCTRL = 0x80, ReadWrite, "channel control, 16 bits", "CHANCTRL";
    CHANCMD = 0x84, WriteOnly, "channel command, 8 bits", "CHANCMD";
    DMACOUNT = 0x86, ReadWrite, "descriptors of the chain that may be executed, modulo 2^16, 16 bits", "DMACOUNT";
    CHANSTS_LOW = 0x88, ReadOnly, "last completed descriptor and state, low", "CHANSTS";
    CHANSTS_HIGH = 0x8c, ReadOnly, "last completed descriptor, high", "CHANSTS";
    CHAINADDR_LOW = 0x90, ReadWrite, "first descriptor, low", "CHAINADDR";
    CHAINADDR_HIGH = 0x94, ReadWrite, "first descriptor, high", "CHAINADDR";
    CHANCMP_LOW = 0x98, ReadWrite, "where CHANSTS is written on completion, low", "CHANCMP";
    CHANCMP_HIGH = 0x9c, ReadWrite, "where CHANSTS is written on completion, high", "CHANCMP";
    CHANERR = 0xa8, WriteOneClears, "errors", "CHANERR";
    CHANERR_MASK = 0xac, ReadWrite, "errors that do not raise an interrupt", "CHANERRMSK";
    DCACTRL = 0xb0, ReadWrite, "direct cache access", "DCACTRL";
}

/// Bits of [`INTRCTRL`].
pub mod intrctrl {
    pub const MASTER_ENABLE: u8 = 1 << 0;
    pub const MSIX_CONTROL: u8 = 1 << 3;
}

/// Bits of [`DMACAPABILITY`].
pub mod capability {
    pub const FILL: u32 = 1 << 6;
}

/// Bits of [`CHANCTRL`].
pub mod chanctrl {
    pub const INTERRUPT_REARM: u16 = 1 << 0;
    pub const ERROR_COMPLETION: u16 = 1 << 2;
    pub const ANY_ERROR_ABORT: u16 = 1 << 3;
    pub const ERROR_INTERRUPT: u16 = 1 << 4;
    pub const IN_USE: u16 = 1 << 8;
}

/// Bits of [`CHANCMD`].
pub mod chancmd {
    pub const SUSPEND: u8 = 1 << 2;
    pub const RESET: u8 = 1 << 5;
}

/// CHANSTS, and the word that is written on completion: a descriptor's address with the state below it.
pub mod chansts {
    pub const STATE: u64 = 7;
    pub const ADDRESS: u64 = !0x3f;
    pub const ACTIVE: u64 = 0;
    pub const DONE: u64 = 1;
    pub const SUSPENDED: u64 = 2;
    pub const HALTED: u64 = 3;
    pub const ARMED: u64 = 4;
}

/// Bits of [`CHANERR`].
pub mod chanerr {
    pub const SOURCE_ADDRESS: u32 = 1 << 0;
    pub const DESTINATION_ADDRESS: u32 = 1 << 1;
    pub const NEXT_ADDRESS: u32 = 1 << 2;
    pub const CHAIN_ADDRESS: u32 = 1 << 4;
    pub const READ_DATA: u32 = 1 << 8;
    pub const WRITE_DATA: u32 = 1 << 9;
    pub const CONTROL: u32 = 1 << 10;
    pub const LENGTH: u32 = 1 << 11;
    pub const COMPLETION_ADDRESS: u32 = 1 << 12;
}
