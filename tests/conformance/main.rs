//! What every [`Port`] owes its user, as one suite that runs on every implementation: igb in both timings, virtio with every format and
//! feature that makes its driver do something else.

use pollring::buffer::{Burst, Caches, Chain, Segment};
use pollring::hugepages::PageSize;
use pollring::port::{Link, PortConfig, PortError, Promiscuous, Queues};
use pollring_tests::*;

fn settle(side: &Side<dyn Bench>) {
    for _ in 0..50 {
        side.step();
    }
}

#[test]
fn wrong_numbers_are_named_before_anything_is_touched() {
    on_every_port(|mut side| {
        let good = PortConfig::new(&side.pool);
        let wrong = [
            (PortConfig { queue_pairs: 0, ..good.clone() }, "queue pairs"),
            (PortConfig { queue_pairs: 17, ..good.clone() }, "17"),
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
fn states_that_do_not_fit_are_errors() {
    on_every_port(|mut side| {
        assert!(matches!(side.port.stop(Queues::default()), Err(PortError::State { .. })));
        side.port.abort().unwrap();
        let (rx, tx) = side.start(64);
        let again = side.port.start(&PortConfig::new(&side.pool));
        assert!(matches!(again, Err(PortError::State { .. })));
        side.port.stop(Queues { rx: vec![rx], tx: vec![tx] }).unwrap();
    });
}

#[test]
fn it_starts_again_with_another_configuration() {
    on_every_port(|mut side| {
        let mut random = Random(seed());
        for (round, entries) in [64, 4096, 128].into_iter().enumerate() {
            let (mut rx, tx) = side.start(entries);
            let (mut caches, mut burst) = (Caches::new("test"), Burst::new());
            rx.refill(&mut caches);
            let frame = random.frame(mac(0));
            side.send_in(&frame);
            settle(&side);
            assert_eq!(rx.receive(&mut burst), 1);
            assert_eq!(burst.pop().unwrap().bytes(), frame);
            assert_eq!(side.port.statistics().rx.frames, round as u64 + 1, "counters go on over restarts");
            side.port.stop(Queues { rx: vec![rx], tx: vec![tx] }).unwrap();
        }
    });
}

#[test]
fn its_receive_pool_outlives_the_handle_that_came_with_the_configuration() {
    on_every_port(|mut side| {
        let other = pool(7, 256, &side.space);
        let config = PortConfig { rx_entries: 64, tx_entries: 64, ..PortConfig::new(&other) };
        drop(other);
        let mut queues = side.start_with(&config);
        drop(config);
        let (mut rx, tx) = (queues.rx.remove(0), queues.tx.remove(0));
        let (mut caches, mut burst, mut random) = (Caches::new("test"), Burst::new(), Random(seed()));
        for _ in 0..300 {
            rx.refill(&mut caches);
            side.send_in(&random.frame(mac(0)));
            settle(&side);
            assert_eq!(rx.receive(&mut burst), 1);
            caches.put_all(&mut burst);
        }
        side.port.stop(Queues { rx: vec![rx], tx: vec![tx] }).unwrap();
    });
}

#[test]
fn what_does_not_fit_stays_in_the_burst_in_order() {
    on_every_port(|mut side| {
        let (rx, mut tx) = side.start(64);
        let (mut caches, mut burst) = (Caches::new("test"), Burst::new());
        let mut expected = Vec::new();
        for number in 0..4u8 {
            caches.take_into(&side.pool, &mut burst, 64);
            for (at, frame) in burst.frames_mut().enumerate() {
                if frame.is_empty() {
                    assert!(frame.fill_from(&[number * 64 + at as u8; 80]));
                    expected.push(frame.bytes().to_vec());
                }
            }
            let before = burst.len();
            let sent = tx.send(&mut burst, &mut caches);
            assert_eq!(burst.len(), before - sent);
        }
        for _ in 0..20 {
            tx.send(&mut burst, &mut caches);
            settle(&side);
            tx.reclaim(&mut caches);
        }
        let sent: Vec<Vec<u8>> = std::iter::from_fn(|| side.take_out()).collect();
        assert_eq!(sent, expected);
        assert!(side.port.statistics().tx.ring_full > 0);
        side.port.stop(Queues { rx: vec![rx], tx: vec![tx] }).unwrap();
        drop(caches);
        assert_eq!(side.pool.census().elsewhere(), 0);
    });
}

#[test]
fn what_cannot_be_sent_is_counted_and_comes_back() {
    on_every_port(|mut side| {
        let (rx, mut tx) = side.start(64);
        let (mut caches, mut burst) = (Caches::new("test"), Burst::new());
        caches.take_into(&side.pool, &mut burst, 3);
        for (frame, bytes) in burst.frames_mut().zip([60, 3, 61]) {
            assert!(frame.set_len(bytes));
        }
        let mut long = Chain::new();
        for _ in 0..16 {
            let mut frame = caches.take(&side.pool).unwrap();
            assert!(frame.set_len(1900));
            long.push(Segment::Frame(frame)).unwrap_or_else(|_| panic!("room"));
        }
        burst.push_chain(long).unwrap_or_else(|_| panic!("room"));
        assert_eq!(tx.send(&mut burst, &mut caches), 4);
        settle(&side);
        let sent: Vec<usize> = std::iter::from_fn(|| side.take_out()).map(|frame| frame.len()).collect();
        assert_eq!(sent, [60, 61]);
        assert_eq!(side.port.statistics().tx.rejected, 2);
        side.port.stop(Queues { rx: vec![rx], tx: vec![tx] }).unwrap();
        drop(caches);
        assert_eq!(side.pool.census().elsewhere(), 0);
    });
}

#[test]
fn a_chain_leaves_as_one_frame() {
    on_every_port(|mut side| {
        let (rx, mut tx) = side.start(64);
        let (mut caches, mut burst) = (Caches::new("test"), Burst::new());
        let (mut chain, mut expected) = (Chain::new(), Vec::new());
        for (number, bytes) in [14usize, 300, 700, 1].into_iter().enumerate() {
            let mut frame = caches.take(&side.pool).unwrap();
            assert!(frame.fill_from(&vec![number as u8 + 1; bytes]));
            expected.extend_from_slice(frame.bytes());
            chain.push(Segment::Frame(frame)).unwrap_or_else(|_| panic!("room"));
        }
        burst.push_chain(chain).unwrap_or_else(|_| panic!("room"));
        assert_eq!(tx.send(&mut burst, &mut caches), 1);
        settle(&side);
        assert_eq!(side.take_out(), Some(expected));
        tx.reclaim(&mut caches);
        assert_eq!(side.pool.census().elsewhere(), 0);
        side.port.stop(Queues { rx: vec![rx], tx: vec![tx] }).unwrap();
    });
}

#[test]
fn one_doorbell_a_burst() {
    on_every_port(|mut side| {
        let (mut rx, mut tx) = side.start(512);
        let (mut caches, mut burst, mut random) = (Caches::new("test"), Burst::new(), Random(seed()));
        rx.refill(&mut caches);
        let before = side.port.statistics();
        for _ in 0..100 {
            (0..32).for_each(|_| side.send_in(&random.frame(mac(0))));
            settle(&side);
            turn(&mut *rx, &mut *tx, &mut burst, &mut caches);
            settle(&side);
            while side.take_out().is_some() {}
        }
        rx.receive(&mut burst);
        let now = side.port.statistics();
        let frames = now.tx.frames - before.tx.frames;
        let doorbells = now.tx.doorbells + now.rx.doorbells - before.tx.doorbells - before.rx.doorbells;
        assert!(
            frames >= 3000 && doorbells * 32 <= frames * 2 + 64,
            "{doorbells} doorbells for {frames} frames"
        );
        side.port.stop(Queues { rx: vec![rx], tx: vec![tx] }).unwrap();
    });
}

#[test]
fn a_frame_without_headroom_leaves_like_any_other() {
    on_every_port(|mut side| {
        let (rx, mut tx) = side.start(64);
        let (mut caches, mut burst, mut expected) = (Caches::new("test"), Burst::new(), Vec::new());
        for round in 0..40u8 {
            for (front, bytes) in [(128, 100), (0, 60)] {
                let mut frame = caches.take(&side.pool).unwrap();
                assert!(frame.prepend(front) && frame.fill_from(&vec![round; bytes]));
                expected.push(frame.bytes().to_vec());
                burst.push(frame).unwrap();
            }
            assert_eq!(tx.send(&mut burst, &mut caches), 2);
            settle(&side);
            tx.reclaim(&mut caches);
        }
        let sent: Vec<Vec<u8>> = std::iter::from_fn(|| side.take_out()).collect();
        assert!(sent == expected, "{} of {}", sent.len(), expected.len());
        side.port.stop(Queues { rx: vec![rx], tx: vec![tx] }).unwrap();
        assert_eq!((side.device.complaints(), side.iommu.faults().0), (Vec::new(), 0));
    });
}

#[test]
fn frames_for_others_pass_only_in_promiscuous_mode() {
    on_every_port(|mut side| {
        let (mut rx, tx) = side.start(64);
        let (mut caches, mut burst, mut random) = (Caches::new("test"), Burst::new(), Random(seed()));
        rx.refill(&mut caches);
        let frames = [random.frame(mac(0)), random.frame(mac(9)), random.frame([0xff; 6])];
        for (mode, passed) in
            [(None, [1, 0, 1]), (Some(Promiscuous::On), [1, 1, 1]), (Some(Promiscuous::Off), [1, 0, 1])]
        {
            if let Some(mode) = mode {
                side.port.set_promiscuous(mode).unwrap();
            }
            let received = frames.each_ref().map(|frame| {
                side.send_in(frame);
                settle(&side);
                let received = rx.receive(&mut burst);
                caches.put_all(&mut burst);
                rx.refill(&mut caches);
                received
            });
            assert_eq!(received, passed, "{mode:?}");
        }
        side.port.stop(Queues { rx: vec![rx], tx: vec![tx] }).unwrap();
    });
}

#[test]
fn the_link_follows_the_cable() {
    on_every_port(|mut side| {
        let (rx, tx) = side.start(64);
        side.outer.cut();
        settle(&side);
        assert_eq!(side.port.link(), Link::Down);
        side.outer.join();
        let up = (0..1000).any(|_| {
            side.step();
            side.port.link() != Link::Down
        });
        assert!(up, "the link did not come back");
        side.port.stop(Queues { rx: vec![rx], tx: vec![tx] }).unwrap();
    });
}

#[test]
fn its_state_is_a_tree() {
    on_every_port(|mut side| {
        let (rx, tx) = side.start(64);
        let tree = side.port.inspect();
        assert!(tree.at(&["health"]).is_some() && tree.at(&["registers", "STATUS"]).is_some(), "{tree:?}");
        side.port.stop(Queues { rx: vec![rx], tx: vec![tx] }).unwrap();
    });
}

#[test]
fn small_pages_say_why() {
    let side = Side::new(0, |_| {});
    assert_eq!(side.pool.region().page_size(), PageSize::Small4K);
    assert!(side.pool.region().small_reason().is_some_and(|reason| !reason.is_empty()));
}
