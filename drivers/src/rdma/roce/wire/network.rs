//! From Ethernet to UDP, both ways, by smoltcp's formats. The VLAN tag, which smoltcp does not have, is four bytes here.
//!
//! [`classify`] says whose a frame is before it says whether it is good: a frame that is not RoCEv2 belongs to the app and is
//! never counted as bad. A [`Path`] holds finished headers for one destination; a packet sets lengths and the IP checksum.

use super::super::counters::DropReason;
use super::UDP_PORT;
use pollring::port::MacAddress;
use pollring::rdma::{AddressVector, Gid};
use smoltcp::wire::{EthernetAddress, EthernetFrame, EthernetProtocol, IpAddress, IpProtocol};
use smoltcp::wire::{Ipv4Packet, Ipv6Packet, UdpPacket};
use std::net::{IpAddr, Ipv6Addr};

const ETHERNET_BYTES: usize = 14;
const VLAN_BYTES: usize = 4;
const VLAN_TYPE: u16 = 0x8100;
const UDP_BYTES: usize = 8;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;

/// Ethernet, VLAN tag, IPv6, UDP.
pub(crate) const MAX_BYTES: usize = ETHERNET_BYTES + VLAN_BYTES + IPV6_BYTES + UDP_BYTES;

/// What the network headers of a packet said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// From.
    pub(crate) source: IpAddr,
    /// To.
    pub(crate) destination: IpAddr,
    /// VLAN, if tagged.
    pub(crate) vlan: Option<u16>,
    /// Whether a switch marked congestion.
    pub(crate) marked: bool,
    /// What a datagram's receiver finds in front: IPv6, or 20 zero bytes and IPv4.
    pub(crate) network_header: [u8; IPV6_BYTES],
}

/// Whose a frame is.
pub(crate) enum Classified<'a> {
    /// A RoCEv2 packet, from its IP header of so many bytes to its CRC.
    Roce(Arrival, &'a [u8], usize),
    /// ARP, without the Ethernet header.
    Arp(Option<u16>, &'a [u8]),
    /// ICMPv6 with its IPv6 header, which may be neighbour discovery.
    Icmp6(Option<u16>, &'a [u8]),
    /// Somebody else's.
    Foreign,
}

/// Decides about a frame for a port with the address `own`.
///
/// # Errors
/// It is RoCEv2 and wrong.
#[inline]
pub(crate) fn classify(frame: &[u8], own: MacAddress) -> Result<Classified<'_>, DropReason> {
    let Ok(ethernet) = EthernetFrame::new_checked(frame) else { return Ok(Classified::Foreign) };
    let unicast = ethernet.dst_addr().0 == own.0;
    if !unicast && ethernet.dst_addr().0[0] & 1 == 0 {
        return Ok(Classified::Foreign);
    }
    let (mut kind, mut vlan) = (u16::from(ethernet.ethertype()), None);
    let mut rest = &frame[ETHERNET_BYTES..];
    if kind == VLAN_TYPE {
        let Some((tag, behind)) = rest.split_first_chunk::<VLAN_BYTES>() else {
            return Ok(Classified::Foreign);
        };
        vlan = Some(u16::from_be_bytes([tag[0], tag[1]]) & 0xfff);
        (kind, rest) = (u16::from_be_bytes([tag[2], tag[3]]), behind);
    }
    match EthernetProtocol::from(kind) {
        EthernetProtocol::Ipv4 if unicast => ipv4(vlan, rest),
        EthernetProtocol::Ipv6 => ipv6(vlan, rest, unicast),
        EthernetProtocol::Arp => Ok(Classified::Arp(vlan, rest)),
        _ => Ok(Classified::Foreign),
    }
}

fn ipv4(vlan: Option<u16>, rest: &[u8]) -> Result<Classified<'_>, DropReason> {
    let Ok(ip) = Ipv4Packet::new_checked(rest) else { return Ok(Classified::Foreign) };
    let header = usize::from(ip.header_len());
    if ip.version() != 4 || ip.next_header() != IpProtocol::Udp || ip.frag_offset() != 0 {
        return Ok(Classified::Foreign);
    }
    let packet = &rest[..usize::from(ip.total_len())];
    if !is_roce(packet.get(header..)) {
        return Ok(Classified::Foreign);
    }
    if ip.more_frags() {
        return Err(DropReason::Fragment);
    }
    if header != IPV4_BYTES || !ip.verify_checksum() {
        return Err(DropReason::Network);
    }
    let (source, destination) = (ip.src_addr(), ip.dst_addr());
    udp(&packet[header..], source.into(), destination.into())?;
    let mut network_header = [0; IPV6_BYTES];
    network_header[IPV6_BYTES - IPV4_BYTES..].copy_from_slice(&packet[..IPV4_BYTES]);
    let (source, destination) = (source.into(), destination.into());
    let arrival = Arrival { source, destination, vlan, marked: ip.ecn() == 3, network_header };
    Ok(Classified::Roce(arrival, packet, header))
}

fn ipv6(vlan: Option<u16>, rest: &[u8], unicast: bool) -> Result<Classified<'_>, DropReason> {
    let Ok(ip) = Ipv6Packet::new_checked(rest) else { return Ok(Classified::Foreign) };
    if ip.version() != 6 {
        return Ok(Classified::Foreign);
    }
    let packet = &rest[..ip.total_len()];
    match ip.next_header() {
        IpProtocol::Icmpv6 => return Ok(Classified::Icmp6(vlan, packet)),
        IpProtocol::Udp if unicast && is_roce(packet.get(IPV6_BYTES..)) => {}
        _ => return Ok(Classified::Foreign),
    }
    let (source, destination) = (ip.src_addr(), ip.dst_addr());
    udp(&packet[IPV6_BYTES..], source.into(), destination.into())?;
    let mut network_header = [0; IPV6_BYTES];
    network_header.copy_from_slice(&packet[..IPV6_BYTES]);
    let (source, destination) = (source.into(), destination.into());
    let arrival = Arrival { source, destination, vlan, marked: ip.traffic_class() & 3 == 3, network_header };
    Ok(Classified::Roce(arrival, packet, IPV6_BYTES))
}

#[inline]
fn is_roce(udp: Option<&[u8]>) -> bool {
    udp.and_then(|udp| udp.get(2..4)).is_some_and(|port| port == UDP_PORT.to_be_bytes())
}

/// Checks a UDP header; a checksum of zero says nothing, with IPv6 too, as Linux sends it.
fn udp(bytes: &[u8], source: IpAddress, destination: IpAddress) -> Result<(), DropReason> {
    let udp = UdpPacket::new_checked(bytes).map_err(|_| DropReason::Network)?;
    let whole = usize::from(udp.len()) == bytes.len();
    let summed = udp.checksum() == 0 || udp.verify_checksum(&source, &destination);
    if whole && summed { Ok(()) } else { Err(DropReason::Network) }
}

/// The way to a peer, as headers.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    /// From.
    pub(crate) source: IpAddr,
    /// To.
    pub(crate) destination: IpAddr,
    /// In which VLAN.
    pub(crate) vlan: Option<u16>,
    template: [u8; MAX_BYTES],
    link_bytes: u8,
    ip_bytes: u8,
}

impl Path {
    /// Headers for `vector` from a port with the address `own`, in the source address's VLAN. `flow` spreads queue pairs over
    /// UDP source ports when the vector has no flow label.
    pub(crate) fn new(vector: &AddressVector, own: MacAddress, vlan: Option<u16>, flow: u32) -> Path {
        let (source, destination) = (address(vector.source), address(vector.destination));
        let link_bytes = ETHERNET_BYTES + vlan.map_or(0, |_| VLAN_BYTES);
        let ip_bytes = if source.is_ipv4() { IPV4_BYTES } else { IPV6_BYTES };
        let mut path = Path {
            source,
            destination,
            vlan,
            template: [0; MAX_BYTES],
            link_bytes: link_bytes as u8,
            ip_bytes: ip_bytes as u8,
        };
        let protocol = if source.is_ipv4() { EthernetProtocol::Ipv4 } else { EthernetProtocol::Ipv6 };
        link(&mut path.template, own, vlan.map(|id| (id, vector.service_level)), protocol);
        path.internet(vector);
        let udp = &mut path.template[link_bytes + ip_bytes..];
        let mut udp = UdpPacket::new_unchecked(udp);
        udp.set_src_port(source_port(vector.flow_label, flow));
        udp.set_dst_port(UDP_PORT);
        path
    }

    fn internet(&mut self, vector: &AddressVector) {
        let ip = &mut self.template[usize::from(self.link_bytes)..];
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut ip = Ipv4Packet::new_unchecked(ip);
                ip.set_version(4);
                ip.set_header_len(IPV4_BYTES as u8);
                ip.set_dscp(vector.traffic_class >> 2);
                ip.set_ecn(vector.traffic_class & 3);
                ip.clear_flags();
                ip.set_dont_frag(true);
                ip.set_hop_limit(vector.hop_limit);
                ip.set_next_header(IpProtocol::Udp);
                ip.set_src_addr(source);
                ip.set_dst_addr(destination);
            }
            (source, destination) => {
                let mut ip = Ipv6Packet::new_unchecked(ip);
                ip.set_version(6);
                ip.set_traffic_class(vector.traffic_class);
                ip.set_flow_label(vector.flow_label & 0xf_ffff);
                ip.set_next_header(IpProtocol::Udp);
                ip.set_hop_limit(vector.hop_limit);
                ip.set_src_addr(as_ipv6(source));
                ip.set_dst_addr(as_ipv6(destination));
            }
        }
    }

    /// Bytes in front of the transport headers.
    pub(crate) fn bytes(&self) -> usize {
        usize::from(self.link_bytes) + self.ip_bytes() + UDP_BYTES
    }

    /// Bytes in front of the IP header.
    pub(crate) fn link_bytes(&self) -> usize {
        usize::from(self.link_bytes)
    }

    /// Bytes of the IP header.
    pub(crate) fn ip_bytes(&self) -> usize {
        usize::from(self.ip_bytes)
    }

    /// Writes the headers of a packet with `transport_bytes` behind UDP, to the neighbour `mac`; `out` holds
    /// [`bytes`](Path::bytes) at least.
    #[inline]
    pub(crate) fn write(&self, mac: MacAddress, transport_bytes: usize, out: &mut [u8]) {
        let (link_bytes, ip_bytes, total) = (self.link_bytes(), self.ip_bytes(), self.bytes());
        out[..total].copy_from_slice(&self.template[..total]);
        out[..6].copy_from_slice(&mac.0);
        let udp_bytes = (transport_bytes + UDP_BYTES) as u16;
        if ip_bytes == IPV4_BYTES {
            let mut ip = Ipv4Packet::new_unchecked(&mut out[link_bytes..]);
            ip.set_total_len(udp_bytes + IPV4_BYTES as u16);
            ip.fill_checksum();
        } else {
            Ipv6Packet::new_unchecked(&mut out[link_bytes..]).set_payload_len(udp_bytes);
        }
        UdpPacket::new_unchecked(&mut out[link_bytes + ip_bytes..]).set_len(udp_bytes);
    }
}

/// Writes an Ethernet header, with a tag of VLAN id and priority if given; the destination is left as it is.
pub(crate) fn link(
    out: &mut [u8],
    own: MacAddress,
    tag: Option<(u16, u8)>,
    protocol: EthernetProtocol,
) -> usize {
    let mut ethernet = EthernetFrame::new_unchecked(&mut *out);
    ethernet.set_src_addr(EthernetAddress(own.0));
    ethernet.set_ethertype(protocol);
    let Some((id, priority)) = tag else { return ETHERNET_BYTES };
    ethernet.set_ethertype(EthernetProtocol::from(VLAN_TYPE));
    let control = id & 0xfff | u16::from(priority & 7) << 13;
    out[ETHERNET_BYTES..ETHERNET_BYTES + 2].copy_from_slice(&control.to_be_bytes());
    let kind = u16::from(protocol).to_be_bytes();
    out[ETHERNET_BYTES + 2..ETHERNET_BYTES + VLAN_BYTES].copy_from_slice(&kind);
    ETHERNET_BYTES + VLAN_BYTES
}

fn as_ipv6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// The IP address of a GID.
pub(crate) fn address(gid: Gid) -> IpAddr {
    IpAddr::from(gid)
}

/// From a flow label as rdma-core's `ibv_flow_label_to_udp_sport` does, else from the queue pair.
fn source_port(flow_label: u32, flow: u32) -> u16 {
    let label = if flow_label == 0 { flow.wrapping_mul(0x9e37_79b1) >> 12 } else { flow_label };
    0xc000 | ((label & 0x3fff) ^ (label >> 14 & 0x3f)) as u16
}
