//! A device's memory in the table of another: peer-to-peer DMA, such as an engine that copies into an accelerator.
//!
//! The BAR has no page of this host's memory behind it, so it is [`Shared`](crate::buffer::Shared) memory and never a frame. A mapping
//! outlives the handles to it, and keeps the BAR mapped; a BAR whose device was reset or has its memory space off is still in
//! the table, and what an engine reads there is then the bus's answer (all ones).

use super::mapping::Interval;
use super::{AddressSpace, Direction, Iommu, Iova, IovaError};
use crate::bus::MappedBar;
use std::sync::Arc;

/// Alignment of a BAR in a table: an IOMMU's larger page, so that a large BAR takes few entries.
const LARGE_PAGE_BYTES: usize = 2 << 20;

/// A BAR that the devices of one space reach; ends when dropped.
pub struct BarMapping {
    space: AddressSpace,
    bar: Arc<MappedBar>,
    interval: Arc<Interval>,
}

impl BarMapping {
    pub(super) fn new(
        space: AddressSpace,
        bar: Arc<MappedBar>,
        direction: Direction,
    ) -> Result<BarMapping, IovaError> {
        let interval = Interval::new(bar.bytes(), LARGE_PAGE_BYTES, &[&space])?;
        let first = interval.first().bits();
        let map = |iommu: &dyn Iommu| iommu.map_bar(first, &bar, direction);
        space.enter(first, bar.bytes(), direction, "a BAR", map)?;
        Ok(BarMapping { space, bar, interval: Arc::new(interval) })
    }

    /// The space.
    pub fn space(&self) -> &AddressSpace {
        &self.space
    }

    /// What it maps.
    pub fn bar(&self) -> &Arc<MappedBar> {
        &self.bar
    }

    /// The device address of its first byte.
    pub fn iova(&self) -> Iova {
        self.interval.first()
    }
}

impl Drop for BarMapping {
    fn drop(&mut self) {
        let first = self.iova().bits();
        if let Err(error) = self.space.unmap(first, self.bar.bytes()) {
            // Devices may still reach it, so neither the BAR nor its address may be used again.
            tracing::error!(%error, iova = format_args!("{first:#x}"), "a BAR stays mapped and is leaked");
            std::mem::forget((self.bar.clone(), self.interval.clone()));
        }
    }
}
