//! Register accesses, by the rules of the table that the driver shares (82576 datasheet, chapter 8).
//!
//! The table that the driver shares comes first, then the registers that other drivers use. What neither has reads as 0, ignores
//! writes and is counted. Plain registers are words; the ones with effects are told apart here. Accesses hold the device's lock. The
//! tail registers are words of their own, which the driver may also store into without it.

use super::config::BAR_BYTES;
use super::others::{self, eecd, swsm};
use super::phy::Phy;
use super::state::{Side, State};
use super::violation::Violation;
use super::{Answer, Defect};
use pollring::bus::{Access, Register};
use pollring_drivers::nic::igb::regs::*;
use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// SRRCTL.DESCTYPE in bits 27:25 (8.10.2).
const DESCRIPTOR_TYPE_MASK: u32 = 7 << 25;
/// STATUS.SPEED: 1000 Mbit/s (8.2.2).
const SPEED_1000: u32 = 2;

/// Offsets of registers with effects.
mod at {
    macro_rules! offsets {
        ($($name:ident)*) => { $(pub(super) const $name: usize = super::$name.offset;)* };
    }
    offsets!(CTRL STATUS MDIC EECD EERD ICR RDH RDT RXDCTL TDH TDT TXDCTL GORCL GORCH GOTCL GOTCH);
    macro_rules! others {
        ($($name:ident)*) => { $(pub(super) const $name: usize = super::others::$name.offset;)* };
    }
    others!(EICR SWSM TORL TORH TOTL TOTH);
}

/// The words behind the registers, indexed by byte offset.
pub(super) struct RegisterWords(Box<[u32]>);

impl RegisterWords {
    pub(super) fn new() -> RegisterWords {
        RegisterWords(vec![0; BAR_BYTES / 4].into_boxed_slice())
    }

    pub(super) fn clear(&mut self) {
        self.0.fill(0);
    }
}

impl Index<usize> for RegisterWords {
    type Output = u32;

    #[inline]
    fn index(&self, offset: usize) -> &u32 {
        &self.0[offset / 4]
    }
}

impl IndexMut<usize> for RegisterWords {
    #[inline]
    fn index_mut(&mut self, offset: usize) -> &mut u32 {
        &mut self.0[offset / 4]
    }
}

/// A register, and which one of its array it is.
type Place = (&'static Register, usize);

/// The register at `offset`. What our driver's table has is found there, whatever the other one says.
pub(super) fn lookup(offset: usize) -> Option<Place> {
    static TABLE: OnceLock<Vec<Option<Place>>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let mut table = vec![None; BAR_BYTES / 4];
        for register in others::REGISTERS.iter().chain(REGISTERS) {
            (0..register.count).for_each(|at| table[register.at(at) / 4] = Some((register, at)));
        }
        for word in 0..table.len() {
            table[word] = table[others::canonical(word * 4) / 4];
        }
        table
    });
    *table.get(offset / 4)?
}

/// Accesses of registers that the model does not know.
#[derive(Default)]
pub(super) struct Unknown(BTreeMap<usize, u64>);

impl Unknown {
    #[cold]
    fn report(&mut self, offset: usize) {
        let count = self.0.entry(offset & !3).or_default();
        *count += 1;
        if *count == 1 {
            tracing::debug!(offset = format!("{offset:#x}"), "a register that the model does not know");
        }
    }

    /// Accesses by offset.
    pub(super) fn counts(&self) -> Vec<(usize, u64)> {
        self.0.iter().map(|(offset, count)| (*offset, *count)).collect()
    }
}

impl State {
    /// A read by the driver.
    pub(super) fn read(&mut self, offset: usize) -> u32 {
        if !self.is_touched() || !self.config.memory_space() {
            return u32::MAX;
        }
        let Some((register, index)) = lookup(offset) else {
            self.unknown.report(offset);
            return 0;
        };
        let value = match self.lie_about_register(register) {
            Some(lie) => lie,
            None => self.read_register(register, index),
        };
        if register.offset != at::CTRL {
            // Time passes: the reset is over.
            self.reset_looks = 0;
        }
        value
    }

    fn read_register(&mut self, register: &Register, index: usize) -> u32 {
        match register.offset {
            at::CTRL => self.read_control(),
            at::STATUS => self.read_status(),
            at::MDIC => self.phy.read_mdic(self.answer(Defect::PhyNeverReady)),
            at::EERD => self.nvm.read(self.answer(Defect::NvmNeverDone)),
            at::ICR => self.read_causes(),
            at::EICR => self.read_extended_causes(),
            at::SWSM => self.read_semaphore(),
            at::RDH => self.rx[index].head(),
            at::TDH => self.tx[index].head(),
            at::RDT => self.rx[index].tail().load(Ordering::Acquire),
            at::TDT => self.tx[index].tail().load(Ordering::Acquire),
            at::RXDCTL => self.read_queue_control(Side::Rx, register.at(index), index),
            at::TXDCTL => self.read_queue_control(Side::Tx, register.at(index), index),
            at::GORCL => self.received_octets.read_low(),
            at::GORCH => self.received_octets.read_high(),
            at::GOTCL => self.sent_octets.read_low(),
            at::GOTCH => self.sent_octets.read_high(),
            at::TORL => self.all_received_octets.read_low(),
            at::TORH => self.all_received_octets.read_high(),
            at::TOTL => self.all_sent_octets.read_low(),
            at::TOTH => self.all_sent_octets.read_high(),
            _ => self.read_plain(register, index),
        }
    }

    fn read_plain(&mut self, register: &Register, index: usize) -> u32 {
        let word = &mut self.registers[register.at(index)];
        match register.access {
            Access::ReadClears => std::mem::take(word),
            Access::WriteOnly => 0,
            Access::ReadWrite | Access::ReadOnly | Access::WriteOneClears => *word,
        }
    }

    /// A write by the driver.
    pub(super) fn write(&mut self, offset: usize, value: u32) {
        if !self.is_touched() || !self.config.memory_space() {
            return;
        }
        let Some((register, index)) = lookup(offset) else { return self.unknown.report(offset) };
        match register.offset {
            at::CTRL => self.write_control(value),
            at::MDIC => self.phy.write_mdic(value),
            at::EECD => self.write_nvm_control(value),
            at::EERD => self.nvm.write(value),
            at::RDH => self.rx[index].set_head(value),
            at::TDH => self.tx[index].set_head(value),
            at::RDT => self.rx[index].tail().store(value, Ordering::Release),
            at::TDT => self.tx[index].tail().store(value, Ordering::Release),
            at::RXDCTL => self.write_queue_control(Side::Rx, register.at(index), index, value),
            at::TXDCTL => self.write_queue_control(Side::Tx, register.at(index), index, value),
            offset if self.write_interrupt(offset, value) => {}
            _ => self.write_plain(register, index, value),
        }
    }

    /// Reading the semaphore takes it, if it was free (8.6).
    fn read_semaphore(&mut self) -> u32 {
        let value = self.registers[at::SWSM];
        self.registers[at::SWSM] |= swsm::SOFTWARE;
        value
    }

    /// Access to the NVM's pins is granted at once; they lead nowhere (8.4).
    fn write_nvm_control(&mut self, value: u32) {
        let kept = eecd::GRANT | eecd::PRESENT | eecd::AUTO_READ_DONE | 0xf << eecd::SIZE_SHIFT;
        let grant = if value & eecd::REQUEST != 0 { eecd::GRANT } else { 0 };
        let fixed = self.registers[at::EECD] & kept & !eecd::GRANT;
        self.registers[at::EECD] = value & !kept | fixed | grant;
    }

    fn write_plain(&mut self, register: &Register, index: usize, value: u32) {
        let word = &mut self.registers[register.at(index)];
        match register.access {
            Access::ReadWrite => *word = value,
            Access::WriteOneClears => *word &= !value,
            Access::ReadOnly | Access::WriteOnly | Access::ReadClears => {}
        }
    }

    /// The reset bit shows for one look after a reset, if that is the next thing that a driver looks at, so that it has to wait for it.
    fn read_control(&mut self) -> u32 {
        let control = self.registers[at::CTRL];
        if self.answer(Defect::ResetNeverEnds) == Answer::Never && self.was_reset || self.reset_looks > 0 {
            self.reset_looks = self.reset_looks.saturating_sub(1);
            return control | ctrl::RESET;
        }
        control
    }

    fn write_control(&mut self, value: u32) {
        if value & ctrl::RESET != 0 {
            self.reset_mac();
            self.was_reset = true;
            self.reset_looks = 1;
        } else {
            if value & others::ctrl::PHY_RESET != 0 {
                self.phy = Phy::new();
            }
            self.registers[at::CTRL] = value;
        }
        self.set_gate();
    }

    fn read_status(&mut self) -> u32 {
        let mut value = 0;
        if self.link_is_up() {
            value |= status::LINK_UP | status::FULL_DUPLEX | SPEED_1000 << status::SPEED_SHIFT;
        }
        let stopped = self.registers[at::CTRL] & ctrl::MASTER_DISABLE != 0;
        if !stopped || self.answer(Defect::MasterNeverStops) == Answer::Never {
            value |= status::MASTER_ENABLED;
        }
        if self.reset_looks == 0 {
            value |= status::RESET_DONE;
        }
        value
    }

    fn read_queue_control(&mut self, side: Side, offset: usize, index: usize) -> u32 {
        let (queue, defect) = match side {
            Side::Rx => (&self.rx[index], Defect::RxNeverEnables),
            Side::Tx => (&self.tx[index], Defect::TxNeverEnables),
        };
        let shown = queue.is_enabled() && self.answer(defect) == Answer::Honest;
        self.registers[offset] | if shown { dctl::ENABLE } else { 0 }
    }

    fn write_queue_control(&mut self, side: Side, offset: usize, index: usize, value: u32) {
        self.registers[offset] = value & !dctl::ENABLE;
        if value & dctl::ENABLE == 0 {
            return self.disable_queue(side, index);
        }
        let (low, high, length) = match side {
            Side::Rx => (RDBAL, RDBAH, RDLEN),
            Side::Tx => (TDBAL, TDBAH, TDLEN),
        };
        let word = |register: Register| self.registers[register.at(index)];
        let (base, bytes) = (u64::from(word(low)) | u64::from(word(high)) << 32, word(length));
        let format = word(SRRCTL) & DESCRIPTOR_TYPE_MASK;
        if side == Side::Rx && format != srrctl::ADVANCED_ONE_BUFFER {
            self.violations.report(Violation::ReceiveFormat);
        }
        let queue = match side {
            Side::Rx => &mut self.rx[index],
            Side::Tx => &mut self.tx[index],
        };
        queue.enable(base, bytes, &mut self.violations);
    }
}
