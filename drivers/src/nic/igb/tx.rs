//! The transmit half: send and reclaim (82576 datasheet 7.2).
//!
//! The device owns the slots from its head to the tail register. The last descriptor of each block asks for a write-back (RS); its
//! done bit says that the device has read all bytes of the block.

use super::desc::{TX_STATUS_WORD, TxData, tx};
use pollring::buffer::{Burst, Caches};
use pollring::bus::{Doorbell, Health, Status};
use pollring::port::{QueueCounters, TxCounters, TxQueue};
use pollring::ring::{Outgoing, Report, TransmitRing};
use std::sync::Arc;

pub(super) struct IgbTx {
    pub ring: TransmitRing<TxData>,
    /// Below this many free slots, sending reclaims first.
    pub low_water: usize,
    pub tail: Doorbell,
    pub counters: QueueCounters<TxCounters>,
    pub status: Arc<Status>,
}

impl TxQueue for IgbTx {
    fn send(&mut self, burst: &mut Burst, caches: &mut Caches) -> usize {
        if burst.is_empty() || self.ring.lease().is_revoked() {
            return 0;
        }
        if self.ring.vacant() < self.low_water {
            self.reclaim(caches);
        }
        let before = self.ring.tail();
        let done = self.ring.send(burst, caches, describe);
        if self.ring.tail() != before {
            self.tail.ring(self.ring.tail());
            self.counters.now.doorbells += 1;
        }
        let counters = &mut self.counters.now;
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
        self.ring.reclaim(caches, |slot| slot.word(TX_STATUS_WORD) & tx::DONE != 0)
    }

    fn health(&self) -> Health {
        self.status.health()
    }
}

#[inline(always)]
fn describe(outgoing: Outgoing) -> TxData {
    let end = if outgoing.last { tx::END_OF_PACKET } else { 0 };
    let report = if outgoing.report == Report::WriteBack { tx::REPORT_STATUS } else { 0 };
    let lengths = u64::from(outgoing.bytes) | u64::from(outgoing.frame_bytes) << tx::PAYLOAD_SHIFT;
    TxData { address: outgoing.iova, command: tx::DATA | tx::INSERT_CRC | end | report | lengths }
}
