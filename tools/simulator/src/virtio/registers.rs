//! The structures in BAR 0: every field by its own width (Virtio 1.2, 4.1.3.1), and what a driver may write when.

use super::config::{COMMON_AT, DEVICE_AT, NOTIFY_AT, NOTIFY_MULTIPLIER};
use super::state::State;
use pollring_drivers::nic::virtio::regs::pci::common;
use pollring_drivers::nic::virtio::regs::{config, feature, status};

/// The MTU that it says it has.
const MTU: u16 = 9000;

impl State {
    pub(super) fn read(&mut self, offset: usize, bytes: usize) -> u32 {
        if !self.is_touched() || !self.config.memory_space() {
            return u32::MAX >> (32 - bytes * 8);
        }
        let honest = match offset {
            DEVICE_AT..NOTIFY_AT => self.read_device(offset - DEVICE_AT, bytes),
            _ if offset < COMMON_AT + common::BYTES => self.read_common(offset - COMMON_AT, bytes),
            _ => 0,
        };
        match &mut self.lying {
            Some(lying) => lying.register(honest) & (u32::MAX >> (32 - bytes * 8)),
            None => honest,
        }
    }

    fn read_common(&mut self, at: usize, bytes: usize) -> u32 {
        self.check_width(at, bytes);
        let place =
            self.queues.get(usize::from(self.queue_select)).map(|slot| slot.place).unwrap_or_default();
        let enabled = self.queues.get(usize::from(self.queue_select)).is_some_and(|slot| slot.enabled);
        match at {
            common::DEVICE_FEATURE_SELECT => self.device_select,
            common::DEVICE_FEATURE if self.device_select < 2 => {
                (self.offered() >> (self.device_select * 32)) as u32
            }
            common::DRIVER_FEATURE_SELECT => self.driver_select,
            common::DRIVER_FEATURE if self.driver_select < 2 => {
                (self.features >> (self.driver_select * 32)) as u32
            }
            common::QUEUES => self.queues.len() as u32,
            common::STATUS => u32::from(if self.hangs && self.status == 0 { 1 } else { self.status }),
            common::QUEUE_SELECT => u32::from(self.queue_select),
            common::QUEUE_SIZE => u32::from(place.entries),
            common::QUEUE_ENABLE => u32::from(enabled),
            // Not the queue's number, so that a driver must look.
            common::QUEUE_NOTIFY_OFF => u32::from(self.queue_select) * 2,
            common::CONFIG_VECTOR | common::QUEUE_VECTOR => u32::from(common::NO_VECTOR),
            _ => 0,
        }
    }

    fn read_device(&self, at: usize, bytes: usize) -> u32 {
        let mut space = [0u8; 32];
        space[config::MAC..config::MAC + 6].copy_from_slice(&self.made.mac);
        let link = u16::from(self.made.wire.link()) * config::LINK_UP;
        for (at, value) in [(config::STATUS, link), (config::MAX_PAIRS, self.made.pairs), (config::MTU, MTU)]
        {
            space[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        space[config::RSS_KEY_BYTES] = self.made.rss.key_bytes;
        space[config::RSS_TABLE_ENTRIES..config::HASH_TYPES]
            .copy_from_slice(&self.made.rss.table_entries.to_le_bytes());
        space[config::HASH_TYPES..config::BYTES].copy_from_slice(&self.made.rss.hash_types.to_le_bytes());
        (0..bytes).rev().fold(0, |value, byte| value << 8 | u32::from(*space.get(at + byte).unwrap_or(&0)))
    }

    pub(super) fn write(&mut self, offset: usize, bytes: usize, value: u32) {
        if !self.is_touched() || !self.config.memory_space() {
            return;
        }
        match offset {
            NOTIFY_AT.. => self.write_notify(offset - NOTIFY_AT, bytes, value),
            _ if offset < COMMON_AT + common::BYTES => self.write_common(offset - COMMON_AT, bytes, value),
            _ => self.violation(format!("write of {value:#x} at {offset:#x}, where nothing is written")),
        }
    }

    fn write_common(&mut self, at: usize, bytes: usize, value: u32) {
        self.check_width(at, bytes);
        match at {
            common::DEVICE_FEATURE_SELECT => self.device_select = value,
            common::DRIVER_FEATURE_SELECT => self.driver_select = value,
            common::DRIVER_FEATURE => self.accept(value),
            common::STATUS => self.write_status(value as u8),
            common::QUEUE_SELECT => self.queue_select = value as u16,
            common::CONFIG_VECTOR | common::QUEUE_VECTOR => {}
            common::QUEUE_SIZE..common::BYTES => self.write_queue(at, value),
            _ => self.violation(format!("write of {value:#x} at {at:#x} of the common structure")),
        }
    }

    fn accept(&mut self, value: u32) {
        if self.status & status::FEATURES_OK != 0 {
            self.violation("features are accepted after FEATURES_OK".to_owned());
        }
        if self.driver_select < 2 {
            let shift = self.driver_select * 32;
            self.features = self.features & !(0xffff_ffff << shift) | u64::from(value) << shift;
        }
    }

    fn write_status(&mut self, value: u8) {
        let added = value & !self.status;
        if value == 0 {
            self.reset();
            return;
        }
        if self.status & !value & !status::NEEDS_RESET != 0 {
            self.violation(format!("status went from {:#x} to {value:#x} without a reset", self.status));
        }
        self.status = value | self.status & status::NEEDS_RESET;
        if added & status::FEATURES_OK != 0 {
            let good = self.features & !self.offered() == 0 && self.accepted(feature::VERSION_1);
            // ACCESS_PLATFORM must be accepted where it is offered (6.1), and MQ and RSS need a control queue (5.1.3.1).
            let access =
                self.accepted(feature::ACCESS_PLATFORM) || self.offered() & feature::ACCESS_PLATFORM == 0;
            let queues = !self.accepted(feature::MQ | feature::RSS) || self.accepted(feature::CTRL_VQ);
            if !(good && access && queues) {
                self.violation(format!("features {:#x} do not go together", self.features));
                self.status &= !status::FEATURES_OK;
            }
        }
        if added & status::DRIVER_OK != 0 {
            if self.status & status::FEATURES_OK == 0 {
                self.violation("DRIVER_OK without FEATURES_OK".to_owned());
            }
            self.begin();
        }
    }

    fn write_queue(&mut self, at: usize, value: u32) {
        if self.status & status::FEATURES_OK == 0 {
            self.violation("a queue is set up before FEATURES_OK".to_owned());
        }
        let (select, most) = (self.queue_select, self.made.entries);
        let Some(slot) = self.queues.get_mut(usize::from(select)) else {
            return self.violation(format!("there is no queue {select}"));
        };
        if slot.enabled {
            return self.violation(format!("queue {select} is changed while it is enabled"));
        }
        let half = |old: u64, high: bool| match high {
            true => old & 0xffff_ffff | u64::from(value) << 32,
            false => old & !0xffff_ffff | u64::from(value),
        };
        let (place, high) = (&mut slot.place, at & 4 != 0);
        match at & !7 {
            common::QUEUE_DESCRIPTORS => place.descriptors = half(place.descriptors, high),
            common::QUEUE_DRIVER => place.driver = half(place.driver, high),
            common::QUEUE_DEVICE => place.device = half(place.device, high),
            _ if at == common::QUEUE_ENABLE => slot.enabled = value == 1,
            _ if at == common::QUEUE_SIZE && (1..=u32::from(most)).contains(&value) => {
                place.entries = value as u16;
            }
            _ => self.violation(format!("{value:#x} at {at:#x} of queue {select}")),
        }
    }

    /// A notification carries the queue's number, or more with NOTIFICATION_DATA (4.1.5.2).
    fn write_notify(&mut self, at: usize, bytes: usize, value: u32) {
        let data = self.accepted(feature::NOTIFICATION_DATA);
        let queue = usize::from(value as u16);
        let wanted = queue * 2 * NOTIFY_MULTIPLIER;
        if bytes != if data { 4 } else { 2 } || at != wanted {
            return self.violation(format!("notification {value:#x} of {bytes} bytes at {at:#x}"));
        }
        self.counted.notifications += 1;
        match self.queues.get_mut(queue) {
            Some(slot) if slot.enabled => slot.notified = true,
            _ => self.violation(format!("queue {queue} is notified and not enabled")),
        }
        // The driver waits for the answer.
        if queue == self.control_queue() && self.is_running() {
            self.control();
        }
    }

    fn check_width(&mut self, at: usize, bytes: usize) {
        let width = match at {
            common::STATUS | common::GENERATION => 1,
            common::CONFIG_VECTOR | common::QUEUES | common::QUEUE_SELECT..common::QUEUE_DESCRIPTORS => 2,
            _ => 4,
        };
        if width != bytes || !at.is_multiple_of(width) {
            self.violation(format!("an access of {bytes} bytes at {at:#x} of the common structure"));
        }
    }
}
