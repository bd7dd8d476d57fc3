//! RDMA by its own words: the verbs, as traits that a transport implements.
//!
//! A [`Device`] is control: it registers memory and makes queues, on the control thread. The queues are the data path:
//! [`QueuePair`], [`CompletionQueue`] and [`SharedReceiveQueue`] are `Send`, used as boxed trait objects by the one worker that
//! owns them, and take `&mut self`. A queue pair and its completion queues share a vector, that is, one interrupt of hardware or
//! one worker of a software transport, which must be polled there.
//!
//! What holds for every transport:
//! - Memory is [`Shared`](crate::buffer::Shared). A request holds counted handles to its regions, and the transport keeps them
//!   from post to completion, signalled or not. So [`MemoryRegion::deregister`] knows when nothing is in flight.
//! - A batch is taken from the front as far as it fits; the rest stays with the caller.
//! - Posting may write descriptors at once or later; `flush` rings one doorbell for all of them.
//! - Every signalled request completes exactly once, in order, or is flushed with a status when its QP goes to error.
//! - Nothing falls back to another transport.
//!
//! The order: device, PD, memory, CQ, QP; [`Modify`] it to RTS by hand or as [`cm`] says; post, flush, poll; drop the QP before
//! its CQ.

pub mod cm;
mod cq;
mod device;
mod memory;
mod number;
mod qp;
mod state;
mod work;

pub use cq::{
    Armed, Attached, Completion, CompletionFlags, CompletionQueue, Completions, CqConfig, CqNumber,
};
pub use cq::{Notify, Opcode, Status};
pub use device::{
    AddressHandle, AddressVector, AsyncEvent, AtomicScope, Device, DeviceAttributes, Features, Gid,
};
pub use device::{GidEntry, Mtu, PortAttributes, PortState, ProtectionDomain, Provider};
pub use memory::{
    Access, AccessError, Deregistration, MemoryRegion, Registration, RemoteAccess, Revoke, Target,
};
pub use memory::{WeakRegion, authorize};
pub use number::{LKey, PKey, Psn, QKey, Qpn, RKey};
pub use qp::{
    Failure, Layer, QpAttributes, QpConfig, QueuePair, Receives, Refused, SharedReceiveQueue, Signalling,
};
pub use qp::{SrqConfig, SrqNumber};
pub use state::{
    Attempts, Connection, Drain, IllegalTransition, Init, Modify, ModifyError, QpType, ReadyToReceive,
};
pub use state::{ReadyToSend, Retry, State, WorkQueue, transition};
pub use work::{
    Destination, Inline, Payload, PostError, QpLimits, ReceiveRequest, Remote, SendFlags, SendOperation,
};
pub use work::{SendRequest, Sge, SgeList};

use std::io;
use thiserror::Error;

/// Why something could not be set up.
#[derive(Debug, Error)]
pub enum RdmaError {
    /// More than the device has.
    #[error("{what}: {asked} asked, the device allows {limit}; ask for less, or drop what is no longer used")]
    Limit {
        /// Which attribute.
        what: &'static str,
        /// What was asked.
        asked: u64,
        /// What is left or allowed.
        limit: u64,
    },
    /// The device does not have it.
    #[error("{0}: this transport does not offer it; see its features, or choose another transport")]
    Unsupported(&'static str),
    /// A number that names nothing, or something of another device or vector.
    #[error(
        "{what} {number}: no such object on this device and vector; create it there, and keep its handle"
    )]
    Unknown {
        /// What kind of object.
        what: &'static str,
        /// Its number.
        number: u32,
    },
    /// Rights that need others (ibv_reg_mr(3)).
    #[error("register memory with {0:?}: remote write and remote atomic need local write; add it")]
    Rights(Access),
    /// Memory that cannot be registered as asked.
    #[error("register {bytes} bytes at address {base:#x}: {reason}")]
    Memory {
        /// Address by which peers would name the first byte.
        base: u64,
        /// Size.
        bytes: usize,
        /// Why not, and what to do.
        reason: &'static str,
    },
    /// An address that cannot be used from here.
    #[error("reach {to} from {from}: {reason}")]
    Address {
        /// The peer.
        to: std::net::IpAddr,
        /// The local address.
        from: std::net::IpAddr,
        /// Why not, and what to do.
        reason: &'static str,
    },
    /// The device, its port or the kernel refused.
    #[error("{step}: {error}")]
    Refused {
        /// What was tried.
        step: &'static str,
        /// What happened.
        error: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_objects_that_move_and_regions_are_shared() {
        fn moves<T: Send + ?Sized>() {}
        fn shared<T: Send + Sync>() {}
        moves::<dyn Device>();
        moves::<dyn QueuePair>();
        moves::<dyn CompletionQueue>();
        moves::<dyn SharedReceiveQueue>();
        moves::<dyn cm::ConnectionManager>();
        moves::<dyn cm::Listener>();
        moves::<dyn cm::Incoming>();
        moves::<dyn cm::Dialogue>();
        moves::<SendRequest>();
        shared::<MemoryRegion>();
        shared::<AddressHandle>();
    }
}
