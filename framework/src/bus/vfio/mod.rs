//! PCI functions through the kernel's VFIO (Documentation/driver-api/vfio.rst).
//!
//! A [`Container`] is one translation table of the IOMMU and the [`Iommu`](crate::iova::Iommu) of one address space. A function is
//! opened into it ([`Container::open`]) by way of its IOMMU group, which one process has at a time: that is what makes a device
//! ours alone. The container keeps its groups until the last mapping is gone, so the order of the drops does not matter; a closed
//! device is reset by the kernel. Every errno comes back with what to do about it.

mod device;
mod group;
pub(super) mod region;
pub(super) mod sys;

pub use group::{Container, VfioError};

use std::io;

/// An errno, and what its reader can do.
fn advised(error: io::Error, advice: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{error}; {advice}"))
}

/// What to do when memory cannot be pinned, with the limit as it is.
fn memlock_advice() -> String {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one struct rlimit, which lives through the call.
    let read = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    let present =
        if read == 0 { format!("it is {} bytes now", limit.rlim_cur) } else { "unknown".to_owned() };
    format!(
        "{present}: raise it (`ulimit -l`, LimitMEMLOCK= of a unit, limits.conf) or give the process CAP_IPC_LOCK"
    )
}
