//! Counters: 32-bit words that reading clears, and two 64-bit ones (82576 datasheet 8.18).
//!
//! Reading the low half of an octet counter holds its value; reading the high half clears what was held, so that nothing that is
//! counted between the two is lost.

use super::others;
use super::registers::RegisterWords;
use pollring::bus::Register;
use pollring_drivers::nic::igb::regs::*;

/// A CRC counts as octets on the wire.
const CRC_BYTES: u64 = 4;

/// A 64-bit octet counter.
#[derive(Clone, Copy, Default)]
pub(super) struct Octets {
    count: u64,
    held: Option<u64>,
}

impl Octets {
    #[inline]
    pub(super) fn add(&mut self, frame_bytes: usize) {
        self.count += frame_bytes as u64 + CRC_BYTES;
    }

    pub(super) fn read_low(&mut self) -> u32 {
        self.held = Some(self.count);
        self.count as u32
    }

    pub(super) fn read_high(&mut self) -> u32 {
        let held = self.held.take().unwrap_or(self.count);
        self.count -= held;
        (held >> 32) as u32
    }
}

impl RegisterWords {
    /// Counts one; a counter stays at its end.
    #[inline]
    pub(super) fn count(&mut self, register: Register) {
        self.count_at(register, 0);
    }

    #[inline]
    pub(super) fn count_at(&mut self, register: Register, index: usize) {
        let word = &mut self[register.at(index)];
        *word = word.saturating_add(1);
    }

    /// A frame that is in memory.
    #[inline]
    pub(super) fn count_received(&mut self, destination: [u8; 6], frame_bytes: usize) {
        self.count(GPRC);
        self.count_at(others::PRC, length_class(frame_bytes));
        if destination == [0xff; 6] {
            self.count(BPRC);
        } else if destination[0] & 1 != 0 {
            self.count(MPRC);
        }
    }

    /// A frame that is on the wire.
    #[inline]
    pub(super) fn count_sent(&mut self, frame: &[u8]) {
        self.count(GPTC);
        self.count(TPT);
        self.count_at(others::PTC, length_class(frame.len()));
        match frame.first_chunk::<6>() {
            Some([0xff, 0xff, 0xff, 0xff, 0xff, 0xff]) => self.count(others::BPTC),
            Some([first, ..]) if first & 1 != 0 => self.count(others::MPTC),
            _ => {}
        }
    }
}

/// Which of six counters has a frame, by its length with CRC: up to 64, to 127, to 255, to 511, to 1023, and longer (8.18).
#[inline]
fn length_class(frame_bytes: usize) -> usize {
    let bytes = frame_bytes + CRC_BYTES as usize;
    if bytes <= 64 { 0 } else { (bytes.ilog2() as usize - 5).min(5) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_fall_into_their_classes() {
        let ends =
            [(60, 0), (61, 1), (123, 1), (124, 2), (251, 2), (507, 3), (1019, 4), (1020, 5), (9000, 5)];
        ends.iter().for_each(|(bytes, class)| assert_eq!(length_class(*bytes), *class, "{bytes}"));
    }

    #[test]
    fn nothing_is_lost_between_the_halves() {
        let mut octets = Octets::default();
        octets.add(60);
        assert_eq!(octets.read_low(), 64);
        assert_eq!(octets.read_low(), 64);
        octets.add(96);
        assert_eq!(octets.read_high(), 0);
        assert_eq!(octets.read_low(), 100);
        octets.count += 5 << 32;
        assert_eq!((octets.read_low(), octets.read_high()), (100, 5));
        assert_eq!((octets.read_low(), octets.read_high()), (0, 0));
        octets.add(60);
        octets.read_high();
        octets.read_high();
        assert_eq!(octets.read_low(), 0);
    }
}
