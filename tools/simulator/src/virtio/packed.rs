//! A packed queue, from the specification (Virtio 1.2, 2.8).

use super::memory::{Lost, Memory};
use super::queue::{Buffer, Part, Place};

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// A place in the ring with its wrap counter.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    slot: u16,
    wrap: bool,
}

impl Cursor {
    const START: Cursor = Cursor { slot: 0, wrap: true };

    fn advance(&mut self, by: u16, entries: u16) {
        let next = u32::from(self.slot) + u32::from(by);
        self.wrap ^= next >= u32::from(entries);
        self.slot = (next % u32::from(entries)) as u16;
    }
}

pub(super) struct PackedEngine {
    place: Place,
    next: Cursor,
    used: Cursor,
    /// Used entries that are not visible yet: slot and second word.
    unseen: Vec<(u16, u64)>,
    event_idx: bool,
}

impl PackedEngine {
    pub(super) fn new(place: Place, event_idx: bool) -> PackedEngine {
        PackedEngine { place, next: Cursor::START, used: Cursor::START, unseen: Vec::new(), event_idx }
    }

    pub(super) fn pop(&mut self, memory: &mut Memory) -> Result<Option<Buffer>, String> {
        let (mut cursor, mut parts) = (self.next, Vec::new());
        loop {
            let mut raw = [0; 16];
            let at = self.place.descriptors + u64::from(cursor.slot) * 16;
            if memory.read(at, &mut raw).is_err() {
                return Ok(None);
            }
            let half = |at: usize| u16::from_le_bytes([raw[at], raw[at + 1]]);
            let word = |at: usize| u64::from(half(at)) | u64::from(half(at + 2)) << 16;
            let (flags, id) = (half(14), half(12));
            if (flags & AVAIL != 0) != cursor.wrap || (flags & USED != 0) == cursor.wrap {
                return match parts.is_empty() {
                    true => Ok(None),
                    false => Err("a chain became visible in part".to_owned()),
                };
            }
            if flags & INDIRECT != 0 {
                return Err("an indirect descriptor, which was not agreed on".to_owned());
            }
            let address = word(0) | word(4) << 32;
            parts.push(Part { address, bytes: word(8) as u32, writable: flags & WRITE != 0 });
            cursor.advance(1, self.place.entries);
            if flags & NEXT == 0 {
                self.next = cursor;
                return Ok(Some(Buffer { id, slots: parts.len() as u16, parts }));
            }
            if parts.len() >= usize::from(self.place.entries) {
                return Err("a chain without an end".to_owned());
            }
        }
    }

    pub(super) fn waits(&self, memory: &mut Memory) -> bool {
        let flags = memory.read16(self.place.descriptors + u64::from(self.next.slot) * 16 + 14);
        flags.is_ok_and(|flags| {
            (flags & AVAIL != 0) == self.next.wrap && (flags & USED != 0) != self.next.wrap
        })
    }

    pub(super) fn push(&mut self, id: u16, slots: u16, bytes: u32) -> Result<(), Lost> {
        let flags = if self.used.wrap { AVAIL | USED } else { 0 };
        self.unseen.push((self.used.slot, u64::from(bytes) | u64::from(id) << 32 | u64::from(flags) << 48));
        self.used.advance(slots, self.place.entries);
        Ok(())
    }

    /// The first one last, so that who sees it sees all.
    pub(super) fn publish(&mut self, memory: &mut Memory) -> Result<(), Lost> {
        for (slot, word) in std::mem::take(&mut self.unseen).into_iter().rev() {
            let at = self.place.descriptors + u64::from(slot) * 16 + 8;
            memory.write(at, &word.to_le_bytes())?;
        }
        Ok(())
    }

    pub(super) fn ask(&mut self, memory: &mut Memory) -> Result<(), Lost> {
        let at = self.next.slot | u16::from(self.next.wrap) << 15;
        let flags: u16 = if self.event_idx { 2 } else { 0 };
        memory.write(self.place.device, &(u32::from(at) | u32::from(flags) << 16).to_le_bytes())?;
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }

    pub(super) fn refuse(&mut self, memory: &mut Memory) -> Result<(), Lost> {
        memory.write(self.place.device, &(1u32 << 16).to_le_bytes())
    }
}
