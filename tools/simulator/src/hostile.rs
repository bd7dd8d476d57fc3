//! The lies that a device may be told to tell.
//!
//! A device with [`Lies`] does each write-back honestly or, with the given probability, tells one lie with it. What it lies about and
//! how is decided by the seed alone. Every lie is counted by kind.

use crate::random::Random;

/// How a device lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lies {
    /// Decides which lies are told, and when.
    pub seed: u64,
    /// Lies per 1000 write-backs, 0 to 1000.
    pub per_mille: u16,
}

/// A kind of lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lie {
    /// A receive length between 0 and 65535.
    Length,
    /// The done bit, with a random length, in a slot that was not filled.
    DoneUnfilled,
    /// The done bit many steps late, while later slots get theirs.
    DoneLate,
    /// The done bits of one step out of ring order.
    OutOfOrder,
    /// Error bits on a good frame.
    ErrorBits,
    /// The last descriptor of a frame does not say so.
    NoEndOfPacket,
    /// Random words over descriptors anywhere in the ring.
    Scribble,
    /// The done bit of a transmit slot before its packet was read.
    DoneEarly,
    /// The frame is written again after its done bit.
    RewriteAfterDone,
    /// Registers read as all ones for a while, although the device is there.
    RegistersOnes,
    /// Registers read as random values for a while.
    RegistersRandom,
    /// Head registers read as nonsense for a while.
    HeadNonsense,
    /// A write to an address that nobody gave to the device.
    StrayWrite,
}

impl Lie {
    /// Every kind.
    pub const ALL: [Lie; 13] = [
        Lie::Length,
        Lie::DoneUnfilled,
        Lie::DoneLate,
        Lie::OutOfOrder,
        Lie::ErrorBits,
        Lie::NoEndOfPacket,
        Lie::Scribble,
        Lie::DoneEarly,
        Lie::RewriteAfterDone,
        Lie::RegistersOnes,
        Lie::RegistersRandom,
        Lie::HeadNonsense,
        Lie::StrayWrite,
    ];

    fn text(self) -> &'static str {
        match self {
            Lie::Length => "wrong length",
            Lie::DoneUnfilled => "done bit on a slot that was not filled",
            Lie::DoneLate => "done bit late",
            Lie::OutOfOrder => "done bits out of order",
            Lie::ErrorBits => "error bits on a good frame",
            Lie::NoEndOfPacket => "end of packet missing",
            Lie::Scribble => "scribbled over descriptors",
            Lie::DoneEarly => "transmit done before the packet was read",
            Lie::RewriteAfterDone => "frame written again after it was done",
            Lie::RegistersOnes => "registers read as all ones",
            Lie::RegistersRandom => "registers read as random values",
            Lie::HeadNonsense => "head registers with nonsense",
            Lie::StrayWrite => "write to an address that nobody gave",
        }
    }
}

impl std::fmt::Display for Lie {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

/// Decides about lies and counts them.
pub(crate) struct Liar {
    pub(crate) random: Random,
    per_mille: u16,
    told: [u64; Lie::ALL.len()],
}

impl Liar {
    pub(crate) fn new(lies: Lies) -> Liar {
        Liar { random: Random::new(lies.seed), per_mille: lies.per_mille, told: [0; Lie::ALL.len()] }
    }

    /// The lie to tell now, of `kinds`, if any; it counts as told.
    pub(crate) fn tempted(&mut self, kinds: &[Lie]) -> Option<Lie> {
        if self.random.below(1000) >= u64::from(self.per_mille) {
            return None;
        }
        let lie = *kinds.get(self.random.below(kinds.len() as u64) as usize)?;
        self.told[lie as usize] += 1;
        Some(lie)
    }

    pub(crate) fn told(&self) -> Vec<(Lie, u64)> {
        Lie::ALL.into_iter().zip(self.told).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_listed_in_their_order_and_print() {
        for (at, lie) in Lie::ALL.into_iter().enumerate() {
            assert_eq!(lie as usize, at);
            assert!(lie.to_string().len() > 5);
        }
    }

    #[test]
    fn lies_come_as_often_as_asked_and_are_counted() {
        let mut liar = Liar::new(Lies { seed: 3, per_mille: 100 });
        let told = (0..10_000).filter(|_| liar.tempted(&Lie::ALL).is_some()).count() as u64;
        assert!((800..1200).contains(&told), "{told}");
        assert_eq!(liar.told().iter().map(|(_, count)| count).sum::<u64>(), told);
        assert!(liar.told().iter().all(|(_, count)| *count > 0));
        let mut honest = Liar::new(Lies { seed: 3, per_mille: 0 });
        assert!((0..1000).all(|_| honest.tempted(&Lie::ALL).is_none()));
    }
}
