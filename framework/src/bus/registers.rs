//! A device's registers: mapped memory or calls into a software device, and the same driver runs on both.
//!
//! A [`Registers`] window is opened once per BAR. Accesses are 32 bits and bounds-checked; an out-of-bounds offset is a
//! driver's bug and asserts. Each read of all ones asks the bus whether the device is still there, here and nowhere else.
//! A [`Doorbell`] is one register, checked when it is made and owned by its queue from then on.

use super::{Health, Status};
use crate::ring::fence;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The BAR of a software device.
pub trait RegisterFile: Send + Sync {
    /// Reads the register at `offset`, with the side effects that reading has.
    fn read32(&self, offset: usize) -> u32;
    /// Writes the register at `offset`.
    fn write32(&self, offset: usize, value: u32);
    /// A word that a write of the register at `offset` may store into in place of a call. The device looks at it when it
    /// runs, as silicon does with a posted write.
    fn doorbell(&self, _offset: usize) -> Option<Arc<AtomicU32>> {
        None
    }
}

#[derive(Clone)]
enum Target {
    Mapped(Arc<MappedBar>),
    /// Mapped where the kernel allows it; calls elsewhere.
    Partial(Arc<MappedBar>, Arc<dyn RegisterFile>),
    Software(Arc<dyn RegisterFile>),
}

impl Target {
    /// Where the register at `offset` is.
    #[inline]
    fn at(&self, offset: usize) -> Place<'_> {
        match self {
            Target::Mapped(bar) => Place::Memory(bar),
            Target::Partial(bar, _) if bar.has(offset) => Place::Memory(bar),
            Target::Partial(_, file) | Target::Software(file) => Place::Calls(file),
        }
    }
}

enum Place<'a> {
    Memory(&'a Arc<MappedBar>),
    Calls(&'a Arc<dyn RegisterFile>),
}

/// A BAR that the kernel mapped for this process.
pub struct MappedBar {
    base: NonNull<u8>,
    bytes: usize,
    areas: Vec<Range<usize>>,
    /// Keeps the mapping, and unmaps when the last window and doorbell are gone.
    _owner: Box<dyn Send + Sync>,
}

// SAFETY: the window is device memory reached only by volatile 32-bit accesses, from any thread.
unsafe impl Send for MappedBar {}
// SAFETY: as above; concurrent accesses are ordered by the device, not by this type.
unsafe impl Sync for MappedBar {}

impl MappedBar {
    /// Wraps a mapping of device memory.
    ///
    /// # Safety
    /// The `areas`, which are offsets within `base..base + bytes`, are mapped, `base` is 4-byte aligned, and both stay so until
    /// `owner` is dropped; nothing in this process makes Rust references to them.
    pub unsafe fn new(
        base: NonNull<u8>,
        bytes: usize,
        areas: Vec<Range<usize>>,
        owner: Box<dyn Send + Sync>,
    ) -> MappedBar {
        MappedBar { base, bytes, areas, _owner: owner }
    }

    /// Whether the register at `offset` is mapped.
    #[inline]
    fn has(&self, offset: usize) -> bool {
        offset.is_multiple_of(4)
            && self.areas.iter().any(|area| area.start <= offset && offset + 4 <= area.end)
    }

    #[inline]
    fn word(&self, offset: usize) -> *mut u32 {
        assert!(self.has(offset), "register offset {offset:#x}");
        // SAFETY: in bounds of the mapping by the assertion above.
        unsafe { self.base.as_ptr().add(offset).cast() }
    }
}

/// One window of registers.
#[derive(Clone)]
pub struct Registers {
    target: Target,
    bytes: usize,
    status: Arc<Status>,
}

impl Registers {
    pub(super) fn software(file: Arc<dyn RegisterFile>, bytes: usize, status: Arc<Status>) -> Registers {
        Registers { target: Target::Software(file), bytes, status }
    }

    pub(super) fn mapped(bar: MappedBar, status: Arc<Status>) -> Registers {
        let bytes = bar.bytes;
        Registers { target: Target::Mapped(Arc::new(bar)), bytes, status }
    }

    pub(super) fn partial(bar: MappedBar, file: Arc<dyn RegisterFile>, status: Arc<Status>) -> Registers {
        let bytes = bar.bytes;
        Registers { target: Target::Partial(Arc::new(bar), file), bytes, status }
    }

    /// The window's size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reads the 32-bit register at `offset`. A device that is gone reads as all ones, and [`Registers::health`] says so.
    #[inline]
    pub fn read32(&self, offset: usize) -> u32 {
        self.check(offset);
        let value = match self.target.at(offset) {
            // SAFETY: `word` checked the bounds; device memory is read by volatile accesses only.
            Place::Memory(bar) => unsafe { bar.word(offset).read_volatile() },
            Place::Calls(file) => file.read32(offset),
        };
        if value == u32::MAX {
            self.status.suspect_gone();
        }
        value
    }

    /// Writes the 32-bit register at `offset`; plain stores before it are visible to the device first.
    #[inline]
    pub fn write32(&self, offset: usize, value: u32) {
        self.check(offset);
        fence::before_doorbell();
        match self.target.at(offset) {
            // SAFETY: `word` checked the bounds; device memory is written by volatile accesses only.
            Place::Memory(bar) => unsafe { bar.word(offset).write_volatile(value) },
            Place::Calls(file) => file.write32(offset, value),
        }
    }

    /// The register at `offset` as a doorbell for one queue.
    pub fn doorbell(&self, offset: usize) -> Doorbell {
        self.check(offset);
        match self.target.at(offset) {
            Place::Memory(bar) => {
                Doorbell::Mapped(MappedRegister { word: bar.word(offset), _bar: bar.clone() })
            }
            Place::Calls(file) => match file.doorbell(offset) {
                Some(word) => Doorbell::Word(word),
                None => Doorbell::Call(file.clone(), offset),
            },
        }
    }

    /// The device's health, as last seen.
    pub fn health(&self) -> Health {
        self.status.health()
    }

    #[inline]
    fn check(&self, offset: usize) {
        assert!(
            offset.is_multiple_of(4) && offset < self.bytes,
            "register offset {offset:#x} of {:#x}",
            self.bytes
        );
    }
}

/// A register in mapped device memory, and what keeps it mapped.
pub struct MappedRegister {
    word: *mut u32,
    _bar: Arc<MappedBar>,
}

// SAFETY: as for `MappedBar`: device memory, reached by volatile accesses from any thread.
unsafe impl Send for MappedRegister {}
// SAFETY: as above.
unsafe impl Sync for MappedRegister {}

/// One register that a queue writes to say that its tail moved.
pub enum Doorbell {
    /// A register in device memory.
    Mapped(MappedRegister),
    /// A word that a software device polls.
    Word(Arc<AtomicU32>),
    /// A call into a software device.
    Call(Arc<dyn RegisterFile>, usize),
}

impl Doorbell {
    /// Writes `value`. Descriptors stored before are visible to the device before it sees the value.
    #[inline]
    pub fn ring(&self, value: u32) {
        fence::before_doorbell();
        match self {
            // SAFETY: the word was checked when the handle was made, and the handle keeps its mapping.
            Doorbell::Mapped(register) => unsafe { register.word.write_volatile(value) },
            // Release: the device's acquire load of this word makes the descriptors visible to its thread.
            Doorbell::Word(word) => word.store(value, Ordering::Release),
            Doorbell::Call(file, offset) => file.write32(*offset, value),
        }
    }
}
