//! The invariant CRC: CRC-32 of Ethernet over the fields that no router changes (IBTA 7.8.1, A17.3.3;
//! drivers/infiniband/sw/rxe/rxe_icrc.c). Fields that may change count as ones, and eight bytes of ones stand for the LRH.
//!
//! The headers are copied and masked, the rest is read where it lies. The value is stored least significant byte first.

use crc32fast::Hasher;

/// The CRC of the eight bytes of ones, where every packet starts.
const SEED: u32 = 0x2144_df1c;

/// Longest masked part: IPv6, UDP, BTH.
const MASKED_BYTES: usize = 40 + 8 + 12;

/// Starts a CRC over an IP header, its UDP header and the first 12 bytes of BTH; `packet` holds these at least.
#[inline]
pub(crate) fn start(packet: &[u8], ip_bytes: usize) -> Hasher {
    let mut masked = [0; MASKED_BYTES];
    let masked = &mut masked[..ip_bytes + 8 + 12];
    masked.copy_from_slice(&packet[..ip_bytes + 8 + 12]);
    if ip_bytes == 40 {
        masked[0] |= 0x0f;
        masked[1..4].fill(0xff);
        masked[7] = 0xff;
    } else {
        masked[1] = 0xff;
        masked[8] = 0xff;
        masked[10..12].fill(0xff);
    }
    masked[ip_bytes + 6..ip_bytes + 8].fill(0xff);
    masked[ip_bytes + 8 + 4] = 0xff;
    let mut crc = Hasher::new_with_initial(SEED);
    crc.update(masked);
    crc
}

/// The CRC of a whole packet from the IP header on, without its last four bytes.
#[inline]
pub(crate) fn of_packet(packet: &[u8], ip_bytes: usize) -> u32 {
    let mut crc = start(packet, ip_bytes);
    crc.update(&packet[ip_bytes + 8 + 12..]);
    crc.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_is_eight_bytes_of_ones() {
        assert_eq!(crc32fast::hash(&[0xff; 8]), SEED);
    }

    #[test]
    fn what_routers_change_does_not_count() {
        let mut v4 = [0x5a; 28 + 12 + 8];
        let before = of_packet(&v4, 20);
        for at in [1, 8, 10, 11, 26, 27, 28 + 4] {
            v4[at] ^= 0xff;
        }
        assert_eq!(of_packet(&v4, 20), before);
        v4[4] ^= 1;
        assert_ne!(of_packet(&v4, 20), before, "the identification counts");
        let mut v6 = [0x5a; 48 + 12 + 8];
        let before = of_packet(&v6, 40);
        for (at, change) in [(0, 0x0f), (1, 0xff), (3, 0xff), (7, 0xff), (46, 0xff), (52, 0xff)] {
            v6[at] ^= change;
        }
        assert_eq!(of_packet(&v6, 40), before);
    }
}
