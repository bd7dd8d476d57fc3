//! The link: a state machine that moves one step a call and never waits (82576 datasheet 3.5, 8.2.4).
//!
//! After a reset it restarts auto-negotiation in the PHY over MDIO, then watches STATUS. QEMU's model raises its link only by the
//! negotiation that this restarts. A PHY that does not answer is asked again once a second.

use super::regs::{MDIC, STATUS, mdic, status};
use pollring::bus::Registers;
use pollring::port::{Duplex, Link};
use std::time::{Duration, Instant};

const PHY_ADDRESS: u32 = 1;
/// MDIO moves a word in about 60 us; what takes longer than this is lost.
const MDIO_LIMIT: Duration = Duration::from_secs(1);

#[derive(Clone, Copy)]
enum State {
    /// The PHY has to be told.
    Start,
    /// It was told, and the MDIO transfer is under way.
    Told(Instant),
    /// Negotiation is up to the two PHYs.
    Watching,
}

pub(super) struct LinkState(State);

impl LinkState {
    pub(super) fn after_reset() -> LinkState {
        LinkState(State::Start)
    }

    pub(super) fn poll(&mut self, registers: &Registers) -> Link {
        self.0 = match self.0 {
            State::Start => restart_negotiation(registers),
            State::Told(since) => await_phy(registers, since),
            State::Watching => State::Watching,
        };
        read(registers.read(STATUS))
    }
}

fn restart_negotiation(registers: &Registers) -> State {
    let data = mdic::BMCR_AUTONEG | mdic::BMCR_RESTART_AUTONEG;
    let target = mdic::BMCR << mdic::REGISTER_SHIFT | PHY_ADDRESS << mdic::PHY_SHIFT;
    registers.write(MDIC, data | target | mdic::WRITE);
    State::Told(Instant::now())
}

fn await_phy(registers: &Registers, since: Instant) -> State {
    let answer = registers.read(MDIC);
    if answer & mdic::READY != 0 && answer & mdic::ERROR == 0 {
        State::Watching
    } else if since.elapsed() > MDIO_LIMIT {
        State::Start
    } else {
        State::Told(since)
    }
}

fn read(value: u32) -> Link {
    if value == u32::MAX || value & status::LINK_UP == 0 {
        return Link::Down;
    }
    // 82576 datasheet 8.2.2: 2 and 3 both mean 1000 Mbit/s.
    let speed_mbps = [10, 100, 1000, 1000][(value >> status::SPEED_SHIFT) as usize & 3];
    let duplex = if value & status::FULL_DUPLEX != 0 { Duplex::Full } else { Duplex::Half };
    Link::Up { speed_mbps, duplex }
}
