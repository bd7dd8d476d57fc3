//! Memory that a device or a peer may write at any time: MRs, rings, a BAR.
//!
//! No Rust reference to it ever exists. It is copied in, copied out, or used by atomic words, and whoever holds a [`Shared`]
//! keeps it mapped. A copy of memory that changes meanwhile is a mixture of old and new bytes, never undefined behaviour:
//! each byte is moved by a relaxed atomic access.

use crate::bus::MappedBar;
use crate::iova::{BarMapping, Iova, Mapping};
use pollring_hugepages::Region;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use thiserror::Error;

/// An access outside shared memory, or one that it cannot serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SharedError {
    /// Outside the memory.
    #[error(
        "{bytes} bytes at offset {offset} of shared memory of {size} bytes: out of bounds; check the offset and length"
    )]
    OutOfBounds {
        /// Offset asked.
        offset: usize,
        /// Length asked.
        bytes: usize,
        /// What there is.
        size: usize,
    },
    /// A word access at an offset that is not a multiple of 8.
    #[error("atomic word at offset {offset}: not a multiple of 8")]
    Misaligned {
        /// Offset asked.
        offset: usize,
    },
    /// The memory has no device address.
    #[error(
        "shared memory that is not mapped for devices has no IOVA; map its region into the device's address space"
    )]
    NotMapped,
}

/// A counted handle to shared memory, or to a part of it. Clones are handles to the same bytes.
#[derive(Clone)]
pub struct Shared {
    memory: Memory,
    window: Range<usize>,
}

#[derive(Clone)]
enum Memory {
    Local(Arc<Region>),
    Mapped(Arc<Mapping>),
    /// A device's memory, which only the CPU reaches.
    Bar(Arc<MappedBar>),
    /// A device's memory, which other devices reach too.
    MappedBar(Arc<BarMapping>),
}

impl Shared {
    /// A whole region that no device reaches.
    pub fn local(region: Arc<Region>) -> Shared {
        let window = 0..region.bytes();
        Shared { memory: Memory::Local(region), window }
    }

    /// A whole region that the devices of the mapping's space reach. The mapping lives as long as a handle does.
    pub fn mapped(mapping: Arc<Mapping>) -> Shared {
        let window = 0..mapping.placement().region().bytes();
        Shared { memory: Memory::Mapped(mapping), window }
    }

    /// The memory behind a whole BAR.
    pub fn bar(bar: Arc<MappedBar>) -> Shared {
        let window = 0..bar.bytes();
        Shared { memory: Memory::Bar(bar), window }
    }

    /// The memory behind a whole BAR, which the devices of the mapping's space reach. The mapping lives as long as a handle does.
    pub fn mapped_bar(mapping: Arc<BarMapping>) -> Shared {
        let window = 0..mapping.bar().bytes();
        Shared { memory: Memory::MappedBar(mapping), window }
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.window.len()
    }

    /// A handle to a part.
    ///
    /// # Errors
    /// Out of bounds.
    pub fn slice(&self, offset: usize, bytes: usize) -> Result<Shared, SharedError> {
        self.check(offset, bytes)?;
        let start = self.window.start + offset;
        Ok(Shared { memory: self.memory.clone(), window: start..start + bytes })
    }

    /// Copies `source` to `offset`.
    ///
    /// # Errors
    /// Out of bounds; nothing is written then.
    pub fn copy_in(&self, offset: usize, source: &[u8]) -> Result<(), SharedError> {
        let at = self.pointer(offset, source.len())?;
        // SAFETY: `pointer` checked the bounds, and the handle keeps the region mapped.
        unsafe { copy_to_shared(source, at) };
        Ok(())
    }

    /// Copies from `offset` to `destination`.
    ///
    /// # Errors
    /// Out of bounds; nothing is read then.
    pub fn copy_out(&self, offset: usize, destination: &mut [u8]) -> Result<(), SharedError> {
        let at = self.pointer(offset, destination.len())?;
        // SAFETY: `pointer` checked the bounds, and the handle keeps the region mapped.
        unsafe { copy_from_shared(at, destination) };
        Ok(())
    }

    /// Copies `bytes` from another shared memory. Overlapping parts of one memory end in a mixture; whoever sees the last bytes
    /// sees all others.
    ///
    /// # Errors
    /// Out of bounds on either side; nothing is written then.
    pub fn copy_from(
        &self,
        at: usize,
        source: &Shared,
        from: usize,
        bytes: usize,
    ) -> Result<(), SharedError> {
        let (origin, target) = (source.pointer(from, bytes)?, self.pointer(at, bytes)?);
        // SAFETY: `pointer` checked the bounds, both handles keep their memory mapped, and neither is ever behind a reference.
        let moved = unsafe { move_string(origin, target, bytes) };
        let mut block = [0u8; 512];
        for done in (moved..bytes).step_by(block.len()) {
            let part = &mut block[..(bytes - done).min(512)];
            source.copy_out(from + done, part)?;
            self.copy_in(at + done, part)?;
        }
        Ok(())
    }

    /// Fills `bytes` with a repeated little-endian pattern. Whoever sees the last bytes sees all others.
    ///
    /// # Errors
    /// Out of bounds; nothing is written then.
    pub fn fill(&self, at: usize, bytes: usize, pattern: u64) -> Result<(), SharedError> {
        let target = self.pointer(at, bytes)?;
        // SAFETY: `pointer` checked the bounds, the handle keeps the memory mapped, and it is never behind a reference.
        let filled = unsafe { fill_string(pattern, target, bytes) };
        let mut block = [0u8; 512];
        block.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = pattern.to_le_bytes());
        for done in (filled..bytes).step_by(block.len()) {
            self.copy_in(at + done, &block[..(bytes - done).min(512)])?;
        }
        Ok(())
    }

    /// Loads the word at `offset`, relaxed.
    ///
    /// # Errors
    /// Out of bounds or misaligned.
    pub fn load_u64(&self, offset: usize) -> Result<u64, SharedError> {
        Ok(self.word(offset)?.load(Ordering::Relaxed))
    }

    /// Stores the word at `offset`, relaxed.
    ///
    /// # Errors
    /// Out of bounds or misaligned.
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), SharedError> {
        self.word(offset)?.store(value, Ordering::Relaxed);
        Ok(())
    }

    /// Swaps the word at `offset` if it is `expected`; gives what was there. Sequentially consistent.
    ///
    /// # Errors
    /// Out of bounds or misaligned.
    pub fn compare_exchange_u64(&self, offset: usize, expected: u64, new: u64) -> Result<u64, SharedError> {
        let swapped = self.word(offset)?.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst);
        Ok(swapped.unwrap_or_else(|found| found))
    }

    /// Adds to the word at `offset`, wrapping; gives what was there. Sequentially consistent.
    ///
    /// # Errors
    /// Out of bounds or misaligned.
    pub fn fetch_add_u64(&self, offset: usize, value: u64) -> Result<u64, SharedError> {
        Ok(self.word(offset)?.fetch_add(value, Ordering::SeqCst))
    }

    /// The device address of the byte at `offset`.
    ///
    /// # Errors
    /// Out of bounds, or no device reaches the memory.
    pub fn iova(&self, offset: usize) -> Result<Iova, SharedError> {
        self.check(offset, 1)?;
        let first = match &self.memory {
            Memory::Local(_) | Memory::Bar(_) => return Err(SharedError::NotMapped),
            Memory::Mapped(mapping) => mapping.placement().iova(),
            Memory::MappedBar(mapping) => mapping.iova(),
        };
        Ok(Iova::new(first.bits() + (self.window.start + offset) as u64))
    }

    fn check(&self, offset: usize, bytes: usize) -> Result<(), SharedError> {
        let size = self.window.len();
        match offset.checked_add(bytes) {
            Some(end) if end <= size => Ok(()),
            _ => Err(SharedError::OutOfBounds { offset, bytes, size }),
        }
    }

    fn pointer(&self, offset: usize, bytes: usize) -> Result<*mut u8, SharedError> {
        self.check(offset, bytes)?;
        let base = match &self.memory {
            Memory::Local(region) => region.base(),
            Memory::Mapped(mapping) => mapping.placement().region().base(),
            Memory::Bar(bar) => bar.base(),
            Memory::MappedBar(mapping) => mapping.bar().base(),
        };
        // SAFETY: the window lies in the region or BAR, and `check` bounded the offset by the window.
        Ok(unsafe { base.as_ptr().add(self.window.start + offset) })
    }

    fn word(&self, offset: usize) -> Result<&AtomicU64, SharedError> {
        let at = self.pointer(offset, 8)?;
        if !(at as usize).is_multiple_of(8) {
            return Err(SharedError::Misaligned { offset });
        }
        // SAFETY: in bounds, aligned, mapped as long as `self` lives, and only ever reached by atomic accesses.
        Ok(unsafe { AtomicU64::from_ptr(at.cast()) })
    }
}

/// From this length on, the processor's own string move is faster than words in a loop.
const STRING_MOVE_BYTES: usize = 256;

/// Moves what is worth a string move, and gives how many bytes that was. Those may arrive in any order, so the last 8 bytes are left
/// to the caller: whoever sees them sees all before (SDM volume 1, 7.3.9.3: later stores are not reordered with it).
///
/// # Safety
/// Both ranges of `bytes` are mapped for the length of the call, and no Rust reference to what is shared of them exists. The
/// processor's move is not Rust's, so a race with other writers gives a mixture of bytes and nothing worse.
#[inline]
unsafe fn move_string(source: *const u8, destination: *mut u8, bytes: usize) -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if bytes >= STRING_MOVE_BYTES {
        let words = bytes / 8 - 1;
        // SAFETY: the caller vouches for both ranges; the direction flag is clear in Rust code.
        unsafe {
            std::arch::asm!(
                "rep movsq",
                inout("rcx") words => _,
                inout("rsi") source => _,
                inout("rdi") destination => _,
                options(nostack, preserves_flags)
            );
        }
        return words * 8;
    }
    let _ = (source, destination, bytes >= STRING_MOVE_BYTES);
    0
}

/// Stores what is worth a string store of `pattern`, and gives how many bytes that was, a multiple of 8. The last 8 bytes are left
/// to the caller, as by [`move_string`].
///
/// # Safety
/// `destination..+bytes` is mapped writable for the length of the call, and no Rust reference to it exists.
#[inline]
unsafe fn fill_string(pattern: u64, destination: *mut u8, bytes: usize) -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if bytes >= STRING_MOVE_BYTES {
        let words = bytes / 8 - 1;
        // SAFETY: the caller vouches for the range; the direction flag is clear in Rust code.
        unsafe {
            std::arch::asm!(
                "rep stosq",
                inout("rcx") words => _,
                inout("rdi") destination => _,
                in("rax") pattern,
                options(nostack, preserves_flags)
            );
        }
        return words * 8;
    }
    let _ = (pattern, destination, bytes >= STRING_MOVE_BYTES);
    0
}

/// Copies private bytes into shared memory. Whoever sees the last bytes sees all others.
///
/// # Safety
/// `destination..+source.len()` is mapped writable for the length of the call and reached only by atomic accesses or by
/// devices meanwhile.
pub(crate) unsafe fn copy_to_shared(source: &[u8], destination: *mut u8) {
    // SAFETY: the caller vouches for `source.len()` bytes at both.
    let moved = unsafe { move_string(source.as_ptr(), destination, source.len()) };
    // SAFETY: `moved` is at most the length.
    let (source, destination) = (&source[moved..], unsafe { destination.add(moved) });
    let head = source.len().min(destination.align_offset(8));
    let (first, rest) = source.split_at(head);
    let (words, last) = rest.as_chunks::<8>();
    let byte = |at: usize, value: u8| {
        // SAFETY: `at` is below the length that the caller vouches for.
        unsafe { AtomicU8::from_ptr(destination.add(at)) }.store(value, Ordering::Relaxed);
    };
    first.iter().enumerate().for_each(|(at, value)| byte(at, *value));
    for (index, word) in words.iter().enumerate() {
        // SAFETY: below the caller's length, and aligned, since `head` bytes were skipped.
        let target = unsafe { AtomicU64::from_ptr(destination.add(head + index * 8).cast()) };
        target.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
    }
    let tail = source.len() - last.len();
    last.iter().enumerate().for_each(|(at, value)| byte(tail + at, *value));
}

/// Copies shared memory into private bytes.
///
/// # Safety
/// `source..+destination.len()` is mapped readable for the length of the call and written only by atomic accesses or by
/// devices meanwhile.
pub(crate) unsafe fn copy_from_shared(source: *const u8, destination: &mut [u8]) {
    // SAFETY: the caller vouches for `destination.len()` bytes at both.
    let moved = unsafe { move_string(source, destination.as_mut_ptr(), destination.len()) };
    // SAFETY: `moved` is at most the length.
    let (source, destination) = (unsafe { source.add(moved) }, &mut destination[moved..]);
    let head = destination.len().min(source.align_offset(8));
    let tail = destination.len() - (destination.len() - head) % 8;
    let byte = |at: usize| {
        // SAFETY: `at` is below the length that the caller vouches for; a load needs no write access.
        unsafe { AtomicU8::from_ptr(source.add(at).cast_mut()) }.load(Ordering::Relaxed)
    };
    let (first, rest) = destination.split_at_mut(head);
    let (words, last) = rest.as_chunks_mut::<8>();
    first.iter_mut().enumerate().for_each(|(at, value)| *value = byte(at));
    for (index, word) in words.iter_mut().enumerate() {
        // SAFETY: below the caller's length, and aligned, since `head` bytes were skipped; a load needs no write access.
        let origin = unsafe { AtomicU64::from_ptr(source.add(head + index * 8).cast_mut().cast()) };
        *word = origin.load(Ordering::Relaxed).to_ne_bytes();
    }
    last.iter_mut().enumerate().for_each(|(at, value)| *value = byte(tail + at));
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollring_hugepages::{Pages, RegionConfig};
    use proptest::prelude::*;

    fn memory() -> Shared {
        let pages = Pages::Small4K { reason: "a unit test".into() };
        let config = RegionConfig { name: "shared".into(), bytes: 4096, pages, node: None };
        Shared::local(Arc::new(Region::allocate(&config).unwrap()))
    }

    fn bytes_of(memory: &Shared) -> Vec<u8> {
        let mut bytes = vec![0; memory.bytes()];
        memory.copy_out(0, &mut bytes).unwrap();
        bytes
    }

    proptest! {
        #[test]
        fn copies_between_shared_memories_and_fills_write_exactly_their_bytes(
            from in 0usize..40,
            at in 0usize..40,
            data in prop::collection::vec(any::<u8>(), 0..1600),
            pattern in any::<u64>(),
        ) {
            let (source, destination, length) = (memory(), memory(), data.len());
            source.copy_in(from, &data).unwrap();
            destination.copy_in(0, &[0xa5; 4096]).unwrap();
            let mut expected = vec![0xa5; 4096];
            destination.copy_from(at, &source, from, length).unwrap();
            expected[at..at + length].copy_from_slice(&data);
            prop_assert_eq!(bytes_of(&destination), &expected[..]);
            destination.fill(at, length, pattern).unwrap();
            let words = pattern.to_le_bytes();
            expected[at..at + length].iter_mut().enumerate().for_each(|(index, byte)| *byte = words[index % 8]);
            prop_assert_eq!(bytes_of(&destination), expected);
            let (past, end) = (destination.fill(at, 4097 - at, 0), source.copy_from(at, &destination, 0, 4097 - at));
            prop_assert!(past.is_err() && end.is_err() && destination.copy_from(0, &source, from, 4097 - from).is_err());
        }

        #[test]
        fn copies_move_exactly_their_bytes(offset in 0usize..40, data in prop::collection::vec(any::<u8>(), 0..600)) {
            let mut memory = vec![0xa5u8; 640];
            // SAFETY: the vector is longer than offset and data together, and this thread alone uses it.
            unsafe { copy_to_shared(&data, memory.as_mut_ptr().add(offset)) };
            prop_assert_eq!(&memory[offset..offset + data.len()], &data[..]);
            prop_assert!(memory[..offset].iter().chain(&memory[offset + data.len()..]).all(|byte| *byte == 0xa5));
            let mut back = vec![0; data.len()];
            // SAFETY: as above.
            unsafe { copy_from_shared(memory.as_ptr().add(offset), &mut back) };
            prop_assert_eq!(back, data);
        }
    }
}
