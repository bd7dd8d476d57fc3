//! Memory that does not move, for DMA, and large tables for the CPU. This crate owns the mappings; what a device may reach
//! of them is decided above, in `framework/src/iova`.
//!
//! Read in this order:
//! - [`PageSize`], [`Pages`] and [`NumaNode`] (`page.rs`) name page sizes and nodes and round sizes up.
//! - [`Region`] (`region.rs`) is DMA memory: a sealed memfd, mapped shared, populated, bound to a node. A shortage is a
//!   [`RegionError`] with the figures, before anything is touched; it is never a SIGBUS.
//! - [`pool`] (`pool.rs`, `budget.rs`) is what the machine has reserved: report, reserve, release, and a [`pool::Budget`] of
//!   what one app may use per node.
//! - [`Table`] (`table.rs`) is memory for the CPU only. It has no fd, so no device and no peer ever gets it.
//! - [`RegionError`] and [`pool::PoolError`] (`error.rs`) say what was tried, what happened and what to do next.
//! - `populate.rs` and `meminfo.rs` are the two helpers: fault pages in with an error, read the kernel's memory figures.
//!
//! The order of calls: an operator or test runs [`pool::reserve`] once; an app takes from its budget, then calls
//! [`Region::allocate`] per trust domain, and hands the region on in an `Arc`; the last owner's drop gives the pages back to
//! the machine's pool. Nothing stays behind after a crash, because no file has a name.
//!
//! Pinning is not done here. A 4 KiB region can be swapped or migrated until an IOMMU mapping pins it, and that mapping is
//! what counts against RLIMIT_MEMLOCK (per process with VFIO type1, per user with iommufd). Huge pages are never swapped.
//!
//! `unsafe` is allowed in this crate: it is the system calls on mappings, each with the invariant that it leans on.

mod budget;
mod error;
mod meminfo;
mod page;
pub mod pool;
mod populate;
mod region;
mod table;

pub use error::RegionError;
pub use page::{NumaNode, PageSize, Pages};
pub use region::{Region, RegionConfig};
pub use table::{Backing, Table, TableError};

#[cfg(test)]
mod tests;
