//! Receive queues by hash (Virtio 1.2, 5.1.6.4.3 and 5.1.6.5.7.1).

use crate::rss::{Input, KEY_BYTES, Transport, toeplitz};
use pollring_drivers::nic::virtio::regs::hash;

/// What this device says of its RSS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RssLimits {
    /// Bytes of a key at most.
    pub key_bytes: u8,
    /// Entries of the table at most.
    pub table_entries: u16,
    /// What it can hash.
    pub hash_types: u32,
}

/// What a driver asked for.
pub(super) struct Spread {
    hash_types: u32,
    unclassified: u16,
    table: Vec<u16>,
    /// Pairs that send.
    pub senders: u16,
    key: [u8; KEY_BYTES],
}

impl Spread {
    /// Reads the data of a command; nothing if it breaks the device's limits or names a pair that it has not.
    pub(super) fn parse(data: &[u8], limits: RssLimits, pairs: u16) -> Option<Spread> {
        let (types, data) = data.split_first_chunk::<4>()?;
        let (mask, data) = word(data)?;
        let (unclassified, data) = word(data)?;
        let entries = mask.checked_add(1)?;
        let (table, data) = data.split_at_checked(usize::from(entries) * 2)?;
        let (senders, data) = word(data)?;
        let (key_bytes, key) = data.split_first()?;
        let table: Vec<u16> = table.as_chunks().0.iter().map(|pair| u16::from_le_bytes(*pair)).collect();
        let hash_types = u32::from_le_bytes(*types);
        let good = entries.is_power_of_two()
            && entries <= limits.table_entries
            && hash_types & !limits.hash_types == 0
            && table.iter().chain([&unclassified]).all(|pair| *pair < pairs)
            && (1..=pairs).contains(&senders)
            && *key_bytes <= limits.key_bytes;
        let key = (usize::from(*key_bytes) == key.len()).then_some(key)?.try_into().ok()?;
        good.then_some(Spread { hash_types, unclassified, table, senders, key })
    }

    /// The pair that receives `frame`.
    pub(super) fn pair(&self, frame: &[u8]) -> u16 {
        let Some(input) = Input::of(frame) else { return self.unclassified };
        let Some(covered) = self.covered(&input) else { return self.unclassified };
        let hash = toeplitz(&self.key, covered) as usize;
        self.table[hash & (self.table.len() - 1)]
    }

    /// Ports where they are asked for and there, else addresses where they are asked for (5.1.6.4.3.2).
    fn covered<'a>(&self, input: &'a Input) -> Option<&'a [u8]> {
        let (alone, tcp, udp) = match input.is_v4() {
            true => (hash::IPV4, hash::TCP_IPV4, hash::UDP_IPV4),
            false => (hash::IPV6, hash::TCP_IPV6, hash::UDP_IPV6),
        };
        let with_ports = match input.transport() {
            Some(Transport::Tcp) => tcp,
            Some(Transport::Udp) => udp,
            None => 0,
        };
        match (self.hash_types & with_ports, self.hash_types & alone) {
            (0, 0) => None,
            (0, _) => Some(input.addresses()),
            _ => Some(input.addresses_and_ports()),
        }
    }
}

fn word(data: &[u8]) -> Option<(u16, &[u8])> {
    let (word, rest) = data.split_first_chunk::<2>()?;
    Some((u16::from_le_bytes(*word), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: RssLimits = RssLimits { key_bytes: 40, table_entries: 4, hash_types: hash::ALL };

    fn command(mask: u16, unclassified: u16, table: [u16; 4], senders: u16) -> Vec<u8> {
        let mut data = hash::ALL.to_le_bytes().to_vec();
        for word in [mask, unclassified].into_iter().chain(table).chain([senders]) {
            data.extend(word.to_le_bytes());
        }
        data.push(40);
        data.extend([7; 40]);
        data
    }

    #[test]
    fn only_commands_within_the_limits_are_taken() {
        let good = command(3, 1, [0, 1, 2, 0], 3);
        assert!(Spread::parse(&good, LIMITS, 3).is_some_and(|spread| spread.pair(&[0; 60]) == 1));
        for bad in [
            command(2, 1, [0, 1, 2, 0], 3),
            command(u16::MAX, 1, [0, 1, 2, 0], 3),
            command(3, 3, [0, 1, 2, 0], 3),
            command(3, 1, [0, 1, 3, 0], 3),
            command(3, 1, [0, 1, 2, 0], 0),
            command(3, 1, [0, 1, 2, 0], 4),
        ] {
            assert!(Spread::parse(&bad, LIMITS, 3).is_none(), "{bad:?}");
        }
        assert!((0..good.len()).all(|end| Spread::parse(&good[..end], LIMITS, 3).is_none()));
        for limits in [
            RssLimits { key_bytes: 39, ..LIMITS },
            RssLimits { table_entries: 2, ..LIMITS },
            RssLimits { hash_types: hash::UDP_IPV4, ..LIMITS },
        ] {
            assert!(Spread::parse(&good, limits, 3).is_none());
        }
    }
}
