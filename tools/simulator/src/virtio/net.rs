//! The work of one step: control commands, then frames out, then frames in.

use super::queue::{Buffer, Engine};
use super::rss::Spread;
use super::state::State;
use super::{Completion, Wakeup};
use crate::wire::WireEnd;
use pollring_drivers::nic::virtio::regs::{command, feature};

/// Bytes of the header (5.1.6).
const HEADER: usize = 12;
/// The longest frame that it takes from a driver.
const LONGEST: usize = 65_550;
/// The answer that a command was not done.
const ERROR: u8 = 1;

impl State {
    pub(super) fn step(&mut self, budget: usize) -> usize {
        if !self.is_running() {
            return 0;
        }
        self.control();
        if let Some(lying) = &mut self.lying {
            lying.mischief(&mut self.memory, &self.queues);
        }
        let mut moved = 0;
        for pair in 0..usize::from(self.pairs) {
            moved += self.transmit(pair * 2 + 1, budget);
        }
        moved + self.receive(budget)
    }

    /// Takes a queue's engine if it is time to look at the queue.
    fn wake(&mut self, number: usize) -> Option<Engine> {
        let slot = self.queues.get_mut(number)?;
        match (self.made.wakeup, slot.notified) {
            (Wakeup::Notified, false) => None,
            _ => slot.engine.take(),
        }
    }

    /// Puts it back; `empty` says that nothing was left, so that it may sleep.
    fn rest(&mut self, number: usize, mut engine: Engine, empty: bool) {
        if empty && self.made.wakeup == Wakeup::Notified {
            self.queues[number].notified = false;
            // It asks, then looks once more: what came in between has been notified, or is seen now.
            let _ = engine.ask(&mut self.memory);
            self.queues[number].notified |= engine.waits(&mut self.memory);
        }
        if let Some(slot) = self.queues.get_mut(number) {
            slot.engine = Some(engine);
        }
    }

    fn next(&mut self, number: usize, engine: &mut Engine) -> Option<Buffer> {
        match engine.pop(&mut self.memory) {
            Ok(buffer) => buffer,
            Err(what) => {
                self.violation(format!("queue {number}: {what}"));
                // Nothing of it can be trusted (2.1.2).
                if self.lying.is_none() {
                    self.need_reset();
                }
                None
            }
        }
    }

    fn transmit(&mut self, number: usize, budget: usize) -> usize {
        let Some(mut engine) = self.wake(number) else { return 0 };
        let (mut done, wire) = (Vec::new(), self.made.wire.clone());
        let room = if wire.link() { budget.min(wire.room()) } else { budget };
        while done.len() < room {
            let Some(buffer) = self.next(number, &mut engine) else { break };
            self.send(number, &buffer, &wire);
            done.push(buffer);
        }
        let count = done.len();
        self.give_back(&mut engine, done.into_iter().map(|buffer| (buffer, 0)).collect());
        self.rest(number, engine, count < room);
        count
    }

    fn send(&mut self, number: usize, buffer: &Buffer, wire: &WireEnd) {
        if buffer.parts.iter().any(|part| part.writable) {
            self.violation(format!("queue {number}: a part to write among what is to be sent"));
        }
        let Ok(bytes) = buffer.gather(&mut self.memory, LONGEST) else { return };
        match bytes.split_at_checked(HEADER) {
            Some((header, frame)) if frame.len() >= 14 => {
                if header.iter().any(|byte| *byte != 0) {
                    self.violation(format!(
                        "queue {number}: header {header:02x?} asks for what was not agreed on"
                    ));
                }
                // A cut cable swallows frames.
                if wire.transmit(frame).is_ok() {
                    self.counted.frames_sent += 1;
                }
            }
            _ => self.violation(format!("queue {number}: {} bytes are no header and frame", bytes.len())),
        }
    }

    fn receive(&mut self, budget: usize) -> usize {
        let (mut frame, mut moved) = (std::mem::take(&mut self.held), 0);
        let wire = self.made.wire.clone();
        while moved < budget && (!frame.is_empty() || wire.receive_into(&mut frame)) {
            if self.filter.passes(&frame) {
                let number = self.pair_for(&frame) * 2;
                let Some(mut engine) = self.wake(number) else { break };
                // Frames wait for buffers in front of the device, as they do in front of QEMU's.
                if !engine.waits(&mut self.memory) {
                    self.rest(number, engine, true);
                    break;
                }
                self.deliver(number, &mut engine, &frame);
                self.rest(number, engine, false);
                self.next_pair = self.next_pair.wrapping_add(1);
            } else {
                self.counted.filtered += 1;
            }
            frame.clear();
            moved += 1;
        }
        self.held = frame;
        moved
    }

    /// By hash, or by turns for want of one.
    fn pair_for(&self, frame: &[u8]) -> usize {
        usize::from(match &self.spread {
            Some(spread) => spread.pair(frame),
            None => self.next_pair % self.pairs.max(1),
        })
    }

    /// Writes one frame into as many buffers as it needs (5.1.6.4); without buffers it is lost.
    fn deliver(&mut self, number: usize, engine: &mut Engine, frame: &[u8]) {
        let mut all = vec![0; HEADER];
        all.extend_from_slice(frame);
        let (mut used, mut left) = (Vec::new(), all.len());
        while left > 0 {
            let Some(buffer) = self.next(number, engine) else { break };
            let room = buffer.room().min(left);
            if buffer.parts.iter().any(|part| !part.writable) {
                self.violation(format!("queue {number}: a part to read among what is to be filled"));
            }
            left -= room;
            used.push((buffer, room as u32));
            if !self.accepted(feature::MRG_RXBUF) {
                break;
            }
        }
        if left > 0 {
            self.counted.dropped += 1;
            // The buffers are used without a frame in them.
            let empty = used.into_iter().map(|(buffer, _)| (buffer, 0)).collect();
            return self.give_back(engine, empty);
        }
        // The driver is told one buffer where merging is off too (5.1.6.4.1).
        all[10..12].copy_from_slice(&(used.len() as u16).to_le_bytes());
        let mut rest = all.as_slice();
        for (buffer, bytes) in &used {
            let (now, later) = rest.split_at(*bytes as usize);
            // A refused access is counted, and the driver gets what was there.
            let _ = buffer.scatter(&mut self.memory, now);
            rest = later;
        }
        self.counted.frames_received += 1;
        self.give_back(engine, used);
    }

    fn give_back(&mut self, engine: &mut Engine, mut used: Vec<(Buffer, u32)>) {
        let ordered = self.accepted(feature::IN_ORDER) || self.made.completion == Completion::InOrder;
        if !ordered && used.iter().all(|(_, bytes)| *bytes == 0) {
            for at in (1..used.len()).rev() {
                used.swap(at, self.random.below(at as u64 + 1) as usize);
            }
        }
        for (buffer, bytes) in used {
            let told = match &mut self.lying {
                Some(lying) => lying.entry(buffer.id, bytes),
                None => (buffer.id, bytes),
            };
            let _ = engine.push(&mut self.memory, told.0, buffer.slots, told.1);
        }
        let _ = engine.publish(&mut self.memory);
    }

    pub(super) fn control(&mut self) {
        let number = self.control_queue();
        let Some(mut engine) = self.queues.get_mut(number).and_then(|slot| slot.engine.take()) else {
            return;
        };
        while let Some(buffer) = self.next(number, &mut engine) {
            let answer = match buffer.gather(&mut self.memory, 1024) {
                Ok(bytes) => self.answer(&bytes),
                Err(_) => ERROR,
            };
            let _ = buffer.scatter(&mut self.memory, &[answer]);
            let _ = engine.push(&mut self.memory, buffer.id, buffer.slots, 1);
            let _ = engine.publish(&mut self.memory);
        }
        let _ = engine.ask(&mut self.memory);
        self.queues[number].engine = Some(engine);
    }

    fn answer(&mut self, bytes: &[u8]) -> u8 {
        let [class, number, data @ ..] = bytes else { return ERROR };
        if (*class, *number) == command::SET_PAIRS {
            let [low, high] = data else { return ERROR };
            let pairs = u16::from_le_bytes([*low, *high]);
            if pairs == 0 || pairs > self.made.pairs || !self.accepted(feature::MQ) {
                return ERROR;
            }
            (self.pairs, self.spread) = (pairs, None);
            return command::OK;
        }
        if (*class, *number) == command::SET_RSS && self.accepted(feature::RSS) {
            return self.spread(data);
        }
        self.filter.command(*class, *number, data).unwrap_or_else(|| {
            self.violation(format!("control command {class}.{number} of {} bytes", data.len()));
            ERROR
        })
    }

    /// Spreads by hash from now on (5.1.6.5.7.1).
    fn spread(&mut self, data: &[u8]) -> u8 {
        let Some(spread) = Spread::parse(data, self.made.rss, self.made.pairs) else {
            self.violation(format!("a spread that this device cannot do, of {} bytes", data.len()));
            return ERROR;
        };
        (self.pairs, self.spread) = (spread.senders, Some(spread));
        command::OK
    }
}
