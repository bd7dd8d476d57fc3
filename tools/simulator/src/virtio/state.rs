//! The whole device: what its registers say, and its queues.

use super::config::ConfigSpace;
use super::filter::Filter;
use super::lying::Lying;
use super::memory::Memory;
use super::queue::{Engine, Place, Terms};
use super::rss::Spread;
use super::{Counters, VirtioConfig, Wakeup};
use crate::random::Random;
use pollring_drivers::nic::virtio::regs::{feature, status};

/// Features that this device has.
const HAS: u64 = feature::MTU
    | feature::MAC
    | feature::MRG_RXBUF
    | feature::STATUS
    | feature::CTRL_VQ
    | feature::CTRL_RX
    | feature::MQ
    | feature::RSS
    | feature::EVENT_IDX
    | feature::VERSION_1
    | feature::ACCESS_PLATFORM
    | feature::RING_PACKED
    | feature::IN_ORDER
    | feature::NOTIFICATION_DATA;

/// Violations that are kept.
const KEPT: usize = 16;

/// One queue.
pub(super) struct Slot {
    pub place: Place,
    pub enabled: bool,
    pub engine: Option<Engine>,
    /// A notification came since it slept.
    pub notified: bool,
}

pub(super) struct State {
    pub made: VirtioConfig,
    pub config: ConfigSpace,
    pub memory: Memory,
    pub status: u8,
    pub features: u64,
    pub device_select: u32,
    pub driver_select: u32,
    pub queue_select: u16,
    pub queues: Vec<Slot>,
    pub filter: Filter,
    /// Pairs that the driver uses.
    pub pairs: u16,
    pub next_pair: u16,
    /// How flows are spread, if by hash.
    pub spread: Option<Spread>,
    /// The frame that waits for a buffer of its queue; empty where there is none.
    pub held: Vec<u8>,
    pub counted: Counters,
    pub violations: Vec<String>,
    pub lying: Option<Lying>,
    pub random: Random,
    pub unplugged: bool,
    /// Accesses until it leaves.
    pub accesses_left: Option<u64>,
    pub hangs: bool,
}

impl State {
    pub(super) fn new(made: VirtioConfig) -> State {
        let mut state = State {
            config: ConfigSpace::new(),
            memory: Memory::default(),
            status: 0,
            features: 0,
            device_select: 0,
            driver_select: 0,
            queue_select: 0,
            queues: Vec::new(),
            filter: Filter::new(made.mac),
            pairs: 1,
            next_pair: 0,
            spread: None,
            held: Vec::new(),
            counted: Counters::default(),
            violations: Vec::new(),
            lying: made.lies.map(Lying::new),
            random: Random::new(made.seed),
            unplugged: false,
            accesses_left: None,
            hangs: false,
            made,
        };
        state.reset();
        state
    }

    /// Status 0 (2.4): nothing is left of what the driver set.
    pub(super) fn reset(&mut self) {
        (self.status, self.features) = (0, 0);
        (self.device_select, self.driver_select, self.queue_select) = (0, 0, 0);
        let entries = self.made.entries;
        let slot = || Slot {
            place: Place { entries, ..Place::default() },
            enabled: false,
            engine: None,
            notified: false,
        };
        self.queues = (0..self.queue_count()).map(|_| slot()).collect();
        self.filter = Filter::new(self.made.mac);
        (self.pairs, self.next_pair, self.spread) = (1, 0, None);
        self.counted.dma_faults += std::mem::take(&mut self.memory.faults);
        self.set_gate();
    }

    /// Counts an access by the driver; whether the device is there to answer it.
    pub(super) fn is_touched(&mut self) -> bool {
        match &mut self.accesses_left {
            Some(0) => {
                self.unplugged = true;
                self.set_gate();
            }
            Some(left) => *left -= 1,
            None => {}
        }
        !self.unplugged
    }

    pub(super) fn set_gate(&mut self) {
        self.memory.open = self.config.bus_master() && !self.unplugged;
    }

    /// Data queues of all pairs, and the control queue.
    pub(super) fn queue_count(&self) -> usize {
        usize::from(self.made.pairs) * 2 + 1
    }

    pub(super) fn offered(&self) -> u64 {
        let pairs = if self.made.pairs > 1 { 0 } else { feature::MQ | feature::RSS };
        HAS & !self.made.without & !pairs
    }

    pub(super) fn accepted(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    /// The control queue's number (5.1.2).
    pub(super) fn control_queue(&self) -> usize {
        if self.accepted(feature::MQ | feature::RSS) { usize::from(self.made.pairs) * 2 } else { 2 }
    }

    pub(super) fn is_running(&self) -> bool {
        self.status & status::DRIVER_OK != 0
            && self.status & status::NEEDS_RESET == 0
            && self.memory.open
            && !self.unplugged
    }

    pub(super) fn need_reset(&mut self) {
        self.status |= status::NEEDS_RESET;
    }

    /// DRIVER_OK: the queues come to life.
    pub(super) fn begin(&mut self) {
        let terms = Terms {
            packed: self.accepted(feature::RING_PACKED),
            event_idx: self.accepted(feature::EVENT_IDX),
        };
        for number in 0..self.queues.len() {
            if !self.queues[number].enabled {
                continue;
            }
            match Engine::new(self.queues[number].place, terms) {
                Ok(engine) => self.queues[number].engine = Some(engine),
                Err(what) => self.violation(format!("queue {number}: {what}")),
            }
        }
        self.wish_all();
    }

    /// Says of each queue whether notifications are wanted.
    fn wish_all(&mut self) {
        let State { queues, memory, made, .. } = self;
        for engine in queues.iter_mut().filter_map(|slot| slot.engine.as_mut()) {
            // A fault is counted where it happened.
            let _ = match made.wakeup {
                Wakeup::Polling => engine.refuse(memory),
                Wakeup::Notified => engine.ask(memory),
            };
        }
        // The control queue always listens.
        let control = self.control_queue();
        if let Some(Slot { engine: Some(engine), .. }) = self.queues.get_mut(control) {
            let _ = engine.ask(&mut self.memory);
        }
    }

    pub(super) fn violation(&mut self, what: String) {
        if self.violations.len() < KEPT {
            self.violations.push(what);
        }
    }

    pub(super) fn counters(&self) -> Counters {
        Counters { dma_faults: self.counted.dma_faults + self.memory.faults, ..self.counted }
    }
}
