//! Checks frames: that each arrives exactly once, in order within its stream, with every byte right.
//!
//! What has not arrived when a later one does counts as missing, and no longer so if it comes late. Whether the addresses may
//! differ from the generator's is told at the start.

use super::TrafficConfig;
use super::pattern::{Pattern, Position, joined};
use crate::wire::WireEnd;
use std::ops::Range;

/// What stands in the first 12 bytes on arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// What the generator wrote.
    Untouched,
    /// Destination and source changed places.
    Swapped,
    /// These.
    Rewritten {
        /// Destination address.
        destination: [u8; 6],
        /// Source address.
        source: [u8; 6],
    },
    /// Anything.
    Any,
}

/// What was found about one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The next one of its stream.
    InOrder,
    /// Right, and later ones of its stream arrived before it or frames between are missing so far.
    OutOfOrder,
    /// Right, and it arrived before.
    Duplicate,
    /// Some byte is wrong.
    Corrupt,
}

/// What arrived so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames.
    pub received: u64,
    /// Their bytes, without CRC.
    pub received_bytes: u64,
    /// Different frames with every byte right.
    pub verified: u64,
    /// Frames with a wrong byte.
    pub corrupt: u64,
    /// Frames that came after a later one of their stream; they are verified too.
    pub out_of_order: u64,
    /// Frames that came again.
    pub duplicate: u64,
    /// Frames that did not come although a later one of their stream did.
    pub missing: u64,
}

impl Counts {
    /// Whether every frame was right, in order, once.
    pub fn is_clean(&self) -> bool {
        self.corrupt + self.out_of_order + self.duplicate + self.missing == 0
    }
}

/// Where one stream is.
#[derive(Clone, Default)]
struct Stream {
    next: u64,
    /// Sequence numbers below `next` that did not come, ascending.
    gaps: Vec<Range<u64>>,
}

/// A sink for frames.
pub struct Checker {
    pattern: Pattern,
    addresses: Option<[u8; 12]>,
    streams: Vec<Stream>,
    counts: Counts,
}

impl Checker {
    /// A checker for the frames of a generator with the same configuration.
    pub fn new(config: TrafficConfig, addresses: Addresses) -> Checker {
        let streams = vec![Stream::default(); usize::from(config.streams)];
        let addresses = match addresses {
            Addresses::Untouched => Some(joined(config.destination, config.source)),
            Addresses::Swapped => Some(joined(config.source, config.destination)),
            Addresses::Rewritten { destination, source } => Some(joined(destination, source)),
            Addresses::Any => None,
        };
        Checker { pattern: Pattern::new(config), addresses, streams, counts: Counts::default() }
    }

    /// Checks one frame.
    #[inline]
    pub fn check(&mut self, frame: &[u8]) -> Verdict {
        self.counts.received += 1;
        self.counts.received_bytes += frame.len() as u64;
        match self.pattern.recognize(frame, self.addresses.as_ref()) {
            Some(position) => self.place(position),
            None => {
                self.counts.corrupt += 1;
                Verdict::Corrupt
            }
        }
    }

    /// Receives and checks up to `limit` frames; gives how many.
    pub fn receive(&mut self, end: &WireEnd, limit: usize) -> usize {
        end.receive_batch(limit, |slot| {
            self.check(slot);
        })
    }

    /// What arrived so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    #[inline]
    fn place(&mut self, Position { stream, sequence }: Position) -> Verdict {
        let stream = &mut self.streams[usize::from(stream)];
        if sequence == stream.next {
            stream.next += 1;
            self.counts.verified += 1;
            return Verdict::InOrder;
        }
        place_elsewhere(stream, sequence, &mut self.counts)
    }
}

#[cold]
fn place_elsewhere(stream: &mut Stream, sequence: u64, counts: &mut Counts) -> Verdict {
    if sequence > stream.next {
        stream.gaps.push(stream.next..sequence);
        counts.missing += sequence - stream.next;
        stream.next = sequence + 1;
        counts.verified += 1;
        return Verdict::OutOfOrder;
    }
    let after = stream.gaps.partition_point(|gap| gap.end <= sequence);
    let Some(gap) = stream.gaps.get(after).filter(|gap| gap.contains(&sequence)).cloned() else {
        counts.duplicate += 1;
        return Verdict::Duplicate;
    };
    let parts = [gap.start..sequence, sequence + 1..gap.end];
    stream.gaps.splice(after..=after, parts.into_iter().filter(|part| !part.is_empty()));
    counts.missing -= 1;
    counts.out_of_order += 1;
    counts.verified += 1;
    Verdict::OutOfOrder
}

#[cfg(test)]
mod tests {
    use super::super::Generator;
    use super::*;

    fn config() -> TrafficConfig {
        TrafficConfig { streams: 2, ..TrafficConfig::new(5) }
    }

    fn frames(count: usize) -> Vec<Vec<u8>> {
        let mut generator = Generator::new(config());
        (0..count)
            .map(|_| {
                let mut frame = Vec::new();
                generator.generate(&mut frame);
                frame
            })
            .collect()
    }

    #[test]
    fn order_is_that_of_each_stream() {
        let mut checker = Checker::new(config(), Addresses::Untouched);
        let frames = frames(6);
        for at in [0, 2, 4, 1, 3, 5] {
            assert_eq!(checker.check(&frames[at]), Verdict::InOrder);
        }
        assert!(checker.counts().is_clean());
        assert_eq!(checker.counts().verified, 6);
    }

    #[test]
    fn missing_late_and_repeated_frames_are_told_apart() {
        let mut checker = Checker::new(config(), Addresses::Untouched);
        // Frames 0, 2, 4, ... are one stream.
        let frames: Vec<Vec<u8>> = frames(20).into_iter().step_by(2).collect();
        for (at, verdict) in [
            (0, Verdict::InOrder),
            (5, Verdict::OutOfOrder),
            (3, Verdict::OutOfOrder),
            (3, Verdict::Duplicate),
            (5, Verdict::Duplicate),
            (0, Verdict::Duplicate),
            (6, Verdict::InOrder),
            (1, Verdict::OutOfOrder),
            (4, Verdict::OutOfOrder),
            (9, Verdict::OutOfOrder),
        ] {
            assert_eq!(checker.check(&frames[at]), verdict, "{at}");
        }
        let counts = checker.counts();
        // Missing: 2, 7 and 8.
        assert_eq!((counts.missing, counts.duplicate, counts.out_of_order, counts.verified), (3, 3, 3, 7));
        for at in [8, 2, 7] {
            assert_eq!(checker.check(&frames[at]), Verdict::OutOfOrder);
        }
        assert_eq!((checker.counts().missing, checker.counts().verified), (0, 10));
    }

    #[test]
    fn addresses_must_be_what_the_mode_makes_of_them() {
        let frame = frames(1).remove(0);
        let mut swapped = frame.clone();
        swapped[..6].copy_from_slice(&frame[6..12]);
        swapped[6..12].copy_from_slice(&frame[..6]);
        let mut rewritten = frame.clone();
        rewritten[..12].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        let to = Addresses::Rewritten { destination: [1, 2, 3, 4, 5, 6], source: [7, 8, 9, 10, 11, 12] };
        for (addresses, right) in
            [(Addresses::Untouched, &frame), (Addresses::Swapped, &swapped), (to, &rewritten)]
        {
            for frame in [&frame, &swapped, &rewritten] {
                let verdict = Checker::new(config(), addresses).check(frame);
                assert_eq!(verdict == Verdict::InOrder, frame == right, "{addresses:?}");
                assert_eq!(Checker::new(config(), Addresses::Any).check(frame), Verdict::InOrder);
            }
        }
    }
}
