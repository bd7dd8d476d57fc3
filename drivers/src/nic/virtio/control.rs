//! Commands to the device: one at a time, on the control thread, each with an end (Virtio 1.2, 5.1.6.5).

use super::regs::command;
use super::transport::Notifier;
use pollring::bus::wait_until;
use pollring::port::PortError;
use pollring::ring::virtqueue::{ControlError, ControlQueue, Format, QueuePlaces};
use std::time::Duration;

/// A device answers from its own memory, so this is generous.
const ANSWER_LIMIT: Duration = Duration::from_millis(1000);

/// Entries of the control queue that are used; devices offer 64.
pub(super) const ENTRIES: usize = 16;

/// A control queue of either format.
pub(super) trait Commands: Send {
    fn places(&self) -> QueuePlaces;
    fn submit(&mut self, class: u8, command: u8, data: &[u8]) -> Result<u32, ControlError>;
    fn poll(&mut self) -> Option<u8>;
}

/// A queue and its number.
pub(super) struct Numbered<F: Format>(pub(super) ControlQueue<F>, pub(super) u16);

impl<F: Format> Commands for Numbered<F> {
    fn places(&self) -> QueuePlaces {
        self.0.places()
    }

    fn submit(&mut self, class: u8, command: u8, data: &[u8]) -> Result<u32, ControlError> {
        self.0.submit(class, command, data)?;
        Ok(self.0.notification_data(self.1))
    }

    fn poll(&mut self) -> Option<u8> {
        self.0.poll()
    }
}

/// The way to give commands.
pub(super) struct Control {
    pub queue: Box<dyn Commands>,
    pub notifier: Box<dyn Notifier>,
}

impl Control {
    /// Gives a command and waits for its answer.
    pub(super) fn command(
        &mut self,
        port: &str,
        step: &'static str,
        (class, command): (u8, u8),
        data: &[u8],
    ) -> Result<(), PortError> {
        let fail = |what: String| Err(PortError::Config { port: port.to_owned(), what });
        match self.queue.submit(class, command, data) {
            Ok(notification) => self.notifier.notify(notification),
            Err(error) => return fail(format!("{step}: {error}")),
        }
        let mut answer = None;
        wait_until(ANSWER_LIMIT, || {
            answer = answer.or_else(|| self.queue.poll());
            answer.is_some()
        });
        match answer {
            Some(command::OK) => Ok(()),
            Some(other) => fail(format!("{step}: the device answered {other}, which means it did not")),
            None => Err(PortError::Timeout {
                step,
                port: port.to_owned(),
                waited_ms: ANSWER_LIMIT.as_millis() as u64,
            }),
        }
    }
}
