//! A full-duplex cable between two ends, which loses nothing.
//!
//! Each direction is a queue of frames of a fixed length. Frames carry no CRC. A queue that is full refuses, and so does a
//! cable that is cut; what was on its way then stays and arrives once it is joined again. So whoever loses a frame is one of the
//! ends, never the wire. Buffers are recycled by swapping: after the first round nothing is allocated. Each call takes one
//! lock, for a batch of frames as for one.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use thiserror::Error;

/// How a wire is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireConfig {
    /// Frames that each direction holds; at least 1.
    pub capacity_frames: usize,
}

impl Default for WireConfig {
    fn default() -> WireConfig {
        WireConfig { capacity_frames: 256 }
    }
}

/// The direction holds as many frames as it can, or the cable is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the wire takes no frame now: it is full or cut; receive at the far end or join it, then send again")]
pub struct Full;

/// One end of a wire. Clones are handles to the same end.
#[derive(Clone)]
pub struct WireEnd {
    joined: Arc<AtomicBool>,
    out: Arc<Lane>,
    into: Arc<Lane>,
}

/// One direction.
struct Lane {
    slots: Mutex<Slots>,
    /// Frames in `slots`, for looks without the lock.
    waiting: AtomicUsize,
    capacity: usize,
}

struct Slots {
    frames: Box<[Vec<u8>]>,
    first: usize,
    count: usize,
}

/// A new wire, joined. Asserts that it can hold a frame.
pub fn pair(config: WireConfig) -> (WireEnd, WireEnd) {
    assert!(config.capacity_frames > 0, "a wire without room for a frame");
    let joined = Arc::new(AtomicBool::new(true));
    let (there, back) = (Lane::new(config.capacity_frames), Lane::new(config.capacity_frames));
    let near = WireEnd { joined: joined.clone(), out: there.clone(), into: back.clone() };
    (near, WireEnd { joined, out: back, into: there })
}

impl WireEnd {
    /// Sends a copy of `frame`.
    ///
    /// # Errors
    /// [`Full`]; nothing is sent then.
    pub fn transmit(&self, frame: &[u8]) -> Result<(), Full> {
        let sent = self.transmit_batch(1, |slot| {
            slot.clear();
            slot.extend_from_slice(frame);
        });
        if sent == 1 { Ok(()) } else { Err(Full) }
    }

    /// Sends up to `limit` frames; gives how many. `fill` gets each one's buffer with some old content, and what it leaves there is
    /// the frame; it may swap it for a buffer of its own. It runs under the direction's lock.
    pub fn transmit_batch(&self, limit: usize, mut fill: impl FnMut(&mut Vec<u8>)) -> usize {
        let count = limit.min(self.room());
        if count == 0 {
            return 0;
        }
        let mut slots = self.out.lock();
        let count = count.min(self.out.capacity - slots.count);
        for _ in 0..count {
            let at = (slots.first + slots.count) % self.out.capacity;
            fill(&mut slots.frames[at]);
            slots.count += 1;
        }
        self.out.waiting.store(slots.count, Ordering::Release);
        count
    }

    /// Receives one frame into `frame`, whose old buffer is used again. False when none is there.
    pub fn receive_into(&self, frame: &mut Vec<u8>) -> bool {
        self.receive_batch(1, |slot| std::mem::swap(slot, frame)) == 1
    }

    /// Receives up to `limit` frames; gives how many. `take` gets each one and may keep it by swapping another buffer in. It
    /// runs under the direction's lock.
    pub fn receive_batch(&self, limit: usize, mut take: impl FnMut(&mut Vec<u8>)) -> usize {
        let count = limit.min(self.waiting());
        if count == 0 {
            return 0;
        }
        let mut slots = self.into.lock();
        let count = count.min(slots.count);
        for _ in 0..count {
            let at = slots.first;
            take(&mut slots.frames[at]);
            slots.first = (at + 1) % self.into.capacity;
            slots.count -= 1;
        }
        self.into.waiting.store(slots.count, Ordering::Release);
        count
    }

    /// Frames that this end can send now; 0 while the cable is cut. As long as one thread sends here, it only grows.
    pub fn room(&self) -> usize {
        if self.link() { self.out.capacity - self.out.waiting.load(Ordering::Acquire) } else { 0 }
    }

    /// Frames that this end can receive now; 0 while the cable is cut.
    pub fn waiting(&self) -> usize {
        if self.link() { self.into.waiting.load(Ordering::Acquire) } else { 0 }
    }

    /// Whether the cable is in one piece.
    pub fn link(&self) -> bool {
        self.joined.load(Ordering::Acquire)
    }

    /// Cuts the cable, for both ends.
    pub fn cut(&self) {
        self.joined.store(false, Ordering::Release);
    }

    /// Joins the cable again, for both ends.
    pub fn join(&self) {
        self.joined.store(true, Ordering::Release);
    }
}

impl Lane {
    fn new(capacity: usize) -> Arc<Lane> {
        let frames = vec![Vec::new(); capacity].into_boxed_slice();
        let slots = Mutex::new(Slots { frames, first: 0, count: 0 });
        Arc::new(Lane { slots, waiting: AtomicUsize::new(0), capacity })
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_in_order_at_the_other_end_only() {
        let (near, far) = pair(WireConfig { capacity_frames: 3 });
        let mut frame = Vec::new();
        for round in 0..10u8 {
            (0..3).for_each(|at| near.transmit(&[round, at]).unwrap());
            assert_eq!(near.transmit(&[0]), Err(Full));
            assert!(!near.receive_into(&mut frame));
            for at in 0..3 {
                assert!(far.receive_into(&mut frame));
                assert_eq!(frame, [round, at]);
            }
            assert!(!far.receive_into(&mut frame));
        }
    }

    #[test]
    fn both_directions_are_independent() {
        let (near, far) = pair(WireConfig { capacity_frames: 1 });
        near.transmit(&[1]).unwrap();
        far.transmit(&[2]).unwrap();
        let mut frame = Vec::new();
        assert!(near.receive_into(&mut frame) && frame == [2]);
        assert!(far.receive_into(&mut frame) && frame == [1]);
    }

    #[test]
    fn batches_swap_buffers_and_stop_at_their_limit() {
        let (near, far) = pair(WireConfig { capacity_frames: 8 });
        let mut next = 0;
        let sent = near.transmit_batch(100, |slot| {
            *slot = vec![next; 4];
            next += 1;
        });
        assert_eq!((sent, near.room(), far.waiting()), (8, 0, 8));
        let mut kept = vec![Vec::new(); 5];
        let mut at = 0;
        let received = far.receive_batch(5, |slot| {
            std::mem::swap(slot, &mut kept[at]);
            at += 1;
        });
        assert_eq!((received, near.room(), far.waiting()), (5, 5, 3));
        assert_eq!(kept[4], [4; 4]);
    }

    #[test]
    fn a_cut_wire_holds_what_was_on_its_way() {
        let (near, far) = pair(WireConfig::default());
        near.transmit(&[1]).unwrap();
        far.cut();
        let mut frame = Vec::new();
        assert!(!near.link() && near.room() == 0 && far.waiting() == 0);
        assert_eq!(near.transmit(&[2]), Err(Full));
        assert!(!far.receive_into(&mut frame));
        near.join();
        assert!(far.link() && far.receive_into(&mut frame));
        assert_eq!(frame, [1]);
    }

    #[test]
    fn two_threads_exchange_every_frame_once() {
        let (near, far) = pair(WireConfig { capacity_frames: 16 });
        let sender = std::thread::spawn(move || {
            let mut next = 0u32;
            while next < 20_000 {
                near.transmit_batch(7, |slot| {
                    slot.clear();
                    slot.extend_from_slice(&next.to_le_bytes());
                    next += 1;
                });
            }
            next
        });
        let mut expected = 0u32;
        let mut idle = 0;
        while expected < 20_000 && idle < 10_000_000 {
            let got = far.receive_batch(16, |slot| {
                assert_eq!(slot[..], expected.to_le_bytes());
                expected += 1;
            });
            idle = if got == 0 { idle + 1 } else { 0 };
            if got == 0 {
                std::thread::yield_now();
            }
        }
        assert!(sender.join().unwrap() >= expected);
        assert!(expected >= 20_000);
    }
}
