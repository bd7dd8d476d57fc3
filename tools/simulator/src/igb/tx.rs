//! The transmit side (82576 datasheet 7.2): descriptors to frames on the wire.
//!
//! Frames are gathered queue by queue, the first queue another one each step, as many as the wire has room for; what is gathered when
//! the cable is cut stays and goes first later. A packet is read before its descriptors are written back. A frame that breaks a rule is
//! counted and not sent, but its descriptors are done, so a driver learns of its mistake from a count and not from a stuck ring. A
//! packet that is segmented becomes several frames, which count one by one.

use super::offload::{self, CONTEXTS, Context, Misfit, Request, bits};
use super::others;
use super::queue::{Fetched, Next, WriteBack};
use super::state::{QUEUES, Side, State};
use super::violation::Violation;
use pollring_drivers::nic::igb::desc::tx;
use pollring_drivers::nic::igb::regs::*;

/// Longest frame without CRC that is gathered (7.2.1.1).
const LONGEST_BYTES: usize = 16 << 10;
/// Longest packet that is gathered to be segmented: what PAYLEN can tell, and headers.
const LONGEST_SEGMENTED_BYTES: usize = (256 << 10) + 512;
/// TCTL.PSP pads to this, without CRC (8.12.1).
const PADDED_BYTES: usize = 60;
/// DTYP in bits 23:20 and DEXT in bit 29 (7.2.2.3).
const TYPE_MASK: u64 = 0xf << 20 | 1 << 29;

/// A frame of which not all descriptors were read.
#[derive(Default)]
struct Assembly {
    bytes: Vec<u8>,
    /// PAYLEN of the first descriptor; `None` before it.
    promised: Option<usize>,
    request: Request,
    broken: bool,
}

/// Frames on their way from rings to the wire.
pub(super) struct Outbox {
    assemblies: Vec<Assembly>,
    contexts: Vec<[Option<Context>; CONTEXTS]>,
    /// The first `ready` of these are frames, the others are buffers to use again.
    frames: Vec<Vec<u8>>,
    ready: usize,
    first_queue: usize,
}

impl Outbox {
    pub(super) fn new(queues: usize) -> Outbox {
        let assemblies = (0..queues).map(|_| Assembly::default()).collect();
        let contexts = vec![[None; CONTEXTS]; queues];
        Outbox { assemblies, contexts, frames: Vec::new(), ready: 0, first_queue: 0 }
    }

    /// Frames that are gathered and not on the wire.
    pub(super) fn len(&self) -> usize {
        self.ready
    }

    /// Throws away everything; gives how many whole frames that were.
    pub(super) fn clear(&mut self) -> usize {
        self.contexts.fill([None; CONTEXTS]);
        (0..self.assemblies.len()).for_each(|queue| self.abandon(queue));
        std::mem::take(&mut self.ready)
    }

    /// Throws away the unfinished frame of a queue.
    pub(super) fn abandon(&mut self, queue: usize) {
        let assembly = &mut self.assemblies[queue];
        assembly.bytes.clear();
        (assembly.promised, assembly.request, assembly.broken) = (None, Request::default(), false);
    }

    /// The unfinished frame of a queue is whole.
    fn finish(&mut self, queue: usize) {
        let mut bytes = std::mem::take(&mut self.assemblies[queue].bytes);
        self.push(&mut bytes);
        self.assemblies[queue].bytes = bytes;
        self.abandon(queue);
    }

    /// Takes a frame and leaves a buffer to use again.
    fn push(&mut self, frame: &mut Vec<u8>) {
        if self.ready == self.frames.len() {
            self.frames.push(Vec::new());
        }
        std::mem::swap(&mut self.frames[self.ready], frame);
        self.ready += 1;
    }
}

impl State {
    /// Sends up to `budget` frames; gives how many were taken from rings.
    pub(super) fn transmit(&mut self, budget: usize) -> usize {
        let enabled = self.registers[TCTL.at(0)] & tctl::ENABLE != 0;
        if !enabled || !self.memory.is_open() || !self.link_is_up() {
            return 0;
        }
        let room = budget.min(self.wire.room());
        let first = self.outbox.first_queue;
        self.outbox.first_queue = (first + 1) % QUEUES;
        let mut taken = self.outbox.ready;
        for queue in (first..QUEUES).chain(0..first) {
            while taken < room && self.gather(queue) {
                taken += 1;
            }
        }
        self.put_on_wire();
        taken
    }

    /// Takes descriptors of `queue` up to the end of a frame. False when the ring has no whole one.
    fn gather(&mut self, queue: usize) -> bool {
        loop {
            match self.tx[queue].next(&mut self.memory, &mut self.violations) {
                Next::Empty => return false,
                Next::Lost => self.outbox.abandon(queue),
                Next::Descriptor(fetched) => {
                    if self.take(queue, fetched) {
                        return true;
                    }
                }
            }
        }
    }

    /// Reads what one descriptor points to and writes it back if that is wanted; whether it ended a frame.
    fn take(&mut self, queue: usize, fetched: Fetched) -> bool {
        let [address, command] = fetched.words;
        let is_context = command & TYPE_MASK == bits::CONTEXT;
        if is_context {
            let (at, context) = Context::parse(fetched.words);
            self.outbox.contexts[queue][at] = Some(context);
        } else if let Err(violation) = self.append(queue, address, command) {
            self.outbox.assemblies[queue].broken = true;
            if let Some(violation) = violation {
                self.violations.report(violation);
            }
        }
        if command & tx::REPORT_STATUS != 0 {
            let write_back = WriteBack { address: fetched.address, words: [0, tx::DONE] };
            self.write_back(Side::Tx, queue, write_back, (0, 0));
        }
        let ended = !is_context && command & tx::END_OF_PACKET != 0;
        if ended {
            self.finish_frame(queue);
        }
        ended
    }

    /// Adds the bytes of one descriptor. An error without a violation is a fault, which is counted already.
    fn append(&mut self, queue: usize, address: u64, command: u64) -> Result<(), Option<Violation>> {
        let assembly = &mut self.outbox.assemblies[queue];
        if command & TYPE_MASK != tx::DATA {
            return Err(Some(Violation::TransmitFormat));
        }
        if assembly.promised.is_none() {
            assembly.promised = Some((command >> tx::PAYLOAD_SHIFT) as usize);
            assembly.request = Request::of(command);
            if command & tx::INSERT_CRC == 0 {
                return Err(Some(Violation::NoInsertCrc));
            }
        }
        let (start, bytes) = (assembly.bytes.len(), (command & tx::LENGTH_MASK) as usize);
        if bytes == 0 {
            return Err(Some(Violation::EmptyBuffer));
        }
        let longest = if assembly.request.segments() { LONGEST_SEGMENTED_BYTES } else { LONGEST_BYTES };
        if start + bytes > longest {
            return Err((!assembly.broken).then_some(Violation::FrameTooLong));
        }
        assembly.bytes.resize(start + bytes, 0);
        self.memory.read(address, &mut assembly.bytes[start..]).map_err(|_| None)
    }

    fn finish_frame(&mut self, queue: usize) {
        let request = self.outbox.assemblies[queue].request;
        if !request.is_none()
            && !self.outbox.assemblies[queue].broken
            && let Err(violation) = self.perform(queue, request)
        {
            self.violations.report(violation);
            self.outbox.assemblies[queue].broken = true;
        }
        let assembly = &mut self.outbox.assemblies[queue];
        let bytes = assembly.bytes.len();
        if request.is_none() && !assembly.broken && assembly.promised != Some(bytes) {
            self.violations.report(Violation::PayloadLength);
            assembly.broken = true;
        }
        if assembly.broken {
            self.counters.frames_not_sent += 1;
            return self.outbox.abandon(queue);
        }
        if request.segments() {
            return self.outbox.abandon(queue);
        }
        if bytes < PADDED_BYTES && self.registers[TCTL.at(0)] & tctl::PAD_SHORT != 0 {
            assembly.bytes.resize(PADDED_BYTES, 0);
        }
        self.outbox.finish(queue);
    }

    /// Does what the packet's first descriptor asks for. Segments go to the outbox, another packet stays where it is.
    fn perform(&mut self, queue: usize, request: Request) -> Result<(), Violation> {
        let context = self.outbox.contexts[queue][request.context()].ok_or(Violation::NoContext)?;
        let mut frame = std::mem::take(&mut self.outbox.assemblies[queue].bytes);
        let headers = if request.segments() { context.header_bytes() } else { 0 };
        if self.outbox.assemblies[queue].promised != Some(frame.len().saturating_sub(headers)) {
            return Err(Violation::PayloadLength);
        }
        let ethertype = self.registers[others::VET.at(0)] as u16;
        let tag = request.vlan(&context);
        if request.segments() {
            let low = self.registers[others::DTXTCPFLGL.at(0)];
            let masks = [low as u16, (low >> 16) as u16, self.registers[others::DTXTCPFLGH.at(0)] as u16];
            let outbox = &mut self.outbox;
            let done = offload::segment(&frame, &context, request, masks, |mut segment| {
                if let Some(tag) = tag {
                    offload::insert_tag(&mut segment, ethertype, tag);
                }
                outbox.push(&mut segment);
            });
            self.registers.count(others::TSCTC);
            return done.map(drop).map_err(|Misfit| Violation::ContextMisfit);
        }
        offload::insert_checksums(&mut frame, &context, request)
            .map_err(|Misfit| Violation::ContextMisfit)?;
        if let Some(tag) = tag {
            offload::insert_tag(&mut frame, ethertype, tag);
        }
        self.outbox.assemblies[queue].bytes = frame;
        Ok(())
    }

    fn put_on_wire(&mut self) {
        let State { wire, outbox, registers, sent_octets, all_sent_octets, counters, .. } = self;
        let mut at = 0;
        let sent = wire.transmit_batch(outbox.ready, |slot| {
            let frame = &mut outbox.frames[at];
            registers.count_sent(frame);
            sent_octets.add(frame.len());
            all_sent_octets.add(frame.len());
            std::mem::swap(slot, frame);
            at += 1;
        });
        counters.frames_sent += sent as u64;
        outbox.ready -= sent;
        outbox.frames.rotate_left(sent);
    }
}
