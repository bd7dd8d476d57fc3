//! The CPU as a copy engine: the same trait, no device.
//!
//! Nothing runs behind the caller's back: [`submit`](Channel::submit) stores an operation, [`flush`](Channel::flush) lets it
//! go, and [`poll`](Channel::poll) does the work on the caller's core, at most as many operations as the completion list has
//! room for. All work is done in order, so a fence costs nothing.

use super::end::Walk;
use super::{Capabilities, Channel, Completed, Completion, End, Kind, Limits, Operation, Piece};
use super::{Reach, Reason, Rejected, Status};
use crate::buffer::SharedError;
use crate::bus::{BusError, Health};
use std::collections::VecDeque;

/// A copy engine that is this core.
///
/// From 256 bytes on, shared memory is moved and filled by the processor's string instructions on x86-64 (`rep movsq`, `rep stosq`);
/// `benches/versus/copy` compares them with libc's memcpy and memset. Shorter pieces are moved in words. Only a copy from frame to
/// frame is handed over to libc.
#[derive(Debug)]
pub struct MemcpyChannel {
    limits: Limits,
    queue: VecDeque<Operation>,
    /// How many at the front of the queue a halt aborted.
    aborted: usize,
    /// How many behind those a flush let go.
    flushed: usize,
    halted: bool,
}

impl MemcpyChannel {
    /// The name by which it is chosen.
    pub const NAME: &'static str = "memcpy";

    /// The longest operation, since it is done within one poll: 1 GiB.
    pub const MAX_BYTES: usize = 1 << 30;

    /// A channel for `depth` outstanding operations.
    pub fn new(depth: usize) -> MemcpyChannel {
        let limits = Limits {
            capabilities: Capabilities::all(),
            max_bytes: Self::MAX_BYTES,
            alignment_bytes: 1,
            depth,
            max_pieces: usize::MAX,
            reach: Reach::Process,
        };
        MemcpyChannel { limits, queue: VecDeque::with_capacity(depth), aborted: 0, flushed: 0, halted: false }
    }

    fn accepts(&self, operation: &Operation) -> Result<(), Reason> {
        if self.halted {
            return Err(Reason::Halted);
        }
        self.limits.check(operation)?;
        if self.queue.len() >= self.limits.depth {
            return Err(Reason::Full(self.limits.depth));
        }
        Ok(())
    }
}

impl Channel for MemcpyChannel {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn submit(&mut self, operation: Operation) -> Result<(), Rejected> {
        if let Err(reason) = self.accepts(&operation) {
            return Err(Rejected { operation, reason });
        }
        self.queue.push_back(operation);
        Ok(())
    }

    fn flush(&mut self) {
        self.flushed = self.queue.len() - self.aborted;
    }

    fn poll(&mut self, completed: &mut Completed) -> usize {
        let ready = (self.aborted + self.flushed).min(completed.room());
        let aborted = self.aborted.min(ready);
        for (index, mut operation) in self.queue.drain(..ready).enumerate() {
            let status = if index < aborted { Status::Aborted } else { run(&mut operation) };
            let pushed = completed.push(Completion { status, operation });
            assert!(pushed.is_ok(), "more completions than there was room for");
        }
        self.aborted -= aborted;
        self.flushed -= ready - aborted;
        ready
    }

    fn outstanding(&self) -> usize {
        self.queue.len()
    }

    fn health(&self) -> Health {
        if self.halted {
            Health::Failed("halted by its owner; reset it to go on".into())
        } else {
            Health::Running
        }
    }

    fn halt(&mut self) {
        self.halted = true;
        self.flushed = 0;
        self.aborted = self.queue.len();
    }

    fn reset(&mut self) -> Result<(), BusError> {
        self.halted = false;
        Ok(())
    }
}

fn run(operation: &mut Operation) -> Status {
    let moved = match &mut operation.kind {
        Kind::Fill { destination, pattern } => fill(destination, *pattern),
        _ => copy(operation),
    };
    // The limits were checked at submit and memory does not shrink, so this is unreachable; but it is a status, not a panic.
    if moved.is_ok() { Status::Done } else { Status::WriteFault }
}

fn copy(operation: &mut Operation) -> Result<(), SharedError> {
    let (sources, destinations) = operation.ends_mut();
    let mut walk = Walk::default();
    while let Some(piece) = walk.next(sources, destinations) {
        copy_piece(&sources[piece.from.index], &mut destinations[piece.to.index], piece)?;
    }
    Ok(())
}

fn copy_piece(source: &End, destination: &mut End, piece: Piece) -> Result<(), SharedError> {
    let (from, to, bytes) = (piece.from.offset, piece.to.offset, piece.bytes);
    match (source, destination) {
        (End::Shared(source), End::Shared(destination)) => destination.copy_from(to, source, from, bytes),
        (End::Shared(source), End::Frame(frame)) => {
            source.copy_out(from, &mut frame.bytes_mut()[to..to + bytes])
        }
        (End::Frame(frame), End::Shared(destination)) => {
            destination.copy_in(to, &frame.bytes()[from..from + bytes])
        }
        (End::Frame(source), End::Frame(frame)) => {
            frame.bytes_mut()[to..to + bytes].copy_from_slice(&source.bytes()[from..from + bytes]);
            Ok(())
        }
    }
}

fn fill(destination: &mut End, pattern: u64) -> Result<(), SharedError> {
    match destination {
        End::Shared(shared) => shared.fill(0, shared.bytes(), pattern),
        End::Frame(frame) => {
            let parts = frame.bytes_mut().chunks_mut(8);
            parts.for_each(|part| part.copy_from_slice(&pattern.to_le_bytes()[..part.len()]));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Shared;
    use pollring_hugepages::{Pages, Region, RegionConfig};
    use std::sync::Arc;

    const DEPTH: usize = 4;
    const PAGE: usize = 4096;

    fn memory() -> Shared {
        let config =
            RegionConfig { name: "copy test".into(), bytes: 4 * PAGE, pages: small_pages(), node: None };
        Shared::local(Arc::new(Region::allocate(&config).unwrap()))
    }

    fn small_pages() -> Pages {
        Pages::Small4K { reason: "a unit test".into() }
    }

    fn part(memory: &Shared, offset: usize, bytes: usize) -> Shared {
        memory.slice(offset, bytes).unwrap()
    }

    fn read(memory: &Shared, offset: usize, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        memory.copy_out(offset, &mut data).unwrap();
        data
    }

    fn poll(channel: &mut dyn Channel, room: usize) -> Vec<(u64, Status)> {
        let mut completed = Completed::new(room);
        let count = channel.poll(&mut completed);
        assert_eq!(count, completed.len());
        completed.drain().map(|completion| (completion.cookie(), completion.status)).collect()
    }

    fn numbered(memory: &Shared, cookie: u64) -> Operation {
        Operation::copy(part(memory, 0, 64), part(memory, PAGE, 64), cookie)
    }

    #[test]
    fn copies_of_every_small_length_and_alignment_move_exactly_their_bytes() {
        let (memory, mut channel) = (memory(), MemcpyChannel::new(DEPTH));
        let data: Vec<u8> = (0..64).map(|byte| byte + 1).collect();
        for (offset, bytes) in (0..9).flat_map(|offset| (1..40).map(move |bytes| (offset, bytes))) {
            memory.copy_in(0, &data).unwrap();
            memory.fill(PAGE, 64, 0).unwrap();
            let (from, to) = (part(&memory, offset, bytes), part(&memory, PAGE + 8 - offset, bytes));
            channel.submit(Operation::copy(from, to, 7)).unwrap();
            channel.flush();
            assert_eq!(poll(&mut channel, 1), [(7, Status::Done)]);
            let start = 8 - offset;
            let mut expected = vec![0; 64];
            expected[start..start + bytes].copy_from_slice(&data[offset..offset + bytes]);
            assert_eq!(read(&memory, PAGE, 64), expected, "offset {offset}, {bytes} bytes");
        }
    }

    #[test]
    fn completions_keep_the_order_and_wait_for_the_flush_and_for_room() {
        let (memory, mut channel) = (memory(), MemcpyChannel::new(DEPTH));
        (0..3).for_each(|cookie| channel.submit(numbered(&memory, cookie)).unwrap());
        assert_eq!(poll(&mut channel, 8), [], "nothing is done before the flush");
        channel.flush();
        channel.submit(numbered(&memory, 3)).unwrap();
        assert_eq!(poll(&mut channel, 0), []);
        assert_eq!(poll(&mut channel, 2), [(0, Status::Done), (1, Status::Done)]);
        assert_eq!(poll(&mut channel, 8), [(2, Status::Done)], "the one behind the flush waits");
        assert_eq!(channel.outstanding(), 1);
        channel.flush();
        assert_eq!(poll(&mut channel, 8), [(3, Status::Done)]);
    }

    #[test]
    fn a_full_channel_gives_the_operation_back() {
        let (memory, mut channel) = (memory(), MemcpyChannel::new(DEPTH));
        (0..DEPTH as u64).for_each(|cookie| channel.submit(numbered(&memory, cookie)).unwrap());
        let rejected = channel.submit(numbered(&memory, 99)).unwrap_err();
        assert_eq!((rejected.reason, rejected.operation.cookie), (Reason::Full(DEPTH), 99));
        assert!(rejected.to_string().contains("operation 99"));
        channel.flush();
        assert_eq!(poll(&mut channel, 1).len(), 1);
        channel.submit(rejected.operation).unwrap();
        channel.flush();
        assert_eq!(poll(&mut channel, 8).last(), Some(&(99, Status::Done)));
    }

    #[test]
    fn a_fenced_operation_reads_what_the_earlier_ones_wrote() {
        let (memory, mut channel) = (memory(), MemcpyChannel::new(DEPTH));
        channel.submit(Operation::fill(part(&memory, 0, 100), 0x0807_0605_0403_0201, 0)).unwrap();
        channel.submit(Operation::copy(part(&memory, 0, 100), part(&memory, PAGE, 100), 1).fenced()).unwrap();
        channel.flush();
        assert_eq!(poll(&mut channel, 8), [(0, Status::Done), (1, Status::Done)]);
        let expected: Vec<u8> = (0..100).map(|at| at % 8 + 1).chain([0; 8]).collect();
        assert_eq!(read(&memory, PAGE, 108), expected);
    }

    #[test]
    fn lists_of_different_cuts_are_joined() {
        let (memory, mut channel) = (memory(), MemcpyChannel::new(DEPTH));
        memory.copy_in(0, b"abcdefghij").unwrap();
        let sources = vec![part(&memory, 0, 3).into(), part(&memory, 3, 7).into()];
        let destinations = vec![part(&memory, PAGE, 5).into(), part(&memory, PAGE + 6, 5).into()];
        let kind = Kind::CopyList { sources, destinations };
        let operation = Operation { kind, flags: super::super::Flags::empty(), cookie: 5 };
        assert_eq!(operation.pieces().map(|piece| piece.bytes).collect::<Vec<_>>(), [3, 2, 5]);
        channel.submit(operation).unwrap();
        channel.flush();
        assert_eq!(poll(&mut channel, 8), [(5, Status::Done)]);
        assert_eq!(read(&memory, PAGE, 12), b"abcde\0fghij\0");
    }

    #[test]
    fn what_the_limits_do_not_allow_is_refused() {
        let (memory, mut channel) = (memory(), MemcpyChannel::new(DEPTH));
        let mut refuse = |operation: Operation| channel.submit(operation).unwrap_err().reason;
        let empty = Operation::copy(part(&memory, 0, 0), part(&memory, PAGE, 0), 0);
        assert_eq!(refuse(empty), Reason::Empty);
        assert_eq!(refuse(Operation::fill(part(&memory, PAGE, 0), 0, 0)), Reason::Empty);
        let unequal = Operation::copy(part(&memory, 0, 8), part(&memory, PAGE, 9), 0);
        assert_eq!(refuse(unequal), Reason::Unequal { source_bytes: 8, destination_bytes: 9 });
        let limits = Limits { max_bytes: 8, alignment_bytes: 4, ..channel.limits() };
        let copy = |bytes| Operation::copy(part(&memory, 0, bytes), part(&memory, PAGE, bytes), 0);
        assert_eq!(limits.check(&copy(8)), Ok(()));
        assert_eq!(limits.check(&copy(9)), Err(Reason::TooLong { bytes: 9, limit: 8 }));
        let mapped = Limits { reach: Reach::Mapped, ..limits };
        assert_eq!(mapped.check(&copy(8)), Err(Reason::NotMapped));
        let none = Limits { capabilities: Capabilities::FILL, ..limits };
        assert_eq!(none.check(&copy(8)), Err(Reason::Unsupported("copy")));
        assert_eq!(none.check(&Operation::fill(part(&memory, 0, 8), 1, 0)), Ok(()));
    }

    #[test]
    fn a_halt_aborts_in_order_and_a_reset_goes_on() {
        let (memory, mut channel) = (memory(), MemcpyChannel::new(DEPTH));
        memory.copy_in(0, b"new").unwrap();
        (0..2).for_each(|cookie| channel.submit(numbered(&memory, cookie)).unwrap());
        channel.flush();
        channel.submit(numbered(&memory, 2)).unwrap();
        channel.halt();
        assert!(matches!(channel.health(), Health::Failed(_)));
        assert_eq!(channel.submit(numbered(&memory, 9)).unwrap_err().reason, Reason::Halted);
        assert_eq!(poll(&mut channel, 1), [(0, Status::Aborted)]);
        channel.reset().unwrap();
        assert_eq!(channel.health(), Health::Running);
        channel.submit(numbered(&memory, 3)).unwrap();
        assert_eq!(poll(&mut channel, 8), [(1, Status::Aborted), (2, Status::Aborted)]);
        assert_eq!(read(&memory, PAGE, 3), [0; 3], "an aborted copy of this engine was never begun");
        channel.flush();
        assert_eq!(poll(&mut channel, 8), [(3, Status::Done)]);
        assert_eq!(read(&memory, PAGE, 3), b"new");
    }
}
