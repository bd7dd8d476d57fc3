//! A device's registers: mapped memory or calls into a software device, and the same driver runs on both.
//!
//! A [`Registers`] window is opened once per BAR. Accesses are of 32 bits, or narrower where a device asks for it, and
//! bounds-checked; an out-of-bounds offset is a driver's bug and asserts. Each read of all ones asks the bus whether the device is
//! still there, here and nowhere else.
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
    /// Reads `bytes` (1 or 2) at `offset`. Without a method of its own, a device's 32-bit register around them is read.
    fn read_narrow(&self, offset: usize, bytes: usize) -> u32 {
        self.read32(offset & !3) >> ((offset & 3) * 8) & ((1 << (bytes * 8)) - 1)
    }
    /// Writes `bytes` (1 or 2) at `offset`. Without a method of its own, the 32-bit register around them is read and written.
    fn write_narrow(&self, offset: usize, bytes: usize, value: u32) {
        let (shift, mask) = ((offset & 3) * 8, (1 << (bytes * 8)) - 1);
        let around = self.read32(offset & !3) & !(mask << shift);
        self.write32(offset & !3, around | (value & mask) << shift);
    }
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

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its first byte, for [`Shared`](crate::buffer::Shared) and for the tables of an IOMMU; the whole BAR is mapped.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Whether the register at `offset` is mapped.
    #[inline]
    fn has(&self, offset: usize) -> bool {
        offset.is_multiple_of(4)
            && self.areas.iter().any(|area| area.start <= offset && offset + 4 <= area.end)
    }

    fn byte(&self, offset: usize) -> *mut u8 {
        // SAFETY: the word around it lies in bounds.
        unsafe { self.word(offset & !3).cast::<u8>().add(offset & 3) }
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

    /// Reads the 8-bit register at `offset`. All ones of a device that is gone show in [`Registers::health`].
    pub fn read8(&self, offset: usize) -> u8 {
        let value = match self.narrow(offset, 1) {
            // SAFETY: `narrow` checked the bounds; device memory is read by volatile accesses only.
            Place::Memory(bar) => unsafe { bar.byte(offset).read_volatile() },
            Place::Calls(file) => file.read_narrow(offset, 1) as u8,
        };
        if value == u8::MAX {
            self.status.suspect_gone();
        }
        value
    }

    /// Reads the 16-bit register at `offset`, a multiple of 2. All ones of a device that is gone show in [`Registers::health`].
    pub fn read16(&self, offset: usize) -> u16 {
        let value = match self.narrow(offset, 2) {
            // SAFETY: `narrow` checked bounds and alignment; device memory is read by volatile accesses only.
            Place::Memory(bar) => unsafe { bar.byte(offset).cast::<u16>().read_volatile() },
            Place::Calls(file) => file.read_narrow(offset, 2) as u16,
        };
        if value == u16::MAX {
            self.status.suspect_gone();
        }
        value
    }

    /// Writes the 8-bit register at `offset`; plain stores before it are visible to the device first.
    pub fn write8(&self, offset: usize, value: u8) {
        fence::before_doorbell();
        match self.narrow(offset, 1) {
            // SAFETY: `narrow` checked the bounds; device memory is written by volatile accesses only.
            Place::Memory(bar) => unsafe { bar.byte(offset).write_volatile(value) },
            Place::Calls(file) => file.write_narrow(offset, 1, u32::from(value)),
        }
    }

    /// Writes the 16-bit register at `offset`, a multiple of 2; plain stores before it are visible to the device first.
    pub fn write16(&self, offset: usize, value: u16) {
        fence::before_doorbell();
        match self.narrow(offset, 2) {
            // SAFETY: `narrow` checked bounds and alignment; device memory is written by volatile accesses only.
            Place::Memory(bar) => unsafe { bar.byte(offset).cast::<u16>().write_volatile(value) },
            Place::Calls(file) => file.write_narrow(offset, 2, u32::from(value)),
        }
    }

    /// Where the narrow register at `offset` is. Asserts that it lies inside.
    fn narrow(&self, offset: usize, bytes: usize) -> Place<'_> {
        assert!(offset.is_multiple_of(bytes), "register offset {offset:#x}");
        self.check(offset & !3);
        self.target.at(offset & !3)
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

    /// The 16-bit register at `offset`, a multiple of 2, as a doorbell for one queue.
    pub fn doorbell16(&self, offset: usize) -> Doorbell {
        match self.narrow(offset, 2) {
            Place::Memory(bar) => {
                Doorbell::MappedNarrow(MappedRegister { word: bar.byte(offset).cast(), _bar: bar.clone() })
            }
            Place::Calls(file) => Doorbell::CallNarrow(file.clone(), offset),
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
pub struct MappedRegister<Word = u32> {
    word: *mut Word,
    _bar: Arc<MappedBar>,
}

// SAFETY: as for `MappedBar`: device memory, reached by volatile accesses from any thread.
unsafe impl<Word> Send for MappedRegister<Word> {}
// SAFETY: as above.
unsafe impl<Word> Sync for MappedRegister<Word> {}

/// One register that a queue writes to say that its tail moved.
pub enum Doorbell {
    /// A register in device memory.
    Mapped(MappedRegister),
    /// A word that a software device polls.
    Word(Arc<AtomicU32>),
    /// A call into a software device.
    Call(Arc<dyn RegisterFile>, usize),
    /// A 16-bit register in device memory.
    MappedNarrow(MappedRegister<u16>),
    /// A call that writes 16 bits.
    CallNarrow(Arc<dyn RegisterFile>, usize),
}

impl Doorbell {
    /// Writes `value`, of which a 16-bit register takes the low half. Descriptors stored before are visible to the device before
    /// it sees the value.
    #[inline]
    pub fn ring(&self, value: u32) {
        fence::before_doorbell();
        match self {
            // SAFETY: the word was checked when the handle was made, and the handle keeps its mapping.
            Doorbell::Mapped(register) => unsafe { register.word.write_volatile(value) },
            // Release: the device's acquire load of this word makes the descriptors visible to its thread.
            Doorbell::Word(word) => word.store(value, Ordering::Release),
            Doorbell::Call(file, offset) => file.write32(*offset, value),
            // SAFETY: as above; the offset was a multiple of 2.
            Doorbell::MappedNarrow(register) => unsafe { register.word.write_volatile(value as u16) },
            Doorbell::CallNarrow(file, offset) => file.write_narrow(*offset, 2, value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulated::{self, SimulatedIommu, SoftwareDevice};
    use super::super::{Device, Status};
    use super::*;
    use std::sync::Mutex;

    /// A function that is only there.
    struct Present;

    impl SoftwareDevice for Present {
        fn config_read32(&self, _offset: u16) -> u32 {
            0x10c9_8086
        }
        fn config_write32(&self, _offset: u16, _value: u32) {}
        fn bar(&self, _bar: u8) -> Option<(Arc<dyn RegisterFile>, usize)> {
            None
        }
        fn reset(&self) {}
        fn attach(&self, _iommu: Arc<SimulatedIommu>) {}
    }

    #[derive(Default)]
    struct Calls(Mutex<Vec<(usize, u32)>>);

    impl RegisterFile for Calls {
        fn read32(&self, offset: usize) -> u32 {
            offset as u32
        }
        fn write32(&self, offset: usize, value: u32) {
            self.0.lock().unwrap().push((offset, value));
        }
    }

    fn status() -> Arc<Status> {
        let backend = simulated::backend(Arc::new(Present), Arc::default());
        Device::open("test", backend).unwrap().status().clone()
    }

    /// A window of 64 bytes whose second quarter is a hole.
    fn partial() -> (Registers, Arc<Calls>, *const u32) {
        let mut memory = Box::new([0u32; 16]);
        let base = NonNull::new(memory.as_mut_ptr().cast::<u8>()).unwrap();
        let word = base.as_ptr().cast_const().cast();
        // SAFETY: the box is owned by the bar, and nobody makes references to its content.
        let bar = unsafe { MappedBar::new(base, 64, vec![0..16, 32..64], Box::new(memory)) };
        let calls = Arc::new(Calls::default());
        (Registers::partial(bar, calls.clone(), status()), calls, word)
    }

    #[test]
    fn holes_of_a_mapping_are_reached_by_calls() {
        let (registers, calls, memory) = partial();
        registers.write32(12, 7);
        registers.write32(16, 8);
        registers.write32(60, 9);
        assert_eq!([12, 16, 28, 32, 60].map(|at| registers.read32(at)), [7, 16, 28, 0, 9]);
        registers.doorbell(28).ring(1);
        registers.doorbell(32).ring(2);
        assert_eq!(*calls.0.lock().unwrap(), [(16, 8), (28, 1)]);
        // SAFETY: the window keeps the memory, and no write is under way.
        assert_eq!(unsafe { memory.add(8).read_volatile() }, 2);
        registers.doorbell16(34).ring(0xffff_0003);
        // SAFETY: as above.
        assert_eq!(unsafe { memory.add(8).read_volatile() }, 0x0003_0002);
        calls.0.lock().unwrap().clear();
        registers.doorbell16(18).ring(0xffff_0005);
        // The register around it reads as its offset.
        assert_eq!(*calls.0.lock().unwrap(), [(16, 0x0005_0010)]);
    }

    #[test]
    #[should_panic(expected = "register offset 0x40")]
    fn a_narrow_doorbell_lies_inside_too() {
        partial().0.doorbell16(64);
    }

    #[test]
    #[should_panic(expected = "register offset 0x40")]
    fn the_end_of_a_window_is_its_end() {
        partial().0.read32(64);
    }

    #[test]
    #[should_panic(expected = "register offset 0x2")]
    fn registers_are_aligned() {
        partial().0.doorbell(2);
    }
}
