//! The simulated machine around the ports: devices, wires, and what stands at the wires' outer ends.
//!
//! ```text
//! generator 0 -> wire 0 -> port 0 => port 1 -> wire 1 -> checker 0      and the same from port 1 to port 0
//! ```
//!
//! A [`Rig`] owns the one thread on which all of this runs; nothing here is on a worker. Each [`Direction`] is a closed loop: at most a
//! window of frames is under way, fewer than any ring on the way holds, so a frame that is missing at the end was lost by the
//! path under test. Every byte that arrives is compared. The order is [`Rig::start`], [`Rig::offer`], [`Rig::end_offer`],
//! [`Rig::stop`].

use super::options::{Mode, Plan};
use super::summary::Tally;
use crate::error::AppError;
use crate::ports::{SimulatedIgb, Target};
use pollring::bus::simulated::SoftwareDevice;
use pollring::port::MacAddress;
use pollring_simulator::igb::{Igb, IgbConfig, Timing};
use pollring_simulator::runner::{Runner, Task};
use pollring_simulator::traffic::{Addresses, Checker, Generator, Shape, TrafficConfig};
use pollring_simulator::wire::{self, WireConfig, WireEnd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What --prime sends: a broadcast of the shortest length, for local experiments (IEEE 802, 9.2.4).
pub(super) const PRIMER: &[u8] = b"\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x77\x88\xb5\
    a frame of pollring forward --prime, N per port";

/// Work that a device or a wire's end does before the next one's turn.
const BUDGET: usize = 64;

/// Frames under way in one direction at most; more would not make it faster.
const WIDEST_WINDOW: u64 = 256;

/// Flows for each queue, so that every queue gets some.
const STREAMS_PER_QUEUE: u16 = 8;

/// Running devices and traffic.
pub(super) struct Rig {
    devices: Vec<Arc<Igb>>,
    directions: Arc<[Mutex<Direction>]>,
    offering: Arc<AtomicBool>,
    runner: Runner,
}

/// Frames from one outer end to another one.
struct Direction {
    generator: Generator,
    checker: Checker,
    from: WireEnd,
    to: WireEnd,
    window: u64,
    primers_expected: u64,
    primed: u64,
}

impl Rig {
    /// Makes the devices and starts their thread. No frame is sent yet.
    ///
    /// # Errors
    /// No thread.
    pub(super) fn start(plan: &Plan) -> Result<Rig, AppError> {
        let (inner, outer): (Vec<_>, Vec<_>) =
            plan.ports.iter().map(|_| wire::pair(WireConfig::default())).unzip();
        let devices: Vec<Arc<Igb>> = inner
            .into_iter()
            .enumerate()
            .filter_map(|(position, wire)| device(plan, position, wire))
            .collect();
        let directions: Arc<[_]> =
            (0..outer.len()).map(|from| Mutex::new(Direction::new(plan, from, &outer))).collect();
        let offering = Arc::new(AtomicBool::new(false));
        let stepping = devices.iter().cloned().map(|device| Box::new(move || device.step(BUDGET)) as Task);
        let traffic = (0..directions.len()).map(|at| {
            let (directions, offering) = (directions.clone(), offering.clone());
            Box::new(move || lock(&directions[at]).step(offering.load(Ordering::Relaxed))) as Task
        });
        let runner = Runner::start("sim devices", stepping.chain(traffic).collect())?;
        Ok(Rig { devices, directions, offering, runner })
    }

    /// The devices, one for each port of the plan.
    pub(super) fn devices(&self) -> Vec<Arc<dyn SoftwareDevice>> {
        self.devices.iter().map(|device| device.clone() as Arc<dyn SoftwareDevice>).collect()
    }

    /// Lets the generators send.
    pub(super) fn offer(&self) {
        self.offering.store(true, Ordering::Relaxed);
    }

    /// Ends the generators; checkers go on.
    pub(super) fn end_offer(&self) {
        self.offering.store(false, Ordering::Relaxed);
    }

    /// Frames that were sent, or will be by --prime, and did not arrive yet.
    pub(super) fn outstanding_frames(&self) -> u64 {
        self.directions.iter().map(|direction| lock(direction).outstanding()).sum()
    }

    /// Whether the devices' thread lives.
    pub(super) fn is_running(&self) -> bool {
        self.runner.is_running()
    }

    /// Takes a device off its bus.
    #[cfg(test)]
    pub(super) fn unplug(&self, position: usize) {
        self.devices[position].unplug();
    }

    /// Ends the thread; gives what arrived, and what the devices hold against their driver.
    pub(super) fn stop(self) -> (Tally, Vec<String>) {
        let mut errors: Vec<String> =
            self.runner.stop().err().map(|error| error.to_string()).into_iter().collect();
        for (position, device) in
            self.devices.iter().enumerate().filter(|(_, device)| device.violations() > 0)
        {
            let rules = device.violation_counts();
            errors.push(format!(
                "port {position}: its driver broke rules of the datasheet: {rules:?}; please report it"
            ));
        }
        let tally = self
            .directions
            .iter()
            .map(|direction| lock(direction).tally())
            .fold(Tally::default(), Tally::add);
        (tally, errors)
    }
}

impl Direction {
    fn new(plan: &Plan, from: usize, outer: &[WireEnd]) -> Direction {
        let to = plan.partner(from);
        let traffic = traffic(plan, from);
        Direction {
            checker: Checker::new(traffic.clone(), addresses(plan, to)),
            generator: Generator::new(traffic),
            from: outer[from].clone(),
            to: outer[to].clone(),
            window: window(plan.entries),
            primers_expected: plan.prime,
            primed: 0,
        }
    }

    /// Checks what arrived, then sends what the window allows.
    fn step(&mut self, offering: bool) -> usize {
        let Direction { checker, primed, .. } = self;
        let received = self.to.receive_batch(BUDGET, |frame| {
            if frame[..] == *PRIMER {
                *primed += 1;
            } else {
                checker.check(frame);
            }
        });
        let room = if offering { self.window.saturating_sub(self.under_way()) as usize } else { 0 };
        received + self.generator.send(&self.from, room.min(BUDGET))
    }

    /// A frame that a later one overtook is lost, and no longer under way: losses are counted and do not stop the traffic.
    fn under_way(&self) -> u64 {
        let counts = self.checker.counts();
        self.generator.sent().saturating_sub(counts.received + counts.missing)
    }

    fn outstanding(&self) -> u64 {
        self.under_way() + self.primers_expected.saturating_sub(self.primed)
    }

    fn tally(&self) -> Tally {
        let counts = self.checker.counts();
        let arrived = counts.verified + counts.corrupt;
        Tally {
            verified: counts.verified,
            corrupt: counts.corrupt,
            missing: self.generator.sent().saturating_sub(arrived)
                + self.primers_expected.saturating_sub(self.primed),
            out_of_order: counts.out_of_order + counts.duplicate,
            primed: self.primed,
        }
    }
}

/// The address of the device at `position`: locally administered.
fn mac(position: usize) -> MacAddress {
    let [high, low] = (position as u16).to_be_bytes();
    MacAddress([2, 0, 0, 0x70, high, low])
}

/// The device of a simulated port; the plan has no other ports beside one.
fn device(plan: &Plan, position: usize, wire: WireEnd) -> Option<Arc<Igb>> {
    let Target::Simulated(SimulatedIgb { seed, delay_steps }) = plan.ports[position].target else {
        return None;
    };
    let timing = match delay_steps {
        0 => Timing::Immediate,
        longest => Timing::Delayed { longest },
    };
    let seed = seed.unwrap_or_else(|| plan.seed.wrapping_add(position as u64));
    Some(Igb::new(IgbConfig { timing, seed, ..IgbConfig::new(mac(position).0, wire) }))
}

fn traffic(plan: &Plan, from: usize) -> TrafficConfig {
    let seed = plan.seed.rotate_left(16) ^ from as u64;
    let plain = TrafficConfig { destination: mac(from).0, ..TrafficConfig::new(seed) };
    match plan.queues {
        1 => plain,
        queues => TrafficConfig { shape: Shape::Udp4, streams: queues as u16 * STREAMS_PER_QUEUE, ..plain },
    }
}

/// What the frames' addresses are when they leave by port `to`.
fn addresses(plan: &Plan, to: usize) -> Addresses {
    match plan.mode {
        Mode::Io => Addresses::Untouched,
        Mode::MacSwap => Addresses::Swapped,
        Mode::MacRewrite => Addresses::Rewritten { destination: plan.destination.0, source: mac(to).0 },
    }
}

/// How many frames may be under way. A receive ring of `entries` has one slot that stays empty, up to 31 that wait for a block of
/// 32 to be refilled, and as many as were just received; what is left must hold as many again.
fn window(entries: usize) -> u64 {
    (entries.saturating_sub(32) as u64 / 2).clamp(1, WIDEST_WINDOW)
}

fn lock(direction: &Mutex<Direction>) -> MutexGuard<'_, Direction> {
    // After a panic on the devices' thread the counts are still what was counted.
    direction.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_fits_twice_into_what_a_ring_holds() {
        for entries in [64, 128, 256, 512, 4096] {
            let window = window(entries);
            assert!(
                (1..=WIDEST_WINDOW).contains(&window) && 2 * window <= entries as u64 - 32,
                "{entries}: {window}"
            );
        }
    }

    #[test]
    fn a_primer_is_a_frame_that_any_port_sends() {
        assert!(PRIMER.len() >= 60 && PRIMER.len() <= 1514, "{}", PRIMER.len());
    }
}
