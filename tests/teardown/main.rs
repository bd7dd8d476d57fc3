//! Every way in which a run can end: no DMA is possible afterwards, nothing of the port stays mapped, no frame is missing.

use pollring::buffer::{Burst, Caches};
use pollring::bus::{Device, Health, config, simulated};
use pollring::iova::AddressSpace;
use pollring::port::{Port, PortConfig, PortError, Queues, RxQueue, TxQueue};
use pollring::worker::{IdlePolicy, Poller, Progress, Turn, Worker, WorkerConfig, WorkerError};
use pollring_drivers::nic::igb::IgbPort;
use pollring_simulator::igb::Defect;
use pollring_tests::virtio::KINDS;
use pollring_tests::*;
use std::sync::Arc;

/// A started side with frames in both rings, on the wire and in a burst.
fn busy<D: Bench + ?Sized>(side: &mut Side<D>) -> (Box<dyn RxQueue>, Box<dyn TxQueue>, Burst, Caches) {
    let (mut rx, mut tx) = side.start(128);
    let (mut caches, mut burst, mut random) = (Caches::new("busy"), Burst::new(), Random(seed()));
    rx.refill(&mut caches);
    for _ in 0..40 {
        side.send_in(&random.frame(mac(0)));
    }
    side.step();
    rx.receive(&mut burst);
    tx.send(&mut burst, &mut caches);
    for _ in 0..20 {
        side.send_in(&random.frame(mac(0)));
    }
    side.step();
    rx.receive(&mut burst);
    (rx, tx, burst, caches)
}

/// The device may not do DMA, and given work it does none.
fn assert_quiet<D: Bench + ?Sized>(side: &Side<D>) {
    let command = side.device.config_read32(config::COMMAND);
    assert!(command == u32::MAX || command & config::BUS_MASTER == 0, "bus mastering is on");
    let faults = side.iommu.faults().0;
    let _ = side.outer.transmit(&[0xff; 60]);
    for _ in 0..50 {
        side.step();
    }
    assert_eq!(side.iommu.faults().0, faults, "the device still tries");
}

fn assert_home<D: Bench + ?Sized>(side: &Side<D>) {
    let census = side.pool.census();
    assert_eq!(census.home, census.total, "{census:?}");
    assert_eq!(side.space.mappings(), 1, "only the pool is mapped");
}

#[test]
fn stop_with_frames_everywhere() {
    on_every_port(|mut side| {
        let (rx, tx, burst, caches) = busy(&mut side);
        side.port.stop(Queues { rx: vec![rx], tx: vec![tx] }).unwrap();
        assert_quiet(&side);
        drop((burst, caches));
        assert_home(&side);
        let iommu = side.iommu.clone();
        drop(side);
        assert_eq!(iommu.mappings(), 0);
    });
}

#[test]
fn abort_leaves_queues_that_do_nothing() {
    on_every_port(|mut side| {
        let (mut rx, mut tx, mut burst, mut caches) = busy(&mut side);
        side.port.abort().unwrap();
        assert_quiet(&side);
        let held = burst.len();
        assert_eq!((rx.refill(&mut caches), rx.receive(&mut burst)), (0, 0));
        assert_eq!((tx.send(&mut burst, &mut caches), tx.reclaim(&mut caches)), (0, 0));
        assert_eq!(burst.len(), held);
        let again = side.port.start(&PortConfig::new(&side.pool));
        assert!(matches!(again, Err(PortError::QueuesAlive { alive: 2, .. })));
        drop((rx, tx, burst, caches));
        assert_home(&side);
        let (rx, tx, burst, caches) = busy(&mut side);
        side.port.stop(Queues { rx: vec![rx], tx: vec![tx] }).unwrap();
        drop((burst, caches));
        assert_home(&side);
    });
}

#[test]
fn stop_without_some_queues_says_how_many() {
    on_every_port(|mut side| {
        let (rx, tx, burst, caches) = busy(&mut side);
        let stopped = side.port.stop(Queues { rx: vec![rx], tx: vec![] });
        assert!(matches!(stopped, Err(PortError::QueuesAlive { alive: 1, .. })));
        assert_quiet(&side);
        drop((tx, burst, caches));
        assert_home(&side);
    });
}

#[test]
fn a_dropped_port_ends_dma_and_its_queues_outlive_it() {
    on_every_port(|mut side| {
        let (mut rx, tx, burst, mut caches) = busy(&mut side);
        let (device, iommu, pool) = (side.device.clone(), side.iommu.clone(), side.pool.clone());
        drop(side);
        assert_eq!(device.config_read32(config::COMMAND) & config::BUS_MASTER, 0);
        assert_eq!(rx.refill(&mut caches), 0);
        assert_eq!(iommu.mappings(), 2, "the rings stay mapped while a queue lives");
        drop((rx, tx, burst, caches));
        assert_eq!(pool.census().home, pool.census().total);
        drop(pool);
        assert_eq!(iommu.mappings(), 0);
    });
}

/// Forwards until it panics.
struct Doomed {
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    burst: Burst,
    turns: usize,
}

impl Poller for Doomed {
    fn name(&self) -> &str {
        "doomed"
    }

    fn poll(&mut self, turn: &mut Turn<'_>) -> Progress {
        pollring_tests::turn(&mut *self.rx, &mut *self.tx, &mut self.burst, turn.caches);
        self.turns -= 1;
        assert!(self.turns > 0, "the test wants it so");
        Progress::Busy
    }
}

#[test]
fn a_worker_that_panics_leaves_its_frames_in_quarantine_until_abort() {
    on_every_port(|mut side| {
        let (rx, tx, burst, caches) = busy(&mut side);
        drop(caches);
        let config = WorkerConfig { name: "panics".into(), core: None, idle: IdlePolicy::Pause };
        let worker = Worker::start(config, vec![Box::new(Doomed { rx, tx, burst, turns: 50 })]).unwrap();
        while worker.is_alive() {
            side.step();
        }
        match worker.stop() {
            Err(WorkerError::Panicked { poller, message, .. }) => {
                assert_eq!((&*poller, &*message), ("doomed", "the test wants it so"))
            }
            _ => panic!("the panic was not reported"),
        }
        assert!(
            side.pool.census().elsewhere() > 0,
            "DMA is on, so the frames of dead queues must not be handed out"
        );
        side.port.abort().unwrap();
        assert_quiet(&side);
        assert_home(&side);
        let (rx, tx, burst, caches) = busy(&mut side);
        side.port.stop(Queues { rx: vec![rx], tx: vec![tx] }).unwrap();
        drop((burst, caches));
        assert_home(&side);
    });
}

/// Starts `side` again and again, each time with a device that leaves one access later, until it survives.
fn fail_everywhere<D: Bench + 'static>(mut side: Side<D>) {
    let mut failures = 0;
    for accesses in 0.. {
        side.device.fail_after(accesses);
        let started = side.port.start(&PortConfig::new(&side.pool));
        let survived = side.device.config_read32(config::VENDOR) != u32::MAX;
        side.device.replug();
        if let Ok(queues) = started {
            // The device vanished behind the last access of the start, or not at all.
            let _ = side.port.stop(queues);
            if survived {
                break;
            }
        } else {
            failures += 1;
        }
        assert_quiet(&side);
        assert_home(&side);
        side = side.reopened(0, 512);
        assert!(accesses < 2000, "the bring-up never ends");
    }
    println!("note: bring-up failed cleanly at each of its {failures} register accesses");
    assert!(failures > 50, "only {failures} accesses failed");
}

#[test]
fn bring_up_fails_cleanly_at_every_register_access() {
    fail_everywhere(Side::new(0, |_| {}));
    for (_, change) in &KINDS[..2] {
        fail_everywhere(Side::virtio(0, change));
    }
}

#[test]
fn each_defect_fails_in_time_or_is_got_round() {
    for defect in Defect::ALL {
        let mut side = Side::new(0, |_| {});
        side.device.stick(defect);
        let before = std::time::Instant::now();
        let started = side.port.start(&PortConfig::new(&side.pool));
        assert!(before.elapsed() < std::time::Duration::from_secs(5), "{defect:?} held the start up");
        match defect {
            Defect::ResetNeverEnds | Defect::RxNeverEnables | Defect::TxNeverEnables => {
                let error = started.err().unwrap();
                assert!(matches!(error, PortError::Timeout { .. }), "{defect:?}: {error}");
                assert!(
                    matches!(side.port.health(), Health::Failed(_)),
                    "{defect:?}: {}",
                    side.port.health()
                );
            }
            // The address was read when the port was opened; a link that never comes up is a state, not a failure.
            _ => side.port.stop(started.unwrap()).unwrap_or_else(|error| panic!("{defect:?}: {error}")),
        }
        assert_quiet(&side);
        assert_home(&side);
        side.device.heal(defect);
        let (rx, tx) = side.start(64);
        assert_eq!(side.port.health(), Health::Running);
        side.port.stop(Queues { rx: vec![rx], tx: vec![tx] }).unwrap();
    }
}

#[test]
fn the_address_comes_from_the_nvm_when_the_reset_did_not_load_it() {
    let (igb, _outer) = igb::device(7, |_| {});
    let iommu = Arc::new(simulated::SimulatedIommu::default());
    igb.stick(Defect::AddressNotLoaded);
    let open = || {
        let device = Device::open("sim:igb#7", simulated::backend(igb.clone(), iommu.clone())).unwrap();
        IgbPort::open(device, &AddressSpace::new("nvm", iommu.clone()))
    };
    assert_eq!(open().unwrap().mac().0, mac(7));
    igb.stick(Defect::NvmNeverDone);
    assert!(matches!(open().err().unwrap(), PortError::Timeout { step: "read the NVM", .. }));
}

#[test]
fn bring_up_fails_cleanly_without_room_for_a_mapping() {
    on_every_port(|mut side| {
        side.iommu.fail_maps_after(0);
        let failed = side.port.start(&PortConfig::new(&side.pool)).err().unwrap();
        assert!(
            matches!(failed, PortError::Rings(_)) && failed.to_string().contains("map memory for DMA"),
            "{failed}"
        );
        assert_quiet(&side);
        assert_home(&side);
        side.iommu.fail_maps_after(usize::MAX);
        let (rx, tx) = side.start(64);
        side.port.stop(Queues { rx: vec![rx], tx: vec![tx] }).unwrap();
    });
}

#[test]
fn a_device_that_vanishes_under_traffic_is_gone() {
    on_every_port(|mut side| {
        let (mut rx, tx, mut burst, mut caches) = busy(&mut side);
        side.device.unplug();
        assert_eq!(side.port.link(), pollring::port::Link::Down);
        assert_eq!((side.port.health(), rx.health()), (Health::Gone, Health::Gone));
        (0..10).for_each(|_| {
            side.step();
            rx.refill(&mut caches);
            rx.receive(&mut burst);
        });
        let stopped = side.port.stop(Queues { rx: vec![rx], tx: vec![tx] });
        assert!(stopped.is_ok(), "{stopped:?}");
        drop((burst, caches));
        assert_home(&side);
        assert!(matches!(side.port.start(&PortConfig::new(&side.pool)), Err(PortError::Bus(_))));
    });
}
