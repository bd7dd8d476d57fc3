//! Descriptors of I/OAT: layouts, no logic (the kernel's `drivers/dma/ioat/hw.h`). One has 64 bytes; the last 32 are software's own.

use pollring::iova::Iova;
use zerocopy::{Immutable, IntoBytes};

/// Bytes from one descriptor to the next; each is aligned to it.
pub const BYTES: usize = 64;

/// Offset of the address of the next descriptor, 8 bytes.
pub const NEXT: usize = 24;

/// The words of a copy that change from one use of a slot to the next.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
pub struct CopyWords {
    /// [`control`], with the length in bits 31:0.
    pub control: u64,
    /// Read.
    pub source: Iova,
    /// Written.
    pub destination: Iova,
}

/// The same words of a fill.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
pub struct FillWords {
    /// [`control`], with the length in bits 31:0.
    pub control: u64,
    /// Repeated from the first byte of the destination on.
    pub pattern: u64,
    /// Written.
    pub destination: Iova,
}

/// Bits of word 0; the length in bytes lies in bits 31:0.
pub mod control {
    /// Raise an interrupt.
    pub const INTERRUPT: u64 = 1 << 32;
    /// Write CHANSTS to the completion address when done.
    pub const COMPLETION: u64 = 1 << 35;
    /// The next descriptor waits until this one has moved its data.
    pub const FENCE: u64 = 1 << 36;
    /// Moves nothing.
    pub const NULL: u64 = 1 << 37;
    /// Operation in bits 63:56: copy is 0.
    pub const FILL: u64 = 1 << 56;
    /// The operation's field.
    pub const OPERATION: u64 = 0xff << 56;
}

const _: () = assert!(size_of::<CopyWords>() == NEXT && size_of::<FillWords>() == NEXT);
