//! A frame: one word that owns one packet buffer.
//!
//! The word holds the pool, the length and the position of the first byte in the pool; the buffer's index is the position
//! divided by the pool's buffer size, a power of two. Whoever has the `Frame` has the buffer alone: its bytes are ordinary
//! references, valid because no device was given the buffer and rings own the frames that are posted. A device that writes to
//! a frame which it handed over breaks promise (b); only the copier stops that (see the README).
//!
//! ```text
//! 63                       24 23    16 15         0
//! | offset in pool, bytes    | pool   | length     |
//! ```

use super::{Meta, pool, table};
use crate::iova::Iova;
use std::mem::ManuallyDrop;

/// Where the pool begins; pool and length together are [`TAG`], so one comparison checks both.
pub(crate) const POOL_SHIFT: u32 = 16;
pub(crate) const OFFSET_SHIFT: u32 = 24;
pub(crate) const TAG: u32 = 0xff_ffff;
const LENGTH_BITS: u64 = 0xffff;

/// The owner of one packet buffer. Dropping it returns the buffer to its pool, by the slow way.
#[repr(transparent)]
pub struct Frame(u64);

const _: () = assert!(size_of::<Frame>() == 8);

#[inline]
pub(crate) fn pool_of(word: u64) -> u8 {
    (word >> POOL_SHIFT) as u8
}

#[inline]
pub(crate) fn length_of(word: u64) -> u16 {
    word as u16
}

/// The device address of the first byte of a frame whose pool lies at `base`.
#[inline]
pub(crate) fn iova_at(base: u64, word: u64) -> Iova {
    Iova::new(base.wrapping_add(word >> OFFSET_SHIFT))
}

impl Frame {
    /// Takes over a word that a pool made and that nobody else holds.
    #[inline]
    pub(crate) fn from_word(word: u64) -> Frame {
        Frame(word)
    }

    /// Gives the word up to a ring, burst or cache, which then owns the buffer.
    #[inline]
    pub(crate) fn into_word(self) -> u64 {
        ManuallyDrop::new(self).0
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(length_of(self.0))
    }

    /// Whether it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The id of its pool; see [`Pool::id`](super::Pool::id).
    #[inline]
    pub fn pool(&self) -> u8 {
        pool_of(self.0)
    }

    /// The device address of its first byte, in every space that maps its pool.
    #[inline]
    pub fn iova(&self) -> Iova {
        iova_at(table::iova_base(self.pool()), self.0)
    }

    /// Its bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: offset and length lie in this frame's buffer (kept by every method that changes them), the pool's memory is
        // mapped while the frame exists (table.rs), and the frame owns the buffer.
        unsafe { std::slice::from_raw_parts(self.first(), self.len()) }
    }

    /// Its bytes, to change.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes the reference unique.
        unsafe { std::slice::from_raw_parts_mut(self.first(), self.len()) }
    }

    /// Bytes before the first one in the buffer.
    pub fn headroom(&self) -> usize {
        (self.0 >> OFFSET_SHIFT) as usize & (self.buffer_bytes() - 1)
    }

    /// Bytes behind the last one in the buffer.
    pub fn tailroom(&self) -> usize {
        self.buffer_bytes() - self.headroom() - self.len()
    }

    /// Makes the frame `bytes` long: shorter cuts the end, longer shows what the buffer holds. False, and nothing done, when the
    /// buffer ends before.
    #[must_use]
    pub fn set_len(&mut self, bytes: usize) -> bool {
        let fits = bytes <= self.len() + self.tailroom() && bytes <= usize::from(u16::MAX);
        if fits {
            self.0 = self.0 & !LENGTH_BITS | bytes as u64;
        }
        fits
    }

    /// Adds `bytes` in front, from the headroom. False, and nothing done, when there is less.
    #[must_use]
    pub fn prepend(&mut self, bytes: usize) -> bool {
        let fits = bytes <= self.headroom() && self.len() + bytes <= usize::from(u16::MAX);
        if fits {
            self.0 = self.0 - ((bytes as u64) << OFFSET_SHIFT) + bytes as u64;
        }
        fits
    }

    /// Cuts `bytes` off the front. False, and nothing done, when the frame is shorter.
    #[must_use]
    pub fn trim_front(&mut self, bytes: usize) -> bool {
        let fits = bytes <= self.len();
        if fits {
            self.0 = self.0 + ((bytes as u64) << OFFSET_SHIFT) - (bytes as u64);
        }
        fits
    }

    /// Replaces the bytes. False, and nothing done, when the buffer is too small.
    #[must_use]
    pub fn fill_from(&mut self, bytes: &[u8]) -> bool {
        let fits = self.set_len(bytes.len());
        if fits {
            self.bytes_mut().copy_from_slice(bytes);
        }
        fits
    }

    /// What the receiving device said about it. Only a port that was started with metadata fills it in.
    pub fn meta(&self) -> Meta {
        // SAFETY: the entry belongs to this frame's buffer, and the frame owns the buffer.
        unsafe { *self.meta_entry() }
    }

    /// Sets what is known about it.
    pub fn set_meta(&mut self, meta: Meta) {
        // SAFETY: as in `meta`, and `&mut self` makes the access unique.
        unsafe { *self.meta_entry() = meta };
    }

    /// Starts loading the first cache line.
    #[inline]
    pub fn prefetch(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint; it touches no memory in the sense of the language.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.first().cast());
        }
    }

    #[inline]
    fn first(&self) -> *mut u8 {
        table::cpu_base(self.pool()).wrapping_add((self.0 >> OFFSET_SHIFT) as usize)
    }

    #[inline]
    fn meta_entry(&self) -> *mut Meta {
        let index = self.0 >> OFFSET_SHIFT >> table::shift(self.pool());
        table::meta_base(self.pool()).wrapping_add(index as usize)
    }

    #[inline]
    fn buffer_bytes(&self) -> usize {
        1 << table::shift(self.pool())
    }
}

impl Drop for Frame {
    #[inline]
    fn drop(&mut self) {
        pool::take_stray(self.0);
    }
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Frame {{ pool: {}, offset: {:#x}, bytes: {} }}",
            self.pool(),
            self.0 >> OFFSET_SHIFT,
            self.len()
        )
    }
}
