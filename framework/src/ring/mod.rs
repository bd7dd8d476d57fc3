//! Descriptor rings: the memory that a device and a driver share, and the driver's own record of it.
//!
//! [`RingMemory`] holds the rings of one port. A [`ReceiveRing`] or [`TransmitRing`] is one of them with its shadow: a record, in
//! memory of the CPU's own, of which frame lies in which slot. The shadow owns the frames that the device may touch, so a
//! lying descriptor costs a frame and a counter. Ownership ends in one of three ways: the device is done, the ring is dropped after
//! DMA has ended, or the queue dies with DMA on, and then its frames wait in the session's quarantine.

mod descriptor;
pub mod fence;
mod memory;
mod receive;
mod session;
pub mod spsc;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
mod transmit;
pub mod virtqueue;

pub use descriptor::{Descriptor, Slot};
pub use memory::{RingLayout, RingMemory, RingMemoryError};
pub use receive::{Collected, ReceiveDescriptor, ReceiveRing};
pub use session::{Lease, Session};
pub use transmit::{Outgoing, Report, SendLimits, Sent, TransmitRing};
