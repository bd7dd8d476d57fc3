//! The numbers of the wire as types: PSN, QPN and the keys. They are plain values; whether one is valid is the transport's to
//! say.

use std::fmt;

/// A packet sequence number: 24 bits that wrap (IBTA 9.7). There is no order over all of them, only a signed distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// The low 24 bits of `bits`, as BTH carries them.
    #[inline]
    pub const fn new(bits: u32) -> Psn {
        Psn(bits & 0xff_ffff)
    }

    /// The 24 bits.
    #[inline]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The number `packets` later.
    #[inline]
    #[must_use]
    pub const fn plus(self, packets: u32) -> Psn {
        Psn::new(self.0.wrapping_add(packets))
    }

    /// The number `packets` earlier.
    #[inline]
    #[must_use]
    pub const fn minus(self, packets: u32) -> Psn {
        Psn::new(self.0.wrapping_sub(packets))
    }

    /// How many packets later than `earlier` it is, from -2^23 to 2^23 - 1; negative when it is earlier. At most
    /// 2^23 packets are outstanding, so the sign tells a duplicate from a gap.
    #[inline]
    pub const fn since(self, earlier: Psn) -> i32 {
        ((self.0.wrapping_sub(earlier.0) << 8) as i32) >> 8
    }

    /// Whether it is earlier than `other`.
    #[inline]
    pub const fn precedes(self, other: Psn) -> bool {
        self.since(other) < 0
    }

    /// Whether it is one of the `packets` numbers from `first` on; `packets` is at most 2^24.
    #[inline]
    pub const fn is_within(self, first: Psn, packets: u32) -> bool {
        self.minus(first.0).0 < packets
    }
}

/// The number of a queue pair: 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qpn(u32);

impl Qpn {
    /// QP1, the general services interface, to which connection management goes.
    pub const GENERAL_SERVICES: Qpn = Qpn(1);
    /// What multicast packets are sent to.
    pub const MULTICAST: Qpn = Qpn(0xff_ffff);

    /// The low 24 bits of `bits`.
    #[inline]
    pub const fn new(bits: u32) -> Qpn {
        Qpn(bits & 0xff_ffff)
    }

    /// The 24 bits.
    #[inline]
    pub const fn bits(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// Names a memory region in this process's own requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LKey(pub u32);

/// Names a memory region to a peer. Whoever knows it reaches the memory, as far as PD, rights and bounds allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RKey(pub u32);

/// Names a group of datagram QPs; a datagram with another one is dropped (IBTA 10.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QKey(pub u32);

impl QKey {
    /// That of QP1.
    pub const GENERAL_SERVICES: QKey = QKey(0x8001_0000);
}

/// Names a partition; bit 15 is full membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PKey(pub u16);

impl PKey {
    /// The default partition, full member: the only one of RoCE in practice.
    pub const DEFAULT: PKey = PKey(0xffff);

    /// Whether a packet of the one may be received by the other: same partition, and one of both a full member (IBTA 10.9.3).
    pub const fn admits(self, packet: PKey) -> bool {
        (self.0 ^ packet.0) & 0x7fff == 0 && self.0 & 0x7fff != 0 && (self.0 | packet.0) & 0x8000 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HALF: u32 = 1 << 23;

    #[test]
    fn sequence_numbers_wrap_at_24_bits() {
        let last = Psn::new(0xff_ffff);
        assert_eq!((last.plus(1), Psn::new(0).minus(1)), (Psn::new(0), last));
        assert!(last.precedes(Psn::new(0)) && !Psn::new(0).precedes(last));
        assert_eq!(Psn::new(HALF).since(Psn::new(0)), -(HALF as i32));
        assert_eq!(last.to_string(), "0xffffff");
        assert_eq!(Qpn::new(0xff00_0001), Qpn::GENERAL_SERVICES);
    }

    proptest! {
        #[test]
        fn distance_undoes_addition(start: u32, packets in 0u32..HALF) {
            let psn = Psn::new(start);
            prop_assert_eq!(psn.plus(packets).since(psn), packets as i32);
            prop_assert_eq!(psn.since(psn.plus(packets)), -(packets as i32));
            prop_assert_eq!(psn.plus(packets).minus(packets), psn);
            prop_assert_eq!(psn.precedes(psn.plus(packets)), packets != 0);
            prop_assert!(psn.plus(packets).bits() < 1 << 24);
        }

        #[test]
        fn a_window_holds_exactly_its_packets(first: u32, packets in 0u32..HALF, other: u32) {
            let (first, other) = (Psn::new(first), Psn::new(other));
            let expected = (0..0x100_0000u64).contains(&u64::from(packets))
                && (u64::from(other.bits()) + (1 << 24) - u64::from(first.bits())) % (1 << 24) < u64::from(packets);
            prop_assert_eq!(other.is_within(first, packets), expected);
        }

        #[test]
        fn partitions_admit_each_other_both_ways(one: u16, two: u16) {
            prop_assert_eq!(PKey(one).admits(PKey(two)), PKey(two).admits(PKey(one)));
            prop_assert_eq!(PKey(one).admits(PKey(one)), one & 0x8000 != 0 && one & 0x7fff != 0);
        }
    }
}
