//! Copy engines: memory moved inside one host by descriptors, through the IOMMU.
//!
//! A [`Channel`] is one queue of one engine and belongs to one worker. An [`Operation`] owns both ends of its memory from
//! [`submit`](Channel::submit) until [`poll`](Channel::poll) hands it back in its [`Completion`], so nothing in flight can be
//! freed. The calls go: submit as often as there is room, [`flush`](Channel::flush) once, poll until all came back.
//!
//! What every engine keeps, and one suite checks on each:
//! - Each submitted operation completes exactly once, and completions come in the order of submission, whatever order an
//!   engine works in. One that finishes out of order is reported late by its driver.
//! - Data moves in any order unless an operation is [fenced](Flags::FENCE).
//! - A channel that halts, by itself after a fault or by [`halt`](Channel::halt), completes everything that it did not finish
//!   as [`Status::Aborted`], in order. It refuses work until [`reset`](Channel::reset).
//! - What an engine cannot do is refused at submit, by [`Limits::check`], and the operation comes back.
//!
//! An engine is chosen by name. None falls back to another: who wants the CPU asks for [`MemcpyChannel`].

mod end;
mod fifo;
mod memcpy;
mod memory;
mod outstanding;

pub use end::{End, Piece};
pub use fifo::Fifo;
pub use memcpy::MemcpyChannel;
pub use memory::{EngineError, descriptor_memory};
pub use outstanding::Outstanding;

use crate::bus::{BusError, Health};
use crate::iova::Iova;
use bitflags::bitflags;
use std::fmt;
use std::os::fd::BorrowedFd;
use thiserror::Error;

bitflags! {
    /// How an operation is ordered among its neighbours.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Flags: u8 {
        /// It starts only when all operations submitted before it have moved their data. A driver whose descriptor bit holds
        /// back the next descriptor instead (I/OAT) sets it on the one before, or adds an empty one.
        const FENCE = 1;
    }

    /// What an engine can do.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Capabilities: u8 {
        /// [`Kind::Copy`].
        const COPY = 1;
        /// [`Kind::Fill`].
        const FILL = 1 << 1;
        /// [`Kind::CopyList`].
        const SCATTER_GATHER = 1 << 2;
    }
}

/// What is to be done, and to which memory.
#[derive(Debug)]
#[non_exhaustive]
pub enum Kind {
    /// Copies one piece of memory; both ends are equally long.
    Copy {
        /// Read.
        source: End,
        /// Written.
        destination: End,
    },
    /// Copies the concatenated sources to the concatenated destinations; both sums are equal. One completion for all.
    CopyList {
        /// Read, in order.
        sources: Vec<End>,
        /// Written, in order.
        destinations: Vec<End>,
    },
    /// Repeats a little-endian pattern; the last one is cut if the length is no multiple of 8.
    Fill {
        /// Written.
        destination: End,
        /// The pattern.
        pattern: u64,
    },
}

/// One request to an engine. It owns its memory, so it comes back in a [`Completion`] or in a [`Rejected`].
#[derive(Debug)]
pub struct Operation {
    /// What to do.
    pub kind: Kind,
    /// Ordering.
    pub flags: Flags,
    /// The caller's own word, for finding what the operation belongs to.
    pub cookie: u64,
}

impl Operation {
    /// A copy of `source` to `destination`, unordered.
    pub fn copy(source: impl Into<End>, destination: impl Into<End>, cookie: u64) -> Operation {
        let kind = Kind::Copy { source: source.into(), destination: destination.into() };
        Operation { kind, flags: Flags::empty(), cookie }
    }

    /// A fill of `destination`, unordered.
    pub fn fill(destination: impl Into<End>, pattern: u64, cookie: u64) -> Operation {
        let kind = Kind::Fill { destination: destination.into(), pattern };
        Operation { kind, flags: Flags::empty(), cookie }
    }

    /// The same, but started only after all earlier ones.
    #[must_use]
    pub fn fenced(mut self) -> Operation {
        self.flags |= Flags::FENCE;
        self
    }

    /// What is read, in order; empty for a fill.
    pub fn sources(&self) -> &[End] {
        match &self.kind {
            Kind::Copy { source, .. } => std::slice::from_ref(source),
            Kind::CopyList { sources, .. } => sources,
            Kind::Fill { .. } => &[],
        }
    }

    /// What is written, in order.
    pub fn destinations(&self) -> &[End] {
        match &self.kind {
            Kind::Copy { destination, .. } | Kind::Fill { destination, .. } => {
                std::slice::from_ref(destination)
            }
            Kind::CopyList { destinations, .. } => destinations,
        }
    }

    /// Both, for an engine that writes by CPU address.
    fn ends_mut(&mut self) -> (&[End], &mut [End]) {
        match &mut self.kind {
            Kind::Copy { source, destination } => {
                (std::slice::from_ref(source), std::slice::from_mut(destination))
            }
            Kind::CopyList { sources, destinations } => (sources, destinations),
            Kind::Fill { destination, .. } => (&[], std::slice::from_mut(destination)),
        }
    }

    /// The length of the result, in bytes.
    pub fn bytes(&self) -> usize {
        end::total(self.destinations())
    }

    /// The contiguous copies that it consists of, in order: what a driver writes a descriptor for. Empty for a fill.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> + '_ {
        let mut walk = end::Walk::default();
        std::iter::from_fn(move || walk.next(self.sources(), self.destinations()))
    }
}

/// What an engine takes, as read from the engine where it says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// What it can do.
    pub capabilities: Capabilities,
    /// The longest operation, in bytes; for a list, the longest piece of it.
    pub max_bytes: usize,
    /// Addresses and lengths of pieces are multiples of this, a power of two; 1 is no constraint.
    pub alignment_bytes: usize,
    /// How many operations may be outstanding.
    pub depth: usize,
    /// How many pieces a list may have.
    pub max_pieces: usize,
    /// Whether it reaches memory by device address.
    pub reach: Reach,
}

/// By which address an engine reaches memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// By IOVA: ends must be mapped in the engine's space.
    Mapped,
    /// By CPU address.
    Process,
}

impl Limits {
    /// Whether an engine with these limits takes `operation`. Every driver asks this first.
    ///
    /// # Errors
    /// The first limit that it exceeds.
    pub fn check(&self, operation: &Operation) -> Result<(), Reason> {
        let (needed, name) = match operation.kind {
            Kind::Copy { .. } => (Capabilities::COPY, "copy"),
            Kind::CopyList { .. } => (Capabilities::SCATTER_GATHER, "copy list"),
            Kind::Fill { .. } => (Capabilities::FILL, "fill"),
        };
        if !self.capabilities.contains(needed) {
            return Err(Reason::Unsupported(name));
        }
        let (sources, destinations) = (operation.sources(), operation.destinations());
        let (source, destination) = (end::total(sources), end::total(destinations));
        if destination == 0 || sources.iter().chain(destinations).any(|end| end.bytes() == 0) {
            return Err(Reason::Empty);
        }
        if needed == Capabilities::FILL {
            return self.check_piece(destination, &[destinations[0].iova(0)]);
        }
        if source != destination {
            return Err(Reason::Unequal { source_bytes: source, destination_bytes: destination });
        }
        self.check_pieces(operation)
    }

    fn check_pieces(&self, operation: &Operation) -> Result<(), Reason> {
        if matches!(operation.kind, Kind::CopyList { .. }) {
            let (pieces, limit) = (operation.pieces().count(), self.max_pieces);
            if pieces > limit {
                return Err(Reason::TooManyPieces { pieces, limit });
            }
        }
        for piece in operation.pieces() {
            self.check_piece(piece.bytes, &[piece.source, piece.destination])?;
        }
        let (sources, destinations) = (operation.sources(), operation.destinations());
        if sources.iter().any(|source| destinations.iter().any(|destination| source.overlaps(destination))) {
            return Err(Reason::Overlap);
        }
        Ok(())
    }

    fn check_piece(&self, bytes: usize, ends: &[Option<Iova>]) -> Result<(), Reason> {
        if bytes > self.max_bytes {
            return Err(Reason::TooLong { bytes, limit: self.max_bytes });
        }
        if self.reach == Reach::Process {
            return Ok(());
        }
        let mask = self.alignment_bytes - 1;
        for end in ends {
            let at = end.ok_or(Reason::NotMapped)?;
            if (at.bits() as usize | bytes) & mask != 0 {
                return Err(Reason::Misaligned { alignment_bytes: self.alignment_bytes });
            }
        }
        Ok(())
    }
}

/// Why an operation was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Reason {
    /// As many operations are outstanding as the engine takes.
    #[error("the channel is full with {0} operations; flush, poll and submit again")]
    Full(usize),
    /// The channel halted.
    #[error("the channel is halted; poll what it aborted and reset it")]
    Halted,
    /// The engine has no such operation.
    #[error("the engine has no operation `{0}`; see its capabilities, or choose another engine")]
    Unsupported(&'static str),
    /// An end without bytes.
    #[error("an end has no bytes; leave it out")]
    Empty,
    /// Source and destination differ in length.
    #[error("{source_bytes} bytes to read, {destination_bytes} to write; make them equal")]
    Unequal {
        /// Bytes of all sources.
        source_bytes: usize,
        /// Bytes of all destinations.
        destination_bytes: usize,
    },
    /// Longer than the engine takes.
    #[error("{bytes} bytes in one piece, the engine takes {limit}; split it")]
    TooLong {
        /// Bytes asked.
        bytes: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// A list with more pieces than the engine takes.
    #[error("a list of {pieces} pieces, the engine takes {limit}; split it")]
    TooManyPieces {
        /// Pieces asked.
        pieces: usize,
        /// Pieces allowed.
        limit: usize,
    },
    /// An address or a length that the engine cannot express.
    #[error(
        "an address or length is not a multiple of {alignment_bytes}; align it, or copy that part with the CPU"
    )]
    Misaligned {
        /// What it must be a multiple of.
        alignment_bytes: usize,
    },
    /// Source and destination share bytes: the result would depend on the engine.
    #[error("source and destination overlap; copy by way of other memory")]
    Overlap,
    /// Memory without a device address.
    #[error("the memory is not mapped for devices; map its region into the engine's address space")]
    NotMapped,
}

/// An operation that was not taken.
#[derive(Debug, Error)]
#[error("submit operation {}: {reason}", operation.cookie)]
pub struct Rejected {
    /// The operation, unchanged.
    pub operation: Operation,
    /// Why.
    pub reason: Reason,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// All bytes are at the destination and visible to this worker.
    Done,
    /// The channel halted first. The destination may hold any part of the result.
    Aborted,
    /// The engine could not read the source: not mapped for it, or an error in memory.
    ReadFault,
    /// The engine could not write the destination: not mapped for it, or read-only for devices.
    WriteFault,
    /// Another error, in the engine's own code (I/OAT: CHANERR; DSA: completion status).
    Engine(u32),
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Status::Done => f.write_str("done"),
            Status::Aborted => f.write_str("aborted: the channel halted before it finished"),
            Status::ReadFault => f.write_str("read fault: the engine does not reach the source"),
            Status::WriteFault => f.write_str("write fault: the engine does not reach the destination"),
            Status::Engine(code) => write!(f, "engine error {code:#x}"),
        }
    }
}

/// An operation that ended.
#[derive(Debug)]
pub struct Completion {
    /// How.
    pub status: Status,
    /// The operation with its memory and its cookie.
    pub operation: Operation,
}

impl Completion {
    /// The caller's own word.
    pub fn cookie(&self) -> u64 {
        self.operation.cookie
    }
}

/// Completions in the order of submission; its room bounds what one poll gives.
pub type Completed = Fifo<Completion>;

/// One queue of one copy engine. `Send`, so that it can be moved to its worker; used by that worker alone. Dropping it stops
/// the engine first and the memory of outstanding operations is released after that.
pub trait Channel: Send {
    /// The engine's name, as it was chosen by.
    fn name(&self) -> &str;

    /// What it takes.
    fn limits(&self) -> Limits;

    /// Takes an operation. The engine may start it now and must be told of it by the next [`flush`](Channel::flush).
    /// Nothing waits: a driver that writes descriptors to a portal reports a full portal as [`Reason::Full`].
    ///
    /// # Errors
    /// The operation comes back with the reason.
    fn submit(&mut self, operation: Operation) -> Result<(), Rejected>;

    /// Tells the engine of all that was submitted, with one doorbell.
    fn flush(&mut self);

    /// Adds the operations that ended since, as many as `completed` has room for; gives how many.
    fn poll(&mut self, completed: &mut Completed) -> usize;

    /// How many operations were taken and not handed back yet.
    fn outstanding(&self) -> usize;

    /// `Running` takes work; `Failed` is halted and comes back by [`reset`](Channel::reset); `Gone` does not come back, and
    /// polling still hands back what was outstanding, as aborted.
    fn health(&self) -> Health;

    /// Stops the engine and returns when it does no more DMA for this channel. All that it did not finish, flushed or not,
    /// completes as aborted from the next poll on.
    fn halt(&mut self);

    /// Makes a halted channel run again. What the halt aborted and was not polled yet is still handed back, before new
    /// completions.
    ///
    /// # Errors
    /// The device is gone or does not come out of its reset; the channel stays halted.
    fn reset(&mut self) -> Result<(), BusError>;

    /// An eventfd that an armed channel signals; `None`: this engine must be polled.
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Asks for a signal at the next completion. Poll once more before sleeping, since a completion may have come before.
    fn arm(&mut self) {}

    /// Ends what [`arm`](Channel::arm) began.
    fn disarm(&mut self) {}
}
