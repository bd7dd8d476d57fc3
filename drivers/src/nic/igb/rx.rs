//! The receive half: refill and receive (82576 datasheet 7.1).
//!
//! The device owns the slots from its head to the tail register. It writes a descriptor back in one piece of 16 bytes with the
//! done bit in word 1, so that word tells alone whether a frame is there, how long it is and whether it is whole.

use super::desc::{RX_STATUS_WORD, RxRead, rx};
use pollring::buffer::{Burst, Caches};
use pollring::bus::{Doorbell, Health, Status};
use pollring::iova::Iova;
use pollring::port::{QueueCounters, RxCounters, RxQueue};
use pollring::ring::{ReceiveDescriptor, ReceiveRing};
use std::sync::Arc;

/// Frames posted at a time; a tail write follows the last block.
const REFILL_BLOCK: usize = 32;

pub(super) struct IgbRx {
    pub ring: ReceiveRing<RxRead>,
    pub tail: Doorbell,
    pub counters: QueueCounters<RxCounters>,
    pub status: Arc<Status>,
}

impl RxQueue for IgbRx {
    fn refill(&mut self, caches: &mut Caches) -> usize {
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
        if count > 0 {
            self.tail.ring(self.ring.tail());
            self.counters.now.doorbells += 1;
        }
        count
    }

    fn receive(&mut self, burst: &mut Burst) -> usize {
        if self.ring.lease().is_revoked() {
            return 0;
        }
        let done = self.ring.collect(burst);
        self.counters.now.frames += done.frames as u64;
        self.counters.now.bytes += done.bytes;
        self.counters.now.bad += done.bad as u64;
        self.counters.publish();
        done.frames
    }

    fn health(&self) -> Health {
        self.status.health()
    }
}

impl ReceiveDescriptor for RxRead {
    const STATUS_WORD: usize = RX_STATUS_WORD;

    #[inline(always)]
    fn post(packet: Iova) -> RxRead {
        RxRead { packet, header: 0 }
    }

    /// A frame of several descriptors cannot be: the port sets its longest frame below the buffer's size. So a missing end is a
    /// bad frame, as is an error from the MAC or PHY.
    #[inline(always)]
    fn good_length(status: u64) -> Option<u16> {
        let whole = status & (rx::DONE | rx::END_OF_PACKET | rx::RX_ERROR) == rx::DONE | rx::END_OF_PACKET;
        whole.then_some((status >> rx::LENGTH_SHIFT) as u16)
    }

    #[inline(always)]
    fn is_done(status: u64) -> bool {
        status & rx::DONE != 0
    }
}
