//! The client's side of vfio-user: a PCI function that another process is (QEMU's docs/interop/vfio-user.rst).
//!
//! A [`Peer`] is one socket and the [`Iommu`](crate::iova::Iommu) of one address space: what is mapped goes to the peer as a memfd of ours
//! with our IOVA. The order is [`Peer::connect`], [`Peer::open`], which gives the function for
//! [`Device::open`](crate::bus::Device::open), and dropping both, which closes the socket; the peer resets the function then. No privilege
//! is needed. A peer that closes the socket, breaks the protocol or gives no answer is cut off for good: registers read as all ones
//! from then on, and the device is `Gone`. Each exchange ends within twice [`REPLY_LIMIT`].
//!
//! **Trust.** Nothing that a peer says is believed before it is checked, and its memory is mapped only where it cannot take it away.
//! But whoever gets a memfd sees all of it and may write to all of it: the direction of a mapping binds no peer.

mod device;
mod peer;
mod protocol;
mod region;
#[cfg(test)]
mod tests;
mod wire;

pub use peer::Peer;
pub use wire::{PeerError, REPLY_LIMIT};

use std::io;
use thiserror::Error;

/// Why a peer's function cannot be used.
#[derive(Debug, Error)]
pub enum VfioUserError {
    /// Nobody listens.
    #[error(
        "connect to the vfio-user device at {path}: {error}; start it (`pollring simulate`), or check the path and its rights"
    )]
    Connect {
        /// The socket.
        path: String,
        /// The errno.
        error: io::Error,
    },
    /// The peer does not do its part.
    #[error("{step} at the vfio-user device {path}: {error}")]
    Exchange {
        /// What was tried.
        step: &'static str,
        /// The socket.
        path: String,
        /// What happened.
        error: PeerError,
    },
    /// It is something else.
    #[error("the vfio-user device {path} cannot be used: {what}; serve a PCI function there")]
    Unfit {
        /// The socket.
        path: String,
        /// What is wrong with it.
        what: &'static str,
    },
}
