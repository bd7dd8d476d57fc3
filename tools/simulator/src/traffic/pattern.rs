//! What a frame looks like: a function of seed, stream and sequence number.
//!
//! Header (12 bytes of addresses, then what its shape asks for), stream number, sequence number, payload. The payload is words of a
//! counter-based generator, so each can be made without the one before and a frame of 64 bytes costs a few nanoseconds.

use crate::random::{GOLDEN, mix, scale};
use std::ops::RangeInclusive;

/// Ethernet's minimum without CRC (IEEE 802.3, 3.2.8), enough for the header of either shape.
pub const SHORTEST_FRAME_BYTES: u16 = 60;

/// For local experiments (IEEE 802, 9.2.4).
const LOCAL_ETHERTYPE: u16 = 0x88b5;
const IPV4_ETHERTYPE: u16 = 0x0800;
const ADDRESS_BYTES: usize = 12;
/// Addresses, ethertype, stream.
const LOCAL_HEADER: usize = ADDRESS_BYTES + 2 + 2;
/// Addresses, ethertype, IPv4, UDP, stream.
const UDP_HEADER: usize = ADDRESS_BYTES + 2 + 20 + 8 + 2;
const SEQUENCE_BYTES: usize = 8;
/// UDP ports: the first dynamic one for stream 0 (RFC 6335), and the discard port.
const FIRST_SOURCE_PORT: u16 = 49152;
const DISCARD_PORT: u16 = 9;

/// What stands between the addresses and the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The ethertype for local experiments.
    Local,
    /// IPv4 and UDP with a source port for each stream, for devices that spread flows.
    Udp4,
}

/// What a generator makes and a checker expects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrafficConfig {
    /// Decides lengths and payloads.
    pub seed: u64,
    /// Streams, each with sequence numbers of its own; sent in turn.
    pub streams: u16,
    /// Frame lengths without CRC, 60 and more.
    pub bytes: RangeInclusive<u16>,
    /// Destination address.
    pub destination: [u8; 6],
    /// Source address.
    pub source: [u8; 6],
    /// What the frames look like.
    pub shape: Shape,
}

impl TrafficConfig {
    /// One stream of 60 to 1514 bytes between two locally administered addresses.
    pub fn new(seed: u64) -> TrafficConfig {
        TrafficConfig {
            seed,
            streams: 1,
            bytes: SHORTEST_FRAME_BYTES..=1514,
            destination: [2, 0, 0, 0, 0, 0xd],
            source: [2, 0, 0, 0, 0, 0x5],
            shape: Shape::Local,
        }
    }
}

/// Which frame of which stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub stream: u16,
    pub sequence: u64,
}

/// Makes and recognizes the frames of a configuration.
pub(super) struct Pattern {
    config: TrafficConfig,
    pub addresses: [u8; ADDRESS_BYTES],
    seed: u64,
    header_bytes: usize,
}

impl Pattern {
    pub(super) fn new(config: TrafficConfig) -> Pattern {
        assert!(
            *config.bytes.start() >= SHORTEST_FRAME_BYTES && !config.bytes.is_empty() && config.streams > 0,
            "frames of {SHORTEST_FRAME_BYTES} bytes and more in one stream at least"
        );
        let addresses = joined(config.destination, config.source);
        let header_bytes = match config.shape {
            Shape::Local => LOCAL_HEADER,
            Shape::Udp4 => UDP_HEADER,
        };
        Pattern { addresses, seed: mix(config.seed), header_bytes, config }
    }

    pub(super) fn config(&self) -> &TrafficConfig {
        &self.config
    }

    /// Makes the frame at `position`.
    #[inline]
    pub(super) fn write(&self, position: Position, frame: &mut Vec<u8>) {
        let base = self.base(position);
        let bytes = self.length(base);
        // Keeps what is there, since every byte is written below.
        frame.resize(bytes, 0);
        self.write_header(position.stream, bytes, frame);
        let (head, payload) = frame[self.header_bytes..].split_at_mut(SEQUENCE_BYTES);
        head.copy_from_slice(&position.sequence.to_le_bytes());
        let (words, last) = payload.as_chunks_mut::<8>();
        for (at, word) in (0u64..).zip(words.iter_mut()) {
            *word = payload_word(base, at);
        }
        let tail = payload_word(base, words.len() as u64);
        last.copy_from_slice(&tail[..last.len()]);
    }

    /// The position that `frame` carries, if every byte of it is right for it; `addresses` are what must stand in front, if that
    /// is known.
    #[inline]
    pub(super) fn recognize(
        &self,
        frame: &[u8],
        addresses: Option<&[u8; ADDRESS_BYTES]>,
    ) -> Option<Position> {
        let (header, rest) = frame.split_at_checked(self.header_bytes)?;
        let (sequence, payload) = rest.split_first_chunk::<SEQUENCE_BYTES>()?;
        let stream = u16::from_le_bytes(*header.last_chunk()?);
        let position = Position { stream, sequence: u64::from_le_bytes(*sequence) };
        let base = self.base(position);
        let right = stream < self.config.streams
            && frame.len() == self.length(base)
            && addresses.is_none_or(|addresses| header[..ADDRESS_BYTES] == addresses[..])
            && self.is_header(stream, frame.len(), header)
            && is_payload(base, payload);
        right.then_some(position)
    }

    #[inline(always)]
    fn base(&self, position: Position) -> u64 {
        mix(self.seed ^ u64::from(position.stream).rotate_right(16) ^ position.sequence.wrapping_mul(GOLDEN))
    }

    #[inline(always)]
    fn length(&self, base: u64) -> usize {
        let (first, last) = (*self.config.bytes.start(), *self.config.bytes.end());
        usize::from(first) + scale(base.wrapping_mul(GOLDEN), u64::from(last - first) + 1) as usize
    }

    #[inline]
    fn write_header(&self, stream: u16, bytes: usize, frame: &mut [u8]) {
        frame[..ADDRESS_BYTES].copy_from_slice(&self.addresses);
        let middle = &mut frame[ADDRESS_BYTES..self.header_bytes];
        match self.config.shape {
            Shape::Local => middle[..2].copy_from_slice(&LOCAL_ETHERTYPE.to_be_bytes()),
            Shape::Udp4 => middle[..30].copy_from_slice(&udp_header(stream, bytes)),
        }
        let end = middle.len();
        middle[end - 2..].copy_from_slice(&stream.to_le_bytes());
    }

    #[inline]
    fn is_header(&self, stream: u16, bytes: usize, header: &[u8]) -> bool {
        let middle = &header[ADDRESS_BYTES..header.len() - 2];
        match self.config.shape {
            Shape::Local => middle == LOCAL_ETHERTYPE.to_be_bytes(),
            Shape::Udp4 => middle == udp_header(stream, bytes),
        }
    }
}

/// Destination and source, as they stand on the wire.
pub(super) fn joined(destination: [u8; 6], source: [u8; 6]) -> [u8; ADDRESS_BYTES] {
    let mut both = [0; ADDRESS_BYTES];
    both[..6].copy_from_slice(&destination);
    both[6..].copy_from_slice(&source);
    both
}

#[inline(always)]
fn payload_word(base: u64, at: u64) -> [u8; 8] {
    let word = base.wrapping_add(at.wrapping_mul(GOLDEN));
    let word = (word ^ word >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (word ^ word >> 32).to_le_bytes()
}

#[inline(always)]
fn is_payload(base: u64, payload: &[u8]) -> bool {
    let (words, last) = payload.as_chunks::<8>();
    let mut difference = 0;
    for (at, word) in (0u64..).zip(words) {
        difference |= u64::from_le_bytes(*word) ^ u64::from_le_bytes(payload_word(base, at));
    }
    difference == 0 && last == &payload_word(base, words.len() as u64)[..last.len()]
}

/// Ethertype, IPv4 header (RFC 791) and UDP header (RFC 768) without checksum, from and to benchmark addresses (RFC 2544).
fn udp_header(stream: u16, bytes: usize) -> [u8; 30] {
    let ip_bytes = bytes as u16 - 14;
    let [length_high, length_low] = ip_bytes.to_be_bytes();
    let mut ip =
        [0x45, 0, length_high, length_low, 0, 0, 0x40, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 19, 0, 1];
    let checksum = internet_checksum(&ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let mut header = [0; 30];
    header[..2].copy_from_slice(&IPV4_ETHERTYPE.to_be_bytes());
    header[2..22].copy_from_slice(&ip);
    header[22..24].copy_from_slice(&FIRST_SOURCE_PORT.wrapping_add(stream).to_be_bytes());
    header[24..26].copy_from_slice(&DISCARD_PORT.to_be_bytes());
    header[26..28].copy_from_slice(&(ip_bytes - 20).to_be_bytes());
    header
}

/// RFC 1071, over an even number of bytes.
fn internet_checksum(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.as_chunks::<2>().0.iter().map(|pair| u32::from(u16::from_be_bytes(*pair))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !(((folded & 0xffff) + (folded >> 16)) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(pattern: &Pattern, stream: u16, sequence: u64) -> Vec<u8> {
        let mut frame = vec![0xee; 3];
        pattern.write(Position { stream, sequence }, &mut frame);
        frame
    }

    #[test]
    fn every_single_bit_counts() {
        for shape in [Shape::Local, Shape::Udp4] {
            let config = TrafficConfig { bytes: 60..=99, streams: 2, shape, ..TrafficConfig::new(9) };
            let pattern = Pattern::new(config);
            for sequence in [0, 1, 77] {
                let good = frame(&pattern, 1, sequence);
                let position = Position { stream: 1, sequence };
                assert_eq!(pattern.recognize(&good, Some(&pattern.addresses)), Some(position));
                for bit in 0..good.len() * 8 {
                    let mut bad = good.clone();
                    bad[bit / 8] ^= 1 << (bit % 8);
                    assert_eq!(
                        pattern.recognize(&bad, Some(&pattern.addresses)),
                        None,
                        "{shape:?} bit {bit}"
                    );
                }
                assert_eq!(pattern.recognize(&good[..good.len() - 1], None), None);
                assert_eq!(pattern.recognize(&[&good[..], &[0]].concat(), None), None);
            }
        }
    }

    #[test]
    fn lengths_cover_their_range_and_short_rubbish_is_refused() {
        let pattern = Pattern::new(TrafficConfig { bytes: 60..=67, ..TrafficConfig::new(4) });
        let lengths: Vec<usize> = (0..200).map(|at| frame(&pattern, 0, at).len()).collect();
        assert!((60..=67).all(|length| lengths.contains(&length)));
        assert!(lengths.iter().all(|length| (60..=67).contains(length)));
        for length in 0..60 {
            assert_eq!(pattern.recognize(&vec![0; length], None), None);
        }
    }

    #[test]
    fn ip_headers_add_up() {
        let header = udp_header(3, 100);
        let sum: u32 =
            header[2..22].as_chunks::<2>().0.iter().map(|pair| u32::from(u16::from_be_bytes(*pair))).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        assert_eq!(u16::from_be_bytes([header[22], header[23]]), 49155);
    }

    /// Printed, not a gate: times depend on the machine.
    #[test]
    fn costs_are_printed() {
        let pattern = Pattern::new(TrafficConfig { bytes: 64..=64, ..TrafficConfig::new(4) });
        let mut frame = Vec::new();
        let start = std::time::Instant::now();
        let rounds = 200_000u32;
        for sequence in 0..u64::from(rounds) {
            pattern.write(Position { stream: 0, sequence }, &mut frame);
            assert!(pattern.recognize(std::hint::black_box(&frame), Some(&pattern.addresses)).is_some());
        }
        println!("make and check 64 bytes: {} ns", start.elapsed().as_nanos() / u128::from(rounds));
    }
}
