//! Which pool is which: one table for the process, so that a frame of 8 bytes says all about itself.
//!
//! A slot is filled when a pool is made and emptied once the pool has no handle left and all its frames are home. So as long as
//! a frame exists, what the table says of its pool is valid. The data path reads it by relaxed loads: a frame reaches a thread
//! by some synchronising way, and the table was filled before the frame existed.

use super::meta::Meta;
use super::pool::PoolInner;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Pool ids 0 to 253 are pools; the two above mark burst and ring entries that are not a frame.
pub(super) const POOLS: usize = 254;

/// Device address of each pool's first byte.
static IOVA: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];
/// CPU address of each pool's first byte.
static CPU: [AtomicPtr<u8>; 256] = [const { AtomicPtr::new(null_mut()) }; 256];
/// Metadata of each pool's first buffer.
static META: [AtomicPtr<Meta>; 256] = [const { AtomicPtr::new(null_mut()) }; 256];
/// Binary logarithm of each pool's buffer size.
static SHIFT: [AtomicU8; 256] = [const { AtomicU8::new(0) }; 256];
/// The pools themselves, for everything that is not per packet.
static SLOTS: Mutex<[Option<Arc<PoolInner>>; POOLS]> = Mutex::new([const { None }; POOLS]);

fn slots() -> MutexGuard<'static, [Option<Arc<PoolInner>>; POOLS]> {
    SLOTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pool with this id, while it exists.
pub(super) fn pool(id: u8) -> Option<Arc<PoolInner>> {
    slots().get(usize::from(id))?.clone()
}

#[inline]
pub(crate) fn iova_base(id: u8) -> u64 {
    IOVA[usize::from(id)].load(Ordering::Relaxed)
}

#[inline]
pub(crate) fn cpu_base(id: u8) -> *mut u8 {
    CPU[usize::from(id)].load(Ordering::Relaxed)
}

#[inline]
pub(super) fn meta_base(id: u8) -> *mut Meta {
    META[usize::from(id)].load(Ordering::Relaxed)
}

#[inline]
pub(super) fn shift(id: u8) -> u32 {
    u32::from(SHIFT[usize::from(id)].load(Ordering::Relaxed))
}

#[inline]
pub(crate) fn buffer_bytes(id: u8) -> usize {
    1 << shift(id)
}

/// Fills the first free slot with what `make` builds for its id; `None` when all are taken.
pub(super) fn insert(make: impl FnOnce(u8) -> PoolInner) -> Option<Arc<PoolInner>> {
    let mut slots = slots();
    let free = slots.iter().position(Option::is_none)?;
    let pool = Arc::new(make(free as u8));
    IOVA[free].store(pool.iova().bits(), Ordering::Relaxed);
    CPU[free].store(pool.base(), Ordering::Relaxed);
    META[free].store(pool.meta(), Ordering::Relaxed);
    SHIFT[free].store(pool.buffer_bytes().trailing_zeros() as u8, Ordering::Relaxed);
    slots[free] = Some(pool.clone());
    Some(pool)
}

/// Empties the slot if the pool is closed and all its frames are home. The pool itself goes with the last `Arc`, outside the lock.
pub(super) fn retire(id: u8) {
    let retired = {
        let mut slots = slots();
        match &slots[usize::from(id)] {
            Some(pool) if pool.is_finished() => slots[usize::from(id)].take(),
            _ => None,
        }
    };
    drop(retired);
}
