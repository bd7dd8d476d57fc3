//! Virtqueues: what a virtio device and its driver share (Virtio 1.2, 2.6 to 2.8), and the driver's own record of it.
//!
//! A [`Format`] is the shared memory alone: [`Split`] or [`Packed`]. A [`ReceiveQueue`] or [`TransmitQueue`] is a format with its
//! shadow, and it alone decides: which frame lies in which slot, how long it is, which slots the device has. Slots are taken in ring
//! order and freed in ring order, whatever order the device works in; so a split queue's available ring is written once, and the id
//! of a buffer is its slot. The order of calls is `post` or `send`, then [`kick_due`](ReceiveQueue::kick_due) once a
//! burst, then `collect` or `reclaim`. A queue ends as every ring does: through its lease, or by `recall` when its peer is gone.

mod control;
mod format;
mod packed;
mod receive;
mod split;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
mod transmit;
mod words;

pub use control::{ControlError, ControlQueue};
pub use format::{Format, Order, QueueOptions, QueuePlaces, Suppression};
pub use packed::Packed;
pub use receive::{Merging, ReceiveQueue};
pub use split::Split;
pub use transmit::{Reclaimed, TransmitQueue};

use crate::buffer::{Both, Pool};

/// Bytes of the header in front of every frame (`struct virtio_net_hdr_v1`, 5.1.6).
pub const HEADER_BYTES: usize = 12;

/// Entries of a queue at most (2.6: 32768; one bit of a packed queue's index is its wrap counter).
pub const MOST_ENTRIES: usize = 32768;

/// Whether the buffers of `pool` have room for the header in front of a received frame.
pub fn header_fits(pool: &Pool<Both>) -> bool {
    crate::buffer::buffer_bytes(pool.id()) - pool.room_bytes() >= HEADER_BYTES
}
