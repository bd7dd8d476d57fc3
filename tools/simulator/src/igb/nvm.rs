//! The NVM and its read register EERD (82576 datasheet 6.2, 8.4.2).
//!
//! 1024 words of 16 bits: the address in words 0 to 2, the checksum of the first 64 in word 63, nothing behind them. A read takes a
//! while: DONE shows on the second look.

use crate::igb::Answer;
use pollring_drivers::nic::igb::regs::eerd;

const WORDS: usize = 64;
const ALL_WORDS: usize = 1024;
/// All words add up to this (6.2.24).
const CHECKSUM: u16 = 0xbaba;

pub(super) struct Nvm {
    words: [u16; WORDS],
    register: u32,
    looks_left: u8,
}

impl Nvm {
    pub(super) fn new(mac: [u8; 6]) -> Nvm {
        let mut words = [0xffff; WORDS];
        for (word, pair) in words.iter_mut().zip(mac.as_chunks::<2>().0) {
            *word = u16::from_le_bytes(*pair);
        }
        let sum = words[..WORDS - 1].iter().fold(0u16, |sum, word| sum.wrapping_add(*word));
        words[WORDS - 1] = CHECKSUM.wrapping_sub(sum);
        Nvm { words, register: 0, looks_left: 0 }
    }

    /// What a reset loads into RAL0 and RAH0, without the valid bit.
    pub(super) fn mac(&self) -> [u32; 2] {
        let [low, middle, high, ..] = self.words.map(u32::from);
        [low | middle << 16, high]
    }

    pub(super) fn reset(&mut self) {
        (self.register, self.looks_left) = (0, 0);
    }

    pub(super) fn write(&mut self, value: u32) {
        let address = value >> eerd::ADDRESS_SHIFT & 0x3fff;
        // Behind the last word the address wraps around.
        let word = self.words.get(address as usize % ALL_WORDS).copied().unwrap_or(0xffff);
        self.register = u32::from(word) << eerd::DATA_SHIFT | address << eerd::ADDRESS_SHIFT;
        if value & eerd::START != 0 {
            self.register |= eerd::DONE;
            self.looks_left = 1;
        }
    }

    pub(super) fn read(&mut self, answer: Answer) -> u32 {
        if answer == Answer::Never || self.looks_left > 0 {
            self.looks_left = self.looks_left.saturating_sub(1);
            return self.register & 0xffff & !eerd::DONE;
        }
        self.register
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(nvm: &mut Nvm, address: u32) -> u16 {
        nvm.write(address << eerd::ADDRESS_SHIFT | eerd::START);
        assert_eq!(nvm.read(Answer::Honest) & eerd::DONE, 0);
        let value = nvm.read(Answer::Honest);
        assert_ne!(value & eerd::DONE, 0);
        (value >> eerd::DATA_SHIFT) as u16
    }

    #[test]
    fn words_hold_the_address_and_add_up() {
        let mut nvm = Nvm::new([0xa0, 0x36, 0x9f, 1, 2, 3]);
        assert_eq!([0, 1, 2].map(|at| word(&mut nvm, at)), [0x36a0, 0x019f, 0x0302]);
        let sum = (0..64).fold(0u16, |sum, at| sum.wrapping_add(word(&mut nvm, at)));
        assert_eq!(sum, 0xbaba);
        assert_eq!(nvm.mac(), [0x019f_36a0, 0x0302]);
        nvm.write(eerd::START);
        assert!((0..100).all(|_| nvm.read(Answer::Never) & eerd::DONE == 0));
    }
}
