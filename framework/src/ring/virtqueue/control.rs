//! The control queue: one command at a time, in memory of the ring's own (Virtio 1.2, 5.1.6.5).
//!
//! [`ControlQueue::submit`] writes the command, the caller notifies the device and then asks [`ControlQueue::poll`] until it answers or
//! its patience ends. A command that was never answered leaves the queue busy until the device is reset.

use super::format::{Format, QueueOptions, QueuePlaces, flags};
use super::words::Words;
use crate::ring::{RingMemory, fence};
use std::sync::Arc;
use thiserror::Error;

/// Bytes of a command: class, command, data.
const COMMAND_BYTES: usize = 448;
/// Where the answer stands, on a cache line of its own.
const ANSWER_AT: usize = 448;
/// Nothing that a device answers (0 is good, 1 is an error).
const UNANSWERED: u8 = 0xff;

/// Why a command was not submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ControlError {
    /// The last one is not answered.
    #[error("the control queue still waits for the answer to its last command; reset the device")]
    Busy,
    /// Too much data.
    #[error("a control command of {bytes} bytes; it may have 446 of data")]
    TooLong {
        /// Bytes of data.
        bytes: usize,
    },
}

/// A control queue.
pub struct ControlQueue<F: Format> {
    format: F,
    memory: Words,
    next: u32,
    used: u32,
    numbered: u32,
    busy: Option<()>,
}

impl<F: Format> ControlQueue<F> {
    /// Memory for `entries` slots and a command, bytes.
    pub fn bytes(entries: usize) -> usize {
        F::bytes(entries).next_multiple_of(64) + 512
    }

    /// A queue of `entries` slots (a power of two) at `offset` of `memory`.
    pub fn new(memory: &Arc<RingMemory>, offset: usize, entries: usize, options: QueueOptions) -> Self {
        let words = Words::new(memory, offset + F::bytes(entries).next_multiple_of(64), 512);
        let format = F::new(memory, offset, entries, options.suppression);
        ControlQueue { format, memory: words, next: 0, used: 0, numbered: 0, busy: None }
    }

    /// Where the device finds it.
    pub fn places(&self) -> QueuePlaces {
        self.format.places()
    }

    /// What the notification carries.
    pub fn notification_data(&self, queue: u16) -> u32 {
        self.format.notification_data(queue, if F::COUNTED { self.numbered } else { self.next })
    }

    /// Makes a command available.
    ///
    /// # Errors
    /// The last one is not answered, or too much data.
    pub fn submit(&mut self, class: u8, command: u8, data: &[u8]) -> Result<(), ControlError> {
        if self.busy.is_some() {
            return Err(ControlError::Busy);
        }
        if data.len() + 2 > COMMAND_BYTES {
            return Err(ControlError::TooLong { bytes: data.len() });
        }
        self.memory.write(0, &[class, command]);
        self.memory.write(2, data);
        self.memory.write(ANSWER_AT, &[UNANSWERED]);
        let (head, mask) = (self.next, self.format.mask());
        let answer = head.wrapping_add(1);
        let second = self.format.second(answer, 1, flags::WRITE, head);
        // SAFETY: masked indices are below the number of entries.
        unsafe {
            self.format.write((answer & mask) as usize, self.memory.iova(ANSWER_AT).bits(), second);
            self.format.write_address((head & mask) as usize, self.memory.iova(0).bits());
        }
        self.format.set_available(self.numbered, head & mask);
        (self.numbered, self.next) = (self.numbered.wrapping_add(1), head.wrapping_add(2));
        let second = self.format.second(head, data.len() as u32 + 2, flags::NEXT, head);
        self.format.publish(head, second, self.numbered);
        self.busy = Some(());
        Ok(())
    }

    /// The device's answer, once it is there: 0 is good.
    pub fn poll(&mut self) -> Option<u8> {
        self.busy?;
        let slot = (self.used & self.format.mask()) as usize;
        // SAFETY: the masked index is below the number of entries.
        let entry = unsafe { self.format.used(slot) };
        if self.format.counted(self.used) == 0 || !self.format.is_used(entry, self.used) {
            return None;
        }
        // The answer was written before the entry that was seen.
        fence::after_done_bit();
        self.used = self.used.wrapping_add(if F::COUNTED { 1 } else { 2 });
        self.busy = None;
        Some(self.memory.byte(ANSWER_AT))
    }
}
