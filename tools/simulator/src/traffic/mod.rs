//! Traffic for the outer ends of wires: every frame can be checked from the seed alone.
//!
//! A [`Generator`] and a [`Checker`] share a [`TrafficConfig`]. Each byte of a frame, and its length, is a function of seed, stream and
//! sequence number, which the frame carries; the checker makes the same bytes again and compares all of them. A [`Flow`] is both,
//! with a limit on the frames that are under way between them.

mod checker;
mod generator;
mod pattern;

pub use checker::{Addresses, Checker, Counts, Verdict};
pub use generator::Generator;
pub use pattern::{SHORTEST_FRAME_BYTES, Shape, TrafficConfig};

use crate::wire::WireEnd;

/// A generator at one wire and its checker at another one.
pub struct Flow {
    /// The sending side.
    pub generator: Generator,
    /// The receiving side.
    pub checker: Checker,
    window: u64,
    /// Frames that were given up: they no longer count as under way.
    given_up: u64,
}

impl Flow {
    /// A flow with up to `window` frames between the two. What is to arrive must fit into the queues on its way, or is dropped there as
    /// on any network; a window keeps it below that.
    pub fn new(config: TrafficConfig, addresses: Addresses, window: u64) -> Flow {
        let checker = Checker::new(config.clone(), addresses);
        Flow { generator: Generator::new(config), checker, window, given_up: 0 }
    }

    /// Receives up to `budget` frames from `to`, then sends up to `budget` into `from`; gives how many in all.
    pub fn step(&mut self, from: &WireEnd, to: &WireEnd, budget: usize) -> usize {
        let received = self.checker.receive(to, budget);
        let room = self.window.saturating_sub(self.outstanding());
        received + self.generator.send(from, budget.min(usize::try_from(room).unwrap_or(usize::MAX)))
    }

    /// Only receives; gives how many. For the end of a run.
    pub fn drain(&mut self, to: &WireEnd, budget: usize) -> usize {
        self.checker.receive(to, budget)
    }

    /// Frames under way: sent, and neither received nor given up.
    pub fn outstanding(&self) -> u64 {
        self.generator.sent().saturating_sub(self.checker.counts().received + self.given_up)
    }

    /// What is under way will not arrive: it no longer fills the window. The checker still counts it as missing.
    pub fn give_up(&mut self) {
        self.given_up += self.outstanding();
    }

    /// Frames that were sent and did not arrive whole so far.
    pub fn missing(&self) -> u64 {
        self.generator.sent().saturating_sub(self.checker.counts().verified)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{WireConfig, pair};

    #[test]
    fn a_flow_keeps_its_window_and_gets_everything_back() {
        let (near, far) = pair(WireConfig { capacity_frames: 64 });
        let mut flow = Flow::new(TrafficConfig::new(1), Addresses::Untouched, 10);
        assert_eq!(flow.step(&near, &far, 32), 10);
        assert_eq!(flow.outstanding(), 10);
        for _ in 0..100 {
            flow.step(&near, &far, 7);
        }
        while flow.drain(&far, 7) > 0 {}
        let counts = flow.checker.counts();
        assert_eq!((counts.verified, flow.missing(), flow.outstanding()), (flow.generator.sent(), 0, 0));
        assert!(counts.verified > 700 && counts.is_clean());
    }

    #[test]
    fn what_is_lost_can_be_given_up() {
        let (near, far) = pair(WireConfig { capacity_frames: 64 });
        let mut flow = Flow::new(TrafficConfig::new(1), Addresses::Untouched, 10);
        flow.step(&near, &far, 32);
        far.receive_batch(10, |_| {});
        assert_eq!(flow.step(&near, &far, 32), 0);
        flow.give_up();
        assert_eq!(flow.step(&near, &far, 32), 10);
        assert_eq!(flow.missing(), 20);
        assert_eq!(flow.drain(&far, 32), 10);
        assert_eq!((flow.missing(), flow.checker.counts().missing), (10, 10));
    }
}
