//! The memory of an engine's descriptors, and why an engine could not be opened.
//!
//! Descriptors lie in [`Shared`] memory: the engine may write to it at any time, so a driver keeps what it relies on in its
//! own record ([`Outstanding`](super::Outstanding)) and reads from here only what it checks.

use crate::buffer::{Shared, SharedError};
use crate::bus::BusError;
use crate::iova::{AddressSpace, Direction, IovaError, Placement};
use crate::ring::RingMemoryError;
use pollring_hugepages::{Pages, Region, RegionConfig};
use std::sync::Arc;
use thiserror::Error;

/// Why an engine could not be opened.
#[derive(Debug, Error)]
pub enum EngineError {
    /// The bus or the space refuses.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// No memory for descriptors.
    #[error(transparent)]
    Memory(#[from] RingMemoryError),
    /// The descriptors have no device address.
    #[error(transparent)]
    Shared(#[from] SharedError),
    /// The device is none that the driver can run, or describes itself wrongly.
    #[error("open the copy engine `{device}`: {what}")]
    Unsupported {
        /// The device.
        device: String,
        /// What is wrong, and what to do.
        what: String,
    },
}

/// Zeroed memory of at least `bytes` for the descriptors of `name`, on a huge page if there is one, mapped both ways.
///
/// # Errors
/// No memory, no device address, or the IOMMU refuses.
pub fn descriptor_memory(name: &str, bytes: usize, space: &AddressSpace) -> Result<Shared, RingMemoryError> {
    let config = RegionConfig {
        name: format!("descriptors of {name}"),
        bytes: bytes.next_multiple_of(4096),
        pages: Pages::Huge2M,
        node: None,
    };
    let region = Arc::new(Region::allocate_or_small(&config)?);
    let named = |error: IovaError| RingMemoryError::Iova { name: name.to_owned(), error };
    let placement = Placement::new(region, &[space]).map_err(named)?;
    let mapping = space.map(&placement, Direction::Both).map_err(named)?;
    Ok(Shared::mapped(Arc::new(mapping)))
}
