//! The driver on the software device: the path with every format and feature. What any port owes its user is in the suites of the trait.

use pollring::buffer::{Burst, Caches};
use pollring::bus::Health;
use pollring::port::{PortConfig, Queues};
use pollring_drivers::nic::virtio::regs::feature;
use pollring_simulator::virtio::Wakeup;
use pollring_tests::virtio::{KINDS, Kind};
use pollring_tests::{Random, Side, amount, mac, seed, turn};
use std::collections::VecDeque;

/// Frames in, through the forwarder and out again at the same side, `frames` of them, jumbo frames among them where `jumbo` says so.
fn round_trip((name, change): Kind, entries: usize, frames: usize, jumbo: bool) {
    println!("on {name}, rings of {entries}");
    let seed = seed();
    let mut side = Side::virtio(0, |config| {
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
        Side::virtio(0, |config| config.without = feature::ACCESS_PLATFORM);
    });
    let text = *error.unwrap_err().downcast::<String>().unwrap();
    assert!(text.contains("ACCESS_PLATFORM") && text.contains("iommu_platform=on"), "{text}");
}

#[test]
fn four_pairs_carry_frames_and_the_state_is_a_tree() {
    for without in [0, feature::RING_PACKED] {
        // Without RSS the device gives its pairs one frame after the other.
        let mut side = Side::virtio(0, |config| config.without = without | feature::RSS);
        let config =
            PortConfig { queue_pairs: 4, rx_entries: 128, tx_entries: 128, ..PortConfig::new(&side.pool) };
        let mut queues = side.start_with(&config);
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
            let mut side = Side::virtio(0, |config| (config.wakeup, config.without) = (wakeup, without));
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
fn devices_that_leave_hang_or_ask_for_a_reset_say_so() {
    let mut side = Side::virtio(0, |_| {});
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

/// What no stepwise run shows: the device uses buffers while the driver looks at them.
#[test]
fn a_device_on_a_thread_of_its_own_loses_nothing() {
    for kind in [KINDS[0], KINDS[1], KINDS[3], KINDS[6], KINDS[7]] {
        let (frames, window) = (amount(100_000, 2_000_000) as u64, 100);
        let mut side = Side::virtio(0, kind.1);
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
