//! Device addresses: what a device calls memory, and who decides it.
//!
//! IOVAs are ours. A region gets one IOVA ([`Placement`]), the same in every address space that maps it, so that a
//! frame's device address is arithmetic. An [`AddressSpace`] is one translation table of the IOMMU: devices join it,
//! placements are mapped into it with a [`Direction`], and what is not mapped cannot be reached. The order is: make the
//! space, let every device join (each may narrow the allowed ranges), place and map memory, run, quiesce the devices,
//! drop the mappings.

mod allocator;
mod bar;
mod mapping;

pub use allocator::{Allocator, Ranges};
pub use bar::BarMapping;
pub use mapping::{Mapping, Placement};

use crate::bus::MappedBar;
use pollring_hugepages::Region;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use thiserror::Error;

/// A device address. There is no public constructor: an `Iova` comes only from memory that was placed for DMA, so a
/// driver can pass addresses on but not make them up.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, zerocopy::IntoBytes, zerocopy::Immutable,
)]
#[repr(transparent)]
pub struct Iova(u64);

impl Iova {
    #[inline]
    pub(crate) const fn new(bits: u64) -> Iova {
        Iova(bits)
    }

    /// The address as a device reads it.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }
}

/// What devices may do with mapped memory. It belongs to memory, not to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Devices read it and never fill it: generated frames, protocol headers, send buffers.
    ToDevice,
    /// Devices fill it; a zero-copy forwarder lets another device read the same bytes, hence both.
    Both,
}

/// The translation table behind an [`AddressSpace`]: VFIO's container or IOAS, or the simulated one.
pub trait Iommu: Send + Sync {
    /// The ranges that may be mapped now; read again after each attach, since they narrow.
    fn ranges(&self) -> io::Result<Ranges>;
    /// Lets devices reach `region` at `iova`, pinned until it is unmapped.
    fn map(&self, iova: u64, region: &Arc<Region>, direction: Direction) -> io::Result<()>;
    /// Lets devices reach the memory of another device's BAR at `iova`, until it is unmapped.
    fn map_bar(&self, _iova: u64, _bar: &Arc<MappedBar>, _direction: Direction) -> io::Result<()> {
        let what = "devices behind this table reach memory of this process only; use an engine behind VFIO";
        Err(io::Error::new(io::ErrorKind::Unsupported, what))
    }
    /// Ends what `map` or `map_bar` began at `iova`; once it returned, no device reaches the memory through it.
    fn unmap(&self, iova: u64, bytes: usize) -> io::Result<()>;
}

/// Why memory could not be placed or mapped, or a device could not join.
#[derive(Debug, Error)]
pub enum IovaError {
    /// The allowed ranges have no free interval of that size and alignment.
    #[error(
        "place {bytes} bytes aligned to {align}: no free interval in the ranges that all spaces and device masks \
         allow ({ranges:?}); use smaller regions or a device with a wider DMA mask"
    )]
    NoRoom {
        /// Size asked.
        bytes: usize,
        /// Alignment asked.
        align: usize,
        /// What is allowed.
        ranges: Ranges,
    },
    /// The space does not allow the interval that the region already has elsewhere.
    #[error(
        "map {bytes} bytes at IOVA {iova:#x} in space `{space}`: outside its ranges ({ranges:?}); place the region with \
         all its spaces listed, so that an address is chosen that suits each"
    )]
    OutsideRanges {
        /// The space.
        space: String,
        /// The region's address.
        iova: u64,
        /// Its size.
        bytes: usize,
        /// What the space allows.
        ranges: Ranges,
    },
    /// A device's mask or reserved windows exclude memory that is mapped already.
    #[error(
        "attach `{device}` to space `{space}`: its ranges exclude the mapping at IOVA {iova:#x}; let every device join \
         before memory is mapped"
    )]
    WouldInvalidate {
        /// The device.
        device: String,
        /// The space.
        space: String,
        /// First address of the mapping in the way.
        iova: u64,
    },
    /// The region is mapped in this space already.
    #[error("map IOVA {iova:#x} in space `{space}`: mapped there already; keep and share the first mapping")]
    AlreadyMapped {
        /// The space.
        space: String,
        /// The region's address.
        iova: u64,
    },
    /// The IOMMU refused.
    #[error("{step} in space `{space}`: {error}; the kernel log may name the reason")]
    Iommu {
        /// What was tried.
        step: &'static str,
        /// The space.
        space: String,
        /// The errno.
        error: io::Error,
    },
}

/// One translation table and the devices that joined it; clones are handles to the same one.
#[derive(Clone)]
pub struct AddressSpace(Arc<Space>);

struct Space {
    name: String,
    iommu: Arc<dyn Iommu>,
    state: Mutex<State>,
}

struct State {
    mask: u64,
    mapped: Vec<Mapped>,
}

/// An interval that devices of a space reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// First address.
    pub first: u64,
    /// Last address.
    pub last: u64,
    /// What they may do there.
    pub direction: Direction,
    /// The region's name.
    pub name: String,
}

impl std::fmt::Display for Mapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` ({:#x}-{:#x})", self.name, self.first, self.last)
    }
}

impl AddressSpace {
    /// A space over `iommu`; the name appears in errors.
    pub fn new(name: &str, iommu: Arc<dyn Iommu>) -> AddressSpace {
        let state = Mutex::new(State { mask: u64::MAX, mapped: Vec::new() });
        AddressSpace(Arc::new(Space { name: name.to_owned(), iommu, state }))
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The addresses that may be mapped now: what the kernel reports within the masks of the devices that joined.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn ranges(&self) -> Result<Ranges, IovaError> {
        let mask = self.state().mask;
        let ranges = self.0.iommu.ranges().map_err(|error| self.refused("read the IOVA ranges", error))?;
        Ok(ranges.within_mask(mask))
    }

    /// What is mapped now, for reports.
    pub fn mapped(&self) -> Vec<Mapped> {
        self.state().mapped.clone()
    }

    /// How many mappings the space holds.
    pub fn mappings(&self) -> usize {
        self.state().mapped.len()
    }

    /// Whether devices of this space may read all of `bytes` at `iova` and, for [`Direction::Both`], fill them. A driver asks it of memory
    /// whose device drops what the IOMMU refuses and does not say so.
    pub fn covers(&self, iova: Iova, bytes: usize, direction: Direction) -> bool {
        let last = (bytes as u64).checked_sub(1).and_then(|span| iova.bits().checked_add(span));
        let covers = |mapped: &Mapped| {
            mapped.first <= iova.bits()
                && last.is_some_and(|last| last <= mapped.last)
                && (direction == Direction::ToDevice || mapped.direction == direction)
        };
        self.state().mapped.iter().any(covers)
    }

    /// Whether both are handles to one space.
    pub fn is(&self, other: &AddressSpace) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether its table is `iommu`.
    pub fn has_iommu(&self, iommu: &Arc<dyn Iommu>) -> bool {
        Arc::ptr_eq(&self.0.iommu, iommu)
    }

    /// Lets the devices of this space reach `placement`.
    ///
    /// # Errors
    /// Outside the ranges, mapped already, or the IOMMU's errno.
    pub fn map(&self, placement: &Arc<Placement>, direction: Direction) -> Result<Mapping, IovaError> {
        let (first, region) = (placement.iova().bits(), placement.region());
        let map = |iommu: &dyn Iommu| iommu.map(first, region, direction);
        self.enter(first, region.bytes(), direction, region.name(), map)?;
        Ok(Mapping::new(self.clone(), placement.clone(), direction))
    }

    /// Lets the devices of this space reach another device's memory.
    ///
    /// # Errors
    /// No address is free, or the IOMMU refuses: it may not translate to the other device's bus.
    pub fn map_bar(&self, bar: &Arc<MappedBar>, direction: Direction) -> Result<BarMapping, IovaError> {
        BarMapping::new(self.clone(), bar.clone(), direction)
    }

    /// Adds an entry to the table with `map`.
    fn enter(
        &self,
        first: u64,
        bytes: usize,
        direction: Direction,
        name: &str,
        map: impl FnOnce(&dyn Iommu) -> io::Result<()>,
    ) -> Result<(), IovaError> {
        let last = first + (bytes as u64 - 1);
        let ranges = self.ranges()?;
        if !ranges.contains(first, last) {
            let space = self.0.name.clone();
            return Err(IovaError::OutsideRanges { space, iova: first, bytes, ranges });
        }
        let mut state = self.state();
        if state.mapped.iter().any(|other| other.first <= last && first <= other.last) {
            return Err(IovaError::AlreadyMapped { space: self.0.name.clone(), iova: first });
        }
        map(&*self.0.iommu).map_err(|error| self.refused("map memory for DMA", error))?;
        state.mapped.push(Mapped { first, last, direction, name: name.to_owned() });
        Ok(())
    }

    /// A device with `mask` as its highest address joins; called by the bus after the kernel's attach.
    pub(crate) fn narrow(&self, device: &str, mask: u64) -> Result<(), IovaError> {
        let ranges = self.ranges()?.within_mask(mask);
        let mut state = self.state();
        let excluded = state.mapped.iter().find(|mapped| !ranges.contains(mapped.first, mapped.last));
        if let Some(mapped) = excluded {
            let (device, space) = (device.to_owned(), self.0.name.clone());
            return Err(IovaError::WouldInvalidate { device, space, iova: mapped.first });
        }
        state.mask &= mask;
        Ok(())
    }

    fn unmap(&self, first: u64, bytes: usize) -> Result<(), IovaError> {
        let mut state = self.state();
        self.0.iommu.unmap(first, bytes).map_err(|error| self.refused("unmap memory", error))?;
        state.mapped.retain(|mapped| mapped.first != first);
        Ok(())
    }

    fn refused(&self, step: &'static str, error: io::Error) -> IovaError {
        IovaError::Iommu { step, space: self.0.name.clone(), error }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
