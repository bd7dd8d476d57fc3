//! Which frames the MAC takes (82576 datasheet 7.1.1.1, 8.10.1, 8.10.15 to 8.10.17).

use super::others;
use super::registers::RegisterWords;
use pollring_drivers::nic::igb::regs::*;

/// Without CRC.
const SHORTEST_BYTES: usize = 60;
/// With CRC, without and with a VLAN tag (8.10.1, LPE).
const LONGEST_BYTES: usize = 1518;
const LONGEST_TAGGED_BYTES: usize = 1522;
pub(super) const CRC_BYTES: usize = 4;
/// Of the tag, and of what follows in it.
const VLAN_ETHERTYPE: [u8; 2] = [0x81, 0x00];
const VLAN_ID_MASK: u16 = 0xfff;
/// RCTL.MO: which 12 bits of a group address index the multicast table.
const MULTICAST_OFFSET_SHIFT: u32 = 12;

/// What the MAC says about a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Good,
    TooShort,
    TooLong,
    NotForUs,
}

/// Judges a frame that carries no CRC.
#[inline]
pub(super) fn judge(registers: &RegisterWords, frame: &[u8]) -> Verdict {
    let control = registers[RCTL.at(0)];
    if frame.len() < SHORTEST_BYTES {
        return Verdict::TooShort;
    }
    if frame.len() + CRC_BYTES > longest(registers, control, frame) {
        return Verdict::TooLong;
    }
    let ours = is_for_us(registers, control, frame) && is_on_our_vlan(registers, control, frame);
    if ours { Verdict::Good } else { Verdict::NotForUs }
}

/// The tag of a frame that has one: priority, drop bit and VLAN (IEEE 802.1Q, 9.6).
#[inline]
pub(super) fn vlan_tag(frame: &[u8]) -> Option<u16> {
    let [high, low, tag @ ..] = frame.get(12..)?.first_chunk::<4>()?;
    ([*high, *low] == VLAN_ETHERTYPE).then(|| u16::from_be_bytes(*tag))
}

/// With the VLAN filter on, the table has a bit for each VLAN; frames without a tag pass (7.4.3).
fn is_on_our_vlan(registers: &RegisterWords, control: u32, frame: &[u8]) -> bool {
    if control & others::rctl::VLAN_FILTER == 0 {
        return true;
    }
    let Some(tag) = vlan_tag(frame) else { return true };
    let vlan = usize::from(tag & VLAN_ID_MASK);
    registers[others::VFTA.at(vlan / 32)] >> (vlan % 32) & 1 != 0
}

fn longest(registers: &RegisterWords, control: u32, frame: &[u8]) -> usize {
    if control & rctl::LONG_PACKETS != 0 {
        registers[RLPML.at(0)] as usize
    } else if frame.get(12..14) == Some(&VLAN_ETHERTYPE) {
        LONGEST_TAGGED_BYTES
    } else {
        LONGEST_BYTES
    }
}

fn is_for_us(registers: &RegisterWords, control: u32, frame: &[u8]) -> bool {
    let Some(destination) = frame.first_chunk::<6>() else { return false };
    let group = destination[0] & 1 != 0;
    let gate = match (group, destination) {
        (_, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff]) => rctl::BROADCAST,
        (true, _) => rctl::MULTICAST_PROMISCUOUS,
        (false, _) => rctl::UNICAST_PROMISCUOUS,
    };
    control & gate != 0
        || is_own_address(registers, *destination)
        || group && is_in_multicast_table(registers, control, *destination)
}

fn is_own_address(registers: &RegisterWords, [a, b, c, d, e, f]: [u8; 6]) -> bool {
    let (low, high) = (u32::from_le_bytes([a, b, c, d]), u32::from(u16::from_le_bytes([e, f])));
    let is_entry = |low_at: usize, high_at: usize| {
        let entry = registers[high_at];
        entry & rah::VALID != 0 && entry & 0xffff == high && registers[low_at] == low
    };
    (0..RAL.count).any(|at| is_entry(RAL.at(at), RAH.at(at)))
        || (0..others::RA_HIGH.count / 2)
            .any(|at| is_entry(others::RA_HIGH.at(at * 2), others::RA_HIGH.at(at * 2 + 1)))
}

/// The upper bits of the address, at the offset that RCTL.MO selects, number one bit of the table.
fn is_in_multicast_table(registers: &RegisterWords, control: u32, destination: [u8; 6]) -> bool {
    let shift = [4, 3, 2, 0][(control >> MULTICAST_OFFSET_SHIFT & 3) as usize];
    let hash = usize::from(u16::from_le_bytes([destination[4], destination[5]]) >> shift) & 0xfff;
    registers[MTA.at(hash >> 5)] >> (hash & 31) & 1 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(destination: [u8; 6], bytes: usize) -> Vec<u8> {
        let mut frame = vec![0; bytes];
        frame[..6].copy_from_slice(&destination);
        frame
    }

    const OWN: [u8; 6] = [2, 1, 2, 3, 4, 5];
    const GROUP: [u8; 6] = [1, 0, 0x5e, 0, 0x10, 0x20];

    fn registers(control: u32) -> RegisterWords {
        let mut registers = RegisterWords::new();
        registers[RCTL.at(0)] = control;
        registers[RAL.at(3)] = u32::from_le_bytes([2, 1, 2, 3]);
        registers[RAH.at(3)] = u32::from(u16::from_le_bytes([4, 5])) | rah::VALID;
        registers
    }

    #[test]
    fn only_what_is_addressed_to_us_unless_promiscuous() {
        let verdict = |control, destination| judge(&registers(control), &frame(destination, 60));
        assert_eq!(verdict(0, OWN), Verdict::Good);
        for (destination, gate) in [
            ([2, 1, 2, 3, 4, 6], rctl::UNICAST_PROMISCUOUS),
            (GROUP, rctl::MULTICAST_PROMISCUOUS),
            ([0xff; 6], rctl::BROADCAST),
        ] {
            assert_eq!(verdict(0, destination), Verdict::NotForUs);
            assert_eq!(verdict(gate, destination), Verdict::Good);
            assert_eq!(verdict(!gate & !rctl::LONG_PACKETS, destination), Verdict::NotForUs);
        }
        let mut invalid = registers(0);
        invalid[RAH.at(3)] &= !rah::VALID;
        assert_eq!(judge(&invalid, &frame(OWN, 60)), Verdict::NotForUs);
    }

    #[test]
    fn the_multicast_table_is_indexed_by_the_selected_bits() {
        for (offset, shift) in [(0, 4), (1, 3), (2, 2), (3, 0)] {
            let mut registers = registers(offset << MULTICAST_OFFSET_SHIFT);
            assert_eq!(judge(&registers, &frame(GROUP, 60)), Verdict::NotForUs);
            let hash = (0x2010usize >> shift) & 0xfff;
            registers[MTA.at(hash / 32)] = 1 << (hash % 32);
            assert_eq!(judge(&registers, &frame(GROUP, 60)), Verdict::Good);
        }
    }

    #[test]
    fn the_vlan_table_filters_tagged_frames_only() {
        let mut tagged = frame(OWN, 64);
        tagged[12..16].copy_from_slice(&[0x81, 0, 0xe0, 0x45]);
        let mut registers = registers(0);
        assert_eq!(judge(&registers, &tagged), Verdict::Good);
        registers[RCTL.at(0)] = others::rctl::VLAN_FILTER;
        assert_eq!(judge(&registers, &tagged), Verdict::NotForUs);
        assert_eq!(judge(&registers, &frame(OWN, 64)), Verdict::Good);
        registers[others::VFTA.at(2)] = 1 << 5;
        assert_eq!(judge(&registers, &tagged), Verdict::Good);
    }

    #[test]
    fn the_upper_addresses_count_too() {
        let mut registers = registers(0);
        let far = [2, 9, 9, 9, 9, 9];
        assert_eq!(judge(&registers, &frame(far, 60)), Verdict::NotForUs);
        registers[0x54e0 + 7 * 8] = u32::from_le_bytes([2, 9, 9, 9]);
        registers[0x54e4 + 7 * 8] = 0x0909 | rah::VALID;
        assert_eq!(judge(&registers, &frame(far, 60)), Verdict::Good);
    }

    #[test]
    fn lengths_count_the_crc() {
        let mut registers = registers(0);
        registers[RLPML.at(0)] = 9000;
        for (bytes, verdict) in
            [(59, Verdict::TooShort), (60, Verdict::Good), (1514, Verdict::Good), (1515, Verdict::TooLong)]
        {
            assert_eq!(judge(&registers, &frame(OWN, bytes)), verdict);
        }
        let mut tagged = frame(OWN, 1518);
        tagged[12..14].copy_from_slice(&VLAN_ETHERTYPE);
        assert_eq!(judge(&registers, &tagged), Verdict::Good);
        registers[RCTL.at(0)] = rctl::LONG_PACKETS;
        assert_eq!(judge(&registers, &frame(OWN, 8996)), Verdict::Good);
        assert_eq!(judge(&registers, &frame(OWN, 8997)), Verdict::TooLong);
    }
}
