//! What a driver did that the datasheet forbids: counted, and otherwise without effect.

/// A kind of violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Violation {
    /// A tail behind the end of its ring.
    TailOutsideRing,
    /// A queue was enabled with a head behind the end of its ring.
    HeadOutsideRing,
    /// A queue was enabled with a ring of length 0, or of no multiple of 128 bytes (8.10.7, 8.12.8).
    RingLength,
    /// A queue was enabled with a ring at no multiple of 128 bytes (8.10.5, 8.12.6).
    RingBase,
    /// A receive queue was enabled for descriptors other than advanced ones with one buffer (8.10.2).
    ReceiveFormat,
    /// A receive descriptor that reads as done was posted (7.1.5.1).
    PostedAsDone,
    /// A transmit descriptor that is no advanced data descriptor (7.2.2.3).
    TransmitFormat,
    /// A frame without IFCS (7.2.2.3).
    NoInsertCrc,
    /// A transmit buffer of no bytes.
    EmptyBuffer,
    /// A frame of more than 16 KiB.
    FrameTooLong,
    /// PAYLEN is not the frame's length (7.2.2.3).
    PayloadLength,
    /// A frame that no ring could ever hold in buffers of this size.
    BuffersTooSmall,
    /// An offload without a context descriptor before it (7.2.2.2).
    NoContext,
    /// A context descriptor that does not fit its packet (7.2.2.2).
    ContextMisfit,
}

impl Violation {
    /// Every kind.
    pub const ALL: [Violation; 14] = [
        Violation::TailOutsideRing,
        Violation::HeadOutsideRing,
        Violation::RingLength,
        Violation::RingBase,
        Violation::ReceiveFormat,
        Violation::PostedAsDone,
        Violation::TransmitFormat,
        Violation::NoInsertCrc,
        Violation::EmptyBuffer,
        Violation::FrameTooLong,
        Violation::PayloadLength,
        Violation::BuffersTooSmall,
        Violation::NoContext,
        Violation::ContextMisfit,
    ];
}

/// Counts by kind.
#[derive(Default)]
pub(super) struct Violations([u64; Violation::ALL.len()]);

impl Violations {
    #[cold]
    pub(super) fn report(&mut self, violation: Violation) {
        let count = &mut self.0[violation as usize];
        *count += 1;
        if *count == 1 {
            tracing::warn!(?violation, "the driver broke a rule of the 82576");
        }
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = (Violation, u64)> + '_ {
        Violation::ALL.into_iter().zip(self.0.iter().copied()).filter(|(_, count)| *count > 0)
    }
}
