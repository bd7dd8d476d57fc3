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

/// Looks in vain before a device is woken: some tenths of a millisecond of a polling core.
const PATIENCE_LOOKS: u32 = 16_384;

pub(super) struct VirtioTx<F: Format> {
    pub ring: TransmitQueue<F>,
    pub queue: u16,
    /// Below this many free slots, sending reclaims first.
    pub low_water: usize,
    pub notifier: Box<dyn Notifier>,
    pub turnstile: Turnstile,
    pub counters: QueueCounters<TxCounters>,
    /// Looks in a row at which the device had frames and had finished none.
    pub idle_looks: u32,
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

    /// Notifies a device that sleeps over its frames although it did not ask for it. QEMU 11 does so with packed queues and event
    /// indexes: after its wire was full it asks for the event of a frame that was already there, takes the frames behind, and never
    /// asks again. A notification too many is always allowed (2.7.23).
    #[inline]
    fn look_in_vain(&mut self) {
        if self.ring.pending() == 0 {
            return;
        }
        self.idle_looks += 1;
        if self.idle_looks >= PATIENCE_LOOKS {
            self.idle_looks = 0;
            self.notifier.notify(self.ring.notification_data(self.queue));
            self.counters.now.doorbells += 1;
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
        if done.slots == 0 {
            self.look_in_vain();
        } else {
            self.idle_looks = 0;
        }
        if done.lies > 0 {
            self.lies.fetch_add(done.lies as u64, Ordering::Relaxed);
        }
        done.slots
    }

    fn health(&self) -> Health {
        self.watch.health()
    }
}
