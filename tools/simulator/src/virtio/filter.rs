//! Which frames a driver asked for (Virtio 1.2, 5.1.6.5.1).

use pollring_drivers::nic::virtio::regs::command;

pub(super) struct Filter {
    mac: [u8; 6],
    promiscuous: bool,
    all_multicast: bool,
}

impl Filter {
    /// After a reset everything is received (5.1.6.5.1).
    pub(super) fn new(mac: [u8; 6]) -> Filter {
        Filter { mac, promiscuous: true, all_multicast: false }
    }

    pub(super) fn passes(&self, frame: &[u8]) -> bool {
        let Some(to) = frame.get(..6) else { return false };
        let group = to[0] & 1 == 1;
        self.promiscuous || to == self.mac || to == [0xff; 6] || group && self.all_multicast
    }

    /// Gives the answer to a command of its class, and `None` for others.
    pub(super) fn command(&mut self, class: u8, number: u8, data: &[u8]) -> Option<u8> {
        let on = match data {
            [0] => false,
            [1] => true,
            _ => return None,
        };
        match (class, number) {
            command::PROMISCUOUS => self.promiscuous = on,
            command::ALL_MULTICAST => self.all_multicast = on,
            _ => return None,
        }
        Some(command::OK)
    }
}
