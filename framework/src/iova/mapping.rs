//! A region's device address, and its right to be reached in one space.
//!
//! A [`Placement`] owns an interval of the process-wide IOVA numbering for as long as it lives. A [`Mapping`] owns the
//! entry of one space's translation table and keeps the placement alive. Drop a mapping only when no device of the space
//! uses the memory: after stop or abort. Pools and ports keep that order themselves.

use super::{AddressSpace, Allocator, Direction, Iova, IovaError, Ranges};
use pollring_hugepages::Region;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One numbering for the process: two regions never share an address, even in different spaces, so a frame that goes to
/// the wrong device faults instead of reaching other memory.
static TAKEN: Mutex<Allocator> = Mutex::new(Allocator::new());

/// Addresses below this are never used: 0 is what a forgotten descriptor holds, and low memory is where firmware maps are.
const LOWEST_IOVA: u64 = 1 << 20;

fn taken() -> MutexGuard<'static, Allocator> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An interval of the numbering, owned.
pub(super) struct Interval(Iova);

impl Interval {
    /// Chooses one that every one of `spaces` allows.
    pub(super) fn new(bytes: usize, align: usize, spaces: &[&AddressSpace]) -> Result<Interval, IovaError> {
        let mut ranges = Ranges::new([(LOWEST_IOVA, u64::MAX)]);
        for space in spaces {
            ranges = ranges.intersect(&space.ranges()?);
        }
        let first = taken().allocate(bytes as u64, align as u64, &ranges);
        Ok(Interval(Iova::new(first.ok_or(IovaError::NoRoom { bytes, align, ranges })?)))
    }

    /// Its first address.
    pub(super) fn first(&self) -> Iova {
        self.0
    }
}

impl Drop for Interval {
    fn drop(&mut self) {
        taken().release(self.0.bits());
    }
}

/// A region with its device address.
pub struct Placement {
    region: Arc<Region>,
    interval: Interval,
}

impl Placement {
    /// Chooses an address that every one of `spaces` allows, aligned to the region's page size.
    ///
    /// # Errors
    /// No such address, or a space's ranges could not be read.
    pub fn new(region: Arc<Region>, spaces: &[&AddressSpace]) -> Result<Arc<Placement>, IovaError> {
        let interval = Interval::new(region.bytes(), region.page_size().bytes(), spaces)?;
        Ok(Arc::new(Placement { region, interval }))
    }

    /// The memory.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The device address of its first byte.
    pub fn iova(&self) -> Iova {
        self.interval.first()
    }
}

/// A placement that the devices of one space reach; ends when dropped.
pub struct Mapping {
    space: AddressSpace,
    placement: Arc<Placement>,
    direction: Direction,
}

impl Mapping {
    pub(super) fn new(space: AddressSpace, placement: Arc<Placement>, direction: Direction) -> Mapping {
        Mapping { space, placement, direction }
    }

    /// The space.
    pub fn space(&self) -> &AddressSpace {
        &self.space
    }

    /// What it maps.
    pub fn placement(&self) -> &Arc<Placement> {
        &self.placement
    }

    /// What devices may do with it.
    pub fn direction(&self) -> Direction {
        self.direction
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let first = self.placement.iova().bits();
        if let Err(error) = self.space.unmap(first, self.placement.region.bytes()) {
            // Devices may still reach it, so neither the memory nor its address may be used again.
            tracing::error!(%error, iova = format_args!("{first:#x}"), "memory stays mapped and is leaked");
            std::mem::forget(self.placement.clone());
        }
    }
}
