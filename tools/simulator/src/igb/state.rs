//! Everything that one device holds, behind its lock: reset, steps, and how it is built from its parts.
//!
//! A step looks at the link, sends, receives, and then does the write-backs that are due. All DMA happens inside a step, and
//! register accesses wait for it; so when a write that ends DMA has returned, no access is under way.

use super::config::ConfigSpace;
use super::interrupt::Line;
use super::lying::Lying;
use super::memory::Memory;
use super::nvm::Nvm;
use super::others::{self, eecd, rxcsum};
use super::phy::Phy;
use super::queue::{Queue, WriteBack};
use super::registers::{RegisterWords, Unknown};
use super::rx::PacketBuffer;
use super::statistics::Octets;
use super::tx::Outbox;
use super::violation::Violations;
use super::{Answer, Counters, Defect, IgbConfig, Timing};
use crate::hostile::Liar;
use crate::random::Random;
use crate::wire::WireEnd;
use pollring_drivers::nic::igb::regs::*;

/// Queue pairs.
pub(super) const QUEUES: usize = 16;

/// Reset values (82576 datasheet 8.3.1, 8.4.1, 8.10.10, 8.12.11).
const PACKET_BUFFER_KIB: u32 = 64;
const WRITE_BACK_THRESHOLD: u32 = 1 << dctl::WRITE_BACK_SHIFT;
/// EECD: an NVM is there, was read, and has 1024 words.
const NVM_STATE: u32 = eecd::PRESENT | eecd::AUTO_READ_DONE | 4 << eecd::SIZE_SHIFT;
/// EEMNGCTL: the configuration of every port is done.
const CONFIGURED: u32 = 0xf << 18;
/// VET: the ethertype of IEEE 802.1Q.
const VLAN_ETHERTYPE: u32 = 0x8100;
/// DTXTCPFLGL and DTXTCPFLGH: FIN and PSH go with the last segment, CWR with the first.
const FIRST_AND_MIDDLE_FLAGS: u32 = 0xf76 << 16 | 0xff6;
const LAST_FLAGS: u32 = 0xf7f;

/// Which half of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Rx,
    Tx,
}

pub(super) struct State {
    pub registers: RegisterWords,
    pub config: ConfigSpace,
    pub nvm: Nvm,
    pub phy: Phy,
    pub memory: Memory,
    pub wire: WireEnd,
    pub rx: Vec<Queue>,
    pub tx: Vec<Queue>,
    pub inbox: PacketBuffer,
    pub outbox: Outbox,
    pub received_octets: Octets,
    pub sent_octets: Octets,
    pub all_received_octets: Octets,
    pub all_sent_octets: Octets,
    pub interrupts: Line,
    pub unknown: Unknown,
    pub violations: Violations,
    pub counters: Counters,
    pub lying: Option<Box<Lying>>,
    pub now: u64,
    /// Looks at CTRL that still show the reset bit.
    pub reset_looks: u8,
    pub was_reset: bool,
    timing: Timing,
    random: Random,
    defects: Vec<Defect>,
    link_seen: bool,
    gone: bool,
    accesses_left: Option<u64>,
}

impl State {
    pub(super) fn new(config: IgbConfig) -> State {
        let mut state = State {
            registers: RegisterWords::new(),
            config: ConfigSpace::default(),
            nvm: Nvm::new(config.mac),
            phy: Phy::new(),
            memory: Memory::default(),
            wire: config.wire,
            rx: (0..QUEUES).map(|_| Queue::new()).collect(),
            tx: (0..QUEUES).map(|_| Queue::new()).collect(),
            inbox: PacketBuffer::default(),
            outbox: Outbox::new(QUEUES),
            received_octets: Octets::default(),
            sent_octets: Octets::default(),
            all_received_octets: Octets::default(),
            all_sent_octets: Octets::default(),
            interrupts: Line::default(),
            unknown: Unknown::default(),
            violations: Violations::default(),
            counters: Counters::default(),
            lying: config.lies.map(|lies| Box::new(Lying::new(Liar::new(lies)))),
            now: 0,
            reset_looks: 0,
            was_reset: false,
            timing: config.timing,
            random: Random::new(config.seed),
            defects: Vec::new(),
            link_seen: false,
            gone: false,
            accesses_left: None,
        };
        state.reset_function();
        state
    }

    /// Function-level reset, and power-on: everything, with both gates closed.
    pub(super) fn reset_function(&mut self) {
        self.config = ConfigSpace::default();
        self.phy = Phy::new();
        self.nvm.reset();
        self.reset_mac();
        self.was_reset = false;
        self.reset_looks = 0;
        self.set_gate();
    }

    /// CTRL.RST (4.2.1.6): registers, queues and packet buffers; not the PHY and not config space.
    pub(super) fn reset_mac(&mut self) {
        self.registers.clear();
        self.registers[CTRL.at(0)] = ctrl::FULL_DUPLEX;
        self.registers[RXPBS.at(0)] = PACKET_BUFFER_KIB;
        self.registers[EECD.at(0)] = NVM_STATE;
        self.registers[RXCSUM.at(0)] = rxcsum::IP | rxcsum::TCP_UDP;
        self.registers[others::EEMNGCTL.at(0)] = CONFIGURED;
        self.registers[others::VET.at(0)] = VLAN_ETHERTYPE;
        self.registers[others::DTXTCPFLGL.at(0)] = FIRST_AND_MIDDLE_FLAGS;
        self.registers[others::DTXTCPFLGH.at(0)] = LAST_FLAGS;
        self.interrupts.reset();
        for index in 0..QUEUES {
            self.registers[RXDCTL.at(index)] = WRITE_BACK_THRESHOLD;
            self.rx[index].reset(index == 0);
            self.tx[index].reset(index == 0);
        }
        if self.answer(Defect::AddressNotLoaded) == Answer::Honest {
            let [low, high] = self.nvm.mac();
            self.registers[RAL.at(0)] = low;
            self.registers[RAH.at(0)] = high | rah::VALID;
        }
        (self.received_octets, self.sent_octets) = Default::default();
        (self.all_received_octets, self.all_sent_octets) = Default::default();
        self.counters.lost_in_reset += (self.inbox.clear() + self.outbox.clear()) as u64;
        self.link_seen = false;
        if let Some(lying) = &mut self.lying {
            lying.forget(|_, _| true);
        }
    }

    /// Whether the device does DMA follows from config space and CTRL.
    pub(super) fn set_gate(&mut self) {
        let disabled = self.registers[CTRL.at(0)] & ctrl::MASTER_DISABLE != 0;
        self.memory.set_gate(self.config.bus_master(), disabled);
    }

    pub(super) fn queue(&mut self, side: Side, index: usize) -> &mut Queue {
        match side {
            Side::Rx => &mut self.rx[index],
            Side::Tx => &mut self.tx[index],
        }
    }

    pub(super) fn disable_queue(&mut self, side: Side, index: usize) {
        self.queue(side, index).disable();
        if side == Side::Tx {
            self.outbox.abandon(index);
        }
        if let Some(lying) = &mut self.lying {
            lying.forget(|of, at| (of, at) == (side, index));
        }
    }

    /// One step; gives how much was done: frames that moved, and late write-backs.
    pub(super) fn step(&mut self, budget_frames: usize) -> usize {
        if self.gone {
            return 0;
        }
        self.now += 1;
        self.counters.steps = self.now;
        self.watch_link();
        let sent = self.transmit(budget_frames);
        let received = self.receive(budget_frames);
        let written = self.write_back_due();
        self.interrupt();
        sent + received + written
    }

    fn watch_link(&mut self) {
        self.phy.step(self.joined());
        let link = self.link_is_up();
        if link != self.link_seen {
            self.link_seen = link;
            self.registers[ICR.at(0)] |= icr::LINK_CHANGE;
        }
    }

    /// The MAC follows the PHY only when told to (3.5.7.4).
    #[inline]
    pub(super) fn link_is_up(&self) -> bool {
        self.registers[CTRL.at(0)] & ctrl::SET_LINK_UP != 0 && self.phy.is_done() && self.wire.link()
    }

    /// Writes a descriptor back now or later, honestly or not. `frame` is where the frame lies, for receive descriptors.
    #[inline]
    pub(super) fn write_back(
        &mut self,
        side: Side,
        index: usize,
        mut write_back: WriteBack,
        frame: (u64, usize),
    ) {
        if self.lying.is_some() && self.lie_about_write_back(side, index, &mut write_back, frame) {
            return;
        }
        let Timing::Delayed { longest } = self.timing else {
            self.interrupts.note(side, index);
            return write_back.perform(&mut self.memory);
        };
        let due = self.now + self.random.below(u64::from(longest) + 1);
        let late = &mut self.queue(side, index).late;
        let due = late.back().map_or(due, |(before, _)| due.max(*before));
        late.push_back((due, write_back));
    }

    fn write_back_due(&mut self) -> usize {
        if !self.memory.is_open() {
            return 0;
        }
        let (now, memory) = (self.now, &mut self.memory);
        let lied = self.lying.as_mut().map_or(0, |lying| lying.write_due(now, memory));
        match self.timing {
            Timing::Immediate => lied,
            Timing::Delayed { .. } => {
                let rx = self.rx.iter_mut().enumerate().map(|(at, queue)| (Side::Rx, at, queue));
                let tx = self.tx.iter_mut().enumerate().map(|(at, queue)| (Side::Tx, at, queue));
                let mut written = 0;
                for (side, at, queue) in rx.chain(tx) {
                    let done = queue.write_back_due(now, memory);
                    written += done;
                    if done > 0 {
                        self.interrupts.note(side, at);
                    }
                }
                lied + written
            }
        }
    }

    /// What is still to be done without anything new from outside.
    pub(super) fn queued(&self) -> usize {
        if self.gone {
            return 0;
        }
        let negotiating = self.phy.is_busy() && self.joined();
        let late: usize = self.rx.iter().chain(&self.tx).map(|queue| queue.late.len()).sum();
        let lies = self.lying.as_ref().map_or(0, |lying| lying.late());
        let writes = if self.memory.is_open() { late + lies } else { 0 };
        let frames = if self.link_is_up() { self.outbox.len() } else { 0 };
        writes + frames + usize::from(negotiating)
    }

    fn joined(&self) -> bool {
        self.wire.link() && self.answer(Defect::LinkNeverUp) == Answer::Honest
    }

    /// How the thing that `defect` is about answers.
    pub(super) fn answer(&self, defect: Defect) -> Answer {
        if self.defects.contains(&defect) { Answer::Never } else { Answer::Honest }
    }

    pub(super) fn stick(&mut self, defect: Defect) {
        self.defects.push(defect);
    }

    pub(super) fn heal(&mut self, defect: Defect) {
        self.defects.retain(|other| *other != defect);
    }

    pub(super) fn fail_after(&mut self, accesses: u64) {
        self.accesses_left = Some(accesses);
    }

    pub(super) fn unplug(&mut self) {
        self.gone = true;
    }

    pub(super) fn replug(&mut self) {
        self.gone = false;
        self.accesses_left = None;
        self.reset_function();
    }

    /// Counts an access by the driver; whether the device is there to answer it.
    pub(super) fn is_touched(&mut self) -> bool {
        match &mut self.accesses_left {
            Some(0) => self.gone = true,
            Some(left) => *left -= 1,
            None => {}
        }
        !self.gone
    }
}
