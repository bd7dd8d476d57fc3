//! A PCI function, taken exclusively by explicit address.
//!
//! A [`Device`] hands out config space, register windows and reset, and joins one [`AddressSpace`].
//! It starts with bus mastering off; a driver turns it on once its rings are valid ([`Device::start_dma`]) and off before
//! anything that the device can reach is unmapped. Its health moves one way: `Open -> Running -> Failed | Gone`, and a
//! reset brings `Failed` back to `Open`. Behind it stands a [`Backend`]: the kernel's VFIO ([`vfio`]), another process
//! ([`vfio_user`]) or a software device ([`simulated`]).

mod address;
pub mod faults;
mod registers;
pub mod simulated;
pub mod sysfs;
mod table;
pub mod vfio;
pub mod vfio_user;
pub mod vhost_user;

pub use address::{BadPciAddress, PciAddress};
pub use registers::{Doorbell, MappedBar, MappedRegister, RegisterFile, Registers};
pub use table::{Access, Register};

use crate::iova::{AddressSpace, IovaError};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use thiserror::Error;

/// How a device is, as far as this process knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Taken, with bus mastering off.
    Open,
    /// May do DMA.
    Running,
    /// It broke its contract; a reset may bring it back.
    Failed(String),
    /// It is no longer on its bus.
    Gone,
}

impl std::fmt::Display for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Health::Open => f.write_str("open"),
            Health::Running => f.write_str("running"),
            Health::Failed(reason) => write!(f, "failed: {reason}"),
            Health::Gone => f.write_str("gone"),
        }
    }
}

/// What a bus must offer for one function.
pub trait Backend: Send + Sync {
    /// Reads 32 bits of config space at a multiple of 4. An absent device reads as all ones.
    fn config_read32(&self, offset: u16) -> u32;
    /// Writes 32 bits of config space at a multiple of 4.
    fn config_write32(&self, offset: u16, value: u32);
    /// Opens BAR `bar`.
    fn window(&self, bar: u8) -> io::Result<Window>;
    /// Function-level reset. Config space and registers are as after power-on when it returns.
    fn reset(&self) -> io::Result<()>;
    /// Puts the function behind the translation table of `space`.
    fn attach(&self, space: &AddressSpace) -> io::Result<()>;
    /// Whether the function is silicon.
    fn simulated(&self) -> Simulated {
        Simulated::No
    }
    /// Delivers interrupt vectors from `first` on to these eventfds; none given ends the delivery.
    fn set_interrupts(&self, _first: u16, _eventfds: &[BorrowedFd<'_>]) -> io::Result<()> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
}

/// Whether a device is silicon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simulated {
    /// A PCI function.
    No,
    /// A program.
    Yes,
}

/// Asks `done` until it says yes or `limit` is over, without keeping the core busy. False when it never did.
pub fn wait_until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        // Asked once more after the limit, so that a thread that did not run meanwhile does not time out.
        let over = start.elapsed() > limit;
        if done() {
            return true;
        }
        if over {
            return false;
        }
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// A BAR, as a backend opens it.
pub enum Window {
    /// Device memory mapped into this process.
    Mapped(MappedBar),
    /// Device memory with holes in its mapping, and calls for what lies in them.
    Partial(MappedBar, Arc<dyn RegisterFile>),
    /// Calls into a software device, and the window's size in bytes.
    Software(Arc<dyn RegisterFile>, usize),
}

/// Why something about a device could not be done.
#[derive(Debug, Error)]
pub enum BusError {
    /// The kernel or the software device refused.
    #[error("{step} on `{device}`: {error}")]
    Refused {
        /// What was tried.
        step: &'static str,
        /// The device.
        device: String,
        /// The errno.
        error: io::Error,
    },
    /// It was handed out before.
    #[error("{what} of `{device}` is handed out already; there is one owner: pass that one on")]
    Taken {
        /// What was asked for.
        what: String,
        /// The device.
        device: String,
    },
    /// The device left its bus.
    #[error(
        "{step} on `{device}`: the device is gone (its bus answers all ones); check the slot or the peer process"
    )]
    Gone {
        /// What was tried.
        step: &'static str,
        /// The device.
        device: String,
    },
    /// The space rejects the device.
    #[error(transparent)]
    Space(#[from] IovaError),
}

/// Health in one place, shared by the device, its windows and its queues.
pub struct Status {
    name: String,
    backend: Arc<dyn Backend>,
    health: Mutex<Health>,
}

impl Status {
    /// The device's health, as last seen.
    pub fn health(&self) -> Health {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The device broke its contract: nothing more is expected of it until a reset.
    pub fn fail(&self, reason: impl Into<String>) {
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*health, Health::Open | Health::Running) {
            let reason = reason.into();
            tracing::error!(device = self.name, reason, "device failed");
            *health = Health::Failed(reason);
        }
    }

    /// A register read as all ones: legal for few registers, and for every one of a device that is gone. The vendor id
    /// tells, since no vendor has 0xffff (PCI Local Bus 3.0, 6.2.1).
    #[cold]
    pub(crate) fn suspect_gone(&self) {
        if self.backend.config_read32(config::VENDOR) & 0xffff == 0xffff {
            let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
            if *health != Health::Gone {
                tracing::error!(device = self.name, "device is gone");
                *health = Health::Gone;
            }
        }
    }

    fn set(&self, next: Health) {
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        if *health != Health::Gone {
            *health = next;
        }
    }
}

/// Config space offsets and bits (PCI Local Bus 3.0, 6.2).
pub mod config {
    /// Vendor id in bits 15:0, device id in bits 31:16.
    pub const VENDOR: u16 = 0x00;
    /// Command in bits 15:0, status in bits 31:16.
    pub const COMMAND: u16 = 0x04;
    /// Command: the function answers memory accesses.
    pub const MEMORY_SPACE: u32 = 1 << 1;
    /// Command: the function may start DMA.
    pub const BUS_MASTER: u32 = 1 << 2;
    /// Command: legacy interrupts are off.
    pub const INTX_DISABLE: u32 = 1 << 10;
}

/// A function that this process owns.
pub struct Device {
    name: String,
    backend: Arc<dyn Backend>,
    status: Arc<Status>,
    space: Option<AddressSpace>,
    windows_taken: u8,
}

impl Device {
    /// Takes the function behind `backend`: memory space on, bus mastering off. `name` is its URI and appears in errors.
    ///
    /// # Errors
    /// [`BusError::Gone`] when nothing answers.
    pub fn open(name: &str, backend: Arc<dyn Backend>) -> Result<Device, BusError> {
        let status = Arc::new(Status {
            name: name.to_owned(),
            backend: backend.clone(),
            health: Mutex::new(Health::Open),
        });
        let device = Device { name: name.to_owned(), backend, status, space: None, windows_taken: 0 };
        device.status.suspect_gone();
        device.alive("open")?;
        device.command(config::MEMORY_SPACE | config::INTX_DISABLE, config::BUS_MASTER);
        Ok(device)
    }

    /// Its URI.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Vendor and device id.
    pub fn id(&self) -> (u16, u16) {
        let word = self.backend.config_read32(config::VENDOR);
        (word as u16, (word >> 16) as u16)
    }

    /// Reads 32 bits of config space at a multiple of 4.
    pub fn config_read32(&self, offset: u16) -> u32 {
        self.backend.config_read32(offset & !3)
    }

    /// Whether it is silicon.
    pub fn simulated(&self) -> Simulated {
        self.backend.simulated()
    }

    /// Health, shared with every window and queue.
    pub fn status(&self) -> &Arc<Status> {
        &self.status
    }

    /// The space that it joined.
    pub fn space(&self) -> Option<&AddressSpace> {
        self.space.as_ref()
    }

    /// Joins `space`; `mask` is the highest address that the device can put into a descriptor.
    ///
    /// # Errors
    /// The device sits in a space already, the kernel refuses, or memory is mapped where the device cannot reach.
    pub fn join(&mut self, space: &AddressSpace, mask: u64) -> Result<(), BusError> {
        if self.space.is_some() {
            return Err(BusError::Taken {
                what: "membership in an address space".into(),
                device: self.name.clone(),
            });
        }
        self.backend.attach(space).map_err(|error| self.refused("attach to an address space", error))?;
        space.narrow(&self.name, mask)?;
        self.space = Some(space.clone());
        Ok(())
    }

    /// The memory behind BAR `bar`, once: an accelerator's, for [`Shared::bar`](crate::buffer::Shared::bar) and for engines of
    /// another space ([`AddressSpace::map_bar`]).
    ///
    /// # Errors
    /// Handed out before, refused by the bus, or a BAR that is not mapped in one piece.
    pub fn memory(&mut self, bar: u8) -> Result<Arc<MappedBar>, BusError> {
        match self.take_window(bar)? {
            Window::Mapped(mapped) => Ok(Arc::new(mapped)),
            _ => {
                let what = "it holds registers and is not mapped in one piece; choose a BAR of memory";
                Err(self.refused("use a BAR as memory", io::Error::new(io::ErrorKind::Unsupported, what)))
            }
        }
    }

    /// Opens BAR `bar`, once.
    ///
    /// # Errors
    /// Handed out before, or refused by the bus.
    pub fn window(&mut self, bar: u8) -> Result<Registers, BusError> {
        Ok(match self.take_window(bar)? {
            Window::Mapped(mapped) => Registers::mapped(mapped, self.status.clone()),
            Window::Partial(mapped, file) => Registers::partial(mapped, file, self.status.clone()),
            Window::Software(file, bytes) => Registers::software(file, bytes, self.status.clone()),
        })
    }

    fn take_window(&mut self, bar: u8) -> Result<Window, BusError> {
        let bit = 1 << (bar & 7);
        if self.windows_taken & bit != 0 {
            return Err(BusError::Taken { what: format!("BAR {bar}"), device: self.name.clone() });
        }
        let window = self.backend.window(bar).map_err(|error| self.refused("open a BAR", error))?;
        self.windows_taken |= bit;
        Ok(window)
    }

    /// Opens BAR `bar`, once, for a driver whose registers lie in its first `least_bytes`.
    ///
    /// # Errors
    /// As [`Device::window`], and a BAR that is smaller: a device of another process may have any size.
    pub fn window_of(&mut self, bar: u8, least_bytes: usize) -> Result<Registers, BusError> {
        let registers = self.window(bar)?;
        if registers.bytes() >= least_bytes {
            return Ok(registers);
        }
        let what = format!(
            "it has {} bytes, its driver needs {least_bytes}; it is another device",
            registers.bytes()
        );
        Err(self.refused("open a BAR", io::Error::new(io::ErrorKind::InvalidData, what)))
    }

    /// Lets the device do DMA. Call it once every ring that it was told of is valid.
    ///
    /// # Errors
    /// [`BusError::Gone`].
    pub fn start_dma(&self) -> Result<(), BusError> {
        self.alive("turn bus mastering on")?;
        self.command(config::BUS_MASTER, 0);
        self.status.set(Health::Running);
        Ok(())
    }

    /// Ends DMA at the function's own gate. Requests in flight are flushed by the read that follows.
    pub fn stop_dma(&self) {
        self.command(0, config::BUS_MASTER);
        if self.status.health() == Health::Running {
            self.status.set(Health::Open);
        }
    }

    /// Whether the function may do DMA now, as its command register says.
    pub fn dma_enabled(&self) -> bool {
        let command = self.backend.config_read32(config::COMMAND);
        command != u32::MAX && command & config::BUS_MASTER != 0
    }

    /// Resets the function. Bus mastering is off and the health is `Open` afterwards, unless it is gone.
    ///
    /// # Errors
    /// Refused by the bus, or gone.
    pub fn reset(&self) -> Result<(), BusError> {
        self.stop_dma();
        self.backend.reset().map_err(|error| self.refused("reset", error))?;
        self.status.suspect_gone();
        self.alive("reset")?;
        self.status.set(Health::Open);
        self.command(config::MEMORY_SPACE | config::INTX_DISABLE, config::BUS_MASTER);
        Ok(())
    }

    /// Delivers interrupt vectors from `first` on to these eventfds; none given ends the delivery.
    ///
    /// # Errors
    /// The bus has no interrupts for this device, or the kernel refuses.
    pub fn set_interrupts(&self, first: u16, eventfds: &[BorrowedFd<'_>]) -> Result<(), BusError> {
        self.backend.set_interrupts(first, eventfds).map_err(|error| self.refused("set interrupts", error))
    }

    fn command(&self, set: u32, clear: u32) {
        // Status bits in the upper half are write-one-to-clear, so zeros leave them alone.
        let command = self.backend.config_read32(config::COMMAND) & 0xffff;
        self.backend.config_write32(config::COMMAND, (command | set) & !clear);
        self.backend.config_read32(config::COMMAND);
    }

    fn alive(&self, step: &'static str) -> Result<(), BusError> {
        match self.status.health() {
            Health::Gone => Err(BusError::Gone { step, device: self.name.clone() }),
            _ => Ok(()),
        }
    }

    fn refused(&self, step: &'static str, error: io::Error) -> BusError {
        BusError::Refused { step, device: self.name.clone(), error }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.stop_dma();
    }
}
