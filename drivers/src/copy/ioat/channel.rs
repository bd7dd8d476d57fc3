//! The data path of the channel: a circle of descriptors, and the driver's own record of what they belong to.
//!
//! `done <= flushed <= written` run freely since the channel was armed and are the CPU's alone; the engine has the slots between the
//! first two. What it says (the completion word, CHANSTS) is one address, and counts only if it names one of those slots;
//! anything else halts the channel. The order is: open, submit, flush, poll; after a halt poll what ended, then reset.

use super::desc::{self, CopyWords, FillWords, control};
use super::init::Steps;
use super::regs::*;
use pollring::buffer::Shared;
use pollring::bus::{BusError, Device, Health, Registers};
use pollring::copy::*;
use pollring::iova::{AddressSpace, Iova};
use pollring::ring::fence;
use zerocopy::{Immutable, IntoBytes};

/// Descriptors that one completion write covers at most; the last before a flush always has one.
const BLOCK: u32 = 32;

/// Polls without news after which the registers are looked at: a channel that halted may not have said so in memory.
const PATIENCE_POLLS: u32 = 512;

/// Descriptors of one list at most, of a quarter of the ring.
const LIST_SHARE: usize = 4;

pub(crate) fn open(
    device: Device,
    space: &AddressSpace,
    depth: usize,
) -> Result<Box<dyn Channel>, EngineError> {
    Ok(Box::new(IoatChannel::open(device, space, depth)?))
}

/// The channel of one I/OAT function.
pub struct IoatChannel {
    device: Device,
    registers: Registers,
    limits: Limits,
    /// Descriptors, and the completion word behind them.
    memory: Shared,
    /// Device addresses of the slots.
    slots: Box<[Iova]>,
    completion: Iova,
    written: u32,
    flushed: u32,
    done: u32,
    /// Word 0 of the descriptor written last.
    last_control: u64,
    /// The completion word as last read.
    seen: u64,
    idle_polls: u32,
    halted: Option<String>,
    outstanding: Outstanding,
}

impl IoatChannel {
    /// Takes the device, lets it join `space`, and arms its channel for up to `depth` outstanding operations.
    ///
    /// # Errors
    /// The bus or the space refuses, the engine does not answer, or it is too old.
    pub fn open(mut device: Device, space: &AddressSpace, depth: usize) -> Result<IoatChannel, EngineError> {
        // Descriptors hold 64-bit addresses.
        device.join(space, u64::MAX)?;
        let registers = device.window(0)?;
        let identity = Steps { registers: &registers, device: device.name() }.identify()?;
        // DMACOUNT counts to 2^16, and a full ring must not look like an empty one.
        let entries = (depth + 1).clamp(64, 1 << 15).next_power_of_two();
        let memory = descriptor_memory(device.name(), entries * desc::BYTES + 8, space)?;
        let at = |slot: usize| memory.iova(slot * desc::BYTES);
        let slots = (0..entries).map(at).collect::<Result<Box<[Iova]>, _>>()?;
        let completion = at(entries)?;
        let fill = if identity.fills { Capabilities::FILL } else { Capabilities::empty() };
        let limits = Limits {
            capabilities: Capabilities::COPY | Capabilities::SCATTER_GATHER | fill,
            max_bytes: identity.max_bytes,
            alignment_bytes: 1,
            depth: depth.clamp(1, entries - 1),
            max_pieces: entries / LIST_SHARE,
            reach: Reach::Mapped,
        };
        let mut channel = IoatChannel {
            device,
            registers,
            limits,
            memory,
            slots,
            completion,
            written: 0,
            flushed: 0,
            done: 0,
            last_control: 0,
            seen: 0,
            idle_polls: 0,
            halted: None,
            outstanding: Outstanding::new(limits.depth),
        };
        channel.start()?;
        Ok(channel)
    }

    fn steps(&self) -> Steps<'_> {
        Steps { registers: &self.registers, device: self.device.name() }
    }

    /// From any state to an armed channel with an empty ring.
    fn start(&mut self) -> Result<(), BusError> {
        if self.steps().reset().is_err() {
            self.device.reset()?;
            self.steps().reset()?;
        }
        for slot in 0..self.slots.len() {
            let next = self.slots[(slot + 1) % self.slots.len()];
            self.put(slot * desc::BYTES + desc::NEXT, &next);
        }
        self.put(self.slots.len() * desc::BYTES, &0u64);
        (self.written, self.flushed, self.done, self.seen, self.idle_polls) = (0, 0, 0, 0, 0);
        self.device.start_dma()?;
        if let Err(error) = self.steps().arm(self.slots[0], self.completion) {
            self.device.stop_dma();
            return Err(error);
        }
        self.halted = None;
        Ok(())
    }

    fn put(&self, offset: usize, words: &(impl IntoBytes + Immutable)) {
        let placed = self.memory.copy_in(offset, words.as_bytes());
        assert!(placed.is_ok(), "a descriptor outside its ring");
    }

    /// Offset of a free-running index.
    #[inline]
    fn offset(&self, index: u32) -> usize {
        (index as usize & (self.slots.len() - 1)) * desc::BYTES
    }

    fn write(&mut self, control: u64, words: &(impl IntoBytes + Immutable)) {
        self.put(self.offset(self.written), words);
        self.last_control = control;
        self.written = self.written.wrapping_add(1);
    }

    fn accepts(&self, operation: &Operation) -> Result<u32, Reason> {
        if self.halted.is_some() {
            return Err(Reason::Halted);
        }
        self.limits.check(operation)?;
        let pieces = match operation.kind {
            Kind::CopyList { .. } => operation.pieces().count() as u32,
            _ => 1,
        };
        let needed = pieces + u32::from(operation.flags.contains(Flags::FENCE));
        let vacant = self.slots.len() as u32 - 1 - self.written.wrapping_sub(self.done);
        if self.outstanding.len() >= self.limits.depth || needed > vacant {
            return Err(Reason::Full(self.outstanding.len()));
        }
        Ok(needed)
    }

    /// Writes the descriptors of an operation that was accepted.
    fn describe(&mut self, operation: &Operation) -> Result<(), Reason> {
        if operation.flags.contains(Flags::FENCE) {
            // The bit holds back the next descriptor, and the one before may be the engine's already.
            let control = control::NULL | control::FENCE;
            self.write(control, &[control, 0, 0]);
        }
        if let Kind::Fill { destination, pattern } = &operation.kind {
            let control = self.control(destination.bytes(), control::FILL);
            let destination = destination.iova(0).ok_or(Reason::NotMapped)?;
            self.write(control, &FillWords { control, pattern: *pattern, destination });
            return Ok(());
        }
        for piece in operation.pieces() {
            let control = self.control(piece.bytes, 0);
            let (source, destination) = piece.source.zip(piece.destination).ok_or(Reason::NotMapped)?;
            self.write(control, &CopyWords { control, source, destination });
        }
        Ok(())
    }

    #[inline]
    fn control(&self, bytes: usize, operation: u64) -> u64 {
        let completion = if self.written % BLOCK == BLOCK - 1 { control::COMPLETION } else { 0 };
        bytes as u64 | operation | completion
    }

    /// Looks for news in memory, and in the registers when there was none for long.
    fn collect(&mut self) {
        // The word lies behind the last slot, by the layout; 0 is no news.
        let word = self.memory.load_u64(self.slots.len() * desc::BYTES).unwrap_or(0);
        if word != self.seen {
            (self.seen, self.idle_polls) = (word, 0);
            // What the engine wrote before the word is visible to all that follows.
            fence::after_done_bit();
            self.take(word);
        } else if self.flushed != self.done {
            self.idle_polls += 1;
            if self.idle_polls >= PATIENCE_POLLS {
                self.idle_polls = 0;
                self.look();
            }
        }
    }

    fn look(&mut self) {
        let status = self.steps().status();
        fence::after_done_bit();
        if self.device.status().health() == Health::Gone {
            self.end("the device is gone");
        } else if status == u64::MAX {
            self.end("its registers read as all ones although it is on its bus");
        } else if status & chansts::STATE == chansts::HALTED {
            self.take(status);
        }
        // Progress counts by the completion word alone: CHANSTS runs ahead of it, and the word would then name what is known.
    }

    /// How many descriptors `status` says are done beyond those known; `None` when it names none that the engine has.
    fn newly_done(&self, status: u64) -> Option<u32> {
        let offset = (status & chansts::ADDRESS).checked_sub(self.slots[0].bits())?;
        let slot = u32::try_from(offset / desc::BYTES as u64).ok()?;
        let mask = self.slots.len() as u32 - 1;
        let count = (slot.wrapping_sub(self.done) & mask) + 1;
        (slot <= mask && count <= self.flushed.wrapping_sub(self.done)).then_some(count)
    }

    fn take(&mut self, status: u64) {
        let halted = status & chansts::STATE == chansts::HALTED;
        match self.newly_done(status) {
            Some(count) => {
                self.outstanding.advance(count);
                self.done = self.done.wrapping_add(count);
            }
            // A channel that halts on its first descriptor names none, or the last one again.
            None if halted => {}
            None => {
                return self.end(&format!("it completed a descriptor that it was not given: {status:#x}"));
            }
        }
        if halted {
            self.fault();
        }
    }

    /// The channel halted: the descriptor behind the last completed one is the culprit.
    fn fault(&mut self) {
        let errors = self.registers.read(CHANERR);
        if self.flushed != self.done {
            self.outstanding.fail_first(match errors {
                errors if errors & (chanerr::SOURCE_ADDRESS | chanerr::READ_DATA) != 0 => Status::ReadFault,
                errors if errors & (chanerr::DESTINATION_ADDRESS | chanerr::WRITE_DATA) != 0 => {
                    Status::WriteFault
                }
                errors => Status::Engine(errors),
            });
        }
        self.end(&format!("the channel halted, CHANERR {errors:#x}"));
    }

    /// Ends DMA, at the engine and at its bus master gate, then aborts what has not ended.
    fn end(&mut self, reason: &str) {
        let quiet = self.device.status().health() == Health::Gone || self.steps().suspend();
        self.device.stop_dma();
        if !quiet {
            // Nobody is to hear of an error: bus mastering is off in any case.
            let _ = self.device.reset();
        }
        self.outstanding.abort();
        self.halted = Some(reason.to_owned());
    }
}

impl Channel for IoatChannel {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn submit(&mut self, operation: Operation) -> Result<(), Rejected> {
        let before = self.written;
        let written = self.accepts(&operation).and_then(|needed| self.describe(&operation).map(|()| needed));
        match written {
            Ok(descriptors) => {
                self.outstanding.push(operation, descriptors);
                Ok(())
            }
            Err(reason) => {
                self.written = before;
                Err(Rejected { operation, reason })
            }
        }
    }

    fn flush(&mut self) {
        if self.halted.is_some() || self.flushed == self.written {
            return;
        }
        let last = self.offset(self.written.wrapping_sub(1));
        self.put(last, &(self.last_control | control::COMPLETION));
        self.flushed = self.written;
        // The write is ordered behind the descriptors (`Registers::write16`).
        self.registers.write16(DMACOUNT.at(0), self.written as u16);
    }

    fn poll(&mut self, completed: &mut Completed) -> usize {
        if self.halted.is_none() {
            self.collect();
        }
        self.outstanding.drain_into(completed)
    }

    fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    fn health(&self) -> Health {
        match (self.device.status().health(), &self.halted) {
            (Health::Gone, _) => Health::Gone,
            (_, Some(reason)) => Health::Failed(format!("{reason}; poll what ended and reset it")),
            (health, None) => health,
        }
    }

    fn halt(&mut self) {
        if self.halted.is_none() {
            self.collect();
        }
        if self.halted.is_some() {
            return;
        }
        // Some may end until the engine is quiet.
        self.steps().suspend();
        if let Some(count) = self.newly_done(self.steps().status()) {
            fence::after_done_bit();
            self.outstanding.advance(count);
        }
        self.end("halted by its owner");
    }

    fn reset(&mut self) -> Result<(), BusError> {
        if self.halted.is_none() {
            self.halt();
        }
        self.start()
    }
}

impl Drop for IoatChannel {
    fn drop(&mut self) {
        self.halt();
    }
}
