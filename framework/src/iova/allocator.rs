//! Where an IOVA may lie, and which intervals are taken: arithmetic only, no system call.
//!
//! [`Ranges`] is what a kernel and a device's address mask allow. [`Allocator`] is what this process has handed
//! out. The caller keeps both and asks for an interval inside the one that is free in the other. Both ends of an
//! interval are inclusive, since the last byte of the address space must be expressible.

use std::collections::BTreeMap;

/// Address intervals, sorted and disjoint, both ends inclusive.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// Builds from `(first, last)` pairs in any order; empty pairs (`first > last`) are dropped, overlaps merged.
    pub fn new(pairs: impl IntoIterator<Item = (u64, u64)>) -> Ranges {
        let mut sorted: Vec<(u64, u64)> = pairs.into_iter().filter(|(first, last)| first <= last).collect();
        sorted.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(sorted.len());
        for (first, last) in sorted {
            match merged.last_mut() {
                Some(previous) if first <= previous.1.saturating_add(1) => previous.1 = previous.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Ranges(merged)
    }

    /// The intervals, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().copied()
    }

    /// Whether no address is allowed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether every address of `first..=last` is allowed.
    pub fn contains(&self, first: u64, last: u64) -> bool {
        self.0.iter().any(|(low, high)| *low <= first && last <= *high)
    }

    /// The addresses that both allow.
    pub fn intersect(&self, other: &Ranges) -> Ranges {
        let both = |(low, high): (u64, u64)| {
            other.iter().map(move |(first, last)| (low.max(first), high.min(last))).collect::<Vec<_>>()
        };
        Ranges::new(self.iter().flat_map(both))
    }

    /// The addresses that a device with `mask` as its highest DMA address reaches.
    pub fn within_mask(&self, mask: u64) -> Ranges {
        self.intersect(&Ranges::new([(0, mask)]))
    }
}

/// The intervals that are taken, in one address numbering.
#[derive(Debug, Default)]
pub struct Allocator {
    taken: BTreeMap<u64, u64>,
}

impl Allocator {
    /// Nothing taken.
    pub const fn new() -> Allocator {
        Allocator { taken: BTreeMap::new() }
    }

    /// Takes the lowest free interval of `bytes` at a multiple of `align` (a power of two) inside `allowed`.
    /// `None` when there is none, or when `bytes` is 0.
    pub fn allocate(&mut self, bytes: u64, align: u64, allowed: &Ranges) -> Option<u64> {
        assert!(align.is_power_of_two(), "an alignment that is not a power of two");
        let span = bytes.checked_sub(1)?;
        let first = allowed.iter().find_map(|(low, high)| self.fit(low, high, span, align))?;
        self.taken.insert(first, first + span);
        Some(first)
    }

    /// Gives the interval that starts at `first` back; false when none does.
    pub fn release(&mut self, first: u64) -> bool {
        self.taken.remove(&first).is_some()
    }

    /// How many intervals are taken.
    pub fn len(&self) -> usize {
        self.taken.len()
    }

    /// Whether nothing is taken.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    fn fit(&self, low: u64, high: u64, span: u64, align: u64) -> Option<u64> {
        let mut first = low.checked_next_multiple_of(align)?;
        loop {
            let last = first.checked_add(span)?;
            if last > high {
                return None;
            }
            match self.obstacle(first, last) {
                None => return Some(first),
                Some(end) => first = end.checked_add(1)?.checked_next_multiple_of(align)?,
            }
        }
    }

    fn obstacle(&self, first: u64, last: u64) -> Option<u64> {
        let (_, end) = self.taken.range(..=last).next_back()?;
        (*end >= first).then_some(*end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const VTD: [(u64, u64); 2] = [(0, 0xfedf_ffff), (0xfef0_0000, 0xffff_ffff_ffff)];

    #[test]
    fn holes_masks_and_the_last_byte() {
        let allowed = Ranges::new(VTD);
        let mut allocator = Allocator::new();
        let big = allocator.allocate(0xfee0_0000, 4096, &allowed).unwrap();
        assert_eq!(big, 0);
        let next = allocator.allocate(4096, 4096, &allowed).unwrap();
        assert_eq!(next, 0xfef0_0000, "the MSI window is never handed out");
        assert_eq!(allocator.allocate(4096, 4096, &allowed.within_mask(0x0fff_ffff)), None);
        let top = Ranges::new([(u64::MAX - 4095, u64::MAX)]);
        assert_eq!(allocator.allocate(4096, 4096, &top), Some(u64::MAX - 4095));
        assert_eq!(allocator.allocate(4096, 4096, &top), None);
        assert_eq!(allocator.allocate(0, 4096, &allowed), None);
    }

    proptest! {
        #[test]
        fn intervals_are_aligned_allowed_and_disjoint(
            pairs in prop::collection::vec((0u64..1 << 20, 1u64..1 << 18), 1..5),
            wants in prop::collection::vec((1u64..1 << 16, 0u32..16, any::<bool>()), 1..60),
        ) {
            let allowed = Ranges::new(pairs.iter().map(|(first, len)| (*first, first + len)));
            let mut allocator = Allocator::new();
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (bytes, shift, give_back) in wants {
                if give_back && let Some((first, _)) = held.pop() {
                    prop_assert!(allocator.release(first));
                }
                if let Some(first) = allocator.allocate(bytes, 1 << shift, &allowed) {
                    let last = first + bytes - 1;
                    prop_assert_eq!(first % (1 << shift), 0);
                    prop_assert!(allowed.contains(first, last));
                    prop_assert!(held.iter().all(|(low, high)| last < *low || *high < first));
                    held.push((first, last));
                }
            }
            prop_assert_eq!(allocator.len(), held.len());
        }

        #[test]
        fn narrowing_keeps_exactly_what_both_allow(
            left in prop::collection::vec((0u64..500, 0u64..60), 0..6),
            right in prop::collection::vec((0u64..500, 0u64..60), 0..6),
        ) {
            let left = Ranges::new(left.into_iter().map(|(a, b)| (a, a + b)));
            let right = Ranges::new(right.into_iter().map(|(a, b)| (a, a + b)));
            let both = left.intersect(&right);
            for address in 0..600 {
                let expected = left.contains(address, address) && right.contains(address, address);
                prop_assert_eq!(both.contains(address, address), expected);
            }
        }

        #[test]
        fn a_free_interval_is_found_where_one_exists(
            taken in prop::collection::vec((0u64..64, 1u64..8), 0..10), bytes in 1u64..16,
        ) {
            let allowed = Ranges::new([(0, 63)]);
            let mut allocator = Allocator::new();
            let mut map = [false; 64];
            for (first, len) in taken {
                let here = Ranges::new([(first, (first + len - 1).min(63))]);
                let len = (first + len - 1).min(63) - first + 1;
                if allocator.allocate(len, 1, &here).is_some() {
                    (first..first + len).for_each(|at| map[at as usize] = true);
                }
            }
            let exists = (0..64).any(|at| at + bytes as usize <= 64 && !map[at..at + bytes as usize].contains(&true));
            prop_assert_eq!(allocator.allocate(bytes, 1, &allowed).is_some(), exists);
        }
    }
}
