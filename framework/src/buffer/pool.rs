//! A pool: a fixed number of equal buffers in one region, mapped for devices in one or more spaces.
//!
//! `Pool<Both>` is what devices fill; `Pool<ToDevice>` is what they only read. The type says it, so a receive queue cannot be
//! given memory that its device may not write. Frames at home lie in the [`Depot`] or, one by one, among the strays. A pool
//! counts where its frames are ([`Pool::census`]); its memory goes away once no handle is left and every frame is home, so a
//! ring that still holds a frame keeps it mapped.

use super::frame::{OFFSET_SHIFT, POOL_SHIFT, pool_of};
use super::magazine::{Depot, MAGAZINE};
use super::meta::Meta;
use super::table;
use crate::iova::{AddressSpace, Direction, Iova, IovaError, Mapping, Placement};
use pollring_hugepages::{NumaNode, Pages, Region, RegionConfig, RegionError};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use thiserror::Error;

mod sealed {
    pub trait Sealed {}
}

/// What devices may do with a pool's memory, as a type.
pub trait Access: sealed::Sealed + Send + Sync + 'static {
    /// The same as a value.
    const DIRECTION: Direction;
}

/// Devices fill and read the memory.
pub enum Both {}
/// Devices only read the memory.
pub enum ToDevice {}

impl sealed::Sealed for Both {}
impl sealed::Sealed for ToDevice {}
impl Access for Both {
    const DIRECTION: Direction = Direction::Both;
}
impl Access for ToDevice {
    const DIRECTION: Direction = Direction::ToDevice;
}

/// What a pool is made of.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Appears in errors and reports.
    pub name: String,
    /// How many buffers; rounded up to a multiple of 64.
    pub frames: usize,
    /// Size of a buffer in bytes, headroom included: a power of two from 256 to 65536.
    pub buffer_bytes: usize,
    /// Bytes kept free in front of a received frame.
    pub headroom_bytes: usize,
    /// Which pages.
    pub pages: Pages,
    /// Which NUMA node, if it matters.
    pub node: Option<NumaNode>,
}

impl PoolConfig {
    /// Buffers of 2 KiB with 128 bytes of headroom on 2 MiB pages: room for frames of 1518 bytes and two VLAN tags.
    pub fn new(name: &str, frames: usize) -> PoolConfig {
        let name = name.to_owned();
        PoolConfig { name, frames, buffer_bytes: 2048, headroom_bytes: 128, pages: Pages::Huge2M, node: None }
    }
}

/// Why a pool could not be made.
#[derive(Debug, Error)]
pub enum PoolError {
    /// The numbers do not fit together.
    #[error("pool `{name}`: {what}")]
    Config {
        /// The pool.
        name: String,
        /// Which number, and what it may be.
        what: String,
    },
    /// No memory.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// No device address.
    #[error("pool `{name}`: {error}")]
    Iova {
        /// The pool.
        name: String,
        /// Why.
        error: IovaError,
    },
    /// All ids are in use.
    #[error("pool `{name}`: the process has 254 pools already; drop some, or use fewer and larger ones")]
    TooMany {
        /// The pool.
        name: String,
    },
}

/// Where a pool's frames are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Census {
    /// All frames of the pool.
    pub total: usize,
    /// At home: in the depot or among the strays.
    pub home: usize,
    /// In the workers' caches, by the name of the owner. Exact when the owners rest, otherwise of their last burst.
    pub caches: Vec<(String, usize)>,
}

impl Census {
    /// Frames in rings, bursts and hands; whatever stays here when all of those are empty is leaked.
    pub fn elsewhere(&self) -> usize {
        self.total.saturating_sub(self.home + self.cached())
    }

    /// Frames in caches.
    pub fn cached(&self) -> usize {
        self.caches.iter().map(|(_, frames)| frames).sum()
    }
}

/// A handle to a pool; clones are handles to the same one.
pub struct Pool<D: Access>(Arc<Handle>, PhantomData<D>);

impl<D: Access> Clone for Pool<D> {
    fn clone(&self) -> Pool<D> {
        Pool(self.0.clone(), PhantomData)
    }
}

impl<D: Access> Pool<D> {
    /// Makes a pool and maps it into `spaces`, with the rights that the type says.
    ///
    /// # Errors
    /// Numbers that do not fit, no memory, no device address.
    pub fn new(config: &PoolConfig, spaces: &[&AddressSpace]) -> Result<Pool<D>, PoolError> {
        validate(config)?;
        let frames = config.frames.next_multiple_of(MAGAZINE);
        let bytes = frames * config.buffer_bytes;
        let region =
            RegionConfig { name: config.name.clone(), bytes, pages: config.pages.clone(), node: config.node };
        let region = Arc::new(Region::allocate(&region)?);
        let named = |error| PoolError::Iova { name: config.name.clone(), error };
        let placement = Placement::new(region, spaces).map_err(named)?;
        let mapped: Result<Vec<Mapping>, IovaError> =
            spaces.iter().map(|space| space.map(&placement, D::DIRECTION)).collect();
        let mappings = mapped.map_err(named)?;
        let inner = table::insert(|id| PoolInner::new(id, config, frames, placement, mappings));
        let inner = inner.ok_or_else(|| PoolError::TooMany { name: config.name.clone() })?;
        inner.stock();
        let handle = Arc::new(Handle(inner));
        *lock(&handle.0.handle) = Arc::downgrade(&handle);
        Ok(Pool(handle, PhantomData))
    }

    /// Lets the devices of one more space read the pool's frames, to send what others received.
    ///
    /// # Errors
    /// The space does not allow the pool's address.
    pub fn share(&self, space: &AddressSpace) -> Result<(), IovaError> {
        let mapping = space.map(&self.0.0.placement, Direction::ToDevice)?;
        lock(&self.0.0.mappings).push(mapping);
        Ok(())
    }

    /// Its number in the process.
    pub fn id(&self) -> u8 {
        self.0.0.id
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.0.name
    }

    /// The memory.
    pub fn region(&self) -> &Arc<Region> {
        self.0.0.placement.region()
    }

    /// Bytes that a received frame may have.
    pub fn room_bytes(&self) -> usize {
        self.0.0.buffer_bytes() - self.0.0.headroom
    }

    /// Where its frames are.
    pub fn census(&self) -> Census {
        self.0.0.census()
    }
}

fn validate(config: &PoolConfig) -> Result<(), PoolError> {
    let fail = |what: String| Err(PoolError::Config { name: config.name.clone(), what });
    let PoolConfig { frames, buffer_bytes, headroom_bytes, .. } = *config;
    if !buffer_bytes.is_power_of_two() || !(256..=65536).contains(&buffer_bytes) {
        return fail(format!("buffers of {buffer_bytes} bytes; use a power of two from 256 to 65536"));
    }
    if headroom_bytes >= buffer_bytes || buffer_bytes - headroom_bytes > usize::from(u16::MAX) {
        return fail(format!(
            "headroom of {headroom_bytes} bytes in buffers of {buffer_bytes}; leave 1 to 65535 bytes"
        ));
    }
    if frames == 0 || frames > (1 << 40) / buffer_bytes {
        return fail(format!("{frames} frames; use at least 1 and at most 1 TiB in all"));
    }
    Ok(())
}

/// What the handles share; the last one to go closes the pool.
pub(super) struct Handle(pub(super) Arc<PoolInner>);

impl Handle {
    /// A further handle to a pool that is still open, for a cache that met one of its frames.
    pub(super) fn reopen(id: u8) -> Option<Arc<Handle>> {
        let inner = table::pool(id)?;
        lock(&inner.handle).upgrade()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::SeqCst);
        table::retire(self.0.id);
    }
}

/// The level of one owner's cache, published by its owner.
pub(super) type Level = Arc<(String, AtomicUsize)>;

pub(super) struct PoolInner {
    id: u8,
    name: String,
    count: usize,
    shift: u32,
    headroom: usize,
    placement: Arc<Placement>,
    mappings: Mutex<Vec<Mapping>>,
    depot: Depot,
    strays: Mutex<Vec<u64>>,
    /// Frames in the depot and among the strays.
    home: AtomicUsize,
    closed: AtomicBool,
    handle: Mutex<Weak<Handle>>,
    caches: Mutex<Vec<Weak<(String, AtomicUsize)>>>,
    meta: Box<[UnsafeCell<Meta>]>,
}

// SAFETY: a metadata entry is touched only through the frame that owns its buffer; everything else is Sync by itself.
unsafe impl Sync for PoolInner {}
// SAFETY: as above; nothing is bound to a thread.
unsafe impl Send for PoolInner {}

impl PoolInner {
    fn new(
        id: u8,
        config: &PoolConfig,
        count: usize,
        placement: Arc<Placement>,
        mappings: Vec<Mapping>,
    ) -> PoolInner {
        PoolInner {
            id,
            name: config.name.clone(),
            count,
            shift: config.buffer_bytes.trailing_zeros(),
            headroom: config.headroom_bytes,
            placement,
            mappings: Mutex::new(mappings),
            depot: Depot::new(count / MAGAZINE),
            strays: Mutex::default(),
            home: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            handle: Mutex::default(),
            caches: Mutex::default(),
            meta: (0..count).map(|_| UnsafeCell::new(Meta::default())).collect(),
        }
    }

    /// Puts every frame into the depot, lowest first out.
    fn stock(&self) {
        let (_, home) = self.masks();
        for magazine in (0..self.count / MAGAZINE).rev() {
            let mut frames = [0; MAGAZINE];
            for (slot, frame) in frames.iter_mut().enumerate() {
                let index = (magazine * MAGAZINE + MAGAZINE - 1 - slot) as u64;
                *frame = (index << self.shift << OFFSET_SHIFT) + home;
            }
            self.give(&frames);
        }
    }

    /// `word & keep | home` is a frame as it lies at home: at the headroom, without length.
    pub(super) fn masks(&self) -> (u64, u64) {
        let keep = !((1u64 << (OFFSET_SHIFT + self.shift)) - 1);
        (keep, (self.headroom as u64) << OFFSET_SHIFT | u64::from(self.id) << POOL_SHIFT)
    }

    pub(super) fn buffer_bytes(&self) -> usize {
        1 << self.shift
    }

    pub(super) fn iova(&self) -> Iova {
        self.placement.iova()
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.placement.region().base().as_ptr()
    }

    pub(super) fn meta(&self) -> *mut Meta {
        UnsafeCell::raw_get(self.meta.as_ptr())
    }

    /// Takes a full magazine, or up to 64 strays; gives how many.
    pub(super) fn take(&self, into: &mut [u64; MAGAZINE]) -> usize {
        let taken = if self.depot.take(into) { MAGAZINE } else { self.take_strays(into) };
        self.home.fetch_sub(taken, Ordering::SeqCst);
        taken
    }

    /// Takes back a magazine of frames that are in their home form.
    pub(super) fn give(&self, frames: &[u64; MAGAZINE]) {
        if self.depot.give(frames) {
            self.came_home(MAGAZINE);
        } else {
            self.stray(frames);
        }
    }

    /// Takes back some frames that are in their home form, under a lock.
    pub(super) fn stray(&self, frames: &[u64]) {
        lock(&self.strays).extend_from_slice(frames);
        self.came_home(frames.len());
    }

    pub(super) fn enlist(&self, owner: &str) -> Level {
        let level = Arc::new((owner.to_owned(), AtomicUsize::new(0)));
        let mut caches = lock(&self.caches);
        caches.retain(|cache| cache.strong_count() > 0);
        caches.push(Arc::downgrade(&level));
        level
    }

    pub(super) fn is_finished(&self) -> bool {
        self.closed.load(Ordering::SeqCst) && self.home.load(Ordering::SeqCst) == self.count
    }

    fn came_home(&self, frames: usize) {
        // Sequentially consistent with `closed`: either the last frame or the last handle sees that the pool is finished.
        self.home.fetch_add(frames, Ordering::SeqCst);
        if self.closed.load(Ordering::SeqCst) {
            table::retire(self.id);
        }
    }

    fn take_strays(&self, into: &mut [u64; MAGAZINE]) -> usize {
        let mut strays = lock(&self.strays);
        let taken = strays.len().min(MAGAZINE);
        let rest = strays.len() - taken;
        into.iter_mut().zip(strays.drain(rest..)).for_each(|(slot, frame)| *slot = frame);
        taken
    }

    fn census(&self) -> Census {
        let caches = lock(&self.caches);
        let levels = caches.iter().filter_map(Weak::upgrade);
        let caches = levels.map(|level| (level.0.clone(), level.1.load(Ordering::Relaxed))).collect();
        Census { total: self.count, home: self.home.load(Ordering::SeqCst), caches }
    }
}

/// Takes back a frame that was dropped.
#[cold]
#[inline(never)]
pub(crate) fn take_stray(word: u64) {
    if let Some(pool) = table::pool(pool_of(word)) {
        let (keep, home) = pool.masks();
        pool.stray(&[word & keep | home]);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::buffer::{Burst, Caches, Frame, frame_channel};
    use proptest::prelude::*;

    pub(crate) fn small(name: &str, frames: usize) -> PoolConfig {
        PoolConfig { pages: Pages::Small4K { reason: "a unit test".into() }, ..PoolConfig::new(name, frames) }
    }

    #[test]
    fn numbers_that_do_not_fit_are_named() {
        let text = |config: PoolConfig| Pool::<Both>::new(&config, &[]).err().map(|error| error.to_string());
        let with =
            |buffer_bytes, headroom_bytes| PoolConfig { buffer_bytes, headroom_bytes, ..small("odd", 64) };
        assert!(text(with(1500, 0)).unwrap().contains("1500"));
        assert!(text(with(2048, 2048)).unwrap().contains("headroom"));
        assert!(text(with(65536, 0)).unwrap().contains("headroom"));
        assert!(text(PoolConfig { frames: 0, ..small("odd", 64) }).unwrap().contains("0 frames"));
        assert!(text(PoolConfig { frames: usize::MAX, ..small("odd", 64) }).unwrap().contains("1 TiB"));
    }

    #[test]
    fn every_frame_is_another_buffer_and_they_all_come_home() {
        let pool = Pool::<ToDevice>::new(&small("distinct", 200), &[]).unwrap();
        let mut caches = Caches::new("test");
        let mut frames: Vec<Frame> = std::iter::from_fn(|| caches.take(&pool)).collect();
        assert_eq!(frames.len(), 256, "rounded up to whole magazines");
        assert_eq!(pool.census().elsewhere(), 256);
        for (number, frame) in frames.iter_mut().enumerate() {
            assert!(frame.is_empty() && frame.headroom() == 128);
            assert!(frame.fill_from(&[number as u8; 1500]));
        }
        for (number, frame) in frames.iter().enumerate() {
            assert!(frame.bytes().iter().all(|byte| *byte == number as u8), "buffers overlap");
        }
        let rest = frames.split_off(100);
        frames.into_iter().for_each(|frame| caches.put(frame));
        drop(rest);
        assert_eq!(pool.census().elsewhere(), 0);
        drop(caches);
        assert_eq!(pool.census().home, 256);
    }

    #[test]
    fn memory_outlives_the_last_handle_while_a_frame_is_out() {
        let pool = Pool::<Both>::new(&small("outlived", 64), &[]).unwrap();
        let (id, mut caches) = (pool.id(), Caches::new("test"));
        let mut frame = caches.take(&pool).unwrap();
        drop(caches);
        drop(pool);
        assert!(frame.fill_from(b"still mapped"));
        assert!(table::pool(id).is_some());
        let mut late = Caches::new("late");
        late.put(frame);
        assert!(
            table::pool(id).is_none_or(|next| next.name != "outlived"),
            "the pool goes with its last frame"
        );
    }

    #[test]
    fn frames_left_in_a_ring_between_workers_come_home() {
        let pool = Pool::<ToDevice>::new(&small("between", 64), &[]).unwrap();
        for sender_first in [true, false] {
            let (mut sender, receiver) = frame_channel(32);
            let (mut caches, mut burst) = (Caches::new("test"), Burst::new());
            assert_eq!(caches.take_into(&pool, &mut burst, 20), 20);
            assert_eq!(sender.send(&mut burst), 20);
            if sender_first {
                drop((sender, receiver))
            } else {
                drop((receiver, sender))
            }
            drop(caches);
            assert_eq!(pool.census().home, 64, "sender first: {sender_first}");
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Take(usize),
        Put(usize),
        Drop(usize),
        Flush,
    }

    fn steps() -> impl Strategy<Value = Vec<(usize, Step)>> {
        let step = prop_oneof![
            (1usize..65).prop_map(Step::Take),
            (1usize..65).prop_map(Step::Put),
            (1usize..9).prop_map(Step::Drop),
            Just(Step::Flush)
        ];
        prop::collection::vec((0usize..3, step), 1..120)
    }

    proptest! {
        #[test]
        fn no_frame_is_lost_or_doubled_between_workers(steps in steps()) {
            let pool = Pool::<Both>::new(&small("model", 1024), &[]).unwrap();
            let mut workers: Vec<Caches> = (0..3).map(|number| Caches::new(&format!("worker {number}"))).collect();
            let mut out: Vec<Frame> = Vec::new();
            let mut offsets = std::collections::HashSet::new();
            for (worker, step) in steps {
                match step {
                    Step::Take(count) => {
                        let mut burst = Burst::new();
                        workers[worker].take_into(&pool, &mut burst, count);
                        while let Some(frame) = burst.pop() {
                            prop_assert!(offsets.insert(frame.iova()), "a frame was handed out twice");
                            out.push(frame);
                        }
                    }
                    Step::Put(count) => {
                        for frame in out.drain(..count.min(out.len())) {
                            offsets.remove(&frame.iova());
                            workers[worker].put(frame);
                        }
                    }
                    Step::Drop(count) => {
                        for frame in out.drain(..count.min(out.len())) {
                            offsets.remove(&frame.iova());
                        }
                    }
                    Step::Flush => workers[worker].flush(),
                }
                prop_assert_eq!(pool.census().elsewhere(), out.len());
            }
            drop(out);
            drop(workers);
            prop_assert_eq!(pool.census().home, 1024);
        }

        #[test]
        fn a_frame_stays_in_its_buffer(moves in prop::collection::vec((0u8..4, 0usize..2500), 1..60)) {
            let pool = Pool::<Both>::new(&small("moves", 64), &[]).unwrap();
            let mut caches = Caches::new("test");
            let mut frame = caches.take(&pool).unwrap();
            for (kind, bytes) in moves {
                let before = (frame.headroom(), frame.len(), frame.tailroom());
                let done = match kind {
                    0 => frame.prepend(bytes),
                    1 => frame.trim_front(bytes),
                    2 => frame.set_len(bytes),
                    _ => frame.fill_from(&vec![1; bytes]),
                };
                let now = (frame.headroom(), frame.len(), frame.tailroom());
                prop_assert!(done || now == before, "a refused change did something");
                prop_assert_eq!(now.0 + now.1 + now.2, 2048);
            }
        }
    }
}
