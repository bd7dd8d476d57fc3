//! Bytes that tell which operation wrote them and where: no two words of a run are alike, so a byte that came from another operation, or
//! lies at another offset, is seen.

/// Fills `bytes` with those of operation `id` (splitmix64's finalizer over id and place).
pub(super) fn fill(bytes: &mut [u8], id: u64) {
    let seed = mix(id);
    for (at, part) in bytes.chunks_mut(8).enumerate() {
        part.copy_from_slice(&mix(seed ^ at as u64).to_le_bytes()[..part.len()]);
    }
}

fn mix(word: u64) -> u64 {
    let mixed = word.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn neighbours_in_number_and_place_differ() {
        let mut words = HashSet::new();
        for id in 0..100 {
            let mut bytes = [0; 8 * 64];
            fill(&mut bytes, id);
            words.extend(bytes.chunks(8).map(<[u8]>::to_vec));
        }
        assert_eq!(words.len(), 6400);
        let mut short = [0; 3];
        fill(&mut short, 5);
        assert_ne!(short, [0; 3]);
    }
}
