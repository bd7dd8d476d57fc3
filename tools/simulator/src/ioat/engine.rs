//! The engine: descriptors of the chain, one by one, until DMACOUNT is reached or a descriptor is wrong.
//!
//! A descriptor is read into a value before anything in it is looked at. An error halts the channel at that descriptor, as CHANERR says,
//! and is reported as a completion of the one before.

use super::state::State;
use crate::hostile::Lie;
use pollring_drivers::copy::ioat::desc::{self, control};
use pollring_drivers::copy::ioat::regs::{chanctrl, chanerr, chansts};

/// Bytes that are moved at a time: what fits a core's first cache.
pub(super) const CHUNK: usize = 16 << 10;

/// The longest transfer (XFERCAP).
const LONGEST: usize = 1 << 20;

const LIES: [Lie; 5] = [Lie::DoneEarly, Lie::DoneLate, Lie::OutOfOrder, Lie::HeadNonsense, Lie::ErrorBits];

struct Descriptor {
    control: u64,
    source: u64,
    destination: u64,
    next: u64,
}

impl State {
    /// Executes up to `budget` descriptors; gives how many.
    pub(super) fn step(&mut self, budget: usize) -> usize {
        let mut done = 0;
        while done < budget && self.channel.pending() > 0 && self.memory().is_some() {
            done += 1;
            self.channel.state = chansts::ACTIVE;
            if let Err(errors) = self.execute() {
                self.fail(errors);
            }
        }
        done
    }

    fn execute(&mut self) -> Result<(), u32> {
        let at = self.channel.current;
        let descriptor = self.fetch(at)?;
        self.perform(&descriptor)?;
        let channel = &mut self.channel;
        channel.executed = channel.executed.wrapping_add(1);
        (channel.completed, channel.current) = (at, descriptor.next);
        if channel.pending() == 0 {
            channel.state = chansts::DONE;
        }
        self.counters.descriptors += 1;
        if descriptor.control & control::COMPLETION != 0 {
            self.complete()?;
        }
        if descriptor.control & control::INTERRUPT != 0 {
            self.interrupt();
        }
        Ok(())
    }

    fn fetch(&self, at: u64) -> Result<Descriptor, u32> {
        let mut bytes = [0; desc::BYTES];
        if !at.is_multiple_of(desc::BYTES as u64) {
            return Err(chanerr::CHAIN_ADDRESS);
        }
        let memory = self.memory().ok_or(chanerr::NEXT_ADDRESS)?;
        memory.dma_read(at, &mut bytes).map_err(|_| chanerr::NEXT_ADDRESS)?;
        let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let mut word = || words.next().unwrap_or(0);
        Ok(Descriptor { control: word(), source: word(), destination: word(), next: word() })
    }

    fn perform(&mut self, descriptor: &Descriptor) -> Result<(), u32> {
        if descriptor.control & control::NULL != 0 {
            return Ok(());
        }
        let bytes = descriptor.control as u32 as usize;
        if bytes == 0 || bytes > LONGEST {
            return Err(chanerr::LENGTH);
        }
        match descriptor.control & control::OPERATION {
            0 => self.copy(descriptor, bytes),
            control::FILL => self.fill(descriptor, bytes),
            _ => Err(chanerr::CONTROL),
        }
    }

    fn copy(&mut self, descriptor: &Descriptor, bytes: usize) -> Result<(), u32> {
        let State { chunk, iommu, flips, .. } = self;
        let memory = iommu.as_ref().ok_or(chanerr::READ_DATA)?;
        for done in (0..bytes).step_by(CHUNK) {
            let part = &mut chunk[..(bytes - done).min(CHUNK)];
            let (from, to) = (
                descriptor.source.wrapping_add(done as u64),
                descriptor.destination.wrapping_add(done as u64),
            );
            memory.dma_read(from, part).map_err(|_| chanerr::SOURCE_ADDRESS)?;
            if *flips && done == 0 {
                part[part.len() / 2] ^= 1;
            }
            memory.dma_write(to, part).map_err(|_| chanerr::DESTINATION_ADDRESS)?;
        }
        self.counters.bytes += bytes as u64;
        Ok(())
    }

    fn fill(&mut self, descriptor: &Descriptor, bytes: usize) -> Result<(), u32> {
        let State { chunk, iommu, flips, .. } = self;
        let pattern = &mut chunk[..bytes.min(CHUNK).next_multiple_of(8)];
        pattern.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = descriptor.source.to_le_bytes());
        pattern[0] ^= u8::from(*flips);
        let memory = iommu.as_ref().ok_or(chanerr::WRITE_DATA)?;
        for done in (0..bytes).step_by(CHUNK) {
            let to = descriptor.destination.wrapping_add(done as u64);
            let part = &chunk[..(bytes - done).min(CHUNK)];
            memory.dma_write(to, part).map_err(|_| chanerr::DESTINATION_ADDRESS)?;
        }
        self.counters.bytes += bytes as u64;
        Ok(())
    }

    /// Writes CHANSTS where software wants it.
    fn complete(&mut self) -> Result<(), u32> {
        let Some(word) = self.completion_word() else { return Ok(()) };
        let memory = self.memory().ok_or(chanerr::COMPLETION_ADDRESS)?;
        let written = memory.dma_write(self.channel.completion, &word.to_le_bytes());
        written.map_err(|_| chanerr::COMPLETION_ADDRESS)
    }

    /// What is written, if anything: the truth, or a lie.
    fn completion_word(&mut self) -> Option<u64> {
        let honest = self.channel.status();
        let Some(liar) = &mut self.liar else { return Some(honest) };
        let step = desc::BYTES as u64 * (1 + liar.random.below(600));
        match liar.tempted(&LIES) {
            Some(Lie::DoneEarly) => Some(honest.wrapping_add(step)),
            Some(Lie::OutOfOrder) => Some(honest.wrapping_sub(step)),
            Some(Lie::HeadNonsense) => Some(liar.random.next()),
            Some(Lie::ErrorBits) => Some(honest & chansts::ADDRESS | chansts::HALTED),
            Some(_) => None,
            None => Some(honest),
        }
    }

    fn fail(&mut self, errors: u32) {
        self.channel.errors |= errors;
        self.channel.state = chansts::HALTED;
        self.config.note_errors(errors);
        self.counters.halts += 1;
        if self.channel.control & chanctrl::ERROR_COMPLETION != 0 && errors != chanerr::COMPLETION_ADDRESS {
            // It is halted already; CHANSTS tells what the word would have.
            let _ = self.complete();
        }
        if self.channel.control & chanctrl::ERROR_INTERRUPT != 0 {
            self.interrupt();
        }
    }
}
