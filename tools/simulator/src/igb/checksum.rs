//! Internet checksums (RFC 1071), the CRC of SCTP (RFC 9260), and what a receive descriptor says about them (82576 datasheet 7.1.11).

use super::others::rxcsum;
use crate::packet::{self, Layout, Network, Transport};

/// Bits of word 1 of the receive write-back (7.1.5.2).
mod status {
    pub(super) const UDP_CHECKED: u64 = 1 << 4;
    pub(super) const TCP_CHECKED: u64 = 1 << 5;
    pub(super) const IP_CHECKED: u64 = 1 << 6;
    pub(super) const TRANSPORT_ERROR: u64 = 1 << 29;
    pub(super) const IP_ERROR: u64 = 1 << 30;
}

/// The sum of 16-bit words so far, not folded.
#[derive(Clone, Copy, Default)]
pub(super) struct Sum(u64);

impl Sum {
    /// Adds bytes that begin at an even offset.
    pub(super) fn add(mut self, bytes: &[u8]) -> Sum {
        let (words, rest) = bytes.as_chunks::<2>();
        self.0 += words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum::<u64>();
        if let [last] = rest {
            self.0 += u64::from(*last) << 8;
        }
        self
    }

    pub(super) fn add_number(self, number: u64) -> Sum {
        Sum(self.0 + (number >> 16) + (number & 0xffff))
    }

    /// Folded to 16 bits with end-around carry, not complemented.
    pub(super) fn folded(self) -> u16 {
        let mut sum = self.0;
        while sum >> 16 != 0 {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        sum as u16
    }
}

/// CRC-32C, bit by bit: SCTP is rare.
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 != 0 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

/// Status bits for a frame that was received, by what RXCSUM asks for.
#[inline]
pub(super) fn judge(control: u32, frame: &[u8]) -> u64 {
    if control & (rxcsum::IP | rxcsum::TCP_UDP) == 0 {
        return 0;
    }
    packet::layout(frame).map_or(0, |layout| judge_packet(control, frame, &layout))
}

fn judge_packet(control: u32, frame: &[u8], layout: &Layout) -> u64 {
    let mut bits = 0;
    let header = &frame[layout.network_at..layout.transport_at];
    if layout.network == Network::V4 && control & rxcsum::IP != 0 {
        bits |= status::IP_CHECKED;
        if Sum::default().add(header).folded() != 0xffff {
            bits |= status::IP_ERROR;
        }
    }
    if control & rxcsum::TCP_UDP != 0 {
        bits |= judge_transport(frame, layout).unwrap_or(0);
    }
    bits
}

/// `None` for what has no checksum that could be checked: fragments, other protocols, a UDP checksum that was not computed.
fn judge_transport(frame: &[u8], layout: &Layout) -> Option<u64> {
    let segment = frame.get(layout.transport_at..layout.end)?;
    let (checked, number) = match layout.transport? {
        Transport::Tcp => (status::TCP_CHECKED, packet::TCP),
        Transport::Udp if segment.get(6..8)? == [0, 0] => return None,
        Transport::Udp => (status::UDP_CHECKED | status::TCP_CHECKED, packet::UDP),
    };
    let addresses = frame.get(layout.addresses.clone())?;
    let pseudo = Sum::default().add(addresses).add_number(u64::from(number)).add_number(segment.len() as u64);
    let error = if pseudo.add(segment).folded() == 0xffff { 0 } else { status::TRANSPORT_ERROR };
    Some(checked | error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A UDP datagram that another stack made: 10.0.0.1:9 to 10.0.0.2:9, "abc", with both checksums.
    const FRAME: [u8; 60] = {
        let head = [
            2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 31, 0, 1, 0, 0, 64, 17, 0x66, 0xcb, 10, 0,
            0, 1, 10, 0, 0, 2, 0, 9, 0, 9, 0, 11, 0x27, 0x61, b'a', b'b', b'c',
        ];
        let mut frame = [0; 60];
        let mut at = 0;
        while at < head.len() {
            frame[at] = head[at];
            at += 1;
        }
        frame
    };
    const BOTH: u32 = rxcsum::IP | rxcsum::TCP_UDP;
    const GOOD: u64 = status::IP_CHECKED | status::UDP_CHECKED | status::TCP_CHECKED;

    #[test]
    fn good_frames_are_found_good_and_each_bad_byte_is_found() {
        assert_eq!(judge(BOTH, &FRAME), GOOD);
        assert_eq!(judge(0, &FRAME), 0);
        assert_eq!(judge(rxcsum::IP, &FRAME), status::IP_CHECKED);
        for (at, errors) in [
            (19, status::IP_ERROR),
            (27, status::IP_ERROR | status::TRANSPORT_ERROR),
            (37, status::TRANSPORT_ERROR),
            (44, status::TRANSPORT_ERROR),
            (50, 0),
        ] {
            let mut bad = FRAME;
            bad[at] ^= 0x10;
            assert_eq!(judge(BOTH, &bad), GOOD | errors, "{at}");
        }
    }

    #[test]
    fn what_has_no_checksum_is_not_judged() {
        let mut none = FRAME;
        none[40..42].fill(0);
        assert_eq!(judge(BOTH, &none), status::IP_CHECKED);
        let mut fragment = FRAME;
        fragment[20] = 0x20;
        assert_eq!(judge(BOTH, &fragment) & !status::IP_ERROR, status::IP_CHECKED);
        assert_eq!(judge(BOTH, &[0; 60]), 0);
        (0..FRAME.len()).for_each(|end| {
            judge(BOTH, &FRAME[..end]);
        });
    }

    #[test]
    fn sums_and_crcs_are_the_published_ones() {
        let rfc = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::default().add(&rfc).folded(), 0xddf2);
        assert_eq!(Sum::default().add(&[1]).folded(), 0x100);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
