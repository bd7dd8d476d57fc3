//! Messages of vfio-user 0.0, as a client writes and reads them. Bodies are structures of Linux's `vfio.h` where it has them; numbers have
//! the host's byte order, since both ends are on one machine.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

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

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Version {
    pub major: u16,
    pub minor: u16,
}

/// What this client can: nothing beyond the protocol's defaults but to take the descriptors of a region.
pub(super) const CAPABILITIES: &[u8] =
    b"{\"capabilities\":{\"max_msg_fds\":16,\"max_data_xfer_size\":1048576}}\0";

/// Longest version data that is read, bytes.
pub(super) const MOST_VERSION_BYTES: usize = 4096;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
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

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct DeviceInfo {
    pub argument_bytes: u32,
    pub flags: u32,
    pub regions: u32,
    pub interrupts: u32,
}

/// Flags of [`DeviceInfo`].
pub(super) const DEVICE_RESET: u32 = 1;
pub(super) const DEVICE_PCI: u32 = 2;

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RegionInfo {
    pub argument_bytes: u32,
    pub flags: u32,
    pub index: u32,
    pub capabilities_at: u32,
    pub bytes: u64,
    pub offset: u64,
}

/// Room for a region's capabilities: 255 areas that may be mapped.
pub(super) const MOST_REGION_BYTES: usize = size_of::<RegionInfo>() + 4096;

/// Flags of [`RegionInfo`].
pub(super) const REGION_MMAP: u32 = 1 << 2;
pub(super) const REGION_CAPABILITIES: u32 = 1 << 3;

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct InterruptInfo {
    pub argument_bytes: u32,
    pub flags: u32,
    pub index: u32,
    pub count: u32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct SetInterrupts {
    pub argument_bytes: u32,
    pub flags: u32,
    pub index: u32,
    pub start: u32,
    pub count: u32,
}

/// Flags of [`SetInterrupts`].
pub(super) const DATA_NONE: u32 = 1;
pub(super) const DATA_EVENTFD: u32 = 1 << 2;
pub(super) const TRIGGER: u32 = 1 << 5;

#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RegionAccess {
    pub offset: u64,
    pub region: u32,
    pub count: u32,
}

const _: () = assert!(HEADER_BYTES == 16 && size_of::<DmaMap>() == 32 && size_of::<DmaUnmap>() == 24);
const _: () = assert!(size_of::<RegionInfo>() == 32 && size_of::<SetInterrupts>() == 20);
