//! What the tests stand on: a port on a software device whose wire ends in the test's hands.
//!
//! [`Side`] is one such port with all that belongs to it, on a device of one kind, or as `Side<dyn Bench>` on any: the suites of a
//! trait run over [`every_port`]. A test starts it, moves frames with [`Side::send_in`] and
//! [`Side::take_out`] on the wire, turns the queues by hand, and lets the device [`Side::step`]. Everything is single-threaded and
//! follows from the seed, unless a test says otherwise.

pub mod igb;
pub mod virtio;

use pollring::buffer::{Both, Burst, Caches, Pool, PoolConfig, Segment};
use pollring::bus::simulated::SoftwareDevice;
use pollring::bus::{Device, simulated};
use pollring::hugepages::Pages;
use pollring::iova::AddressSpace;
use pollring::port::{Port, PortConfig, PortError, Queues, RxQueue, TxQueue};
use pollring_drivers::{builtin, find};
use pollring_simulator::igb::{Igb, Timing};
use pollring_simulator::wire::WireEnd;
use std::sync::Arc;

/// The seed of a run: POLLRING_SEED, or a fixed one, so that CI sees what a developer sees. Printed by every test that uses it.
pub fn seed() -> u64 {
    let seed = std::env::var("POLLRING_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0x706f_6c6c);
    println!("seed {seed} (set POLLRING_SEED to run another)");
    seed
}

/// `short` units of work, or `long` under `tools/test --long`.
pub fn amount(short: usize, long: usize) -> usize {
    if std::env::var_os("POLLRING_LONG").is_some() { long } else { short }
}

/// Random numbers from a seed (SplitMix64).
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number from `low` to `high`, both inclusive.
    pub fn within(&mut self, low: usize, high: usize) -> usize {
        low + (self.word() % (high - low + 1) as u64) as usize
    }

    /// A frame of 60 to 1514 bytes for `to`, of random payload.
    pub fn frame(&mut self, to: [u8; 6]) -> Vec<u8> {
        let bytes = self.within(60, 1514);
        let mut frame = vec![0; bytes];
        frame
            .chunks_mut(8)
            .for_each(|chunk| chunk.copy_from_slice(&self.word().to_le_bytes()[..chunk.len()]));
        frame[..6].copy_from_slice(&to);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 0xee]);
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        frame
    }
}

/// Small pages, so that tests of ports need no set-up; regions on huge pages have tests of their own.
pub fn small_pages() -> Pages {
    Pages::Small4K { reason: "tests of ports run without set-up".into() }
}

/// What the suites need of a software device, whatever it is.
pub trait Bench: SoftwareDevice {
    /// Moves up to `frames` frames each way; gives how many it moved.
    fn step(&self, frames: usize) -> usize;
    /// Takes it off its bus.
    fn unplug(&self);
    /// Puts it back, as after power-on.
    fn replug(&self);
    /// Unplugs it after so many more accesses.
    fn fail_after(&self, accesses: u64);
    /// Lies that it told.
    fn lies(&self) -> u64;
    /// What its driver did against its datasheet or specification.
    fn complaints(&self) -> Vec<String>;
}

/// A port on a software device, the pool that it fills, and the far end of its wire.
pub struct Side<D: Bench + ?Sized = Igb> {
    /// The device.
    pub device: Arc<D>,
    /// Its IOMMU.
    pub iommu: Arc<simulated::SimulatedIommu>,
    /// Its space.
    pub space: AddressSpace,
    /// Where it receives to.
    pub pool: Pool<Both>,
    /// The port.
    pub port: Box<dyn Port>,
    /// The far end of its wire.
    pub outer: WireEnd,
}

/// The address of side `number`.
pub fn mac(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, number]
}

/// A way to make a port.
pub type Make = Box<dyn Fn() -> Side<dyn Bench>>;

/// Every implementation of `Port` on a software device, by name, in every timing and with every format that it has.
pub fn every_port() -> Vec<(&'static str, Make)> {
    let mut all: Vec<(&'static str, Make)> = vec![
        ("igb, immediate", Box::new(|| Side::new(0, |_| {}).any())),
        (
            "igb, delayed",
            Box::new(|| Side::new(0, |config| config.timing = Timing::Delayed { longest: 6 }).any()),
        ),
    ];
    for (name, change) in virtio::KINDS {
        all.push((name, Box::new(move || Side::virtio(0, change).any())));
    }
    all
}

/// Runs a check on every port.
pub fn on_every_port(check: impl Fn(Side<dyn Bench>)) {
    for (name, make) in every_port() {
        println!("on {name}");
        check(make());
    }
}

impl<D: Bench + 'static> Side<D> {
    /// Opens `device`, as an app does: by the driver table. A lying device may refuse that for a while.
    fn open(number: u8, frames: usize, device: Arc<D>, outer: WireEnd) -> Side<D> {
        let iommu = Arc::new(simulated::SimulatedIommu::default());
        let space = AddressSpace::new(&format!("space {number}"), iommu.clone());
        let mut tried = 0;
        let port = loop {
            match open_port(number, &device, &iommu, &space) {
                Ok(port) => break port,
                Err(error) => assert!(device.lies() > 0 && tried < 1000, "{error}"),
            }
            tried += 1;
        };
        let pool = pool(number, frames, &space);
        Side { device, iommu, space, pool, port, outer }
    }

    /// The same device behind a new handle and in a new space, since `Gone` is for good.
    pub fn reopened(self, number: u8, frames: usize) -> Side<D> {
        let Side { device, iommu, space, pool, port, outer } = self;
        drop((port, space, pool));
        assert_eq!(iommu.mappings(), 0);
        Side::open(number, frames, device, outer)
    }

    /// The same side, for who need not know what its device is.
    pub fn any(self) -> Side<dyn Bench> {
        let Side { device, iommu, space, pool, port, outer } = self;
        Side { device, iommu, space, pool, port, outer }
    }
}

fn open_port<D: Bench + 'static>(
    number: u8,
    device: &Arc<D>,
    iommu: &Arc<simulated::SimulatedIommu>,
    space: &AddressSpace,
) -> Result<Box<dyn Port>, PortError> {
    let opened = Device::open(&format!("sim:{number}"), simulated::backend(device.clone(), iommu.clone()))?;
    let (vendor, id) = opened.id();
    let entry = find(builtin(), vendor, id).unwrap_or_else(|| panic!("{vendor:x}:{id:x} has no driver"));
    (entry.open)(opened, space)
}

/// A pool for side `number` to receive to.
pub fn pool(number: u8, frames: usize, space: &AddressSpace) -> Pool<Both> {
    let config = PoolConfig { pages: small_pages(), ..PoolConfig::new(&format!("pool {number}"), frames) };
    Pool::new(&config, &[space]).unwrap_or_else(|error| panic!("{error}"))
}

impl<D: Bench + ?Sized> Side<D> {
    /// Starts with one queue pair and waits for the link, stepping the device.
    pub fn start(&mut self, entries: usize) -> (Box<dyn RxQueue>, Box<dyn TxQueue>) {
        let mut config = PortConfig::new(&self.pool);
        (config.rx_entries, config.tx_entries) = (entries, entries);
        let mut queues = self.start_with(&config);
        (queues.rx.remove(0), queues.tx.remove(0))
    }

    /// Starts and waits for the link, stepping the device.
    pub fn start_with(&mut self, config: &PortConfig) -> Queues {
        let queues = self.port.start(config).unwrap_or_else(|error| panic!("{error}"));
        let up = (0..1000).any(|_| {
            self.device.step(0);
            self.port.link() != pollring::port::Link::Down
        });
        assert!(up, "the link did not come up");
        queues
    }

    /// Lets the device work.
    pub fn step(&self) -> usize {
        self.device.step(64)
    }

    /// A frame arrives at the port's wire.
    pub fn send_in(&self, frame: &[u8]) {
        assert!(self.outer.transmit(frame).is_ok(), "the wire is full");
    }

    /// What the port sent, oldest first.
    pub fn take_out(&self) -> Option<Vec<u8>> {
        let mut frame = Vec::new();
        self.outer.receive_into(&mut frame).then_some(frame)
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

/// One turn of a forwarder: what is received on one side goes out on the other, the rest stays in the burst.
pub fn turn(rx: &mut dyn RxQueue, tx: &mut dyn TxQueue, burst: &mut Burst, caches: &mut Caches) -> usize {
    let received = if burst.is_empty() { rx.receive(burst) } else { 0 };
    // Behind the receive, so that even a ring of 64 has buffers when the device runs next.
    rx.refill(caches);
    tx.send(burst, caches);
    tx.reclaim(caches);
    received
}
