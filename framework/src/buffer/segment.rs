//! What a frame on the wire is made of when it is not one buffer: a chain of segments.
//!
//! A segment is a [`Frame`], or a [`Span`]: bytes of registered memory that a device reads where they lie. A span holds a counted
//! handle to its memory until the device is done, and its cookie then comes back through the worker's
//! [`Caches`](super::Caches::take_cookies).

use super::{Frame, POOL_SHIFT, Shared, SharedError};
use crate::iova::Iova;

/// The most segments in a chain.
const MAX_SEGMENTS: usize = 16;

/// Stands for a span where a ring's shadow would have a frame's word; no pool has this id.
pub(crate) const SPAN_MARK: u64 = 255 << POOL_SHIFT;

/// Bytes of registered memory to send.
pub struct Span {
    /// Keeps the memory mapped while a device may read it.
    _memory: Shared,
    iova: Iova,
    bytes: u16,
    /// What comes back when the device no longer needs the memory.
    pub cookie: u64,
}

impl Span {
    /// `bytes` of `memory` from `offset` on.
    ///
    /// # Errors
    /// Out of bounds, or no device reaches the memory.
    pub fn new(memory: &Shared, offset: usize, bytes: u16, cookie: u64) -> Result<Span, SharedError> {
        let part = memory.slice(offset, usize::from(bytes))?;
        let iova = memory.iova(offset)?;
        Ok(Span { _memory: part, iova, bytes, cookie })
    }

    /// The device address.
    pub fn iova(&self) -> Iova {
        self.iova
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        usize::from(self.bytes)
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

/// A part of a frame on the wire.
pub enum Segment {
    /// A buffer of a pool.
    Frame(Frame),
    /// Registered memory.
    Span(Span),
}

impl Segment {
    /// Its length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Segment::Frame(frame) => frame.len(),
            Segment::Span(span) => span.len(),
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The device address of its first byte.
    pub fn iova(&self) -> Iova {
        match self {
            Segment::Frame(frame) => frame.iova(),
            Segment::Span(span) => span.iova(),
        }
    }
}

/// One frame on the wire, in order of its segments; at most 16.
#[derive(Default)]
pub struct Chain(Vec<Segment>);

impl Chain {
    /// No segment yet.
    pub fn new() -> Chain {
        Chain::default()
    }

    /// Appends a segment.
    ///
    /// # Errors
    /// The segment comes back when there are 16.
    pub fn push(&mut self, segment: Segment) -> Result<(), Segment> {
        if self.0.len() == MAX_SEGMENTS {
            return Err(segment);
        }
        self.0.push(segment);
        Ok(())
    }

    /// The segments.
    pub fn segments(&self) -> &[Segment] {
        &self.0
    }

    /// Takes the chain apart.
    pub fn into_segments(self) -> impl Iterator<Item = Segment> {
        self.0.into_iter()
    }

    /// Length of the whole frame in bytes.
    pub fn len(&self) -> usize {
        self.0.iter().map(Segment::len).sum()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Frame> for Chain {
    fn from(frame: Frame) -> Chain {
        Chain(vec![Segment::Frame(frame)])
    }
}
