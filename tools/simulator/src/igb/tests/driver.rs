//! The driver of this project on the device: two ports that forward to each other, every byte checked.

use super::super::{Igb, IgbConfig};
use super::*;
use crate::traffic::{Addresses, Flow, TrafficConfig};
use crate::wire::{WireConfig, WireEnd, pair};
use pollring::buffer::{Both, Burst, Caches, Pool, PoolConfig};
use pollring::bus::simulated::{SimulatedIommu, backend};
use pollring::hugepages::Pages;
use pollring::iova::AddressSpace;
use pollring::port::{Link, Port, PortConfig, Promiscuous, RxQueue, TxQueue};
use pollring_drivers::nic::igb::IgbPort;
use std::sync::Arc;

struct Side {
    igb: Arc<Igb>,
    far: WireEnd,
    port: IgbPort,
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    burst: Burst,
}

fn sides(timing: Timing) -> ([Side; 2], Pool<Both>) {
    let iommu = Arc::new(SimulatedIommu::default());
    let space = AddressSpace::new("test", iommu.clone());
    let ports = [1, 2].map(|number| {
        let (near, far) = pair(WireConfig::default());
        let mut config = IgbConfig::new([2, 0, 0, 0, 0, number], near);
        (config.timing, config.seed) = (timing, u64::from(number));
        let igb = Igb::new(config);
        let device = pollring::bus::Device::open("sim:igb", backend(igb.clone(), iommu.clone())).unwrap();
        (igb, far, IgbPort::open(device, &space).unwrap())
    });
    let pages = Pages::Small4K { reason: "a test".into() };
    let pool = Pool::new(&PoolConfig { pages, ..PoolConfig::new("test", 4096) }, &[&space]).unwrap();
    let config = PortConfig { promiscuous: Promiscuous::On, ..PortConfig::new(&pool) };
    let sides = ports.map(|(igb, far, mut port)| {
        let mut queues = port.start(&config).unwrap();
        let up = (0..100).any(|_| {
            igb.step(0);
            port.link() != Link::Down
        });
        assert!(up, "the link did not come up");
        let (rx, tx) = (queues.rx.remove(0), queues.tx.remove(0));
        Side { igb, far, port, rx, tx, burst: Burst::new() }
    });
    (sides, pool)
}

fn pass(from: &mut Side, to: &mut Side, caches: &mut Caches) {
    from.rx.refill(caches);
    if from.burst.is_empty() {
        from.rx.receive(&mut from.burst);
    }
    to.tx.send(&mut from.burst, caches);
    to.tx.reclaim(caches);
    from.igb.step(32);
}

fn forward(timing: Timing, frames: u64) {
    // The ports fill the pool only as long as a handle to it is alive.
    let (mut sides, _pool) = sides(timing);
    let mut caches = Caches::new("test");
    let mut flow = Flow::new(TrafficConfig::new(1), Addresses::Untouched, 128);
    let start = std::time::Instant::now();
    let mut idle = 0;
    while flow.checker.counts().verified < frames && idle < 10_000 {
        let [near, far] = &mut sides;
        pass(near, far, &mut caches);
        pass(far, near, &mut caches);
        let done = flow.step(&near.far, &far.far, 32);
        idle = if done > 0 { 0 } else { idle + 1 };
    }
    println!("{timing:?}: {} ns a frame", start.elapsed().as_nanos() / u128::from(frames));
    let counts = flow.checker.counts();
    assert!(counts.is_clean() && counts.verified >= frames, "{counts:?}");
    for side in sides {
        assert_eq!((side.igb.violations(), side.igb.dma_faults()), (0, 0));
        let Side { mut port, rx, tx, .. } = side;
        port.stop(pollring::port::Queues { rx: vec![rx], tx: vec![tx] }).unwrap();
    }
}

#[test]
fn frames_are_forwarded_when_write_backs_are_immediate() {
    forward(Timing::Immediate, 20_000);
}

#[test]
fn frames_are_forwarded_when_write_backs_are_late() {
    forward(Timing::Delayed { longest: 30 }, 20_000);
}
