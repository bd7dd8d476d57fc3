//! Where the headers of a received frame are: Ethernet with at most one VLAN tag, IPv4 or IPv6, TCP or UDP.
//!
//! A frame whose headers do not fit into it, or whose lengths contradict each other, has no layout. Fragments and IPv6 with extension
//! headers have no transport header.

use std::ops::Range;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLAN: u16 = 0x8100;
/// Protocol numbers (RFC 791, RFC 8200).
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    V4,
    V6,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Udp,
}

/// Offsets in a frame; all lie inside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub network: Network,
    pub network_at: usize,
    /// Both addresses.
    pub addresses: Range<usize>,
    pub transport: Option<Transport>,
    pub transport_at: usize,
    /// Where the packet ends; padding follows.
    pub end: usize,
}

fn number(frame: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?))
}

/// The ethertype of what the frame carries, and where that begins.
fn payload(frame: &[u8]) -> Option<(u16, usize)> {
    match number(frame, 12)? {
        VLAN => Some((number(frame, 16)?, 18)),
        kind => Some((kind, 14)),
    }
}

/// Where the headers of `frame` are.
pub(crate) fn layout(frame: &[u8]) -> Option<Layout> {
    match payload(frame)? {
        (IPV4, at) => v4(frame, at),
        (IPV6, at) => v6(frame, at),
        _ => None,
    }
}

/// RFC 791.
fn v4(frame: &[u8], at: usize) -> Option<Layout> {
    let header: [u8; 20] = *frame.get(at..)?.first_chunk()?;
    let transport_at = at + usize::from(header[0] & 0xf) * 4;
    let end = at + usize::from(u16::from_be_bytes([header[2], header[3]]));
    let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
    if transport_at < at + 20 || end < transport_at || end > frame.len() {
        return None;
    }
    let transport = if fragment { None } else { transport(header[9]) };
    let addresses = at + 12..at + 20;
    Some(Layout { network: Network::V4, network_at: at, addresses, transport, transport_at, end })
}

/// RFC 8200.
fn v6(frame: &[u8], at: usize) -> Option<Layout> {
    let header: [u8; 40] = *frame.get(at..)?.first_chunk()?;
    let transport_at = at + 40;
    let end = transport_at + usize::from(u16::from_be_bytes([header[4], header[5]]));
    if end > frame.len() {
        return None;
    }
    let (transport, addresses) = (transport(header[6]), at + 8..at + 40);
    Some(Layout { network: Network::V6, network_at: at, addresses, transport, transport_at, end })
}

fn transport(protocol: u8) -> Option<Transport> {
    match protocol {
        TCP => Some(Transport::Tcp),
        UDP => Some(Transport::Udp),
        _ => None,
    }
}
