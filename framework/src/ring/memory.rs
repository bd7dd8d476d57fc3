//! The memory of a port's rings: one region, shared by all of them.
//!
//! Rings lie one behind the other, each start shifted by a few lines, so that entries with the same index do not fall into the same
//! set of the CPU's cache. The memory is counted: a queue that outlives its port keeps it mapped.

use crate::iova::{AddressSpace, Direction, IovaError, Mapping, Placement};
use pollring_hugepages::{NumaNode, Pages, Region, RegionConfig, RegionError};
use std::sync::Arc;
use thiserror::Error;

/// Base addresses of rings are multiples of this (82576 datasheet 8.10.5 asks for 128, virtio for less).
const RING_ALIGN: usize = 128;

/// How far each ring's start is shifted against the one before: 5 lines, prime to the number of sets.
const STAGGER: usize = 5 * RING_ALIGN;

/// Why there is no memory for rings.
#[derive(Debug, Error)]
pub enum RingMemoryError {
    /// No memory.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// No device address.
    #[error("rings of `{name}`: {error}")]
    Iova {
        /// The port.
        name: String,
        /// Why.
        error: IovaError,
    },
}

/// Where each ring of a port lies.
#[derive(Default)]
pub struct RingLayout {
    bytes: usize,
}

impl RingLayout {
    /// Nothing laid out yet.
    pub fn new() -> RingLayout {
        RingLayout::default()
    }

    /// Reserves a ring of `bytes`; gives its offset.
    pub fn ring(&mut self, bytes: usize) -> usize {
        let offset = self.bytes;
        self.bytes = (offset + bytes + STAGGER).next_multiple_of(RING_ALIGN);
        offset
    }
}

/// The mapped memory of a port's rings.
pub struct RingMemory {
    mapping: Mapping,
}

impl RingMemory {
    /// Memory for `layout`, on a huge page if there is one, mapped both ways into `space`.
    ///
    /// # Errors
    /// No memory, no device address, or the IOMMU refuses.
    pub fn new(
        name: &str,
        layout: &RingLayout,
        space: &AddressSpace,
        node: Option<NumaNode>,
    ) -> Result<Arc<RingMemory>, RingMemoryError> {
        let config = RegionConfig {
            name: format!("rings of {name}"),
            bytes: layout.bytes,
            pages: Pages::Huge2M,
            node,
        };
        let region = Arc::new(Region::allocate_or_small(&config)?);
        let named = |error| RingMemoryError::Iova { name: name.to_owned(), error };
        let placement = Placement::new(region, &[space]).map_err(named)?;
        let mapping = space.map(&placement, Direction::Both).map_err(named)?;
        Ok(Arc::new(RingMemory { mapping }))
    }

    pub(super) fn placement(&self) -> &Arc<Placement> {
        self.mapping.placement()
    }
}
