//! What a device says about a received frame. It lies in arrays of the CPU's own, so it can be read without touching the packet,
//! and no device can change it later.

/// Hot metadata of one frame. Zero means unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// RSS hash.
    pub hash: u32,
    /// VLAN tag that the device stripped, or 0.
    pub vlan: u16,
    /// Packet type and checksum results, as the port's driver documents.
    pub flags: u16,
    /// When the device received it, in ns of the port's clock.
    pub timestamp_ns: u64,
}
