//! Registers of QEMU's `edu`, in BAR 0 (QEMU's `docs/specs/edu.rst` and `hw/misc/edu.c`). A 32-bit write of an address clears its upper
//! half.

use pollring::register_table;

register_table! {
    IDENTITY = 0x00, ReadOnly, "0xed in bits 7:0, the version in bits 31:16", "edu.rst, 0x00";
    SOURCE = 0x80, ReadWrite, "where a transfer reads, 64 bits", "edu.rst, 0x80";
    DESTINATION = 0x88, ReadWrite, "where it writes, 64 bits", "edu.rst, 0x88";
    COUNT = 0x90, ReadWrite, "its length in bytes, 64 bits", "edu.rst, 0x90";
    COMMAND = 0x98, ReadWrite, "starts it; no write counts while one is under way", "edu.rst, 0x98";
}

/// [`COMMAND`]: start; set until the transfer has ended.
pub const START: u32 = 1 << 0;

/// [`COMMAND`]: from the buffer to memory; the other way without it.
pub const TO_MEMORY: u32 = 1 << 1;

/// What the device calls the first byte of its buffer.
pub const BUFFER: u32 = 0x40000;

/// Bytes of that buffer. A transfer beyond it overruns QEMU's own memory, or ends QEMU.
pub const BUFFER_BYTES: usize = 4096;

/// The highest address that the device reaches (QEMU's property `dma_mask`, as it is by default).
pub const HIGHEST_ADDRESS: u64 = (1 << 28) - 1;
