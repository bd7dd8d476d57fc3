//! The PHY behind MDIC, and its negotiation (IEEE 802.3 clause 22; 82576 datasheet 8.2.4).
//!
//! Negotiation starts when BMCR asks for it, as in QEMU's model and unlike a PHY with power, which also starts by itself: a driver that
//! forgets to ask shall notice. It takes some steps with the cable in one piece. A cable that was cut starts it over. The partner
//! offers everything up to 1000 Mbit/s full duplex and no pause. Registers without a meaning here keep what is written.

use crate::igb::Answer;
use pollring_drivers::nic::igb::regs::mdic;

/// Steps from the start of negotiation to the link.
pub(super) const NEGOTIATION_STEPS: u32 = 8;

const ADDRESS: u32 = 1;
const BMCR_RESET: u32 = 1 << 15;
/// Registers that MDIO addresses.
const REGISTERS: usize = 32;
/// Registers of its own vendor: the page of the cable's length (IGP03), which must not read as 0, and the select register.
const PAGE_SELECT: u32 = 31;
const FIRST_PAGED: u32 = 16;
const CABLE_LENGTH_PAGE: u32 = 0x1000;
const CABLE_LENGTH: u32 = 8 << 9;
/// What it advertises, and what the partner does: 10 and 100 Mbit/s, both duplexes, selector IEEE 802.3; acknowledged.
const ADVERTISED: u32 = 0x01e1;
const PARTNER: u32 = 0x4000 | ADVERTISED;
/// 1000 Mbit/s: full duplex advertised; the partner has it, both receivers are fine.
const ADVERTISED_1000: u32 = 0x0200;
const PARTNER_1000: u32 = 0x3800;
/// Extended status: 1000BASE-T, both duplexes.
const EXTENDED_STATUS: u32 = 0x3000;
/// Port status of IGP03: 1000 Mbit/s, crossed, link.
const PORT_STATUS: u32 = 0xc800 | 1 << 10;
/// 10 and 100 Mbit/s half and full duplex, extended status and capabilities, negotiation.
const BMSR_ABILITIES: u32 = 0x7949;
/// Identifier of the 82576's PHY.
const ID_1: u32 = 0x02a8;
const ID_2: u32 = 0x0391;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Negotiation {
    NotAsked,
    StepsLeft(u32),
    Done,
}

pub(super) struct Phy {
    control: u32,
    /// What was written to the others.
    kept: [u16; REGISTERS],
    negotiation: Negotiation,
    register: u32,
    looks_left: u8,
}

impl Phy {
    pub(super) fn new() -> Phy {
        let mut kept = [0; REGISTERS];
        (kept[4], kept[9]) = (ADVERTISED as u16, ADVERTISED_1000 as u16);
        Phy {
            control: mdic::BMCR_AUTONEG,
            kept,
            negotiation: Negotiation::NotAsked,
            register: mdic::READY,
            looks_left: 0,
        }
    }

    /// Whether both ends agreed.
    #[inline]
    pub(super) fn is_done(&self) -> bool {
        self.negotiation == Negotiation::Done
    }

    /// Whether negotiation is under way.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self.negotiation, Negotiation::StepsLeft(_))
    }

    /// One step with the cable joined or not.
    #[inline]
    pub(super) fn step(&mut self, joined: bool) {
        self.negotiation = match (self.negotiation, joined) {
            (Negotiation::NotAsked, _) => Negotiation::NotAsked,
            (_, false) => Negotiation::StepsLeft(NEGOTIATION_STEPS),
            (Negotiation::StepsLeft(0 | 1) | Negotiation::Done, true) => Negotiation::Done,
            (Negotiation::StepsLeft(left), true) => Negotiation::StepsLeft(left - 1),
        };
    }

    pub(super) fn write_mdic(&mut self, value: u32) {
        let register = value >> mdic::REGISTER_SHIFT & 0x1f;
        self.looks_left = 1;
        self.register = value & !(mdic::ERROR | mdic::READY) | mdic::READY;
        let here = value >> mdic::PHY_SHIFT & 0x1f == ADDRESS;
        match (value & (mdic::WRITE | mdic::READ), here) {
            (mdic::WRITE, true) => self.write(register, value & 0xffff),
            (mdic::READ, true) => self.register = self.register & !0xffff | self.read(register),
            _ => self.register |= mdic::ERROR,
        }
    }

    pub(super) fn read_mdic(&mut self, answer: Answer) -> u32 {
        if answer == Answer::Never || self.looks_left > 0 {
            self.looks_left = self.looks_left.saturating_sub(1);
            return self.register & !mdic::READY;
        }
        self.register
    }

    fn write(&mut self, register: u32, value: u32) {
        if register != mdic::BMCR {
            self.kept[register as usize] = value as u16;
            return;
        }
        if value & BMCR_RESET != 0 {
            self.control = mdic::BMCR_AUTONEG;
            self.negotiation = Negotiation::NotAsked;
            return;
        }
        self.control = value & !mdic::BMCR_RESTART_AUTONEG;
        let wanted = mdic::BMCR_AUTONEG | mdic::BMCR_RESTART_AUTONEG;
        if value & wanted == wanted {
            self.negotiation = Negotiation::StepsLeft(NEGOTIATION_STEPS);
        }
    }

    fn read(&self, register: u32) -> u32 {
        match register {
            mdic::BMCR => self.control,
            mdic::BMSR if self.is_done() => BMSR_ABILITIES | mdic::BMSR_AUTONEG_DONE | mdic::BMSR_LINK,
            mdic::BMSR => BMSR_ABILITIES,
            2 => ID_1,
            3 => ID_2,
            5 if self.is_done() => PARTNER,
            10 if self.is_done() => PARTNER_1000,
            5 | 6 | 10 => 0,
            15 => EXTENDED_STATUS,
            FIRST_PAGED..PAGE_SELECT if self.page() >= CABLE_LENGTH_PAGE => CABLE_LENGTH,
            17 if self.is_done() => PORT_STATUS,
            _ => u32::from(self.kept[register as usize]),
        }
    }

    fn page(&self) -> u32 {
        u32::from(self.kept[PAGE_SELECT as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(phy: &mut Phy, operation: u32, register: u32, data: u32) -> u32 {
        phy.write_mdic(operation | register << mdic::REGISTER_SHIFT | ADDRESS << mdic::PHY_SHIFT | data);
        assert_eq!(phy.read_mdic(Answer::Honest) & mdic::READY, 0);
        let value = phy.read_mdic(Answer::Honest);
        assert_eq!(value & (mdic::READY | mdic::ERROR), mdic::READY);
        value & 0xffff
    }

    #[test]
    fn negotiation_waits_to_be_asked_and_takes_steps() {
        let mut phy = Phy::new();
        (0..100).for_each(|_| phy.step(true));
        assert!(!phy.is_done());
        access(&mut phy, mdic::WRITE, mdic::BMCR, mdic::BMCR_AUTONEG | mdic::BMCR_RESTART_AUTONEG);
        assert_eq!(access(&mut phy, mdic::READ, mdic::BMCR, 0), mdic::BMCR_AUTONEG);
        (1..NEGOTIATION_STEPS).for_each(|_| phy.step(true));
        assert!(phy.is_busy());
        assert_eq!(access(&mut phy, mdic::READ, mdic::BMSR, 0) & mdic::BMSR_AUTONEG_DONE, 0);
        phy.step(true);
        let both = mdic::BMSR_AUTONEG_DONE | mdic::BMSR_LINK;
        assert_eq!(access(&mut phy, mdic::READ, mdic::BMSR, 0) & both, both);
        phy.step(false);
        assert!(!phy.is_done());
        (0..NEGOTIATION_STEPS).for_each(|_| phy.step(true));
        assert!(phy.is_done());
    }

    #[test]
    fn another_address_and_no_operation_are_errors() {
        let mut phy = Phy::new();
        for value in [mdic::READ | 2 << mdic::PHY_SHIFT, ADDRESS << mdic::PHY_SHIFT] {
            phy.write_mdic(value);
            phy.read_mdic(Answer::Honest);
            assert_ne!(phy.read_mdic(Answer::Honest) & mdic::ERROR, 0);
        }
        phy.write_mdic(mdic::READ | ADDRESS << mdic::PHY_SHIFT);
        assert!((0..100).all(|_| phy.read_mdic(Answer::Never) & mdic::READY == 0));
    }
}
