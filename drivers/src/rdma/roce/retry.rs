//! When to send again, and when to give up.
//!
//! One clock per queue pair: it runs while something is outstanding and starts anew with each progress. When the peer is silent
//! for `ack_timeout`, everything from the oldest unacknowledged packet on is sent again (go-back-N). It ends after so many retries, or
//! after `dead_after` without progress, whichever is first; waiting for a peer that is not ready counts too.

use super::counters::QpEvent;
use super::qp::Qp;
use super::requester::WINDOW_PACKETS;
use super::world::World;
use pollring::rdma::{Attempts, Layer, Psn, QpType, Status};
use std::time::Duration;

/// Less than this is never on the way, however congested.
const MIN_WINDOW_PACKETS: u32 = 2;

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn times(attempts: Attempts) -> u8 {
    if let Attempts::Times(times) = attempts { times } else { u8::MAX }
}

impl Qp {
    /// Starts the clock, unless it runs.
    pub(crate) fn start_clock(&mut self, now_ns: u64) {
        if self.requester.deadline_ns.is_none() && self.config.kind == QpType::Rc {
            if !self.requester.is_outstanding() {
                self.requester.progress_ns = now_ns;
                self.refill_attempts();
            }
            self.restart_clock(now_ns);
        }
    }

    fn restart_clock(&mut self, now_ns: u64) {
        let timeout = self.requester.retry.map_or(0, |retry| nanoseconds(retry.ack_timeout));
        let timeout = if timeout == 0 { u64::MAX } else { timeout };
        self.requester.deadline_ns = Some(now_ns.saturating_add(timeout));
    }

    fn refill_attempts(&mut self) {
        let Some(retry) = self.requester.retry else { return };
        self.requester.retries_left = times(retry.retries);
        self.requester.rnr_left = times(retry.rnr_retries);
        self.requester.peer_not_ready = false;
    }

    /// The peer acknowledged something new.
    pub(crate) fn progress(&mut self, world: &mut World) {
        self.refill_attempts();
        self.requester.progress_ns = world.now_ns;
        self.requester.wait_until_ns = None;
        self.requester.window = (self.requester.window + 1).min(WINDOW_PACKETS);
        if self.requester.is_outstanding() {
            self.restart_clock(world.now_ns);
        } else {
            self.requester.deadline_ns = None;
            self.check_drained(world);
        }
    }

    /// The peer, or a switch on the way, asks for less.
    pub(crate) fn congested(&mut self, now_ns: u64) {
        self.requester.window = (self.requester.window / 2).max(MIN_WINDOW_PACKETS);
        self.history.note(now_ns, QpEvent::Congested, self.requester.unacknowledged);
    }

    /// Back to the oldest packet that is not acknowledged.
    pub(crate) fn rewind(&mut self, world: &mut World) {
        let requester = &mut self.requester;
        let done = requester.queue.front().map_or(0, |wqe| requester.unacknowledged.since(wqe.first));
        (requester.cursor, requester.packet) = (0, done.max(0) as u32);
        (requester.reads, requester.read_psns) = (0, 0);
        self.history.note(world.now_ns, QpEvent::Rewound, self.requester.unacknowledged);
    }

    /// The peer has no receive and asks to be left alone for `wait_ns`.
    pub(crate) fn peer_not_ready(&mut self, world: &mut World, wait_ns: u64) {
        world.counters.rnr_naks += 1;
        self.history.note(world.now_ns, QpEvent::PeerNotReady, self.requester.unacknowledged);
        let counted = self.requester.retry.is_some_and(|retry| retry.rnr_retries != Attempts::UntilDead);
        if counted && self.requester.rnr_left == 0 {
            let what = "the peer had no receive posted, as often as it was asked";
            return self.fail_send(world, Status::RnrRetryExceeded, Layer::Limits, what);
        }
        self.requester.rnr_left = self.requester.rnr_left.saturating_sub(1);
        self.rewind(world);
        self.requester.peer_not_ready = true;
        self.requester.deadline_ns = Some(u64::MAX);
        self.requester.wait_until_ns = Some(world.now_ns.saturating_add(wait_ns));
    }

    /// When [`expire`](Qp::expire) has something to do.
    pub(crate) fn due_ns(&self) -> u64 {
        let wait = self.requester.wait_until_ns.unwrap_or(u64::MAX);
        let Some(deadline) = self.requester.deadline_ns else { return wait };
        deadline.min(self.dead_ns()).min(wait)
    }

    fn dead_ns(&self) -> u64 {
        let limit = self.requester.retry.map_or(u64::MAX, |retry| nanoseconds(retry.dead_after));
        self.requester.progress_ns.saturating_add(limit)
    }

    /// Does what is due now.
    pub(crate) fn expire(&mut self, world: &mut World) {
        let now_ns = world.now_ns;
        let Some(deadline) = self.requester.deadline_ns else { return };
        if now_ns >= self.dead_ns() {
            return self.give_up(world, "no progress within `dead_after`");
        }
        if self.requester.wait_until_ns.is_some_and(|until| now_ns >= until) {
            self.requester.wait_until_ns = None;
            self.restart_clock(now_ns);
        } else if now_ns >= deadline {
            self.time_out(world);
        }
    }

    fn time_out(&mut self, world: &mut World) {
        world.counters.timeouts += 1;
        self.history.note(world.now_ns, QpEvent::TimedOut, self.requester.unacknowledged);
        let counted = self.requester.retry.is_some_and(|retry| retry.retries != Attempts::UntilDead);
        if counted && self.requester.retries_left == 0 {
            return self.give_up(world, "the peer did not answer, as often as it was asked");
        }
        self.requester.retries_left = self.requester.retries_left.saturating_sub(1);
        self.rewind(world);
        self.requester.newest_response = self.requester.unacknowledged.minus(1);
        self.restart_clock(world.now_ns);
    }

    fn give_up(&mut self, world: &mut World, what: &str) {
        let status =
            if self.requester.peer_not_ready { Status::RnrRetryExceeded } else { Status::RetryExceeded };
        self.fail_send(world, status, Layer::Wire, what);
    }

    /// A response overtook the one that is waited for, or that one is lost. Responses come in order, so those of one stream
    /// have rising PSNs: the first gap, and each fall below the newest that was seen, is a new loss; the rest of a stream
    /// behind a gap is old news.
    pub(crate) fn response_gap(&mut self, world: &mut World, psn: Psn) {
        let newest = self.requester.newest_response;
        self.requester.newest_response = psn;
        if newest.precedes(self.requester.unacknowledged) || psn.precedes(newest) {
            self.rewind(world);
        }
    }
}
