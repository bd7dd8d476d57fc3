//! Sides on a software virtio-net.

use super::{Bench, Side, mac};
use pollring::buffer::{Burst, Caches};
use pollring::port::Queues;
use pollring_drivers::nic::virtio::regs::feature;
use pollring_simulator::virtio::{Completion, Virtio, VirtioConfig, Wakeup};
use pollring_simulator::wire;

/// A name and the change that makes a device of that kind.
pub type Kind = (&'static str, fn(&mut VirtioConfig));

/// Every kind of device that a driver must treat differently.
pub const KINDS: [Kind; 9] = [
    ("packed, everything", |_| {}),
    ("split, everything", |config| config.without = feature::RING_PACKED),
    ("packed, any order", |config| {
        config.without = feature::IN_ORDER;
        config.completion = Completion::Shuffled;
    }),
    ("split, any order", |config| {
        config.without = feature::IN_ORDER | feature::RING_PACKED;
        config.completion = Completion::Shuffled;
    }),
    ("packed, flags, no merging", |config| {
        config.without = feature::EVENT_IDX | feature::MRG_RXBUF | feature::NOTIFICATION_DATA;
    }),
    ("split, flags, no merging", |config| {
        config.without =
            feature::RING_PACKED | feature::EVENT_IDX | feature::MRG_RXBUF | feature::NOTIFICATION_DATA;
    }),
    ("packed, notified by event index", |config| config.wakeup = Wakeup::Notified),
    ("split, notified by event index", |config| {
        (config.wakeup, config.without) = (Wakeup::Notified, feature::RING_PACKED);
    }),
    ("split, notified by flag", |config| {
        config.wakeup = Wakeup::Notified;
        config.without = feature::RING_PACKED | feature::EVENT_IDX | feature::IN_ORDER;
    }),
];

impl Bench for Virtio {
    fn step(&self, frames: usize) -> usize {
        Virtio::step(self, frames)
    }

    fn unplug(&self) {
        Virtio::unplug(self);
    }

    fn replug(&self) {
        Virtio::replug(self);
    }

    fn fail_after(&self, accesses: u64) {
        Virtio::fail_after(self, accesses);
    }

    fn lies(&self) -> u64 {
        self.lies_told().iter().map(|(_, count)| *count).sum()
    }

    fn complaints(&self) -> Vec<String> {
        self.violations()
    }
}

impl Side<Virtio> {
    /// A side of its own.
    pub fn virtio(number: u8, change: impl FnOnce(&mut VirtioConfig)) -> Side<Virtio> {
        Side::virtio_with_pool(number, 2048, change)
    }

    /// A side whose pool has `frames`.
    pub fn virtio_with_pool(
        number: u8,
        frames: usize,
        change: impl FnOnce(&mut VirtioConfig),
    ) -> Side<Virtio> {
        let (inner, outer) = wire::pair(wire::WireConfig::default());
        let mut config = VirtioConfig::new(mac(number), inner);
        change(&mut config);
        Side::open(number, frames, Virtio::new(config), outer)
    }

    /// Stops, and everything is as before the start.
    pub fn finish(mut self, queues: Queues, caches: Caches, burst: Burst) {
        self.port.stop(queues).unwrap_or_else(|error| panic!("{error}"));
        drop((caches, burst));
        let census = self.pool.census();
        assert_eq!(census.home, census.total, "every frame is home");
        assert_eq!(self.space.mappings(), 1, "only the pool is mapped");
        assert_eq!(self.device.violations(), Vec::<String>::new());
        assert_eq!((self.iommu.faults().0, self.device.counters().dropped), (0, 0));
    }
}
