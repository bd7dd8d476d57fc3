//! The two ends of a copy: shared memory or a frame, owned until the engine is done.

use crate::buffer::{Frame, Shared};
use crate::iova::Iova;
use std::fmt;

/// Memory that an engine reads or writes. It is used from its first byte to its last: take a [`Shared::slice`], or trim the
/// frame.
pub enum End {
    /// Memory that others may write meanwhile: an MR, a BAR.
    Shared(Shared),
    /// A packet buffer that this operation alone owns.
    Frame(Frame),
}

impl End {
    /// Its length.
    pub fn bytes(&self) -> usize {
        match self {
            End::Shared(shared) => shared.bytes(),
            End::Frame(frame) => frame.len(),
        }
    }

    /// The device address of the byte at `offset`; `None` when it is outside or no device reaches it.
    pub fn iova(&self, offset: usize) -> Option<Iova> {
        match self {
            End::Shared(shared) => shared.iova(offset).ok(),
            End::Frame(frame) if offset < frame.len() => Some(Iova::new(frame.iova().bits() + offset as u64)),
            End::Frame(_) => None,
        }
    }

    /// Whether both hold a byte in common. Device addresses tell, since each region has its own; memory that no device
    /// reaches cannot be told apart and counts as disjoint.
    pub(super) fn overlaps(&self, other: &End) -> bool {
        let (Some(first), Some(second)) = (self.iova(0), other.iova(0)) else { return false };
        let (first, second) = (first.bits(), second.bits());
        first < second + other.bytes() as u64 && second < first + self.bytes() as u64
    }
}

impl From<Shared> for End {
    fn from(shared: Shared) -> End {
        End::Shared(shared)
    }
}

impl From<Frame> for End {
    fn from(frame: Frame) -> End {
        End::Frame(frame)
    }
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if matches!(self, End::Shared(_)) { "Shared" } else { "Frame" };
        write!(f, "{kind}({} bytes, iova {:x?})", self.bytes(), self.iova(0).map(Iova::bits))
    }
}

/// One contiguous copy of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Device address of its first source byte; `None` when no device reaches it.
    pub source: Option<Iova>,
    /// Device address of its first destination byte; `None` when no device reaches it.
    pub destination: Option<Iova>,
    /// Length in bytes.
    pub bytes: usize,
    pub(super) from: Place,
    pub(super) to: Place,
}

/// An end of a list, and an offset in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) index: usize,
    pub(super) offset: usize,
}

impl Place {
    fn advance(&mut self, bytes: usize, end: &End) {
        self.offset += bytes;
        if self.offset == end.bytes() {
            *self = Place { index: self.index + 1, offset: 0 };
        }
    }
}

/// Bytes of all of them, saturating.
pub(super) fn total(ends: &[End]) -> usize {
    ends.iter().fold(0, |sum, end| sum.saturating_add(end.bytes()))
}

/// A walk along two lists, in contiguous copies.
#[derive(Default)]
pub(super) struct Walk {
    from: Place,
    to: Place,
}

impl Walk {
    /// The next copy; `None` where the shorter list ends. Both lists keep their lengths during a walk.
    pub(super) fn next(&mut self, sources: &[End], destinations: &[End]) -> Option<Piece> {
        let Walk { from, to } = *self;
        let (source, destination) = (sources.get(from.index)?, destinations.get(to.index)?);
        let bytes = (source.bytes() - from.offset).min(destination.bytes() - to.offset);
        self.from.advance(bytes, source);
        self.to.advance(bytes, destination);
        let (source, destination) = (source.iova(from.offset), destination.iova(to.offset));
        Some(Piece { source, destination, bytes, from, to })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Capabilities, Kind, Limits, Operation, Reach, Reason};
    use super::*;
    use crate::iova::{AddressSpace, Direction, Iommu, Placement, Ranges};
    use pollring_hugepages::{Pages, Region, RegionConfig};
    use std::io;
    use std::sync::Arc;

    struct Anywhere;

    impl Iommu for Anywhere {
        fn ranges(&self) -> io::Result<Ranges> {
            Ok(Ranges::new([(0, u64::MAX)]))
        }
        fn map(&self, _: u64, _: &Arc<Region>, _: Direction) -> io::Result<()> {
            Ok(())
        }
        fn unmap(&self, _: u64, _: usize) -> io::Result<()> {
            Ok(())
        }
    }

    const LIMITS: Limits = Limits {
        capabilities: Capabilities::COPY.union(Capabilities::SCATTER_GATHER),
        max_bytes: 1024,
        alignment_bytes: 4,
        depth: 8,
        max_pieces: 2,
        reach: Reach::Mapped,
    };

    fn mapped() -> Shared {
        let pages = Pages::Small4K { reason: "a unit test".into() };
        let config = RegionConfig { name: "copy ends".into(), bytes: 8192, pages, node: None };
        let space = AddressSpace::new("test", Arc::new(Anywhere));
        let placement = Placement::new(Arc::new(Region::allocate(&config).unwrap()), &[&space]).unwrap();
        Shared::mapped(Arc::new(space.map(&placement, Direction::Both).unwrap()))
    }

    fn check(from: (&Shared, usize), to: (&Shared, usize), bytes: usize) -> Result<(), Reason> {
        let (source, destination) = (from.0.slice(from.1, bytes).unwrap(), to.0.slice(to.1, bytes).unwrap());
        LIMITS.check(&Operation::copy(source, destination, 0))
    }

    #[test]
    fn overlaps_are_refused_to_the_byte() {
        let (one, two) = (mapped(), mapped());
        assert_eq!(check((&one, 0), (&one, 64), 64), Ok(()));
        assert_eq!(check((&one, 64), (&one, 0), 64), Ok(()));
        for (from, to) in [(0, 60), (60, 0), (0, 0)] {
            assert_eq!(check((&one, from), (&one, to), 64), Err(Reason::Overlap));
        }
        assert_eq!(check((&one, 0), (&two, 0), 64), Ok(()), "equal offsets in different memory");
    }

    #[test]
    fn addresses_lengths_and_pieces_have_limits() {
        let (one, two) = (mapped(), mapped());
        let misaligned = Err(Reason::Misaligned { alignment_bytes: 4 });
        assert_eq!(check((&one, 2), (&two, 0), 8), misaligned);
        assert_eq!(check((&one, 0), (&two, 2), 8), misaligned);
        assert_eq!(check((&one, 0), (&two, 0), 6), misaligned);
        assert_eq!(check((&one, 0), (&two, 0), 1028), Err(Reason::TooLong { bytes: 1028, limit: 1024 }));
        let cut = |memory: &Shared, lengths: &[usize]| -> Vec<End> {
            let ends = lengths.iter().scan(0, |at, bytes| {
                *at += bytes;
                Some(memory.slice(*at - bytes, *bytes).unwrap().into())
            });
            ends.collect()
        };
        let list = |sources: &[usize], destinations: &[usize]| {
            let kind = Kind::CopyList { sources: cut(&one, sources), destinations: cut(&two, destinations) };
            Operation { kind, flags: Default::default(), cookie: 0 }
        };
        assert_eq!(LIMITS.check(&list(&[8, 16], &[24])), Ok(()));
        assert_eq!(
            LIMITS.check(&list(&[8, 16], &[16, 8])),
            Err(Reason::TooManyPieces { pieces: 3, limit: 2 })
        );
        assert_eq!(LIMITS.check(&list(&[8, 0], &[8])), Err(Reason::Empty));
        let (bytes, offset) = (4, one.iova(0).unwrap().bits() + 8);
        let operation = list(&[8, 4], &[12]);
        let second = operation.pieces().nth(1).unwrap();
        assert_eq!((second.source.unwrap().bits(), second.bytes), (offset, bytes));
        assert_eq!(second.destination, two.iova(8).ok());
    }
}
