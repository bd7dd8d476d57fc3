//! Messages of vfio-user, version 0.1 (the protocol's specification in libvfio-user's and QEMU's documentation; most bodies are the
//! structures of Linux's `vfio.h`). Numbers have the host's byte order: both ends are on one machine.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The errno values that are answered (errno(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Refusal {
    Invalid = 22,
    Unsupported = 95,
    TooLong = 90,
}

/// Commands.
pub(super) mod command {
    pub(crate) const VERSION: u16 = 1;
    pub(crate) const DMA_MAP: u16 = 2;
    pub(crate) const DMA_UNMAP: u16 = 3;
    pub(crate) const GET_INFO: u16 = 4;
    pub(crate) const GET_REGION_INFO: u16 = 5;
    pub(crate) const GET_IRQ_INFO: u16 = 7;
    pub(crate) const SET_IRQS: u16 = 8;
    pub(crate) const REGION_READ: u16 = 9;
    pub(crate) const REGION_WRITE: u16 = 10;
    pub(crate) const RESET: u16 = 13;
}

/// Header flags.
pub(super) mod flag {
    pub(crate) const TYPE_MASK: u32 = 0xf;
    pub(crate) const REPLY: u32 = 1;
    pub(crate) const NO_REPLY: u32 = 1 << 4;
    pub(crate) const ERROR: u32 = 1 << 5;
}

/// What every message begins with.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Header {
    pub id: u16,
    pub command: u16,
    /// With the header.
    pub bytes: u32,
    pub flags: u32,
    pub error: u32,
}

/// Size of a header.
pub(super) const HEADER_BYTES: usize = size_of::<Header>();

/// Most bytes that one region access moves.
pub(super) const MOST_DATA_BYTES: usize = 1 << 20;

/// Longest message: a region write.
pub(super) const MOST_BYTES: usize = HEADER_BYTES + size_of::<RegionAccess>() + MOST_DATA_BYTES;

/// Most descriptors that come with one message.
pub(super) const MOST_FDS: usize = 16;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Version {
    pub major: u16,
    pub minor: u16,
}

#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct DmaMap {
    pub argument_bytes: u32,
    pub flags: u32,
    pub offset: u64,
    pub iova: u64,
    pub bytes: u64,
}

/// Flags of [`DmaMap`].
pub(super) const MAP_READ: u32 = 1;
pub(super) const MAP_WRITE: u32 = 2;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct DmaUnmap {
    pub argument_bytes: u32,
    pub flags: u32,
    pub iova: u64,
    pub bytes: u64,
}

/// Flags of [`DmaUnmap`].
pub(super) const UNMAP_ALL: u32 = 2;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct DeviceInfo {
    pub argument_bytes: u32,
    pub flags: u32,
    pub regions: u32,
    pub interrupts: u32,
}

/// Flags of [`DeviceInfo`]: it can be reset, it is a PCI function.
pub(super) const DEVICE_FLAGS: u32 = 1 | 2;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RegionInfo {
    pub argument_bytes: u32,
    pub flags: u32,
    pub index: u32,
    pub capabilities_at: u32,
    pub bytes: u64,
    pub offset: u64,
}

/// Flags of [`RegionInfo`]: it can be read and written.
pub(super) const REGION_FLAGS: u32 = 1 | 2;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct InterruptInfo {
    pub argument_bytes: u32,
    pub flags: u32,
    pub index: u32,
    pub count: u32,
}

/// Flags of [`InterruptInfo`]: eventfds are taken.
pub(super) const INTERRUPT_FLAGS: u32 = 1;

/// Indices of interrupts: INTx, MSI, MSI-X, error, request.
pub(super) const MSI: u32 = 1;
pub(super) const MSIX: u32 = 2;
pub(super) const ERROR: u32 = 3;
pub(super) const INTERRUPTS: u32 = 5;

#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct SetInterrupts {
    pub argument_bytes: u32,
    pub flags: u32,
    pub index: u32,
    pub start: u32,
    pub count: u32,
}

/// Flags of [`SetInterrupts`]: what comes with it, and what to do with it.
pub(super) const DATA_NONE: u32 = 1;
pub(super) const DATA_BOOL: u32 = 1 << 1;
pub(super) const DATA_EVENTFD: u32 = 1 << 2;
pub(super) const TRIGGER: u32 = 1 << 5;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RegionAccess {
    pub offset: u64,
    pub region: u32,
    pub count: u32,
}

const _: () = assert!(HEADER_BYTES == 16 && size_of::<DmaMap>() == 32 && size_of::<DmaUnmap>() == 24);
const _: () = assert!(size_of::<RegionInfo>() == 32 && size_of::<SetInterrupts>() == 20);
