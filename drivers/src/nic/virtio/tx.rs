//! The transmit half: send and reclaim.
//!
//! One descriptor a frame where its headroom has room for the header. A device that works in order says by one number what it is done
//! with; reclaiming reads no more than that.

use super::gate::{Turn, Turnstile};
use super::transport::{Notifier, Watch};
use pollring::buffer::{Burst, Caches};
use pollring::bus::Health;
use pollring::port::{QueueCounters, TxCounters, TxQueue};
use pollring::ring::virtqueue::{Format, TransmitQueue};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) struct VirtioTx<F: Format> {
    pub ring: TransmitQueue<F>,
    pub queue: u16,
    /// Below this many free slots, sending reclaims first.
    pub low_water: usize,
    pub notifier: Box<dyn Notifier>,
    pub turnstile: Turnstile,
    pub counters: QueueCounters<TxCounters>,
    /// Used entries that the device had no right to write.
    pub lies: Arc<AtomicU64>,
    pub watch: Arc<dyn Watch>,
}

impl<F: Format> VirtioTx<F> {
    #[cold]
    fn pause(&mut self, turn: Turn, caches: &mut Caches) {
        if turn == Turn::Recall {
            self.ring.recall(caches);
            self.turnstile.answer();
        }
    }
}

impl<F: Format> TxQueue for VirtioTx<F> {
    fn send(&mut self, burst: &mut Burst, caches: &mut Caches) -> usize {
        if burst.is_empty() || self.ring.lease().is_revoked() {
            return 0;
        }
        let turn = self.turnstile.turn();
        if turn != Turn::Go {
            self.pause(turn, caches);
            return 0;
        }
        if self.ring.vacant() < self.low_water {
            self.reclaim(caches);
        }
        let done = self.ring.send(burst, caches);
        let counters = &mut self.counters.now;
        if self.ring.kick_due() {
            self.notifier.notify(self.ring.notification_data(self.queue));
            counters.doorbells += 1;
        }
        counters.frames += (done.frames - done.rejected) as u64;
        counters.bytes += done.bytes;
        counters.rejected += done.rejected as u64;
        counters.ring_full += u64::from(!burst.is_empty());
        self.counters.publish();
        done.frames
    }

    fn reclaim(&mut self, caches: &mut Caches) -> usize {
        if self.ring.lease().is_revoked() {
            return 0;
        }
        let turn = self.turnstile.turn();
        if turn != Turn::Go {
            self.pause(turn, caches);
            return 0;
        }
        let done = self.ring.reclaim(caches);
        if done.lies > 0 {
            self.lies.fetch_add(done.lies as u64, Ordering::Relaxed);
        }
        done.slots
    }

    fn health(&self) -> Health {
        self.watch.health()
    }
}
