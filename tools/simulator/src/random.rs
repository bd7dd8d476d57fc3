//! Seeded numbers: the same seed gives the same sequence on every machine, so a failing run can be repeated.

/// What a counter is multiplied by to spread it over 64 bits: 2^64 divided by the golden ratio.
pub(crate) const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes 64 bits so that each one of the input moves about half of the output (the finalizer of splitmix64).
#[inline(always)]
pub(crate) const fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// A sequence of numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Random {
        Random(seed)
    }

    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// A number from 0 to `end - 1`; 0 when `end` is 0.
    #[inline]
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        scale(self.next(), end)
    }
}

/// Maps 64 even bits to 0 to `end - 1`; 0 when `end` is 0.
#[inline(always)]
pub(crate) const fn scale(bits: u64, end: u64) -> u64 {
    ((bits as u128 * end as u128) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_limits_hold() {
        let (mut one, mut same, mut other) = (Random::new(7), Random::new(7), Random::new(8));
        let numbers: Vec<u64> = (0..100).map(|_| one.below(10)).collect();
        assert_eq!(numbers, (0..100).map(|_| same.below(10)).collect::<Vec<_>>());
        assert_ne!(numbers, (0..100).map(|_| other.below(10)).collect::<Vec<_>>());
        assert!((0..10).all(|number| numbers.contains(&number)) && numbers.iter().all(|number| *number < 10));
        assert_eq!(one.below(0), 0);
    }
}
