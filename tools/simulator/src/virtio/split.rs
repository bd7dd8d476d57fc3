//! A split queue by the `virtio-queue` crate, which wants memory of its own.
//!
//! The crate works on a mirror of the rings; the mirror is filled by DMA before it looks and written back by DMA after it wrote, so every
//! access still goes through the IOMMU. Payload never passes the mirror.

use super::memory::{Lost, Memory};
use super::queue::{Buffer, Part, Place};
use std::sync::atomic::Ordering;
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// Descriptors of one buffer at most (the queue's size is a limit too; this is what net devices meet).
const MOST_PARTS: usize = 64;

pub(super) struct SplitEngine {
    place: Place,
    queue: Queue,
    mirror: GuestMemoryMmap,
    /// Used entries that the driver has not seen.
    unseen: u16,
    event_idx: bool,
}

impl SplitEngine {
    pub(super) fn new(place: Place, event_idx: bool) -> Result<SplitEngine, String> {
        let entries = usize::from(place.entries);
        let ranges = [
            (GuestAddress(place.descriptors), entries * 16),
            (GuestAddress(place.driver), 6 + entries * 2),
            (GuestAddress(place.device), 6 + entries * 8),
        ];
        let mut sorted = ranges;
        sorted.sort_by_key(|(address, _)| *address);
        let mirror =
            GuestMemoryMmap::from_ranges(&sorted).map_err(|error| format!("queue parts: {error}"))?;
        let mut queue = Queue::new(place.entries).map_err(|error| format!("queue size: {error}"))?;
        let set = queue
            .try_set_size(place.entries)
            .and_then(|()| queue.try_set_desc_table_address(GuestAddress(place.descriptors)))
            .and_then(|()| queue.try_set_avail_ring_address(GuestAddress(place.driver)))
            .and_then(|()| queue.try_set_used_ring_address(GuestAddress(place.device)));
        set.map_err(|error| format!("queue addresses: {error}"))?;
        queue.set_event_idx(event_idx);
        queue.set_ready(true);
        if !queue.is_valid(&mirror) {
            return Err("virtio-queue finds the queue invalid".to_owned());
        }
        Ok(SplitEngine { place, queue, mirror, unseen: 0, event_idx })
    }

    /// Copies from the driver's memory to the mirror.
    fn fetch(&mut self, memory: &mut Memory, address: u64, bytes: usize) -> Result<(), Lost> {
        let mut copy = vec![0; bytes];
        memory.read(address, &mut copy)?;
        self.mirror.write_slice(&copy, GuestAddress(address)).map_err(|_| Lost)
    }

    /// Copies from the mirror to the driver's memory.
    fn store(&self, memory: &mut Memory, address: u64, bytes: usize) -> Result<(), Lost> {
        let mut copy = vec![0; bytes];
        self.mirror.read_slice(&mut copy, GuestAddress(address)).map_err(|_| Lost)?;
        memory.write(address, &copy)
    }

    pub(super) fn pop(&mut self, memory: &mut Memory) -> Result<Option<Buffer>, String> {
        let Ok(index) = memory.read16(self.place.driver + 2) else { return Ok(None) };
        if index == self.queue.next_avail() {
            return Ok(None);
        }
        let entry = u64::from(self.queue.next_avail() % self.place.entries) * 2 + 4;
        let fetched = self
            .fetch(memory, self.place.driver, 4)
            .and_then(|()| self.fetch(memory, self.place.driver + entry, 2))
            .and_then(|()| self.fetch_chain(memory, self.place.driver + entry));
        if fetched.is_err() {
            return Ok(None);
        }
        let chain = self.queue.pop_descriptor_chain(&self.mirror);
        let chain = chain.ok_or_else(|| "virtio-queue refuses the available ring".to_owned())?;
        let id = chain.head_index();
        let part = |descriptor: virtio_queue::desc::split::Descriptor| Part {
            address: descriptor.addr().0,
            bytes: descriptor.len(),
            writable: descriptor.is_write_only(),
        };
        let parts: Vec<Part> = chain.take(MOST_PARTS).map(part).collect();
        match parts.is_empty() {
            true => Err(format!("buffer {id} has no descriptor")),
            false => Ok(Some(Buffer { id, slots: parts.len() as u16, parts })),
        }
    }

    pub(super) fn waits(&self, memory: &mut Memory) -> bool {
        memory.read16(self.place.driver + 2).is_ok_and(|index| index != self.queue.next_avail())
    }

    /// Mirrors the descriptors of the chain that an available entry names.
    fn fetch_chain(&mut self, memory: &mut Memory, entry: u64) -> Result<(), Lost> {
        let mut slot = memory.read16(entry)?;
        for _ in 0..MOST_PARTS {
            let at = self.place.descriptors + u64::from(slot % self.place.entries) * 16;
            self.fetch(memory, at, 16)?;
            if memory.read16(at + 12)? & 1 == 0 {
                break;
            }
            slot = memory.read16(at + 14)?;
        }
        Ok(())
    }

    pub(super) fn push(&mut self, memory: &mut Memory, id: u16, bytes: u32) -> Result<(), Lost> {
        let entry = u64::from(self.queue.next_used() % self.place.entries) * 8 + 4;
        self.queue.add_used(&self.mirror, id, bytes).map_err(|_| Lost)?;
        self.unseen += 1;
        self.store(memory, self.place.device + entry, 8)
    }

    pub(super) fn publish(&mut self, memory: &mut Memory) -> Result<(), Lost> {
        if std::mem::take(&mut self.unseen) == 0 {
            return Ok(());
        }
        self.store(memory, self.place.device + 2, 2)
    }

    pub(super) fn ask(&mut self, memory: &mut Memory) -> Result<(), Lost> {
        self.fetch(memory, self.place.driver, 4)?;
        self.queue.enable_notification(&self.mirror).map_err(|_| Lost)?;
        self.store_wish(memory)
    }

    pub(super) fn refuse(&mut self, memory: &mut Memory) -> Result<(), Lost> {
        self.queue.disable_notification(&self.mirror).map_err(|_| Lost)?;
        self.store_wish(memory)
    }

    fn store_wish(&self, memory: &mut Memory) -> Result<(), Lost> {
        let event = self.place.device + 4 + u64::from(self.place.entries) * 8;
        let at = if self.event_idx { event } else { self.place.device };
        self.store(memory, at, 2)?;
        std::sync::atomic::fence(Ordering::SeqCst);
        Ok(())
    }
}
