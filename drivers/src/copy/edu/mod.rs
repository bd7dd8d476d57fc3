//! QEMU's `edu` as a copy engine: the smallest driver here, for a device that nobody of this project wrote.
//!
//! The device has one buffer of 4 KiB and moves bytes between it and memory, one transfer at a time, 100 ms each: a copy is two of them.
//! `flush` starts one if none is under way; `poll` looks whether it has ended and starts the next. Neither waits. The device masks the
//! addresses that it does not reach and drops what the IOMMU refuses, without a word: so its space gives it low addresses, and an end that
//! is not mapped there is refused at submit. It cannot be stopped: a halt waits for the transfer under way and then takes bus mastering
//! away, which comes back only when that transfer has ended.

pub mod regs;

use crate::EngineEntry;
use pollring::bus::{BusError, Device, Health, Register, Registers, wait_until};
use pollring::copy::*;
use pollring::iova::{AddressSpace, Direction};
use pollring::ring::fence;
use regs::*;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

/// How long a transfer may take, and how long a halt or a reset waits for one. It takes 100 ms of the machine's time.
const TRANSFER_LIMIT: Duration = Duration::from_secs(2);
const HALT_LIMIT: Duration = Duration::from_millis(300);

/// What this driver knows.
pub const DEVICES: &[EngineEntry] = &[EngineEntry {
    vendor: 0x1234,
    device: 0x11e8,
    model: "QEMU's edu",
    driver: "edu",
    proof: "QEMU's edu behind VFIO and an IOMMU; software edu of this project",
    open: |device, space, depth| Ok(Box::new(EduChannel::open(device, space, depth)?)),
}];

/// What starts one half of a copy, written in this order.
const TRANSFER: [Register; 4] = [SOURCE, DESTINATION, COUNT, COMMAND];

/// The engine of one `edu` function.
pub struct EduChannel {
    /// First: its drop ends DMA, and the memory of what is outstanding goes after that.
    device: Device,
    registers: Registers,
    space: AddressSpace,
    limits: Limits,
    /// What was submitted and has not ended, as values of [`TRANSFER`]; the first is under way while `started` is set.
    transfers: VecDeque<[u32; 4]>,
    /// How many of them a flush let go.
    flushed: usize,
    started: Option<Instant>,
    halted: Option<String>,
    outstanding: Outstanding,
}

impl EduChannel {
    /// Takes the device and lets it join `space`, for up to `depth` outstanding operations.
    ///
    /// # Errors
    /// The bus or the space refuses, or the device does not call itself an `edu`.
    pub fn open(mut device: Device, space: &AddressSpace, depth: usize) -> Result<EduChannel, EngineError> {
        device.join(space, HIGHEST_ADDRESS)?;
        let registers = device.window_of(0, COMMAND.offset + 4)?;
        let identity = registers.read(IDENTITY);
        if identity & 0xff != 0xed {
            let what = format!("it calls itself {identity:#010x} and not 0x010000ed; it is another device");
            return Err(EngineError::Unsupported { device: device.name().to_owned(), what });
        }
        let limits = Limits {
            capabilities: Capabilities::COPY | Capabilities::SCATTER_GATHER,
            max_bytes: BUFFER_BYTES,
            alignment_bytes: 1,
            depth: depth.max(1),
            max_pieces: 16,
            reach: Reach::Mapped,
        };
        let (space, transfers) = (space.clone(), VecDeque::with_capacity(2 * limits.depth));
        let outstanding = Outstanding::new(limits.depth);
        let (flushed, started, halted) = (0, None, None);
        let mut channel =
            EduChannel { device, registers, space, limits, transfers, flushed, started, halted, outstanding };
        channel.start()?;
        Ok(channel)
    }

    /// Bus mastering on, once no earlier transfer is under way: it would reach memory that is another's by now.
    fn start(&mut self) -> Result<(), BusError> {
        let idle = || wait_until(HALT_LIMIT, || self.registers.read(COMMAND) & START == 0);
        if !idle() {
            self.device.reset()?;
        }
        if !idle() {
            let (device, error) = (self.device.name().to_owned(), ErrorKind::TimedOut.into());
            return Err(BusError::Refused { step: "wait for an earlier transfer", device, error });
        }
        self.device.start_dma()?;
        self.halted = None;
        Ok(())
    }

    fn accepts(&self, operation: &Operation) -> Result<(), Reason> {
        if self.halted.is_some() {
            return Err(Reason::Halted);
        }
        self.limits.check(operation)?;
        if self.outstanding.len() >= self.limits.depth {
            return Err(Reason::Full(self.limits.depth));
        }
        let reached = |end: &End, direction| {
            end.iova(0).is_some_and(|iova| self.space.covers(iova, end.bytes(), direction))
        };
        let mapped = operation.sources().iter().all(|end| reached(end, Direction::ToDevice))
            && operation.destinations().iter().all(|end| reached(end, Direction::Both));
        mapped.then_some(()).ok_or(Reason::NotMapped)
    }

    /// Looks whether the transfer under way has ended.
    fn collect(&mut self) {
        let Some(started) = self.started else { return };
        let command = self.registers.read(COMMAND);
        if self.device.status().health() == Health::Gone {
            self.end("the device is gone");
        } else if command == u32::MAX {
            self.end("its registers read as all ones although it is on its bus");
        } else if command & START == 0 {
            // What it wrote to memory is visible to all that follows.
            fence::after_done_bit();
            self.started = None;
            self.transfers.pop_front();
            self.flushed -= 1;
            self.outstanding.advance(1);
        } else if started.elapsed() > TRANSFER_LIMIT {
            self.end("a transfer did not end within 2 s");
        }
    }

    /// Starts the next transfer, if none is under way. The writes are ordered, and behind what the source holds (`Registers::write32`).
    fn begin(&mut self) {
        let idle = self.started.is_none() && self.flushed > 0;
        if let Some(next) = self.transfers.front().filter(|_| idle) {
            TRANSFER.iter().zip(next).for_each(|(register, value)| self.registers.write(*register, *value));
            self.started = Some(Instant::now());
        }
    }

    /// Ends DMA at the bus master gate, the only one that there is, and aborts what has not ended.
    fn end(&mut self, reason: &str) {
        self.device.stop_dma();
        self.transfers.clear();
        (self.flushed, self.started) = (0, None);
        self.outstanding.abort();
        self.halted = Some(reason.to_owned());
    }
}

impl Channel for EduChannel {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn submit(&mut self, operation: Operation) -> Result<(), Rejected> {
        if let Err(reason) = self.accepts(&operation) {
            return Err(Rejected { operation, reason });
        }
        let before = self.transfers.len();
        for Piece { source, destination, bytes, .. } in operation.pieces() {
            // Both are there and fit, since the space covers them and its addresses are below the device's limit.
            let [from, to] = [source, destination].map(|end| end.map_or(0, |iova| iova.bits() as u32));
            self.transfers.push_back([from, BUFFER, bytes as u32, START]);
            self.transfers.push_back([BUFFER, to, bytes as u32, START | TO_MEMORY]);
        }
        self.outstanding.push(operation, (self.transfers.len() - before) as u32);
        Ok(())
    }

    fn flush(&mut self) {
        self.flushed = self.transfers.len();
        self.begin();
    }

    fn poll(&mut self, completed: &mut Completed) -> usize {
        self.collect();
        self.begin();
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
        wait_until(HALT_LIMIT, || {
            self.collect();
            self.started.is_none()
        });
        if self.halted.is_none() {
            self.end("halted by its owner");
        }
    }

    fn reset(&mut self) -> Result<(), BusError> {
        self.halt();
        self.start()
    }
}
