//! What the tests stand on: a port on a software device whose wire ends in the test's hands.
//!
//! [`Side`] is one such port with all that belongs to it. A test starts it, moves frames with [`Side::send_in`] and
//! [`Side::take_out`] on the wire, turns the queues by hand, and lets the device [`Side::step`]. Everything is single-threaded and
//! follows from the seed, unless a test says otherwise.

use pollring::buffer::{Both, Burst, Caches, Pool, PoolConfig};
use pollring::bus::{Device, simulated};
use pollring::hugepages::Pages;
use pollring::iova::AddressSpace;
use pollring::port::{Port, PortConfig, Queues, RxQueue, TxQueue};
use pollring_drivers::nic::igb::IgbPort;
use pollring_simulator::igb::{Igb, IgbConfig};
use pollring_simulator::wire::{self, WireEnd};
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

/// A port on a software igb, the pool that it fills, and the far end of its wire.
pub struct Side {
    /// The device.
    pub igb: Arc<Igb>,
    /// Its IOMMU.
    pub iommu: Arc<simulated::SimulatedIommu>,
    /// Its space.
    pub space: AddressSpace,
    /// Where it receives to.
    pub pool: Pool<Both>,
    /// The port.
    pub port: IgbPort,
    /// The far end of its wire.
    pub outer: WireEnd,
}

/// The address of side `number`.
pub fn mac(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, number]
}

/// A device that is not yet opened, its IOMMU and the far end of its wire.
pub fn device(
    number: u8,
    change: impl FnOnce(&mut IgbConfig),
) -> (Arc<Igb>, Arc<simulated::SimulatedIommu>, WireEnd) {
    let (inner, outer) = wire::pair(wire::WireConfig::default());
    let mut config = IgbConfig::new(mac(number), inner);
    change(&mut config);
    (Igb::new(config), Arc::new(simulated::SimulatedIommu::default()), outer)
}

impl Side {
    /// A side of its own.
    pub fn new(number: u8, change: impl FnOnce(&mut IgbConfig)) -> Side {
        Side::with_pool(number, 2048, change)
    }

    /// A side whose pool has `frames`.
    pub fn with_pool(number: u8, frames: usize, change: impl FnOnce(&mut IgbConfig)) -> Side {
        let (igb, iommu, outer) = device(number, change);
        let space = AddressSpace::new(&format!("space {number}"), iommu.clone());
        let opened =
            Device::open(&format!("sim:igb#{number}"), simulated::backend(igb.clone(), iommu.clone()));
        let port = opened.map_err(Into::into).and_then(|device| IgbPort::open(device, &space));
        let port = port.unwrap_or_else(|error| panic!("{error}"));
        let config =
            PoolConfig { pages: small_pages(), ..PoolConfig::new(&format!("pool {number}"), frames) };
        let pool = Pool::new(&config, &[&space]).unwrap_or_else(|error| panic!("{error}"));
        Side { igb, iommu, space, pool, port, outer }
    }

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
            self.igb.step(0);
            self.port.link() != pollring::port::Link::Down
        });
        assert!(up, "the link did not come up");
        queues
    }

    /// Lets the device work.
    pub fn step(&self) -> usize {
        self.igb.step(64)
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

/// One turn of a forwarder: what is received on one side goes out on the other, the rest stays in the burst.
pub fn turn(rx: &mut dyn RxQueue, tx: &mut dyn TxQueue, burst: &mut Burst, caches: &mut Caches) -> usize {
    let received = if burst.is_empty() { rx.receive(burst) } else { 0 };
    // Behind the receive, so that even a ring of 64 has buffers when the device runs next.
    rx.refill(caches);
    tx.send(burst, caches);
    tx.reclaim(caches);
    received
}
