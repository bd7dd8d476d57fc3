//! A port on a software virtio-net, as `Side` of the common rig is one on a software igb.

use pollring::buffer::{Both, Burst, Caches, Pool, PoolConfig, Segment};
use pollring::bus::{Device, simulated};
use pollring::iova::AddressSpace;
use pollring::port::{Port, PortConfig, Queues, RxQueue, TxQueue};
use pollring_drivers::nic::virtio::regs::feature;
use pollring_drivers::{builtin, find};
use pollring_simulator::virtio::{Completion, Virtio, VirtioConfig, Wakeup};
use pollring_simulator::wire::{self, WireEnd};
use pollring_tests::{mac, small_pages};
use std::sync::Arc;

/// A port, the pool that it fills, and the far end of its wire.
pub struct Side {
    pub device: Arc<Virtio>,
    pub iommu: Arc<simulated::SimulatedIommu>,
    pub space: AddressSpace,
    pub pool: Pool<Both>,
    pub port: Box<dyn Port>,
    pub outer: WireEnd,
}

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

impl Side {
    pub fn new(number: u8, change: impl FnOnce(&mut VirtioConfig)) -> Side {
        Side::with_pool(number, 2048, change)
    }

    pub fn with_pool(number: u8, frames: usize, change: impl FnOnce(&mut VirtioConfig)) -> Side {
        let (inner, outer) = wire::pair(wire::WireConfig::default());
        let mut config = VirtioConfig::new(mac(number), inner);
        change(&mut config);
        let (device, iommu) = (Virtio::new(config), Arc::new(simulated::SimulatedIommu::default()));
        let space = AddressSpace::new(&format!("space {number}"), iommu.clone());
        let name = format!("sim:virtio#{number}");
        let mut backoff = 0;
        let port = loop {
            let backend = simulated::backend(device.clone(), iommu.clone());
            let opened = Device::open(&name, backend).map_err(Into::into).and_then(|opened| {
                let (vendor, id) = opened.id();
                let entry = find(builtin(), vendor, id).unwrap_or_else(|| panic!("{vendor:x}:{id:x}"));
                (entry.open)(opened, &space)
            });
            match opened {
                Ok(port) => break port,
                // A lying device may refuse to be opened for a while.
                Err(error) => assert!(backoff < 1000, "{error}"),
            }
            backoff += 1;
        };
        let config =
            PoolConfig { pages: small_pages(), ..PoolConfig::new(&format!("pool {number}"), frames) };
        let pool = Pool::new(&config, &[&space]).unwrap_or_else(|error| panic!("{error}"));
        Side { device, iommu, space, pool, port, outer }
    }

    pub fn config(&self, entries: usize) -> PortConfig {
        PortConfig { rx_entries: entries, tx_entries: entries, ..PortConfig::new(&self.pool) }
    }

    /// Starts while the device runs, since it answers commands when it runs.
    pub fn start_with(&mut self, config: &PortConfig) -> Result<Queues, pollring::port::PortError> {
        let stepping = Stepping::start(&self.device);
        let started = self.port.start(config);
        drop(stepping);
        started
    }

    pub fn start(&mut self, entries: usize) -> (Box<dyn RxQueue>, Box<dyn TxQueue>) {
        let config = self.config(entries);
        let mut queues = self.start_with(&config).unwrap_or_else(|error| panic!("{error}"));
        (queues.rx.remove(0), queues.tx.remove(0))
    }

    pub fn step(&self) -> usize {
        self.device.step(64)
    }

    pub fn send_in(&self, frame: &[u8]) {
        assert!(self.outer.transmit(frame).is_ok(), "the wire is full");
    }

    pub fn take_out(&self) -> Option<Vec<u8>> {
        let mut frame = Vec::new();
        self.outer.receive_into(&mut frame).then_some(frame)
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

/// A thread that steps a device as long as it lives.
pub struct Stepping {
    stop: Arc<std::sync::atomic::AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Stepping {
    pub fn start(device: &Arc<Virtio>) -> Stepping {
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (device, stopped) = (device.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
                device.step(0);
                std::thread::sleep(std::time::Duration::from_micros(50));
            }
        });
        Stepping { stop, thread: Some(thread) }
    }
}

impl Drop for Stepping {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        self.thread.take().into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// The bytes of the first entry of a burst, chain or not; its frames go back.
pub fn take(burst: &mut Burst, caches: &mut Caches) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    for segment in burst.pop_chain()?.into_segments() {
        let Segment::Frame(frame) = segment else { panic!("a span was received") };
        all.extend_from_slice(frame.bytes());
        caches.put(frame);
    }
    Some(all)
}
