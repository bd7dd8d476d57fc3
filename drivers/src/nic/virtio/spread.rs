//! How received flows are spread over several pairs: by hash and table where the device can (RSS), else as it likes (MQ).
//!
//! What a device says of its RSS is checked here once, by [`Rss::fits`]: a device whose numbers are too small for the pairs that were asked for
//! is asked for MQ. The key is symmetric, so both directions of a flow come to one pair; frames without a hash come to the first.

use super::regs::hash;

/// Bytes of a key (5.1.4.2: a device takes 40 at least).
const KEY_BYTES: u8 = 40;

/// A symmetric key: both directions of a flow get the same hash, since the key repeats every 16 bits.
const SYMMETRIC_KEY: [u8; 2] = [0x6d, 0x5a];

/// Entries of a table at most: all devices take as many (5.1.4.2), and a command has room for them.
const MOST_TABLE_ENTRIES: u16 = 128;

/// What a device says of its RSS; nothing of it is believed yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rss {
    pub key_bytes: u8,
    pub table_entries: u16,
    pub hash_types: u32,
}

impl Rss {
    /// Whether flows can be spread over `pairs` with it.
    pub(super) fn fits(&self, pairs: usize) -> bool {
        self.key_bytes >= KEY_BYTES
            && usize::from(self.table_entries()) >= pairs
            && self.hash_types & hash::ALL != 0
    }

    /// A power of two, or 0.
    fn table_entries(&self) -> u16 {
        let most = self.table_entries.min(MOST_TABLE_ENTRIES);
        most.checked_ilog2().map_or(0, |log| 1 << log)
    }

    /// The data of the command (5.1.6.5.7.1): pairs take turns in the table.
    pub(super) fn command(&self, pairs: u16) -> Vec<u8> {
        let entries = self.table_entries();
        let mut data = (self.hash_types & hash::ALL).to_le_bytes().to_vec();
        let (mask, unclassified) = (entries.saturating_sub(1), 0);
        let table = (0..entries).map(|entry| entry % pairs.max(1));
        let words = [mask, unclassified].into_iter().chain(table).chain([pairs]);
        words.for_each(|word| data.extend(word.to_le_bytes()));
        data.push(KEY_BYTES);
        data.extend(SYMMETRIC_KEY.iter().cycle().take(usize::from(KEY_BYTES)));
        data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_turns_and_no_more_than_the_device_takes() {
        for (said, entries) in [(4, 4), (5, 4), (127, 64), (128, 128), (u16::MAX, 128)] {
            let rss = Rss { key_bytes: 40, table_entries: said, hash_types: u32::MAX };
            assert!(rss.fits(4));
            let data = rss.command(4);
            assert_eq!(data.len(), 4 + 2 + 2 + 2 * entries + 2 + 1 + 40);
            assert_eq!(data[..8], [0x3f, 0, 0, 0, entries as u8 - 1, 0, 0, 0]);
            let table: Vec<u8> = (0..entries).flat_map(|entry| [entry as u8 % 4, 0]).collect();
            assert_eq!(data[8..8 + 2 * entries], table);
            assert_eq!(data[8 + 2 * entries..][..5], [4, 0, 40, 0x6d, 0x5a]);
        }
    }

    #[test]
    fn devices_that_cannot_are_not_asked() {
        let good = Rss { key_bytes: 40, table_entries: 128, hash_types: hash::UDP_IPV4 };
        assert!(good.fits(1) && good.fits(128) && !good.fits(129));
        for bad in [
            Rss { key_bytes: 39, ..good },
            Rss { table_entries: 0, ..good },
            Rss { table_entries: 3, ..good },
            Rss { hash_types: !hash::ALL, ..good },
            Rss::default(),
        ] {
            assert!(!bad.fits(3), "{bad:?}");
        }
    }
}
