//! QEMU's `edu` in software, its DMA alone: a buffer of 4 KiB, and one transfer at a time between it and memory.
//!
//! [`Edu`] is a [`SoftwareDevice`]. A transfer that was started ends in [`Edu::step`] and not after 100 ms. As QEMU's device does, it masks
//! addresses to 28 bits, drops what the IOMMU refuses and ignores writes while a transfer is under way, all without a word. A transfer
//! outside the buffer, which would overrun QEMU, is dropped and counted. Not there: the factorial, the liveness check, interrupts.

use crate::ioat::Copies;
use pollring::bus::simulated::{SimulatedIommu, SoftwareDevice};
use pollring::bus::{RegisterFile, config};
use pollring_drivers::copy::edu::regs::{BUFFER, BUFFER_BYTES, HIGHEST_ADDRESS, START, TO_MEMORY};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Size of BAR 0, bytes.
const BAR_BYTES: usize = 1 << 20;

const VENDOR_DEVICE: u32 = 0x11e8_1234;
/// Of no class; revision 0x10.
const CLASS_REVISION: u32 = 0xff00_0010;
const COMMAND_WRITABLE: u32 = config::MEMORY_SPACE | config::BUS_MASTER | config::INTX_DISABLE;
const IDENTITY: u32 = 0x0100_00ed;

/// What a device counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Transfers that moved their bytes.
    pub moved: u64,
    /// Transfers that moved nothing: bus mastering was off, or the IOMMU refused.
    pub dropped: u64,
    /// Transfers with an address above the mask, which is not the memory that was meant.
    pub masked: u64,
    /// Transfers outside the buffer.
    pub outside: u64,
}

/// A software `edu` function.
pub struct Edu(Arc<Bar>);

struct Bar(Mutex<State>);

struct State {
    command_word: u32,
    base: u32,
    iommu: Option<Arc<SimulatedIommu>>,
    unplugged: bool,
    stuck: bool,
    flips: bool,
    source: u64,
    destination: u64,
    count: u64,
    command: u32,
    buffer: Box<[u8; BUFFER_BYTES]>,
    counters: Counters,
}

impl Edu {
    /// A device after power-on.
    pub fn new(copies: Copies) -> Arc<Edu> {
        let state = State {
            command_word: 0,
            base: 0,
            iommu: None,
            unplugged: false,
            stuck: false,
            flips: copies == Copies::OneBitFlipped,
            source: 0,
            destination: 0,
            count: 0,
            command: 0,
            buffer: Box::new([0; BUFFER_BYTES]),
            counters: Counters::default(),
        };
        Arc::new(Edu(Arc::new(Bar(Mutex::new(state)))))
    }

    /// Ends up to `budget` transfers; gives how many of them moved bytes. Software starts the next one, so it is one at most.
    pub fn step(&self, budget: usize) -> usize {
        self.0.lock().step(budget)
    }

    /// What it counted.
    pub fn counters(&self) -> Counters {
        self.0.lock().counters
    }

    /// From now on no transfer ends, and a reset does not help.
    pub fn stick(&self) {
        self.0.lock().stuck = true;
    }

    /// Takes the device off its bus: all reads give all ones.
    pub fn unplug(&self) {
        self.0.lock().unplugged = true;
    }
}

impl Bar {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SoftwareDevice for Edu {
    fn config_read32(&self, offset: u16) -> u32 {
        self.0.lock().config_read(offset)
    }

    fn config_write32(&self, offset: u16, value: u32) {
        let mut state = self.0.lock();
        match offset {
            config::COMMAND if !state.unplugged => state.command_word = value & COMMAND_WRITABLE,
            // The low bits are fixed, which tells the size (PCI Local Bus 3.0, 6.2.5.1).
            0x10 if !state.unplugged => state.base = value & !(BAR_BYTES as u32 - 1),
            _ => {}
        }
    }

    fn bar(&self, bar: u8) -> Option<(Arc<dyn RegisterFile>, usize)> {
        (bar == 0).then(|| (self.0.clone() as Arc<dyn RegisterFile>, BAR_BYTES))
    }

    fn reset(&self) {
        let mut state = self.0.lock();
        (state.command_word, state.base) = (0, 0);
        if !state.stuck {
            state.command = 0;
        }
    }

    fn attach(&self, iommu: Arc<SimulatedIommu>) {
        self.0.lock().iommu = Some(iommu);
    }
}

/// A register of 64 bits takes a write of 32 as a whole; its upper half is none of its own.
impl RegisterFile for Bar {
    fn read32(&self, offset: usize) -> u32 {
        let state = self.lock();
        match offset {
            _ if state.unplugged => u32::MAX,
            0x00 => IDENTITY,
            0x80 => state.source as u32,
            0x88 => state.destination as u32,
            0x90 => state.count as u32,
            0x98 => state.command,
            _ => u32::MAX,
        }
    }

    fn write32(&self, offset: usize, value: u32) {
        let mut state = self.lock();
        if state.unplugged || state.command & START != 0 {
            return;
        }
        match offset {
            0x80 => state.source = value.into(),
            0x88 => state.destination = value.into(),
            0x90 => state.count = value.into(),
            0x98 if value & START != 0 => state.command = value,
            _ => {}
        }
    }
}

impl State {
    fn config_read(&self, offset: u16) -> u32 {
        match offset {
            _ if self.unplugged => u32::MAX,
            config::VENDOR => VENDOR_DEVICE,
            config::COMMAND => self.command_word,
            0x08 => CLASS_REVISION,
            0x10 => self.base,
            _ => 0,
        }
    }

    fn step(&mut self, budget: usize) -> usize {
        if budget == 0 || self.command & START == 0 || self.unplugged || self.stuck {
            return 0;
        }
        let moved = self.transfer();
        self.command &= !START;
        match moved {
            Some(()) => self.counters.moved += 1,
            None => self.counters.dropped += 1,
        }
        usize::from(moved.is_some())
    }

    /// Moves the bytes of the transfer, or nothing.
    fn transfer(&mut self) -> Option<()> {
        let outward = self.command & TO_MEMORY != 0;
        let (own, other) =
            if outward { (self.source, self.destination) } else { (self.destination, self.source) };
        self.counters.masked += u64::from(other > HIGHEST_ADDRESS);
        let end = own.checked_add(self.count).and_then(|end| end.checked_sub(BUFFER.into()));
        let start = own.checked_sub(BUFFER.into());
        let part = start.zip(end).and_then(|(start, end)| self.buffer.get_mut(start as usize..end as usize));
        let Some(part) = part else {
            self.counters.outside += 1;
            return None;
        };
        let memory = self.iommu.as_ref().filter(|_| self.command_word & config::BUS_MASTER != 0)?;
        if !outward {
            return memory.dma_read(other & HIGHEST_ADDRESS, part).ok();
        }
        if self.flips && !part.is_empty() {
            part[part.len() / 2] ^= 1;
        }
        memory.dma_write(other & HIGHEST_ADDRESS, part).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(edu: &Edu, source: u32, destination: u32, count: u32, command: u32) {
        let writes = [(0x80, source), (0x88, destination), (0x90, count), (0x98, command | START)];
        writes.into_iter().for_each(|(offset, value)| edu.0.write32(offset, value));
    }

    #[test]
    fn it_is_an_edu_with_one_bar() {
        let edu = Edu::new(Copies::True);
        assert_eq!((edu.config_read32(0), edu.0.read32(0)), (VENDOR_DEVICE, IDENTITY));
        edu.config_write32(0x10, u32::MAX);
        assert_eq!((!edu.config_read32(0x10) + 1) as usize, BAR_BYTES);
        assert!(edu.bar(0).is_some() && edu.bar(2).is_none());
    }

    #[test]
    fn a_transfer_outside_the_buffer_is_dropped_and_counted() {
        let edu = Edu::new(Copies::True);
        let outside = [(BUFFER - 1, 1), (BUFFER, 4097), (BUFFER + 4096, 1), (0, 1), (u32::MAX, u32::MAX)];
        for (at, bytes) in outside {
            start(&edu, 0x10_0000, at, bytes, 0);
            assert_eq!(edu.step(1), 0);
        }
        assert_eq!(edu.counters(), Counters { dropped: 5, outside: 5, ..Counters::default() });
    }

    #[test]
    fn no_write_counts_while_a_transfer_is_under_way() {
        let edu = Edu::new(Copies::True);
        start(&edu, 1 << 28, BUFFER, 4, 0);
        start(&edu, 7, 7, 7, TO_MEMORY);
        assert_eq!((edu.0.read32(0x80), edu.0.read32(0x98)), (1 << 28, START));
        edu.step(4);
        assert_eq!((edu.0.read32(0x98), edu.counters().masked, edu.counters().dropped), (0, 1, 1));
    }
}
