//! The receive half: refill and receive.
//!
//! A posted buffer begins with the header, in the frame's headroom, so a received frame starts where every frame of its pool
//! starts. The header is not read unless a frame filled its buffer to the end.

use super::gate::{Turn, Turnstile};
use super::transport::{Notifier, Watch};
use pollring::buffer::{Burst, Caches};
use pollring::bus::Health;
use pollring::port::{QueueCounters, RxCounters, RxQueue};
use pollring::ring::virtqueue::{Format, ReceiveQueue};
use std::sync::Arc;

/// Frames posted at a time.
const REFILL_BLOCK: usize = 32;

pub(super) struct VirtioRx<F: Format> {
    pub ring: ReceiveQueue<F>,
    pub queue: u16,
    pub notifier: Box<dyn Notifier>,
    pub turnstile: Turnstile,
    pub counters: QueueCounters<RxCounters>,
    pub watch: Arc<dyn Watch>,
}

impl<F: Format> VirtioRx<F> {
    #[cold]
    fn pause(&mut self, turn: Turn, caches: &mut Caches) {
        if turn == Turn::Recall {
            self.ring.recall(caches);
            self.turnstile.answer();
        }
    }
}

impl<F: Format> RxQueue for VirtioRx<F> {
    fn refill(&mut self, caches: &mut Caches) -> usize {
        let turn = self.turnstile.turn();
        if turn != Turn::Go {
            self.pause(turn, caches);
            return 0;
        }
        if self.ring.vacant() < REFILL_BLOCK || self.ring.lease().is_revoked() {
            return 0;
        }
        let mut count = 0;
        while self.ring.vacant() >= REFILL_BLOCK {
            let posted = self.ring.post(caches, REFILL_BLOCK);
            count += posted;
            if posted < REFILL_BLOCK {
                self.counters.now.pool_empty += 1;
                break;
            }
        }
        if count > 0 && self.ring.kick_due() {
            self.notifier.notify(self.ring.notification_data(self.queue));
            self.counters.now.doorbells += 1;
        }
        count
    }

    fn receive(&mut self, burst: &mut Burst) -> usize {
        if self.turnstile.turn() != Turn::Go || self.ring.lease().is_revoked() {
            return 0;
        }
        let done = self.ring.collect(burst);
        if done.frames + done.bad == 0 {
            return 0;
        }
        self.counters.now.frames += done.frames as u64;
        self.counters.now.bytes += done.bytes;
        self.counters.now.bad += done.bad as u64;
        self.counters.publish();
        done.frames
    }

    fn health(&self) -> Health {
        self.watch.health()
    }
}
