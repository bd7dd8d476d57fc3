//! Packet memory: frames, the pools that they come from, and the bursts in which they travel.
//!
//! A [`Frame`] is one word that owns one buffer. It is born in a [`Pool`], goes through a worker's [`Caches`], a ring, a
//! [`Burst`], and returns to its pool: by a cache on the fast path, by `Drop` on any other. Its bytes are references only while
//! the CPU owns it. [`Shared`] is the other kind of memory, which a device or a peer may write at any time.

mod burst;
mod cache;
mod frame;
mod magazine;
mod meta;
mod pool;
mod segment;
pub(crate) mod shared;
mod table;
mod transfer;

pub use burst::{Burst, Frames};
pub use cache::Caches;
pub use frame::Frame;
pub(crate) use frame::{POOL_SHIFT, TAG, iova_at, length_of, pool_of};
pub use meta::Meta;
pub use pool::{Access, Both, Census, Pool, PoolConfig, PoolError, ToDevice};
pub(crate) use segment::SPAN_MARK;
pub use segment::{Chain, Segment, Span};
pub use shared::{Shared, SharedError};
pub(crate) use table::{buffer_bytes, cpu_base, iova_base};
pub use transfer::{FrameReceiver, FrameSender, frame_channel};

/// The most frames in a burst.
pub const BURST: usize = 64;
