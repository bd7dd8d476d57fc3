//! A device that lies about everything that it may write: no panic, no frame lost or handed out twice, no byte out of bounds, and the
//! port goes on or says that it failed.

use pollring::buffer::{Burst, Caches};
use pollring::bus::Health;
use pollring::port::{Queues, RxQueue, TxQueue};
use pollring_simulator::hostile::Lies;
use pollring_simulator::igb::Timing;
use pollring_tests::virtio::KINDS;
use pollring_tests::*;
use std::collections::HashSet;

/// Descriptors that the driver took a stand on: good, bad, or sent.
fn judged(side: &mut Side<dyn Bench>) -> u64 {
    let counted = side.port.statistics();
    counted.rx.frames + counted.rx.bad + counted.tx.frames
}

/// Looks at every byte of every frame, and at who owns it.
fn inspect(burst: &mut Burst, room: usize) -> u64 {
    let mut owners = HashSet::new();
    let mut sum = 0;
    for frame in burst.frames_mut() {
        assert!(frame.len() <= room, "a frame longer than its buffer");
        assert!(owners.insert(frame.iova()), "a buffer with two owners");
        sum += frame.bytes().iter().map(|byte| u64::from(*byte)).sum::<u64>();
    }
    sum
}

struct Outcome {
    descriptors: u64,
    restarts: u64,
    /// Starts that the device made fail.
    failures: u64,
    /// Times that the port said `Failed` while it ran.
    failed: u64,
    lies: u64,
}

/// One run of a lying device until `wanted` descriptors were judged. A queue that stands still is restarted, as an app would do.
fn suffer(mut side: Side<dyn Bench>, seed: u64, wanted: u64) -> Outcome {
    let (mut random, mut caches, mut burst) = (Random(seed), Caches::new("victim"), Burst::new());
    let mut outcome = Outcome { descriptors: 0, restarts: 0, failures: 0, failed: 0, lies: 0 };
    let frames: Vec<Vec<u8>> = (0..64).map(|_| random.frame([0xff; 6])).collect();
    let mut queues: Option<(Box<dyn RxQueue>, Box<dyn TxQueue>)> = None;
    let (mut idle, mut seen) = (0, 0);
    while outcome.descriptors < wanted {
        let Some((rx, tx)) = &mut queues else {
            match side.port.start(&pollring::port::PortConfig::new(&side.pool)) {
                Ok(mut started) => queues = Some((started.rx.remove(0), started.tx.remove(0))),
                Err(_) => outcome.failures += 1,
            }
            assert!(outcome.failures < 10_000, "the port never starts again");
            continue;
        };
        for frame in frames.iter().take(32) {
            let _ = side.outer.transmit(frame);
        }
        side.step();
        rx.refill(&mut caches);
        let received = if burst.is_empty() { rx.receive(&mut burst) } else { 0 };
        std::hint::black_box(inspect(&mut burst, side.pool.room_bytes()));
        let sent = tx.send(&mut burst, &mut caches);
        let done = tx.reclaim(&mut caches);
        while side.take_out().is_some() {}
        idle = if received + sent + done > 0 { 0 } else { idle + 1 };
        seen += 1;
        if seen % 64 == 0 || idle > 0 {
            outcome.descriptors = judged(&mut side);
        }
        // Control looks at the device now and then, as an app would; each restart of a hung one costs its time limits.
        if seen % 4096 == 0 || idle == 200 {
            side.port.link();
        }
        outcome.failed += u64::from(matches!(side.port.health(), Health::Failed(_)));
        if idle > 200 || !matches!(side.port.health(), Health::Running) {
            let (rx, tx) = queues.take().unwrap();
            let _ = side.port.stop(Queues { rx: vec![rx], tx: vec![tx] });
            (idle, outcome.restarts) = (0, outcome.restarts + 1);
        }
    }
    if let Some((rx, tx)) = queues {
        let _ = side.port.stop(Queues { rx: vec![rx], tx: vec![tx] });
    }
    drop((burst, caches));
    let census = side.pool.census();
    assert_eq!(census.home, census.total, "a lie cost a frame");
    outcome.lies = side.device.lies();
    outcome
}

fn note(name: &str, per_mille: u16, outcome: &Outcome) {
    println!(
        "note: {name}: {} descriptors, {} lies, {} restarts, {} times failed, {} failed starts at {per_mille} per mille",
        outcome.descriptors, outcome.lies, outcome.restarts, outcome.failed, outcome.failures
    );
}

#[test]
fn ten_million_descriptors_with_lies() {
    let seed = seed();
    let wanted = amount(10_000_000, 100_000_000) as u64;
    let runs = [
        (1, Timing::Immediate),
        (20, Timing::Immediate),
        (20, Timing::Delayed { longest: 4 }),
        (300, Timing::Immediate),
    ];
    let (mut told, mut failed) = (0, 0);
    for (number, (per_mille, timing)) in runs.into_iter().enumerate() {
        let seed = seed + number as u64;
        let side = Side::with_pool(0, 1024, |config| {
            (config.timing, config.seed) = (timing, seed);
            config.lies = Some(Lies { seed, per_mille });
        });
        let outcome = suffer(side.any(), seed, wanted / runs.len() as u64);
        note("igb", per_mille, &outcome);
        told += outcome.lies;
        failed += outcome.failed;
    }
    assert!(told > wanted / 200, "only {told} lies: the test does not test");
    assert!(failed > 0, "registers read as all ones and no port said so");
}

#[test]
fn virtio_rings_of_both_formats_with_lies() {
    let seed = seed();
    let wanted = amount(12_000_000, 120_000_000) as u64;
    // Both formats, in order and in any order.
    let kinds = &KINDS[..4];
    let rates = [1, 20, 300];
    let (mut told, mut failed) = (0, 0);
    for (number, (name, change)) in kinds.iter().enumerate() {
        for per_mille in rates {
            let seed = seed + number as u64 * 1000 + u64::from(per_mille);
            let side = Side::virtio_with_pool(0, 1024, |config| {
                change(config);
                (config.seed, config.lies) = (seed, Some(Lies { seed, per_mille }));
            });
            let outcome = suffer(side.any(), seed, wanted / (kinds.len() * rates.len()) as u64);
            note(name, per_mille, &outcome);
            told += outcome.lies;
            failed += outcome.failed;
        }
    }
    assert!(told > wanted / 200, "only {told} lies: the test does not test");
    assert!(failed > 0, "registers read as all ones and no port said so");
}
