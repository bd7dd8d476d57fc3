//! Makes frames: its streams in turn, each with sequence numbers from 0 on.

use super::TrafficConfig;
use super::pattern::{Pattern, Position};
use crate::wire::WireEnd;

/// A source of frames.
pub struct Generator {
    pattern: Pattern,
    next: Vec<u64>,
    stream: u16,
    sent: u64,
    sent_bytes: u64,
}

impl Generator {
    /// A generator at the start of all its streams. Asserts that there is a stream, and that lengths are 60 bytes and more.
    pub fn new(config: TrafficConfig) -> Generator {
        let next = vec![0; usize::from(config.streams)];
        Generator { pattern: Pattern::new(config), next, stream: 0, sent: 0, sent_bytes: 0 }
    }

    /// Makes the next frame in place of what `frame` holds; it counts as sent.
    #[inline]
    pub fn generate(&mut self, frame: &mut Vec<u8>) {
        let sequence = &mut self.next[usize::from(self.stream)];
        self.pattern.write(Position { stream: self.stream, sequence: *sequence }, frame);
        *sequence += 1;
        self.stream = if self.stream + 1 == self.pattern.config().streams { 0 } else { self.stream + 1 };
        self.sent += 1;
        self.sent_bytes += frame.len() as u64;
    }

    /// Sends up to `limit` frames, as many as the wire takes; gives how many.
    pub fn send(&mut self, end: &WireEnd, limit: usize) -> usize {
        end.transmit_batch(limit, |slot| self.generate(slot))
    }

    /// Frames sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Their bytes, without CRC.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }
}
