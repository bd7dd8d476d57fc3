//! The receive side (82576 datasheet 7.1): frames from the wire to memory.
//!
//! A frame passes the MAC's filters, then waits in the packet buffer until its queue has descriptors for it. If the queue drops, it is
//! dropped and counted in RQDPC; otherwise it waits and everything behind it does too, until the packet buffer is full and what
//! arrives is counted in MPC. While the receiver is off or the link is down, frames stay on the wire. So each frame that arrived is
//! counted once: TPR = GPRC + RQDPC + MPC + RUC + ROC + filtered + lost, and those that wait.

use super::checksum;
use super::filter::{self, CRC_BYTES, Verdict};
use super::others::{self, rxcsum};
use super::queue::{Next, WriteBack};
use super::rss::{self, Steering};
use super::state::{Side, State};
use super::violation::Violation;
use pollring_drivers::nic::igb::desc::rx;
use pollring_drivers::nic::igb::regs::*;
use std::collections::VecDeque;

/// Frames taken from the wire at a time.
const CHUNK: usize = 16;
/// SRRCTL.BSIZEPACKET of 0: RCTL.BSIZE decides, which is 2 KiB after reset (8.10.2).
const DEFAULT_BUFFER_BYTES: usize = 2048;
/// RSS type in word 0 of the write-back, and the bit of word 1 that says that a tag is beside the frame (7.1.5.2).
const RSS_TYPE_MASK: u64 = 0xf;
const VLAN_STRIPPED: u64 = 1 << 3;
/// Buffers of free frames that are kept.
const SPARE_FRAMES: usize = 1024;

struct Waiting {
    bytes: Vec<u8>,
    /// It found no descriptor before, and was counted for that.
    refused: bool,
}

/// The receive packet buffer.
#[derive(Default)]
pub(super) struct PacketBuffer {
    frames: VecDeque<Waiting>,
    bytes: usize,
    spare: Vec<Vec<u8>>,
    /// The first frame waits for a descriptor.
    blocked: bool,
}

impl PacketBuffer {
    /// Throws away everything; gives how many frames that were.
    pub(super) fn clear(&mut self) -> usize {
        (self.bytes, self.blocked) = (0, false);
        self.frames.drain(..).count()
    }

    /// Takes a frame by swapping buffers, unless those that wait fill `room_bytes`.
    fn take(&mut self, slot: &mut Vec<u8>, room_bytes: usize) -> bool {
        if self.blocked && self.bytes + slot.len() > room_bytes {
            return false;
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        std::mem::swap(&mut bytes, slot);
        self.bytes += bytes.len();
        self.frames.push_back(Waiting { bytes, refused: false });
        true
    }

    fn first(&mut self) -> Option<Waiting> {
        let waiting = self.frames.pop_front()?;
        self.bytes -= waiting.bytes.len();
        Some(waiting)
    }

    fn put_back(&mut self, waiting: Waiting) {
        self.bytes += waiting.bytes.len();
        self.frames.push_front(waiting);
    }

    fn recycle(&mut self, bytes: Vec<u8>) {
        if self.spare.len() < SPARE_FRAMES {
            self.spare.push(bytes);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Placing {
    /// In memory, or dropped and counted.
    Done,
    /// It waits.
    Blocked,
}

impl State {
    /// Receives up to `budget` frames; gives how many left the wire or the packet buffer, whichever is more.
    pub(super) fn receive(&mut self, budget: usize) -> usize {
        if self.registers[RCTL.at(0)] & rctl::ENABLE == 0 || !self.link_is_up() {
            return 0;
        }
        let mut placed = self.place_waiting(budget);
        let mut taken = 0;
        while taken < budget {
            let arrived = self.take_from_wire(CHUNK.min(budget - taken));
            if arrived == 0 {
                break;
            }
            taken += arrived;
            placed += self.place_waiting(budget - placed);
        }
        placed.max(taken)
    }

    fn take_from_wire(&mut self, limit: usize) -> usize {
        let State { wire, registers, inbox, counters, all_received_octets, .. } = self;
        wire.receive_batch(limit, |slot| {
            registers.count(TPR);
            all_received_octets.add(slot.len());
            match filter::judge(registers, slot) {
                Verdict::Good => {
                    if !inbox.take(slot, registers[RXPBS.at(0)] as usize * 1024) {
                        registers.count(MPC);
                        registers[ICR.at(0)] |= icr::RX_OVERRUN;
                    }
                }
                Verdict::TooShort => registers.count(RUC),
                Verdict::TooLong => registers.count(ROC),
                Verdict::NotForUs => counters.filtered += 1,
            }
        })
    }

    fn place_waiting(&mut self, limit: usize) -> usize {
        let mut placed = 0;
        self.inbox.blocked = false;
        while placed < limit
            && let Some(mut waiting) = self.inbox.first()
        {
            if self.place(&mut waiting) == Placing::Blocked {
                self.inbox.blocked = true;
                self.inbox.put_back(waiting);
                break;
            }
            self.inbox.recycle(waiting.bytes);
            placed += 1;
        }
        placed
    }

    fn place(&mut self, waiting: &mut Waiting) -> Placing {
        if !self.memory.is_open() {
            return Placing::Blocked;
        }
        let mut steering = rss::steer(&self.registers, &waiting.bytes);
        let strip = self.registers[RCTL.at(0)] & rctl::STRIP_CRC != 0;
        let bytes = waiting.bytes.len() + if strip { 0 } else { CRC_BYTES };
        let buffer_bytes = self.buffer_bytes(steering.queue);
        let needed = bytes.div_ceil(buffer_bytes) as u32;
        let queue = &mut self.rx[steering.queue];
        if queue.ring().is_some_and(|ring| needed >= ring.entries) {
            self.violations.report(Violation::BuffersTooSmall);
            self.drop_in_queue(steering.queue);
        } else if queue.available(&mut self.violations) < needed {
            return self.find_no_buffer(steering.queue, waiting);
        } else {
            self.count_placed(&waiting.bytes);
            self.offload(&mut steering, &mut waiting.bytes);
            if !strip {
                let crc = ethernet_crc(&waiting.bytes);
                waiting.bytes.extend_from_slice(&crc.to_le_bytes());
            }
            self.fill(steering, &waiting.bytes, buffer_bytes);
        }
        Placing::Done
    }

    /// Checks checksums, then takes the VLAN tag out of a frame where the driver asked for it (7.1.11, 7.4.1).
    #[inline]
    fn offload(&self, steering: &mut Steering, frame: &mut Vec<u8>) {
        let control = self.registers[RXCSUM.at(0)];
        if control & rxcsum::HASH == 0 {
            // The place of the hash then holds a checksum of fragments, which is not modelled.
            steering.info &= u64::from(u32::MAX) & !RSS_TYPE_MASK;
        }
        steering.status = checksum::judge(control, frame);
        if self.registers[CTRL.at(0)] & others::ctrl::VLAN_MODE != 0
            && let Some(tag) = filter::vlan_tag(frame)
        {
            frame.drain(12..16);
            steering.status |= VLAN_STRIPPED | u64::from(tag) << rx::VLAN_SHIFT;
        }
    }

    fn buffer_bytes(&self, queue: usize) -> usize {
        match self.registers[SRRCTL.at(queue)] & srrctl::BUFFER_KIB_MASK {
            0 => DEFAULT_BUFFER_BYTES,
            kib => kib as usize * 1024,
        }
    }

    /// A queue that is off drops, whatever SRRCTL says: it would block the others for ever.
    fn find_no_buffer(&mut self, queue: usize, waiting: &mut Waiting) -> Placing {
        let drops = self.registers[SRRCTL.at(queue)] & srrctl::DROP_ENABLE != 0;
        if drops || self.rx[queue].ring().is_none() {
            self.drop_in_queue(queue);
            return Placing::Done;
        }
        if !waiting.refused {
            waiting.refused = true;
            self.registers.count(RNBC);
        }
        Placing::Blocked
    }

    fn drop_in_queue(&mut self, queue: usize) {
        self.registers.count_at(RQDPC, queue);
        self.registers[ICR.at(0)] |= icr::RX_OVERRUN;
    }

    /// Writes a frame into as many buffers as it needs, and each descriptor back after its bytes.
    fn fill(&mut self, Steering { queue, info, status: last }: Steering, frame: &[u8], buffer_bytes: usize) {
        let mut left = frame.len();
        for part in frame.chunks(buffer_bytes) {
            let fetched = match self.rx[queue].next(&mut self.memory, &mut self.violations) {
                Next::Descriptor(fetched) => fetched,
                Next::Lost | Next::Empty => {
                    self.counters.lost += 1;
                    return;
                }
            };
            let [buffer, header] = fetched.words;
            if header & rx::DONE != 0 {
                self.violations.report(Violation::PostedAsDone);
            }
            // A posted write has no answer, so the descriptor is done even if this one was refused.
            let _ = self.memory.write(buffer, part);
            left -= part.len();
            let end = if left == 0 { rx::END_OF_PACKET | last } else { 0 };
            let status = rx::DONE | end | (part.len() as u64) << rx::LENGTH_SHIFT;
            let write_back = WriteBack { address: fetched.address, words: [info, status] };
            self.write_back(Side::Rx, queue, write_back, (buffer, part.len()));
        }
    }

    fn count_placed(&mut self, frame: &[u8]) {
        self.counters.frames_received += 1;
        self.received_octets.add(frame.len());
        if let Some(destination) = frame.first_chunk() {
            self.registers.count_received(*destination, frame.len());
        }
    }
}

/// The frame check sequence (IEEE 802.3, 3.2.9), bit by bit: only for receivers that keep it.
fn ethernet_crc(frame: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 != 0 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !frame.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crc_is_ethernets() {
        assert_eq!(ethernet_crc(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn a_blocked_buffer_has_an_end() {
        let mut buffer = PacketBuffer::default();
        let mut frame = vec![0; 100];
        assert!(buffer.take(&mut frame, 150) && frame.is_empty());
        buffer.blocked = true;
        assert!(!buffer.take(&mut vec![0; 51], 150));
        assert!(buffer.take(&mut vec![0; 50], 150));
        assert_eq!(buffer.clear(), 2);
        assert!(buffer.take(&mut vec![0; 151], 150));
    }
}
