//! The driver on the software device: the path, what a port owes its user, a device that lies, and every way to end.

use crate::rig::{KINDS, Kind, Side, Stepping, take};
use pollring::buffer::{Burst, Caches, Chain, Segment};
use pollring::bus::Health;
use pollring::port::{Link, PortConfig, PortError, Promiscuous, Queues, RxQueue, TxQueue};
use pollring_drivers::nic::virtio::regs::feature;
use pollring_simulator::hostile::Lies;
use pollring_simulator::virtio::Wakeup;
use pollring_tests::{Random, amount, mac, seed, turn};
use std::collections::{HashSet, VecDeque};

fn on_each(check: impl Fn(Side)) {
    for (name, change) in KINDS {
        println!("on {name}");
        check(Side::new(0, change));
    }
}

/// Frames in, through the forwarder and out again at the same side, `frames` of them, jumbo frames among them where `jumbo` says so.
fn round_trip((name, change): Kind, entries: usize, frames: usize, jumbo: bool) {
    println!("on {name}, rings of {entries}");
    let seed = seed();
    let mut side = Side::new(0, |config| {
        change(config);
        config.seed = seed;
    });
    let (mut rx, mut tx) = side.start(entries);
    let (mut caches, mut burst, mut random) = (Caches::new("test"), Burst::new(), Random(seed));
    rx.refill(&mut caches);
    let (mut expected, mut left, mut idle) = (VecDeque::new(), frames, 0);
    let in_order = !name.contains("any order");
    while left > 0 || !expected.is_empty() {
        let window = if jumbo { 8 } else { entries / 2 };
        for _ in 0..left.min(32).min(window.saturating_sub(expected.len())) {
            let mut frame = random.frame(mac(0));
            if jumbo && random.within(0, 3) == 0 {
                frame.resize(random.within(1900, 9000), 7);
            }
            side.send_in(&frame);
            expected.push_back(frame);
            left -= 1;
        }
        side.step();
        turn(&mut *rx, &mut *tx, &mut burst, &mut caches);
        side.step();
        idle += 1;
        while let Some(frame) = side.take_out() {
            // Out of order are only the reports of what was sent, and so the reuse of slots.
            assert_eq!(Some(&frame), expected.front(), "in order: {in_order}");
            expected.pop_front();
            idle = 0;
        }
        assert!(idle < 2000, "{} frames never came out", expected.len());
    }
    let counted = side.port.statistics();
    assert_eq!((counted.rx.frames, counted.tx.frames), (frames as u64, frames as u64));
    assert_eq!((counted.rx.bad, counted.tx.rejected), (0, 0));
    side.finish(Queues { rx: vec![rx], tx: vec![tx] }, caches, burst);
}

#[test]
fn frames_pass_on_every_kind_over_all_wraps() {
    for kind in KINDS {
        // 16-bit indices wrap twice, packed rings of 256 a thousand times.
        round_trip(kind, 256, amount(150_000, 2_000_000), false);
    }
}

#[test]
fn every_ring_size_carries_frames() {
    for kind in [KINDS[0], KINDS[1], KINDS[3]] {
        for shift in 6..=12 {
            round_trip(kind, 1 << shift, (12 << shift).max(3000), false);
        }
    }
}

#[test]
fn jumbo_frames_arrive_in_several_buffers_and_leave_as_one() {
    for kind in [KINDS[0], KINDS[1], KINDS[2], KINDS[3], KINDS[6], KINDS[7]] {
        round_trip(kind, 256, amount(20_000, 200_000), true);
    }
}

#[test]
fn a_device_that_goes_past_the_iommu_is_refused() {
    let error = std::panic::catch_unwind(|| {
        Side::new(0, |config| config.without = feature::ACCESS_PLATFORM);
    });
    let text = *error.unwrap_err().downcast::<String>().unwrap();
    assert!(text.contains("ACCESS_PLATFORM") && text.contains("iommu_platform=on"), "{text}");
}

#[test]
fn wrong_numbers_are_named_before_anything_is_touched() {
    on_each(|mut side| {
        let good = PortConfig::new(&side.pool);
        let wrong = [
            (PortConfig { queue_pairs: 0, ..good.clone() }, "queue pairs"),
            (PortConfig { queue_pairs: 5, ..good.clone() }, "5"),
            (PortConfig { rx_entries: 100, ..good.clone() }, "receive ring of 100"),
            (PortConfig { tx_entries: 8192, ..good.clone() }, "transmit ring of 8192"),
            (PortConfig { mtu: 67, ..good.clone() }, "MTU 67"),
            (PortConfig { mtu: 9000, ..good.clone() }, "larger buffers"),
        ];
        for (config, word) in wrong {
            let error = side.port.start(&config).err().unwrap();
            assert!(matches!(error, PortError::Config { .. }) && error.to_string().contains(word), "{error}");
        }
        assert_eq!(side.space.mappings(), 1);
    });
}

#[test]
fn states_that_do_not_fit_are_errors_and_it_starts_again() {
    on_each(|mut side| {
        assert!(matches!(side.port.stop(Queues::default()), Err(PortError::State { .. })));
        side.port.abort().unwrap();
        let mut random = Random(seed());
        for (round, entries) in [64, 4096, 128].into_iter().enumerate() {
            let (mut rx, tx) = side.start(entries);
            let again = side.port.start(&PortConfig::new(&side.pool));
            assert!(matches!(again, Err(PortError::State { .. })));
            let (mut caches, mut burst) = (Caches::new("test"), Burst::new());
            rx.refill(&mut caches);
            let frame = random.frame(mac(0));
            side.send_in(&frame);
            side.step();
            assert_eq!(rx.receive(&mut burst), 1);
            assert_eq!(take(&mut burst, &mut caches), Some(frame));
            assert_eq!(side.port.statistics().rx.frames, round as u64 + 1, "counters go on over restarts");
            side.port.stop(Queues { rx: vec![rx], tx: vec![tx] }).unwrap();
        }
    });
}

#[test]
fn what_does_not_fit_stays_in_the_burst_in_order() {
    on_each(|mut side| {
        let (rx, mut tx) = side.start(64);
        let (mut caches, mut burst, mut expected) = (Caches::new("test"), Burst::new(), Vec::new());
        for number in 0..4u8 {
            caches.take_into(&side.pool, &mut burst, 64);
            for (at, frame) in burst.frames_mut().enumerate().filter(|(_, frame)| frame.is_empty()) {
                assert!(frame.fill_from(&[number * 64 + at as u8; 80]));
                expected.push(frame.bytes().to_vec());
            }
            let before = burst.len();
            let sent = tx.send(&mut burst, &mut caches);
            assert_eq!(burst.len(), before - sent);
        }
        assert!(!burst.is_empty() && side.port.statistics().tx.ring_full > 0);
        for _ in 0..20 {
            side.step();
            tx.reclaim(&mut caches);
            tx.send(&mut burst, &mut caches);
        }
        side.step();
        let sent: Vec<Vec<u8>> = std::iter::from_fn(|| side.take_out()).collect();
        assert_eq!(sent, expected);
        side.finish(Queues { rx: vec![rx], tx: vec![tx] }, caches, burst);
    });
}

#[test]
fn chains_and_frames_without_headroom_leave_whole_and_what_cannot_be_sent_comes_back() {
    on_each(|mut side| {
        let (rx, mut tx) = side.start(64);
        let (mut caches, mut burst, mut expected) = (Caches::new("test"), Burst::new(), Vec::new());
        for round in 0..40u8 {
            let (mut chain, mut whole) = (Chain::new(), Vec::new());
            for (number, bytes) in [14usize, 300, 700, 1].into_iter().enumerate() {
                let mut frame = caches.take(&side.pool).unwrap();
                assert!(frame.fill_from(&vec![number as u8 + round; bytes]));
                whole.extend_from_slice(frame.bytes());
                chain.push(Segment::Frame(frame)).unwrap_or_else(|_| panic!("room"));
            }
            burst.push_chain(chain).unwrap_or_else(|_| panic!("room"));
            expected.push(whole);
            // No room for the header in front, then an ordinary one, then one that is too short.
            for (front, bytes) in [(128, 100), (0, 60), (0, 3)] {
                let mut frame = caches.take(&side.pool).unwrap();
                assert!(frame.prepend(front) && frame.fill_from(&vec![round; bytes]));
                if bytes > 3 {
                    expected.push(frame.bytes().to_vec());
                }
                burst.push(frame).unwrap();
            }
            assert_eq!(tx.send(&mut burst, &mut caches), 4);
            side.step();
            tx.reclaim(&mut caches);
        }
        let sent: Vec<Vec<u8>> = std::iter::from_fn(|| side.take_out()).collect();
        assert!(sent == expected, "{} of {}", sent.len(), expected.len());
        assert_eq!(side.port.statistics().tx.rejected, 40);
        side.finish(Queues { rx: vec![rx], tx: vec![tx] }, caches, burst);
    });
}

#[test]
fn frames_for_others_pass_only_in_promiscuous_mode() {
    on_each(|mut side| {
        let (mut rx, tx) = side.start(64);
        let (mut caches, mut burst, mut random) = (Caches::new("test"), Burst::new(), Random(seed()));
        rx.refill(&mut caches);
        let frames = [random.frame(mac(0)), random.frame(mac(9)), random.frame([0xff; 6])];
        for (mode, passed) in
            [(None, [1, 0, 1]), (Some(Promiscuous::On), [1, 1, 1]), (Some(Promiscuous::Off), [1, 0, 1])]
        {
            if let Some(mode) = mode {
                let stepping = Stepping::start(&side.device);
                side.port.set_promiscuous(mode).unwrap();
                drop(stepping);
            }
            let received = frames.each_ref().map(|frame| {
                side.send_in(frame);
                side.step();
                let received = rx.receive(&mut burst);
                caches.put_all(&mut burst);
                rx.refill(&mut caches);
                received
            });
            assert_eq!(received, passed, "{mode:?}");
        }
        side.finish(Queues { rx: vec![rx], tx: vec![tx] }, caches, burst);
    });
}

#[test]
fn four_pairs_carry_frames_and_the_state_is_a_tree() {
    for kind in [KINDS[0], KINDS[1]] {
        let mut side = Side::new(0, kind.1);
        let config = PortConfig { queue_pairs: 4, ..side.config(128) };
        let mut queues = side.start_with(&config).unwrap_or_else(|error| panic!("{error}"));
        let (mut caches, mut burst, mut random) = (Caches::new("test"), Burst::new(), Random(seed()));
        let mut seen = [0; 4];
        for _ in 0..400 {
            queues.rx.iter_mut().for_each(|rx| {
                rx.refill(&mut caches);
            });
            let frame = random.frame(mac(0));
            side.send_in(&frame);
            side.step();
            for (pair, (rx, tx)) in queues.rx.iter_mut().zip(&mut queues.tx).enumerate() {
                seen[pair] += rx.receive(&mut burst);
                tx.send(&mut burst, &mut caches);
            }
            side.step();
            assert_eq!(side.take_out(), Some(frame));
            queues.tx.iter_mut().for_each(|tx| {
                tx.reclaim(&mut caches);
            });
        }
        assert_eq!(seen, [100; 4]);
        let tree = side.port.inspect();
        assert!(tree.at(&["health"]).is_some() && tree.at(&["registers", "STATUS"]).is_some(), "{tree:?}");
        side.finish(queues, caches, burst);
    }
}

#[test]
fn a_burst_needs_one_notification_at_most_and_a_polling_device_none() {
    for (wakeup, most) in [(Wakeup::Notified, 1.1), (Wakeup::Polling, 0.02)] {
        for without in [0, feature::RING_PACKED] {
            let mut side = Side::new(0, |config| (config.wakeup, config.without) = (wakeup, without));
            let (mut rx, mut tx) = side.start(512);
            let (mut caches, mut burst, mut random) = (Caches::new("test"), Burst::new(), Random(seed()));
            rx.refill(&mut caches);
            for _ in 0..200 {
                (0..32).for_each(|_| side.send_in(&random.frame(mac(0))));
                side.step();
                turn(&mut *rx, &mut *tx, &mut burst, &mut caches);
                side.step();
                while side.take_out().is_some() {}
            }
            let counted = side.port.statistics();
            let each = counted.tx.doorbells as f64 * 32.0 / counted.tx.frames as f64;
            assert!(each <= most, "{each} doorbells for 32 frames, {wakeup:?}");
            side.finish(Queues { rx: vec![rx], tx: vec![tx] }, caches, burst);
        }
    }
}

#[test]
fn the_link_follows_the_cable() {
    let mut side = Side::new(0, |_| {});
    let (rx, tx) = side.start(64);
    assert!(matches!(side.port.link(), Link::Up { .. }));
    side.outer.cut();
    assert_eq!(side.port.link(), Link::Down);
    side.outer.join();
    assert!(matches!(side.port.link(), Link::Up { .. }));
    side.finish(Queues { rx: vec![rx], tx: vec![tx] }, Caches::new("none"), Burst::new());
}

#[test]
fn queues_that_die_send_their_frames_home_once_dma_is_over() {
    on_each(|mut side| {
        let (mut rx, mut tx) = side.start(256);
        let (mut caches, mut burst, mut random) = (Caches::new("test"), Burst::new(), Random(seed()));
        rx.refill(&mut caches);
        (0..20).for_each(|_| side.send_in(&random.frame(mac(0))));
        side.step();
        rx.receive(&mut burst);
        tx.send(&mut burst, &mut caches);
        drop((rx, tx));
        caches.flush();
        assert!(side.pool.census().elsewhere() > 200, "the device may still write to them");
        side.step();
        side.port.abort().unwrap();
        assert_eq!(side.pool.census().elsewhere(), 0);
        let (rx, tx) = side.start(64);
        side.finish(Queues { rx: vec![rx], tx: vec![tx] }, caches, burst);
    });
}

#[test]
fn devices_that_leave_hang_or_ask_for_a_reset_say_so() {
    let mut side = Side::new(0, |_| {});
    let (rx, tx) = side.start(64);
    side.device.need_reset();
    side.port.link();
    assert!(matches!(side.port.health(), Health::Failed(reason) if reason.contains("reset")));
    side.port.stop(Queues { rx: vec![rx], tx: vec![tx] }).unwrap();
    let (rx, tx) = side.start(64);
    assert_eq!(side.port.health(), Health::Running);
    side.device.hang_in_reset();
    side.port.stop(Queues { rx: vec![rx], tx: vec![tx] }).unwrap();
    let (mut rx, tx) = side.start(64);
    let mut caches = Caches::new("test");
    rx.refill(&mut caches);
    side.device.unplug();
    side.port.link();
    assert_eq!(side.port.health(), Health::Gone);
    let _ = side.port.stop(Queues { rx: vec![rx], tx: vec![tx] });
    drop(caches);
    let census = side.pool.census();
    assert_eq!(census.home, census.total);
}

/// Looks at every byte of every frame, and at who owns it.
fn inspect(burst: &mut Burst, room: usize) {
    let mut owners = HashSet::new();
    for frame in burst.frames_mut() {
        assert!(frame.len() <= room, "a frame longer than its buffer");
        assert!(owners.insert(frame.iova()), "a buffer with two owners");
        std::hint::black_box(frame.bytes().iter().map(|byte| u64::from(*byte)).sum::<u64>());
    }
}

fn suffer((name, change): Kind, seed: u64, per_mille: u16, wanted: u64) -> (u64, u64) {
    let mut side = Side::with_pool(0, 1024, |config| {
        change(config);
        (config.seed, config.lies) = (seed, Some(Lies { seed, per_mille }));
    });
    let (mut random, mut caches, mut burst) = (Random(seed), Caches::new("victim"), Burst::new());
    let frames: Vec<Vec<u8>> = (0..64).map(|_| random.frame([0xff; 6])).collect();
    let mut queues: Option<(Box<dyn RxQueue>, Box<dyn TxQueue>)> = None;
    let (mut idle, mut judged, mut failures, mut restarts) = (0, 0, 0, 0u64);
    while judged < wanted {
        let Some((rx, tx)) = &mut queues else {
            let config = side.config(256);
            match side.start_with(&config) {
                Ok(mut started) => queues = Some((started.rx.remove(0), started.tx.remove(0))),
                Err(_) => failures += 1,
            }
            assert!(failures < 5_000, "{name}: the port never starts again");
            continue;
        };
        for frame in frames.iter().take(32) {
            let _ = side.outer.transmit(frame);
        }
        side.step();
        rx.refill(&mut caches);
        let received = if burst.is_empty() { rx.receive(&mut burst) } else { 0 };
        inspect(&mut burst, 2048);
        let sent = tx.send(&mut burst, &mut caches);
        let done = tx.reclaim(&mut caches);
        while side.take_out().is_some() {}
        idle = if received + sent + done > 0 { 0 } else { idle + 1 };
        let counted = side.port.statistics();
        judged = counted.rx.frames + counted.rx.bad.min(counted.rx.frames) + counted.tx.frames;
        if idle > 100 || !matches!(side.port.health(), Health::Running) {
            let (rx, tx) = queues.take().unwrap();
            let _ = side.port.stop(Queues { rx: vec![rx], tx: vec![tx] });
            (idle, restarts) = (0, restarts + 1);
        }
    }
    if let Some((rx, tx)) = queues {
        let _ = side.port.stop(Queues { rx: vec![rx], tx: vec![tx] });
    }
    drop((burst, caches));
    let census = side.pool.census();
    assert_eq!(census.home, census.total, "{name}: a lie cost a frame");
    (side.device.lies_told().iter().map(|(_, count)| *count).sum(), restarts)
}

#[test]
fn a_million_buffers_with_lies() {
    let (seed, mut told) = (seed(), 0);
    let wanted = amount(1_000_000, 20_000_000) as u64 / 8;
    for (number, kind) in KINDS.into_iter().take(4).enumerate() {
        for per_mille in [1, 20] {
            let (lies, restarts) = suffer(kind, seed + number as u64, per_mille, wanted);
            println!("note: {}: {lies} lies at {per_mille} per mille, {restarts} restarts", kind.0);
            told += lies;
        }
    }
    assert!(told > wanted / 100, "only {told} lies: the test does not test");
}

/// What no stepwise run shows: the device uses buffers while the driver looks at them.
#[test]
fn a_device_on_a_thread_of_its_own_loses_nothing() {
    for kind in [KINDS[0], KINDS[1], KINDS[3], KINDS[6], KINDS[7]] {
        let (frames, window) = (amount(100_000, 2_000_000) as u64, 100);
        let mut side = Side::new(0, kind.1);
        let (mut rx, mut tx) = side.start(256);
        let (mut caches, mut burst, mut random) = (Caches::new("driver"), Burst::new(), Random(seed()));
        rx.refill(&mut caches);
        let (device, outer) = (side.device.clone(), side.outer.clone());
        let samples: Vec<Vec<u8>> = (0..64).map(|_| random.frame(mac(0))).collect();
        let wire = std::thread::spawn(move || {
            let (mut sent, mut back, mut frame) = (0, 0, Vec::new());
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while back < frames && std::time::Instant::now() < deadline {
                while sent < frames
                    && sent - back < window
                    && outer.transmit(&samples[sent as usize % 64]).is_ok()
                {
                    sent += 1;
                }
                device.step(64);
                while outer.receive_into(&mut frame) {
                    assert_eq!(frame, samples[back as usize % 64], "frame {back}");
                    back += 1;
                }
            }
            back
        });
        while !wire.is_finished() {
            if turn(&mut *rx, &mut *tx, &mut burst, &mut caches) == 0 {
                std::thread::yield_now();
            }
        }
        assert_eq!((wire.join().unwrap(), side.port.statistics().rx.bad), (frames, 0), "{}", kind.0);
        tx.reclaim(&mut caches);
        side.finish(Queues { rx: vec![rx], tx: vec![tx] }, caches, burst);
    }
}
