//! One queue as the device sees it: buffers come out, and go back as used.

use super::memory::{Lost, Memory};
use super::packed::PackedEngine;
use super::split::SplitEngine;

/// Where the driver put a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub entries: u16,
    pub descriptors: u64,
    pub driver: u64,
    pub device: u64,
}

/// A piece of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub address: u64,
    pub bytes: u32,
    pub writable: bool,
}

/// A buffer that the driver made available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Buffer {
    pub id: u16,
    /// Descriptors that it takes.
    pub slots: u16,
    pub parts: Vec<Part>,
}

impl Buffer {
    /// Bytes that the device may write.
    pub(super) fn room(&self) -> usize {
        self.parts.iter().filter(|part| part.writable).map(|part| part.bytes as usize).sum()
    }

    /// Reads everything that the device may read, up to `limit` bytes.
    pub(super) fn gather(&self, memory: &mut Memory, limit: usize) -> Result<Vec<u8>, Lost> {
        let mut all = Vec::new();
        for part in self.parts.iter().filter(|part| !part.writable) {
            let start = all.len();
            let bytes = (part.bytes as usize).min(limit - start);
            all.resize(start + bytes, 0);
            memory.read(part.address, &mut all[start..])?;
        }
        Ok(all)
    }

    /// Writes `bytes` over the parts that the device may write; what does not fit is left out.
    pub(super) fn scatter(&self, memory: &mut Memory, mut bytes: &[u8]) -> Result<(), Lost> {
        for part in self.parts.iter().filter(|part| part.writable) {
            let (now, later) = bytes.split_at(bytes.len().min(part.bytes as usize));
            memory.write(part.address, now)?;
            bytes = later;
        }
        Ok(())
    }
}

/// What was agreed on for a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub packed: bool,
    pub event_idx: bool,
}

pub(super) enum Engine {
    Split(Box<SplitEngine>),
    Packed(PackedEngine),
}

impl Engine {
    pub(super) fn new(place: Place, terms: Terms) -> Result<Engine, String> {
        Ok(match terms.packed {
            true => Engine::Packed(PackedEngine::new(place, terms.event_idx)),
            false => Engine::Split(Box::new(SplitEngine::new(place, terms.event_idx)?)),
        })
    }

    /// The next buffer; an error says what is wrong with what the driver wrote.
    pub(super) fn pop(&mut self, memory: &mut Memory) -> Result<Option<Buffer>, String> {
        match self {
            Engine::Split(engine) => engine.pop(memory),
            Engine::Packed(engine) => engine.pop(memory),
        }
    }

    /// Writes the used entry of a buffer; it becomes visible with [`Engine::publish`].
    pub(super) fn push(&mut self, memory: &mut Memory, id: u16, slots: u16, bytes: u32) -> Result<(), Lost> {
        match self {
            Engine::Split(engine) => engine.push(memory, id, bytes),
            Engine::Packed(engine) => engine.push(id, slots, bytes),
        }
    }

    /// Makes the used entries visible, all at once.
    pub(super) fn publish(&mut self, memory: &mut Memory) -> Result<(), Lost> {
        match self {
            Engine::Split(engine) => engine.publish(memory),
            Engine::Packed(engine) => engine.publish(memory),
        }
    }

    /// Asks to hear of the next buffer. The caller looks once more before it sleeps.
    pub(super) fn ask(&mut self, memory: &mut Memory) -> Result<(), Lost> {
        match self {
            Engine::Split(engine) => engine.ask(memory),
            Engine::Packed(engine) => engine.ask(memory),
        }
    }

    /// Whether a buffer waits.
    pub(super) fn waits(&mut self, memory: &mut Memory) -> bool {
        match self {
            Engine::Split(engine) => engine.waits(memory),
            Engine::Packed(engine) => engine.waits(memory),
        }
    }

    /// Says that it looks by itself.
    pub(super) fn refuse(&mut self, memory: &mut Memory) -> Result<(), Lost> {
        match self {
            Engine::Split(engine) => engine.refuse(memory),
            Engine::Packed(engine) => engine.refuse(memory),
        }
    }
}
