//! Wrappers: what is done to the frames of any port, as a queue around its queue and never as a branch in a driver.
//!
//! A wrapper owns the queue that it wraps, is used by the same worker, and keeps the promises of [`RxQueue`](super::RxQueue): the frames
//! that it holds come home when it is dropped.

mod copier;

pub use copier::{Copier, CopierCounters};
