//! The whole path on the software NIC: what goes in at one wire comes out at the other, exactly once, in order, byte for byte.

use pollring::buffer::{Burst, Caches, Pool, PoolConfig, ToDevice};
use pollring::port::{Link, PortConfig, Promiscuous, Queues, RxQueue, TxQueue};
use pollring_simulator::igb::Timing;
use pollring_tests::*;
use std::collections::VecDeque;

/// Two ports that forward to each other, and what is on its way.
struct Pair {
    sides: [Side; 2],
    rx: [Box<dyn RxQueue>; 2],
    tx: [Box<dyn TxQueue>; 2],
    bursts: [Burst; 2],
    caches: Caches,
    expected: [VecDeque<Vec<u8>>; 2],
    seen: [usize; 2],
}

impl Pair {
    fn new(entries: usize, timing: Timing, seed: u64) -> Pair {
        let side = |number| {
            Side::new(number, |config| (config.timing, config.seed) = (timing, seed + u64::from(number)))
        };
        let mut sides = [side(0), side(1)];
        for (from, to) in [(0, 1), (1, 0)] {
            let shared = sides[from].pool.share(&sides[to].space);
            shared.unwrap_or_else(|error| panic!("{error}"));
        }
        let (first, second) = (sides[0].start(entries), sides[1].start(entries));
        let (mut rx, mut caches) = ([first.0, second.0], Caches::new("pair"));
        for rx in &mut rx {
            rx.refill(&mut caches);
        }
        Pair {
            sides,
            rx,
            tx: [first.1, second.1],
            bursts: [Burst::new(), Burst::new()],
            caches,
            expected: Default::default(),
            seen: [0; 2],
        }
    }

    /// Sends a frame into `side`; it must come out at the other.
    fn send_in(&mut self, side: usize, frame: Vec<u8>) {
        self.sides[side].send_in(&frame);
        self.expected[1 - side].push_back(frame);
    }

    fn on_the_way(&self, side: usize) -> usize {
        self.expected[1 - side].len()
    }

    fn step(&self) {
        for side in &self.sides {
            side.step();
        }
    }

    fn turn(&mut self) {
        self.step();
        for side in 0..2 {
            turn(&mut *self.rx[side], &mut *self.tx[1 - side], &mut self.bursts[side], &mut self.caches);
        }
        self.step();
        for side in 0..2 {
            while let Some(frame) = self.sides[side].take_out() {
                let expected = self.expected[side].pop_front();
                assert_eq!(Some(&frame), expected.as_ref(), "frame {} out of side {side}", self.seen[side]);
                self.seen[side] += 1;
            }
        }
    }

    fn drain(&mut self) {
        for _ in 0..100_000 {
            if self.expected.iter().all(VecDeque::is_empty) {
                return;
            }
            self.turn();
        }
        panic!("{:?} frames never came out", self.expected.each_ref().map(VecDeque::len));
    }

    /// Counters agree with the frames, and after stop nothing is mapped or missing.
    fn finish(mut self) {
        for (side, out) in self.sides.iter_mut().zip(self.seen) {
            let counted = side.port.statistics();
            assert_eq!(counted.tx.frames, out as u64);
            let register =
                |name: &str| counted.device.iter().find(|(found, _)| found == name).map(|(_, value)| *value);
            assert_eq!(register("GPTC"), Some(out as u64));
            assert_eq!(register("GPRC"), Some(counted.rx.frames));
            assert_eq!(
                (counted.rx.bad, counted.tx.rejected, counted.rx_dropped, counted.rx_damaged),
                (0, 0, 0, 0)
            );
            assert_eq!(side.iommu.faults().0, 0);
        }
        let received: u64 = self.sides.iter_mut().map(|side| side.port.statistics().rx.frames).sum();
        assert_eq!(received, self.seen.iter().sum::<usize>() as u64);
        for ((side, rx), tx) in self.sides.iter_mut().zip(self.rx).zip(self.tx) {
            side.port.stop(Queues { rx: vec![rx], tx: vec![tx] }).unwrap();
        }
        drop((self.bursts, self.caches));
        for side in &self.sides {
            let census = side.pool.census();
            assert_eq!(census.home, census.total);
        }
    }
}

fn both_ways(frames: usize, timing: Timing, window: usize) {
    let seed = seed();
    let (mut pair, mut random, mut left) = (Pair::new(512, timing, seed), Random(seed), [frames / 2; 2]);
    while left != [0, 0] {
        for (side, left) in left.iter_mut().enumerate() {
            for _ in 0..(*left).min(window - pair.on_the_way(side)).min(32) {
                pair.send_in(side, random.frame(mac(side as u8)));
                *left -= 1;
            }
        }
        pair.turn();
    }
    pair.drain();
    assert_eq!(pair.seen, [frames / 2; 2]);
    pair.finish();
}

#[test]
fn a_million_frames_both_ways() {
    both_ways(amount(1_000_000, 10_000_000), Timing::Immediate, 256);
}

#[test]
fn frames_both_ways_with_write_backs_late_and_out_of_step() {
    both_ways(amount(200_000, 2_000_000), Timing::Delayed { longest: 5 }, 256);
}

#[test]
fn io_mode_touches_no_packet_byte() {
    let seed = seed();
    let (mut pair, mut random) = (Pair::new(256, Timing::Immediate, seed), Random(seed));
    for side in &pair.sides {
        side.pool.region().forbid_cpu().unwrap();
    }
    for _ in 0..500 {
        for side in 0..2 {
            (0..16).for_each(|_| pair.send_in(side, random.frame(mac(side as u8))));
        }
        pair.drain();
    }
    assert_eq!(pair.seen, [8000; 2]);
    pair.finish();
}

#[test]
fn every_ring_size_over_many_wraps() {
    let seed = seed();
    for shift in 6..=12 {
        let entries = 1usize << shift;
        let (mut pair, mut random) = (Pair::new(entries, Timing::Delayed { longest: 3 }, seed), Random(seed));
        let (mut left, mut turns) = ((entries * 12).max(3000), 0);
        while left > 0 {
            turns += 1;
            assert!(turns < 1_000_000, "{left} frames find no way in");
            let count = random.within(1, 40).min(left).min(entries / 2 - pair.on_the_way(0));
            (0..count).for_each(|_| pair.send_in(0, random.frame(mac(0))));
            left -= count;
            pair.turn();
        }
        pair.drain();
        pair.finish();
    }
}

#[test]
fn an_empty_pool_is_waited_out() {
    let mut side = Side::with_pool(0, 128, |_| {});
    let (mut rx, mut tx) = side.start(256);
    let (mut caches, mut burst) = (Caches::new("hoarder"), Burst::new());
    let mut random = Random(seed());
    let mut held = Vec::new();
    rx.refill(&mut caches);
    for round in 0..60 {
        side.send_in(&random.frame(mac(0)));
        side.send_in(&random.frame(mac(0)));
        side.step();
        rx.refill(&mut caches);
        rx.receive(&mut burst);
        while let Some(frame) = burst.pop() {
            held.push(frame);
        }
        assert!(round < 10 || held.len() <= 128);
    }
    while held.len() < 128 {
        side.send_in(&random.frame(mac(0)));
        side.step();
        rx.refill(&mut caches);
        rx.receive(&mut burst);
        while let Some(frame) = burst.pop() {
            held.push(frame);
        }
    }
    for _ in 0..50 {
        side.send_in(&random.frame(mac(0)));
        side.step();
        assert_eq!(rx.refill(&mut caches) + rx.receive(&mut burst), 0, "no buffer is left");
    }
    let counted = side.port.statistics();
    assert_eq!(counted.rx_dropped, 50, "the device says what it dropped");
    assert!(counted.rx.pool_empty > 0);
    held.drain(..).for_each(|frame| caches.put(frame));
    let frame = random.frame(mac(0));
    rx.refill(&mut caches);
    side.send_in(&frame);
    side.step();
    assert_eq!(rx.receive(&mut burst), 1);
    assert_eq!(burst.pop().unwrap().bytes(), frame);
    tx.reclaim(&mut caches);
    side.port.stop(Queues { rx: vec![rx], tx: vec![tx] }).unwrap();
    drop(caches);
    assert_eq!(side.pool.census().home, 128);
}

#[test]
fn the_link_goes_down_and_comes_back() {
    let mut side = Side::new(0, |_| {});
    let (mut rx, tx) = side.start(64);
    let mut random = Random(seed());
    let (mut caches, mut burst) = (Caches::new("test"), Burst::new());
    assert!(matches!(side.port.link(), Link::Up { speed_mbps: 1000, .. }));
    side.outer.cut();
    for _ in 0..100 {
        side.step();
    }
    assert_eq!(side.port.link(), Link::Down);
    side.outer.join();
    let up = (0..1000).any(|_| {
        side.step();
        side.port.link() != Link::Down
    });
    assert!(up);
    let frame = random.frame(mac(0));
    rx.refill(&mut caches);
    side.send_in(&frame);
    side.step();
    assert_eq!(rx.receive(&mut burst), 1);
    assert_eq!(burst.pop().unwrap().bytes(), frame);
    side.port.stop(Queues { rx: vec![rx], tx: vec![tx] }).unwrap();
}

#[test]
fn frames_for_others_pass_only_in_promiscuous_mode() {
    let mut side = Side::new(0, |_| {});
    let (mut rx, tx) = side.start(64);
    let (mut caches, mut burst, mut random) = (Caches::new("test"), Burst::new(), Random(seed()));
    rx.refill(&mut caches);
    let receives = |side: &Side, rx: &mut dyn RxQueue, burst: &mut Burst, frame: &[u8]| {
        side.send_in(frame);
        side.step();
        let received = rx.receive(burst);
        while burst.pop().is_some() {}
        received
    };
    let (own, other, all) = (random.frame(mac(0)), random.frame(mac(9)), random.frame([0xff; 6]));
    assert_eq!([&own, &other, &all].map(|frame| receives(&side, &mut *rx, &mut burst, frame)), [1, 0, 1]);
    side.port.set_promiscuous(Promiscuous::On).unwrap();
    assert_eq!([&own, &other, &all].map(|frame| receives(&side, &mut *rx, &mut burst, frame)), [1, 1, 1]);
    side.port.set_promiscuous(Promiscuous::Off).unwrap();
    assert_eq!([&own, &other, &all].map(|frame| receives(&side, &mut *rx, &mut burst, frame)), [1, 0, 1]);
    side.port.stop(Queues { rx: vec![rx], tx: vec![tx] }).unwrap();
}

#[test]
fn queues_move_between_workers_with_frames_in_flight() {
    let seed = seed();
    let (mut pair, mut random) = (Pair::new(128, Timing::Delayed { longest: 4 }, seed), Random(seed));
    for move_number in 0..40 {
        (0..30).for_each(|_| pair.send_in(0, random.frame(mac(0))));
        (0..30).for_each(|_| pair.send_in(1, random.frame(mac(1))));
        // A thread of its own, with caches of its own: the old ones go home with whatever they hold.
        pair.caches = Caches::new(&format!("worker {move_number}"));
        pair = std::thread::spawn(move || {
            (0..20).for_each(|_| pair.turn());
            pair
        })
        .join()
        .unwrap();
    }
    pair.drain();
    assert_eq!(pair.seen, [1200; 2]);
    pair.finish();
}

#[test]
fn flows_spread_over_queue_pairs_and_stay_on_theirs() {
    let mut side = Side::new(0, |_| {});
    let config = PortConfig { queue_pairs: 4, ..PortConfig::new(&side.pool) };
    let mut queues = side.start_with(&config);
    let (mut caches, mut burst) = (Caches::new("test"), Burst::new());
    for rx in &mut queues.rx {
        rx.refill(&mut caches);
    }
    let mut place = std::collections::HashMap::new();
    for round in 0..3 {
        for port in 0..64u16 {
            side.send_in(&udp(mac(0), 1000 + port));
            side.step();
            let found: Vec<usize> =
                (0..4).filter(|queue| queues.rx[*queue].receive(&mut burst) == 1).collect();
            assert_eq!(found.len(), 1);
            caches.put_all(&mut burst);
            assert_eq!(
                *place.entry(port).or_insert(found[0]),
                found[0],
                "flow {port} moved in round {round}"
            );
        }
    }
    let used: std::collections::HashSet<usize> = place.values().copied().collect();
    assert_eq!(used.len(), 4, "64 flows use all four queues");
    side.port.stop(queues).unwrap();
}

/// An IPv4 UDP frame of 60 bytes from a source port.
fn udp(to: [u8; 6], source_port: u16) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[..6].copy_from_slice(&to);
    frame[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0]);
    frame[16..18].copy_from_slice(&46u16.to_be_bytes());
    frame[22..24].copy_from_slice(&[64, 17]);
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    frame[34..36].copy_from_slice(&source_port.to_be_bytes());
    frame[36..38].copy_from_slice(&4791u16.to_be_bytes());
    frame
}

#[test]
fn the_device_cannot_write_to_memory_that_it_only_reads() {
    let mut side = Side::new(0, |_| {});
    let config = PoolConfig { pages: small_pages(), ..PoolConfig::new("read only", 64) };
    let source = Pool::<ToDevice>::new(&config, &[&side.space]).unwrap();
    let mut caches = Caches::new("test");
    let mut frame = caches.take(&source).unwrap();
    assert!(frame.fill_from(&[0x5a; 100]));
    let iova = frame.iova().bits();
    assert!(side.iommu.dma_write(iova, &[0; 8]).is_err());
    let mut copy = [0; 100];
    side.iommu.dma_read(iova, &mut copy).unwrap();
    assert_eq!(frame.bytes(), copy);
    let (rx, mut tx) = side.start(64);
    let mut burst = Burst::new();
    burst.push(frame).unwrap();
    assert_eq!(tx.send(&mut burst, &mut caches), 1);
    side.step();
    assert_eq!(side.take_out().unwrap(), copy, "sending needs only the right to read");
    side.port.stop(Queues { rx: vec![rx], tx: vec![tx] }).unwrap();
    assert_eq!(side.iommu.faults().0, 1);
}

/// What no stepwise run shows: the device fills slots while the driver looks at them.
#[test]
fn a_device_on_a_thread_of_its_own_loses_nothing() {
    let (frames, window) = (amount(300_000, 5_000_000) as u64, 200);
    let mut side = Side::new(0, |_| {});
    let (mut rx, mut tx) = side.start(512);
    let (mut caches, mut burst, mut random) = (Caches::new("driver"), Burst::new(), Random(seed()));
    rx.refill(&mut caches);
    let (igb, outer) = (side.device.clone(), side.outer.clone());
    let samples: Vec<Vec<u8>> = (0..64).map(|_| random.frame(mac(0))).collect();
    let device = std::thread::spawn(move || {
        let (mut sent, mut back, mut frame) = (0, 0, Vec::new());
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while back < frames && std::time::Instant::now() < deadline {
            while sent < frames
                && sent - back < window
                && outer.transmit(&samples[sent as usize % 64]).is_ok()
            {
                sent += 1;
            }
            igb.step(64);
            while outer.receive_into(&mut frame) {
                assert_eq!(frame, samples[back as usize % 64], "frame {back}");
                back += 1;
            }
        }
        back
    });
    while !device.is_finished() {
        if turn(&mut *rx, &mut *tx, &mut burst, &mut caches) == 0 {
            std::thread::yield_now();
        }
    }
    let counted = side.port.statistics();
    assert_eq!((device.join().unwrap(), counted.rx.bad, counted.rx_dropped), (frames, 0, 0));
    side.port.stop(Queues { rx: vec![rx], tx: vec![tx] }).unwrap();
}
