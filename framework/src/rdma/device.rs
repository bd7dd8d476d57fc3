//! The device: what it can do, who it is on the network, and the maker of everything else.
//!
//! A device has one port and belongs to the control thread. Handles that it gives out ([`ProtectionDomain`],
//! [`AddressHandle`]) are counted: the transport's own object behind one goes when the last handle and the last request that
//! uses it are gone.

use super::{
    Access, CompletionQueue, CqConfig, CqNumber, MemoryRegion, PKey, QpConfig, Qpn, QueuePair, RdmaError,
};
use super::{SharedReceiveQueue, SrqConfig, SrqNumber};
use crate::buffer::Shared;
use crate::bus::Health;
use crate::copy::Fifo;
use bitflags::bitflags;
use std::any::Any;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

bitflags! {
    /// What a transport offers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features: u32 {
        /// Reliable connections.
        const RC = 1;
        /// Unreliable connections.
        const UC = 1 << 1;
        /// Unreliable datagrams.
        const UD = 1 << 2;
        /// Shared receive queues.
        const SRQ = 1 << 3;
        /// Send with invalidate.
        const INVALIDATE = 1 << 4;
        /// Multicast datagrams.
        const MULTICAST = 1 << 5;
        /// The protocol runs on the CPU of this process, by polling.
        const SOFTWARE = 1 << 6;
    }
}

/// Against whom an atomic operation is atomic (`ibv_atomic_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicScope {
    /// There are none.
    None,
    /// Other QPs of this device.
    Device,
    /// Everything that reaches the memory, the CPU included.
    Memory,
}

/// Limits and identity (`ibv_query_device`(3)).
#[derive(Clone, Debug)]
pub struct DeviceAttributes {
    /// The URI that it was opened by.
    pub name: String,
    /// EUI-64 of the node.
    pub node_guid: u64,
    /// What it offers.
    pub features: Features,
    /// Scope of atomics.
    pub atomics: AtomicScope,
    /// Vectors: interrupts of hardware, workers of a software transport.
    pub vectors: u16,
    /// Protection domains.
    pub max_pds: u32,
    /// Memory regions.
    pub max_regions: u32,
    /// Bytes in one region.
    pub max_region_bytes: u64,
    /// Completion queues.
    pub max_cqs: u32,
    /// Entries in one completion queue.
    pub max_cq_entries: u32,
    /// Queue pairs.
    pub max_qps: u32,
    /// Most of each that a queue pair may ask for.
    pub max_qp: super::QpLimits,
    /// Shared receive queues.
    pub max_srqs: u32,
    /// Requests in one shared receive queue.
    pub max_srq_requests: u32,
    /// Address handles.
    pub max_address_handles: u32,
    /// READs and atomics that a QP serves at a time (`max_qp_rd_atom`).
    pub max_responder_resources: u8,
    /// READs and atomics that a QP has outstanding (`max_qp_init_rd_atom`).
    pub max_initiator_depth: u8,
    /// Bytes in one message; 2^31 in InfiniBand.
    pub max_message_bytes: u32,
}

/// Whether a port carries packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// No link, or no address yet.
    Down,
    /// Ready.
    Active,
}

/// The port now (`ibv_query_port`(3)).
#[derive(Clone, Debug)]
pub struct PortAttributes {
    /// Link.
    pub state: PortState,
    /// Largest payload of a packet that the port's own MTU leaves room for.
    pub mtu: Mtu,
    /// Link speed in Mbit/s; 0 when unknown.
    pub speed_mbps: u32,
    /// Its addresses. The order means nothing: choose by address.
    pub gids: Vec<GidEntry>,
    /// Its partitions.
    pub pkeys: Vec<PKey>,
}

/// Payload bytes of a full packet, path MTU in verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    Bytes256 = 1,
    /// 512 bytes.
    Bytes512,
    /// 1024 bytes.
    Bytes1024,
    /// 2048 bytes.
    Bytes2048,
    /// 4096 bytes.
    Bytes4096,
}

impl Mtu {
    /// All, smallest first.
    pub const ALL: [Mtu; 5] = [Mtu::Bytes256, Mtu::Bytes512, Mtu::Bytes1024, Mtu::Bytes2048, Mtu::Bytes4096];

    /// IP, UDP and all transport headers at their longest, and the ICRC (`RXE_MAX_HDR_LENGTH`, drivers/infiniband/sw/rxe).
    pub const HEADER_BYTES: usize = 80;

    /// Bytes.
    pub const fn bytes(self) -> usize {
        128 << self.code()
    }

    /// The code on the wire and in `ibv_mtu`, 1 to 5.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The MTU of a wire code.
    pub fn from_code(code: u8) -> Option<Mtu> {
        Mtu::ALL.into_iter().find(|mtu| mtu.code() == code)
    }

    /// The largest one for a port whose IP packets have at most `port_mtu_bytes`; `None` when not even the smallest fits.
    pub fn within(port_mtu_bytes: usize) -> Option<Mtu> {
        Mtu::ALL.into_iter().rfind(|mtu| mtu.bytes() + Mtu::HEADER_BYTES <= port_mtu_bytes)
    }
}

/// A global identifier; in RoCEv2 an IP address, IPv4 as `::ffff:a.b.c.d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Gid {
        match address {
            IpAddr::V4(address) => Gid(address.to_ipv6_mapped().octets()),
            IpAddr::V6(address) => Gid(address.octets()),
        }
    }
}

impl From<Gid> for IpAddr {
    fn from(gid: Gid) -> IpAddr {
        Ipv6Addr::from(gid.0).to_canonical()
    }
}

/// An address of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The address.
    pub gid: Gid,
    /// The VLAN that it lives in.
    pub vlan: Option<u16>,
}

/// Where packets go (`ibv_ah_attr`). The transport finds the MAC address by itself, and the VLAN from the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// The peer.
    pub destination: Gid,
    /// One of the port's own addresses.
    pub source: Gid,
    /// IPv6 flow label, 20 bits; also what the UDP source port is made from.
    pub flow_label: u32,
    /// Hop limit, or TTL.
    pub hop_limit: u8,
    /// Traffic class, or TOS.
    pub traffic_class: u8,
    /// Priority, 0 to 7, in the VLAN tag if there is one.
    pub service_level: u8,
}

/// A transport's own object behind a handle. It is dropped with the last handle.
pub type Provider = Box<dyn Any + Send + Sync>;

/// A protection domain: regions, queue pairs and address handles work together only within one.
#[derive(Clone)]
pub struct ProtectionDomain(Arc<(u32, Provider)>);

impl ProtectionDomain {
    /// For transports: a new domain.
    pub fn new(number: u32, provider: Provider) -> ProtectionDomain {
        ProtectionDomain(Arc::new((number, provider)))
    }

    /// Its number on the device.
    pub fn number(&self) -> u32 {
        self.0.0
    }

    /// For transports: what they put behind it.
    pub fn provider(&self) -> &(dyn Any + Send + Sync) {
        &*self.0.1
    }

    /// Whether both are the same domain of the same device.
    #[inline]
    pub fn is(&self, other: &ProtectionDomain) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A destination for datagrams.
#[derive(Clone)]
pub struct AddressHandle(Arc<(ProtectionDomain, AddressVector, Provider)>);

impl AddressHandle {
    /// For transports: a new handle.
    pub fn new(pd: ProtectionDomain, vector: AddressVector, provider: Provider) -> AddressHandle {
        AddressHandle(Arc::new((pd, vector, provider)))
    }

    /// Its domain.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.0.0
    }

    /// Where it leads.
    pub fn vector(&self) -> &AddressVector {
        &self.0.1
    }

    /// For transports: what they put behind it.
    pub fn provider(&self) -> &(dyn Any + Send + Sync) {
        &*self.0.2
    }
}

/// What happened beside the requests (`ibv_get_async_event`(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// A QP went to the error state; its [`failure`](QueuePair::failure) says why.
    QpFailed(Qpn),
    /// A QP in RTR received its first packet: the peer is connected (`COMM_EST`).
    QpEstablished(Qpn),
    /// A QP that goes to SQD has nothing outstanding any more.
    SendQueueDrained(Qpn),
    /// A QP in error took its last request from a shared receive queue.
    LastReceive(Qpn),
    /// More completions than the queue holds; its QPs went to error.
    CqOverrun(CqNumber),
    /// A shared receive queue fell below its armed limit.
    SrqLimit(SrqNumber),
    /// A shared receive queue failed.
    SrqFailed(SrqNumber),
    /// The link came up.
    PortActive,
    /// The link went down.
    PortDown,
    /// The port's addresses changed.
    GidsChanged,
    /// The device failed or is gone; see [`Device::health`].
    DeviceFailed,
}

/// A transport's control side.
pub trait Device: Send {
    /// Limits and identity.
    fn attributes(&self) -> &DeviceAttributes;

    /// The port now.
    fn port(&self) -> PortAttributes;

    /// Whether it works.
    fn health(&self) -> Health;

    /// A new protection domain.
    ///
    /// # Errors
    /// No more of them, or refused.
    fn allocate_pd(&mut self) -> Result<ProtectionDomain, RdmaError>;

    /// Lets QPs of `pd` use `memory`, and peers as far as `access` says. Peers name its first byte by `base`. Keys are drawn at
    /// random and are not reused soon.
    ///
    /// # Errors
    /// Rights or addresses that do not fit, memory that the device does not reach, no more regions, or refused.
    fn register(
        &mut self,
        pd: &ProtectionDomain,
        memory: Shared,
        base: u64,
        access: Access,
    ) -> Result<MemoryRegion, RdmaError>;

    /// A completion queue.
    ///
    /// # Errors
    /// Beyond a limit, or refused.
    fn create_cq(&mut self, config: &CqConfig) -> Result<Box<dyn CompletionQueue>, RdmaError>;

    /// A shared receive queue.
    ///
    /// # Errors
    /// Beyond a limit, not offered, or refused.
    fn create_srq(
        &mut self,
        pd: &ProtectionDomain,
        config: &SrqConfig,
    ) -> Result<Box<dyn SharedReceiveQueue>, RdmaError>;

    /// A queue pair in RESET, with a random number.
    ///
    /// # Errors
    /// Beyond a limit, not offered, an unknown CQ or SRQ, or refused.
    fn create_qp(
        &mut self,
        pd: &ProtectionDomain,
        config: &QpConfig,
    ) -> Result<Box<dyn QueuePair>, RdmaError>;

    /// A destination for datagrams. The peer's MAC address may be looked up later, by the first send.
    ///
    /// # Errors
    /// A source that is not the port's, no more of them, or refused.
    fn create_ah(
        &mut self,
        pd: &ProtectionDomain,
        vector: &AddressVector,
    ) -> Result<AddressHandle, RdmaError>;

    /// Adds what happened since, as far as there is room; gives how many.
    fn events(&mut self, events: &mut Fifo<AsyncEvent>) -> usize;

    /// An eventfd that is readable while there are events; `None` when the device must be asked.
    fn event_fd(&self) -> Option<BorrowedFd<'_>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_mtus_leave_room_for_headers() {
        assert_eq!(Mtu::within(1500), Some(Mtu::Bytes1024));
        assert_eq!((Mtu::within(4175), Mtu::within(4176)), (Some(Mtu::Bytes2048), Some(Mtu::Bytes4096)));
        assert_eq!((Mtu::within(335), Mtu::within(336)), (None, Some(Mtu::Bytes256)));
        for mtu in Mtu::ALL {
            assert_eq!(Mtu::from_code(mtu.code()), Some(mtu));
        }
        assert_eq!((Mtu::from_code(0), Mtu::from_code(6), Mtu::Bytes1024.bytes()), (None, None, 1024));
    }

    #[test]
    fn addresses_are_gids() {
        for address in ["10.1.2.3", "fe80::1", "::1"] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(IpAddr::from(Gid::from(address)), address);
        }
        assert_eq!(Gid::from("10.1.2.3".parse::<IpAddr>().unwrap()).0[10..], [0xff, 0xff, 10, 1, 2, 3]);
    }
}
