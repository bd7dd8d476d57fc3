//! What a transmit descriptor asks for beside sending: checksums, segmentation, a VLAN tag (82576 datasheet 7.2.2, 7.2.4, 7.2.5).
//!
//! A context descriptor says where the headers are; the first data descriptor of a packet says what to do with them. The device does
//! what silicon does and no more: it adds to the checksum that software left in the transport header, so a driver that leaves the
//! wrong one there sends a wrong checksum.

use super::checksum::{Sum, crc32c};

/// Bits of word 1 of an advanced transmit descriptor (7.2.2.2, 7.2.2.3).
pub(super) mod bits {
    /// Context descriptor: type 2 in bits 23:20 and the extension bit.
    pub(crate) const CONTEXT: u64 = 2 << 20 | 1 << 29;
    pub(crate) const IS_IPV4: u64 = 1 << 10;
    pub(crate) const TRANSPORT_SHIFT: u32 = 11;
    pub(crate) const TRANSPORT_LENGTH_SHIFT: u32 = 40;
    pub(crate) const SEGMENT_SHIFT: u32 = 48;
    /// Data descriptor: insert a VLAN tag, segment.
    pub(crate) const INSERT_VLAN: u64 = 1 << 30;
    pub(crate) const SEGMENT: u64 = 1 << 31;
    pub(crate) const CONTEXT_SHIFT: u32 = 36;
    pub(crate) const INSERT_IP: u64 = 1 << 40;
    pub(crate) const INSERT_TRANSPORT: u64 = 1 << 41;
}

/// Contexts that a queue keeps.
pub(super) const CONTEXTS: usize = 2;

/// Longest transport header that is segmented.
const LONGEST_TRANSPORT_HEADER: usize = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Udp,
    Tcp,
    Sctp,
    Reserved,
}

/// A context descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context {
    vlan: u16,
    mac_bytes: usize,
    ip_bytes: usize,
    is_ipv4: bool,
    transport: Transport,
    transport_bytes: usize,
    segment_bytes: usize,
}

impl Context {
    /// Which of the queue's contexts it is, and what it says.
    pub(super) fn parse([low, high]: [u64; 2]) -> (usize, Context) {
        let transport = match high >> bits::TRANSPORT_SHIFT & 3 {
            0 => Transport::Udp,
            1 => Transport::Tcp,
            2 => Transport::Sctp,
            _ => Transport::Reserved,
        };
        let context = Context {
            vlan: (low >> 16) as u16,
            mac_bytes: (low >> 9 & 0x7f) as usize,
            ip_bytes: (low & 0x1ff) as usize,
            is_ipv4: high & bits::IS_IPV4 != 0,
            transport,
            transport_bytes: (high >> bits::TRANSPORT_LENGTH_SHIFT & 0xff) as usize,
            segment_bytes: (high >> bits::SEGMENT_SHIFT) as usize,
        };
        ((high >> bits::CONTEXT_SHIFT & 1) as usize, context)
    }

    fn transport_at(&self) -> usize {
        self.mac_bytes + self.ip_bytes
    }

    /// Bytes of the headers that every segment repeats.
    pub(super) fn header_bytes(&self) -> usize {
        self.transport_at() + self.transport_bytes
    }

    fn checksum_at(&self) -> usize {
        let field = match self.transport {
            Transport::Udp => 6,
            Transport::Tcp => 16,
            Transport::Sctp | Transport::Reserved => 8,
        };
        self.transport_at() + field
    }
}

/// What the first data descriptor of a packet asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Request(u64);

impl Request {
    #[inline]
    pub(super) fn of(command: u64) -> Request {
        let asked = bits::INSERT_VLAN | bits::SEGMENT | bits::INSERT_IP | bits::INSERT_TRANSPORT;
        Request(if command & asked == 0 { 0 } else { command })
    }

    #[inline]
    pub(super) fn is_none(self) -> bool {
        self.0 == 0
    }

    pub(super) fn segments(self) -> bool {
        self.0 & bits::SEGMENT != 0
    }

    pub(super) fn context(self) -> usize {
        (self.0 >> bits::CONTEXT_SHIFT & 1) as usize
    }

    /// The tag to insert.
    pub(super) fn vlan(self, context: &Context) -> Option<u16> {
        (self.0 & bits::INSERT_VLAN != 0).then_some(context.vlan)
    }

    fn inserts_ip(self) -> bool {
        self.0 & bits::INSERT_IP != 0
    }

    fn inserts_transport(self) -> bool {
        self.0 & bits::INSERT_TRANSPORT != 0
    }
}

/// The context does not fit the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Misfit;

/// TCP flags that a segment keeps: first, middle, last (8.12).
pub(super) type FlagMasks = [u16; 3];

/// Inserts checksums into a packet that is not segmented.
pub(super) fn insert_checksums(frame: &mut [u8], context: &Context, request: Request) -> Result<(), Misfit> {
    if request.inserts_ip() {
        insert_ip_checksum(frame, context)?;
    }
    if request.inserts_transport() {
        insert_transport_checksum(frame, context, 0)?;
    }
    Ok(())
}

fn insert_ip_checksum(frame: &mut [u8], context: &Context) -> Result<(), Misfit> {
    if !context.is_ipv4 || context.ip_bytes < 20 {
        return Err(Misfit);
    }
    let header = frame.get_mut(context.mac_bytes..context.transport_at()).ok_or(Misfit)?;
    header[10..12].fill(0);
    let sum = !Sum::default().add(header).folded();
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    Ok(())
}

/// Sums from the transport header to the end, with what software left in the field, and `more`.
fn insert_transport_checksum(frame: &mut [u8], context: &Context, more: u64) -> Result<(), Misfit> {
    let (start, field) = (context.transport_at(), context.checksum_at());
    let width = if context.transport == Transport::Sctp { 4 } else { 2 };
    if start == 0 || field + width > frame.len() {
        return Err(Misfit);
    }
    match context.transport {
        Transport::Reserved => return Err(Misfit),
        Transport::Sctp => {
            frame[field..field + 4].fill(0);
            let crc = crc32c(&frame[start..]);
            frame[field..field + 4].copy_from_slice(&crc.to_le_bytes());
        }
        Transport::Tcp | Transport::Udp => {
            let sum = !Sum::default().add(&frame[start..]).add_number(more).folded();
            // In UDP 0 says that there is no checksum (RFC 768).
            let sum = if sum == 0 && context.transport == Transport::Udp { u16::MAX } else { sum };
            frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
        }
    }
    Ok(())
}

/// Cuts a packet into segments, each with the headers, and passes each to `take`; gives how many they were.
pub(super) fn segment(
    frame: &[u8],
    context: &Context,
    request: Request,
    masks: FlagMasks,
    mut take: impl FnMut(Vec<u8>),
) -> Result<usize, Misfit> {
    let header_bytes = context.header_bytes();
    let shortest = if context.transport == Transport::Tcp { 20 } else { 8 };
    let ip_bytes = if context.is_ipv4 { 20 } else { 40 };
    let fits = matches!(context.transport, Transport::Tcp | Transport::Udp)
        && (shortest..=LONGEST_TRANSPORT_HEADER).contains(&context.transport_bytes)
        && context.ip_bytes >= ip_bytes
        && context.segment_bytes > 0
        && frame.len() > header_bytes;
    if !fits {
        return Err(Misfit);
    }
    let (header, payload) = frame.split_at(header_bytes);
    let count = payload.len().div_ceil(context.segment_bytes);
    for (number, part) in payload.chunks(context.segment_bytes).enumerate() {
        let mut segment = [header, part].concat();
        set_network(&mut segment, context, number, request)?;
        if context.transport == Transport::Tcp {
            let mask = match (number == 0, number + 1 == count) {
                (true, true) => u16::MAX,
                (true, false) => masks[0],
                (false, false) => masks[1],
                (false, true) => masks[2],
            };
            set_tcp(&mut segment[context.transport_at()..], number * context.segment_bytes, mask);
        } else {
            let bytes = (segment.len() - context.transport_at()) as u16;
            let at = context.transport_at() + 4;
            segment[at..at + 2].copy_from_slice(&bytes.to_be_bytes());
        }
        if request.inserts_transport() {
            // The length of the pseudo header is the device's to add (7.2.4).
            let bytes = (segment.len() - context.transport_at()) as u64;
            insert_transport_checksum(&mut segment, context, bytes)?;
        }
        take(segment);
    }
    Ok(count)
}

/// Length, identification and checksum of IPv4, or the length of IPv6.
fn set_network(segment: &mut [u8], context: &Context, number: usize, request: Request) -> Result<(), Misfit> {
    let bytes = segment.len() - context.mac_bytes;
    let header = &mut segment[context.mac_bytes..];
    if !context.is_ipv4 {
        header[4..6].copy_from_slice(&((bytes - 40) as u16).to_be_bytes());
        return Ok(());
    }
    header[2..4].copy_from_slice(&(bytes as u16).to_be_bytes());
    let identification = u16::from_be_bytes([header[4], header[5]]).wrapping_add(number as u16);
    header[4..6].copy_from_slice(&identification.to_be_bytes());
    if request.inserts_ip() { insert_ip_checksum(segment, context) } else { Ok(()) }
}

/// Sequence number and flags.
fn set_tcp(header: &mut [u8], offset: usize, mask: u16) {
    if let Some(field) = header.get_mut(4..8).and_then(|field| field.first_chunk_mut::<4>()) {
        *field = u32::from_be_bytes(*field).wrapping_add(offset as u32).to_be_bytes();
    }
    if let Some(field) = header.get_mut(12..14).and_then(|field| field.first_chunk_mut::<2>()) {
        // The upper four bits are the header's length.
        *field = (u16::from_be_bytes(*field) & (mask | 0xf000)).to_be_bytes();
    }
}

/// Inserts a VLAN tag behind the addresses.
pub(super) fn insert_tag(frame: &mut Vec<u8>, ethertype: u16, tag: u16) {
    if frame.len() >= 12 {
        let bytes = [ethertype.to_be_bytes(), tag.to_be_bytes()].concat();
        frame.splice(12..12, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{checksum, others::rxcsum};
    use super::*;
    use crate::packet;

    const MASKS: FlagMasks = [0xff6, 0xf76, 0xf7f];
    const BOTH: u64 = bits::INSERT_IP | bits::INSERT_TRANSPORT;

    fn context(transport: u64, bytes: u64, segment: u64, is_ipv4: bool) -> Context {
        let ip = if is_ipv4 { 20 } else { 40 };
        let kind = transport << bits::TRANSPORT_SHIFT | if is_ipv4 { bits::IS_IPV4 } else { 0 };
        let high = kind | bytes << bits::TRANSPORT_LENGTH_SHIFT | segment << bits::SEGMENT_SHIFT;
        Context::parse([0x0123 << 16 | 14 << 9 | ip, high]).1
    }

    /// A packet with the sum of its pseudo header in the checksum field, with the length or without.
    fn packet(protocol: u8, is_ipv4: bool, payload: usize, with_length: bool) -> Vec<u8> {
        let header_bytes = if protocol == packet::TCP { 20 } else { 8 };
        let transport_bytes = header_bytes + payload;
        let mut frame = vec![2; 12];
        if is_ipv4 {
            frame.extend([8, 0, 0x45, 0]);
            frame.extend(((20 + transport_bytes) as u16).to_be_bytes());
            frame.extend([0xff, 0xff, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        } else {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend((transport_bytes as u16).to_be_bytes());
            frame.extend([protocol, 64]);
            frame.extend([0xfd; 32]);
        }
        let addresses = if is_ipv4 { frame[26..34].to_vec() } else { frame[22..54].to_vec() };
        let length = if with_length { transport_bytes as u64 } else { 0 };
        let seed = Sum::default().add(&addresses).add_number(u64::from(protocol)).add_number(length).folded();
        let at = frame.len();
        frame.resize(at + header_bytes, 0x11);
        if protocol == packet::TCP {
            frame[at + 12..at + 14].copy_from_slice(&[0x50, 0x99]);
            frame[at + 16..at + 18].copy_from_slice(&seed.to_be_bytes());
        } else {
            frame[at + 4..at + 6].copy_from_slice(&(transport_bytes as u16).to_be_bytes());
            frame[at + 6..at + 8].copy_from_slice(&seed.to_be_bytes());
        }
        frame.extend((0..payload).map(|at| at as u8));
        frame
    }

    fn is_right(frame: &[u8]) -> bool {
        let status = checksum::judge(rxcsum::IP | rxcsum::TCP_UDP, frame);
        status != 0 && status >> 29 == 0
    }

    #[test]
    fn checksums_are_those_that_a_receiver_expects() {
        for (protocol, transport) in [(packet::TCP, 1), (packet::UDP, 0)] {
            for is_ipv4 in [true, false] {
                for payload in [0, 1, 99, 1400] {
                    let mut frame = packet(protocol, is_ipv4, payload, true);
                    let request = if is_ipv4 { BOTH } else { bits::INSERT_TRANSPORT };
                    let context = context(transport, 0, 0, is_ipv4);
                    insert_checksums(&mut frame, &context, Request::of(request)).unwrap();
                    assert!(is_right(&frame), "{protocol} {is_ipv4} {payload}");
                }
            }
        }
    }

    #[test]
    fn a_wrong_seed_stays_wrong() {
        let mut frame = packet(packet::TCP, true, 100, false);
        insert_checksums(&mut frame, &context(1, 0, 0, true), Request::of(BOTH)).unwrap();
        assert!(!is_right(&frame));
    }

    #[test]
    fn segments_carry_all_bytes_once_with_headers_of_their_own() {
        for (protocol, transport, header) in [(packet::TCP, 1, 20), (packet::UDP, 0, 8)] {
            for is_ipv4 in [true, false] {
                let frame = packet(protocol, is_ipv4, 3000, false);
                let context = context(transport, header, 1400, is_ipv4);
                let request = Request::of(BOTH | bits::SEGMENT);
                let mut segments = Vec::new();
                let count = segment(&frame, &context, request, MASKS, |segment| segments.push(segment));
                assert_eq!(count, Ok(3));
                let payload: Vec<u8> =
                    segments.iter().flat_map(|segment| &segment[context.header_bytes()..]).copied().collect();
                assert_eq!(payload, frame[context.header_bytes()..]);
                assert!(segments.iter().all(|segment| is_right(segment)), "{protocol} {is_ipv4}");
                if protocol == packet::TCP {
                    let at = context.transport_at();
                    let flags: Vec<u8> = segments.iter().map(|segment| segment[at + 13]).collect();
                    assert_eq!(flags, [0x90, 0x10, 0x19]);
                    let sequence =
                        |segment: &[u8]| u32::from_be_bytes(*segment[at + 4..].first_chunk::<4>().unwrap());
                    assert_eq!(sequence(&segments[2]) - sequence(&segments[0]), 2800);
                }
            }
        }
    }

    #[test]
    fn contexts_that_do_not_fit_are_refused() {
        let short = vec![0; 20];
        for transport in 0..4 {
            let context = context(transport, 20, 0, true);
            assert!(insert_checksums(&mut short.clone(), &context, Request::of(BOTH)).is_err());
            let request = Request::of(BOTH | bits::SEGMENT);
            assert!(segment(&short, &context, request, MASKS, |_| {}).is_err());
            assert!(segment(&[0; 2000], &context, request, MASKS, |_| {}).is_err());
        }
        let (at, empty) = Context::parse([0, 1 << bits::CONTEXT_SHIFT]);
        assert_eq!(at, 1);
        assert!(insert_checksums(&mut short.clone(), &empty, Request::of(BOTH)).is_err());
    }

    #[test]
    fn sctp_gets_its_crc_and_a_tag_goes_behind_the_addresses() {
        let mut frame = [vec![2; 14], vec![0x45; 20], b"0000000000000123".to_vec()].concat();
        let context = context(2, 0, 0, true);
        insert_checksums(&mut frame, &context, Request::of(bits::INSERT_TRANSPORT)).unwrap();
        let crc = u32::from_le_bytes(*frame[42..].first_chunk().unwrap());
        frame[42..46].fill(0);
        assert_eq!(crc, crc32c(&frame[34..]));
        let request = Request::of(bits::INSERT_VLAN);
        insert_tag(&mut frame, 0x8100, request.vlan(&context).unwrap());
        assert_eq!((frame.len(), &frame[12..16]), (54, &[0x81, 0, 0x01, 0x23][..]));
    }
}
