//! Registered memory as packets see it: pieces to read from, pieces to fill, and the table of keys.
//!
//! A request's pieces were checked when it began, and its handles keep the memory mapped; so copying can only fail by a bug of
//! ours, and is then left out rather than done elsewhere. A key table holds weak handles and is asked once for each packet of
//! a peer, so a revoked key stops a message between two packets.

use pollring::buffer::Shared;
use pollring::rdma::{Access, AccessError, LKey, MemoryRegion, ProtectionDomain, RKey, RdmaError};
use pollring::rdma::{Registration, RemoteAccess, Revoke, Sge, WeakRegion, authorize};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A part of a message, to be sent: inline bytes, or bytes of registered memory.
#[derive(Clone, Copy)]
pub struct Gather<'a> {
    pieces: Pieces<'a>,
    skip: usize,
    bytes: usize,
}

#[derive(Clone, Copy)]
enum Pieces<'a> {
    Inline(&'a [u8]),
    List(&'a [Sge]),
}

impl<'a> Gather<'a> {
    /// No bytes.
    pub(crate) const EMPTY: Gather<'static> = Gather { pieces: Pieces::Inline(&[]), skip: 0, bytes: 0 };

    /// `bytes` of inline data from `skip` on.
    pub(crate) fn inline(data: &'a [u8], skip: usize, bytes: usize) -> Gather<'a> {
        Gather { pieces: Pieces::Inline(data), skip, bytes }
    }

    /// `bytes` of a list of pieces from `skip` on.
    pub(crate) fn list(list: &'a [Sge], skip: usize, bytes: usize) -> Gather<'a> {
        Gather { pieces: Pieces::List(list), skip, bytes }
    }

    /// Its length.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Bytes that make it a multiple of four.
    pub(crate) fn pad(&self) -> usize {
        self.bytes.wrapping_neg() & 3
    }

    /// Where its bytes lie: memory, offset, length. Nothing for inline data.
    pub fn pieces(&self) -> impl Iterator<Item = (&'a Shared, usize, usize)> {
        let list = if let Pieces::List(list) = self.pieces { list } else { &[] };
        let (mut skip, mut left) = (self.skip, self.bytes);
        list.iter().filter_map(move |sge| {
            let whole = sge.bytes as usize;
            let passed = skip.min(whole);
            let taken = left.min(whole - passed);
            (skip, left) = (skip - passed, left - taken);
            (taken > 0).then(|| (sge.region.memory(), sge.offset + passed, taken))
        })
    }

    /// Copies it to `out`, which is as long.
    pub fn copy_to(&self, out: &mut [u8]) {
        if let Pieces::Inline(data) = self.pieces {
            out.copy_from_slice(&data[self.skip..self.skip + self.bytes]);
            return;
        }
        let mut at = 0;
        for (memory, offset, bytes) in self.pieces() {
            let copied = memory.copy_out(offset, &mut out[at..at + bytes]);
            debug_assert!(copied.is_ok(), "checked when the request began");
            at += bytes;
        }
    }

    /// Shows it in blocks of at most 4 KiB, each a copy.
    pub fn for_each_block(&self, mut each: impl FnMut(&[u8])) {
        let mut block = [0; 4096];
        if let Pieces::Inline(data) = self.pieces {
            each(&data[self.skip..self.skip + self.bytes]);
        }
        for (memory, offset, bytes) in self.pieces() {
            for done in (0..bytes).step_by(block.len()) {
                let part = &mut block[..(bytes - done).min(4096)];
                if memory.copy_out(offset + done, part).is_ok() {
                    each(part);
                }
            }
        }
    }
}

/// Copies `data` to the pieces of `list`, from byte `at` of all of them on. The caller made sure that it fits.
pub(crate) fn scatter(list: &[Sge], at: usize, data: &[u8]) {
    let mut done = 0;
    for (memory, offset, bytes) in Gather::list(list, at, data.len()).pieces() {
        let copied = memory.copy_in(offset, &data[done..done + bytes]);
        debug_assert!(copied.is_ok(), "checked when the request began");
        done += bytes;
    }
}

/// Whether every piece may be used so.
pub(crate) fn check(list: &[Sge], pd: &ProtectionDomain, needed: Access) -> Result<(), AccessError> {
    list.iter().try_for_each(|sge| sge.check(pd, needed))
}

/// A hash for numbers that were drawn at random: themselves, spread.
#[derive(Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.0 = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// A map keyed by random numbers.
pub(crate) type NumberMap<T> = HashMap<u32, T, BuildHasherDefault<Spread>>;

/// Which region has which remote key. Regions drop from any thread, so it has a lock of its own, and no region is ever dropped
/// while it is held.
#[derive(Default)]
pub(crate) struct Keys(Mutex<NumberMap<WeakRegion>>);

struct Registered {
    keys: Arc<Keys>,
    rkey: u32,
}

impl Revoke for Registered {
    fn revoke(&self) {
        self.keys.lock().remove(&self.rkey);
    }

    fn is_quiet(&self) -> bool {
        true
    }
}

impl Keys {
    fn lock(&self) -> MutexGuard<'_, NumberMap<WeakRegion>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many keys are valid.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// The region of a key.
    #[inline]
    pub(crate) fn find(&self, rkey: RKey) -> Option<MemoryRegion> {
        self.lock().get(&rkey.0).and_then(WeakRegion::upgrade)
    }

    /// Registers memory under keys from `random`, which nothing has now.
    pub(crate) fn register(
        self: &Arc<Keys>,
        pd: &ProtectionDomain,
        memory: Shared,
        base: u64,
        access: Access,
        random: &mut dyn FnMut() -> u32,
    ) -> Result<MemoryRegion, RdmaError> {
        let mut draw = || loop {
            let key = random();
            if key != 0 && !self.lock().contains_key(&key) {
                return key;
            }
        };
        let (rkey, lkey) = (draw(), LKey(draw()));
        let provider = Box::new(Registered { keys: self.clone(), rkey });
        let (pd, rkey) = (pd.clone(), RKey(rkey));
        let region = MemoryRegion::new(Registration { pd, memory, base, access, lkey, rkey, provider })?;
        self.lock().insert(rkey.0, region.downgrade());
        Ok(region)
    }

    /// Where a peer may do what it asks through a queue pair of `pd` with rights `access`; `None` for no bytes.
    #[inline]
    pub(crate) fn authorize(
        &self,
        request: &RemoteAccess,
        pd: &ProtectionDomain,
        access: Access,
    ) -> Result<Option<Sge>, AccessError> {
        let target = authorize(request, pd, access, |key| self.find(key))?;
        Ok(target.map(|target| Sge { region: target.region, offset: target.offset, bytes: request.bytes }))
    }
}
