//! Both formats against a device of a page, across every wrap: what goes in comes out once and whole, whatever the order, and a lie costs
//! a counter.

use super::*;
use crate::buffer::{Burst, Caches, Chain, Frame, PoolConfig, Segment};
use crate::bus::simulated::SimulatedIommu;
use crate::hugepages::Pages;
use crate::iova::AddressSpace;
use crate::ring::{RingLayout, RingMemory, SendLimits, Session};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;

const FRAMES: usize = 1024;

struct Bench {
    iommu: Arc<SimulatedIommu>,
    pool: Pool<Both>,
    caches: Caches,
    session: Session,
    memory: Arc<RingMemory>,
}

fn bench() -> Bench {
    let iommu = Arc::new(SimulatedIommu::default());
    let space = AddressSpace::new("test", iommu.clone());
    let pages = Pages::Small4K { reason: "a unit test".into() };
    let pool = Pool::new(&PoolConfig { pages, ..PoolConfig::new("virtqueues", FRAMES) }, &[&space]).unwrap();
    let mut layout = RingLayout::new();
    layout.ring(64 << 10);
    let memory = RingMemory::new("test", &layout, &space, None).unwrap();
    Bench { iommu, pool, caches: Caches::new("test"), session: Session::new(), memory }
}

impl Bench {
    fn receive<F: Format>(&self, entries: usize, start: u32, order: Order) -> ReceiveQueue<F> {
        let options = QueueOptions { order, suppression: Suppression::EventIndex };
        let lease = self.session.lease();
        let mut queue = ReceiveQueue::new(&self.memory, 0, entries, options, Merging::On, &self.pool, lease);
        queue.start_at(start);
        queue
    }

    fn transmit<F: Format>(&self, entries: usize, start: u32, order: Order) -> TransmitQueue<F> {
        let options = QueueOptions { order, suppression: Suppression::Flags };
        let limits = SendLimits { lengths: 14..=9000, segments: 4 };
        let mut queue = TransmitQueue::new(&self.memory, 0, entries, options, limits, self.session.lease());
        queue.start_at(start);
        queue
    }

    fn all_home(self) -> bool {
        self.session.end();
        drop(self.caches);
        self.pool.census().home == FRAMES
    }
}

/// A buffer that the device has: its id, its slots, its parts.
#[derive(Clone, Debug)]
struct Given {
    id: u16,
    parts: Vec<(u64, u32, u16)>,
}

/// A device in words of the specification, with free-running indices of its own.
struct Device {
    iommu: Arc<SimulatedIommu>,
    places: QueuePlaces,
    packed: bool,
    seen: u32,
    used: u32,
}

impl Device {
    fn new<F: Format>(bench: &Bench, places: QueuePlaces, start: u32) -> Device {
        if F::COUNTED {
            // Both indices stand where an earlier life of the queue left them.
            for ring in [places.driver, places.device] {
                bench.iommu.dma_write(ring.bits() + 2, &(start as u16).to_le_bytes()).unwrap();
            }
        }
        Device { iommu: bench.iommu.clone(), places, packed: !F::COUNTED, seen: start, used: start }
    }

    fn read<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.iommu.dma_read(at, &mut bytes).unwrap();
        bytes
    }

    fn descriptor(&self, slot: u32) -> (u64, u32, u16, u16) {
        let bytes: [u8; 16] = self.read(self.places.descriptors.bits() + u64::from(slot) * 16);
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let (address, length) = (bytes[..8].try_into().unwrap(), bytes[8..12].try_into().unwrap());
        (u64::from_le_bytes(address), u32::from_le_bytes(length), half(12), half(14))
    }

    fn mask(&self) -> u32 {
        u32::from(self.places.entries) - 1
    }

    fn take(&mut self) -> Option<Given> {
        if self.packed { self.take_packed() } else { self.take_split() }
    }

    fn take_split(&mut self) -> Option<Given> {
        let ring = self.places.driver.bits();
        if u16::from_le_bytes(self.read(ring + 2)) == self.seen as u16 {
            return None;
        }
        let id = u16::from_le_bytes(self.read(ring + 4 + u64::from(self.seen & self.mask()) * 2));
        self.seen = self.seen.wrapping_add(1);
        let (mut parts, mut slot) = (Vec::new(), u32::from(id));
        loop {
            let (address, length, flags, next) = self.descriptor(slot);
            parts.push((address, length, flags));
            if flags & 1 == 0 {
                return Some(Given { id, parts });
            }
            slot = u32::from(next);
        }
    }

    fn take_packed(&mut self) -> Option<Given> {
        let (mut parts, start) = (Vec::new(), self.seen);
        loop {
            let (address, length, id, flags) = self.descriptor(self.seen & self.mask());
            let wrap = self.seen & (self.mask() + 1) == 0;
            if (flags & 0x80 != 0, flags & 0x8000 != 0) != (wrap, !wrap) {
                assert_eq!(self.seen, start, "a chain became visible in part");
                return None;
            }
            self.seen = self.seen.wrapping_add(1);
            parts.push((address, length, flags & 3));
            if flags & 1 == 0 {
                return Some(Given { id, parts });
            }
        }
    }

    /// Says that a buffer of `slots` descriptors is used.
    fn give_back(&mut self, id: u16, length: u32, slots: usize) {
        let (mask, used) = (self.mask(), self.used);
        if self.packed {
            let flags: u16 = if used & (mask + 1) == 0 { 0x8080 } else { 0 };
            let word = u64::from(length) | u64::from(id) << 32 | u64::from(flags) << 48;
            let at = self.places.descriptors.bits() + u64::from(used & mask) * 16 + 8;
            self.iommu.dma_write(at, &word.to_le_bytes()).unwrap();
            self.used = used.wrapping_add(slots as u32);
        } else {
            let ring = self.places.device.bits();
            let word = u64::from(id) | u64::from(length) << 32;
            self.iommu.dma_write(ring + 4 + u64::from(used & mask) * 8, &word.to_le_bytes()).unwrap();
            self.used = used.wrapping_add(1);
            self.iommu.dma_write(ring + 2, &(self.used as u16).to_le_bytes()).unwrap();
        }
    }

    /// Fills buffers with one frame, as many as it needs from the front of `held`, header included.
    fn fill(&mut self, held: &mut VecDeque<Given>, frame: &[u8]) -> bool {
        let all: Vec<u8> = [&[0; 12], frame].concat();
        let each = held.front().map_or(1, |given| given.parts[0].1 as usize);
        let buffers = all.len().div_ceil(each);
        if buffers > held.len() {
            return false;
        }
        // The first one is used last, so that all of them become visible at once.
        let taken: Vec<Given> = held.drain(..buffers).collect();
        for (given, bytes) in taken.iter().zip(all.chunks(each)) {
            assert_eq!(given.parts[0].2, 2, "a buffer that the device may write");
            self.iommu.dma_write(given.parts[0].0, bytes).unwrap();
        }
        self.iommu.dma_write(taken[0].parts[0].0 + 10, &(buffers as u16).to_le_bytes()).unwrap();
        for (given, bytes) in taken.iter().zip(all.chunks(each)) {
            self.give_back(given.id, bytes.len() as u32, 1);
        }
        true
    }
}

fn starts() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0u32), Just(65_536 - 40), Just(32_768 - 40), Just(u32::MAX - 40)]
}

fn pattern(number: u32, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (number as usize * 31 + at) as u8).collect()
}

/// The bytes of the first entry of a burst.
fn first(burst: &mut Burst) -> Option<Vec<u8>> {
    let chain = burst.pop_chain()?;
    let bytes = |segment: Segment| match segment {
        Segment::Frame(frame) => frame.bytes().to_vec(),
        Segment::Span(_) => Vec::new(),
    };
    Some(chain.into_segments().flat_map(bytes).collect())
}

fn receives<F: Format>(shift: u32, start: u32, order: Order, rounds: &[(usize, usize, usize)]) {
    let (entries, mut bench) = (1 << shift, bench());
    let mut queue = bench.receive::<F>(entries, start, order);
    let mut device = Device::new::<F>(&bench, queue.places(), start);
    let (mut held, mut expected, mut number) = (VecDeque::new(), VecDeque::new(), 0);
    for (post, fill, bytes) in rounds {
        let vacant = queue.vacant();
        assert_eq!(queue.post(&mut bench.caches, *post), vacant.min(*post));
        held.extend(std::iter::from_fn(|| device.take()));
        // Out of order, a slot stays taken until those in front of it are used.
        assert!(held.len() == queue.posted() || order == Order::Any && held.len() < queue.posted());
        if order == Order::Any && held.len() > 3 {
            held.swap(0, 2);
        }
        for at in 0..*fill {
            let frame = pattern(number, (bytes + at * 97) % 4500 + 14);
            if device.fill(&mut held, &frame) {
                expected.push_back(frame);
                number += 1;
            }
        }
        let mut burst = Burst::new();
        while queue.collect(&mut burst).frames > 0 {
            while let Some(frame) = first(&mut burst) {
                assert_eq!(Some(frame), expected.pop_front());
            }
        }
        assert!(expected.is_empty());
    }
    drop(queue);
    assert!(bench.all_home());
}

fn transmits<F: Format>(shift: u32, start: u32, order: Order, rounds: &[(usize, usize, usize)]) {
    let (entries, mut bench) = (1 << shift, bench());
    let mut queue = bench.transmit::<F>(entries, start, order);
    let mut device = Device::new::<F>(&bench, queue.places(), start);
    let (mut held, mut number, mut burst) = (VecDeque::new(), 0, Burst::new());
    let mut expected = VecDeque::new();
    for (count, done, kind) in rounds {
        for at in 0..(*count).min(burst.room()) {
            let bytes = pattern(number, 60 + (number as usize * 7) % 1000);
            if (kind + at) % 5 == 0 {
                let mut chain = Chain::new();
                for part in bytes.chunks(bytes.len().div_ceil(2)) {
                    let mut frame = bench.caches.take(&bench.pool).unwrap();
                    // Without headroom the header takes a descriptor of its own.
                    assert!(kind % 2 == 0 || frame.prepend(120));
                    assert!(frame.fill_from(part));
                    chain.push(Segment::Frame(frame)).unwrap_or_else(|_| panic!("room"));
                }
                burst.push_chain(chain).unwrap_or_else(|_| panic!("room"));
            } else {
                let mut frame = bench.caches.take(&bench.pool).unwrap();
                assert!(frame.prepend(if at % 7 == 1 { 120 } else { 0 }) && frame.fill_from(&bytes));
                burst.push(frame).unwrap();
            }
            expected.push_back(bytes);
            number += 1;
        }
        queue.send(&mut burst, &mut bench.caches);
        for given in std::iter::from_fn(|| device.take()) {
            let mut all = Vec::new();
            for (address, bytes, flags) in &given.parts {
                assert_eq!(flags & 2, 0, "a buffer that the device may only read");
                let mut part = vec![0; *bytes as usize];
                bench.iommu.dma_read(*address, &mut part).unwrap();
                all.extend(part);
            }
            assert_eq!(all[..12], [0; 12]);
            assert_eq!(Some(&all[12..]), expected.pop_front().as_deref());
            held.push_back(given);
        }
        if order == Order::Any && held.len() > 3 {
            held.swap(0, 2);
        }
        for given in held.drain(..(*done).min(held.len())) {
            device.give_back(given.id, 0, given.parts.len());
        }
        let pending = queue.pending();
        let reclaimed = queue.reclaim(&mut bench.caches);
        assert_eq!((reclaimed.lies, queue.pending()), (0, pending - reclaimed.slots));
        if held.is_empty() {
            assert_eq!(queue.pending(), 0);
        }
    }
    drop((queue, burst));
    assert!(bench.all_home());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_a_device_fills_comes_out_whole(
        shift in 2u32..9, start in starts(), any in any::<bool>(),
        rounds in prop::collection::vec((1usize..65, 0usize..40, 0usize..4500), 1..40),
    ) {
        let order = if any { Order::Any } else { Order::InOrder };
        receives::<Split>(shift, start, order, &rounds);
        receives::<Packed>(shift, start, order, &rounds);
    }

    #[test]
    fn what_is_sent_is_read_whole_and_comes_back(
        shift in 3u32..9, start in starts(), any in any::<bool>(),
        rounds in prop::collection::vec((0usize..40, 0usize..60, 0usize..10), 1..40),
    ) {
        let order = if any { Order::Any } else { Order::InOrder };
        transmits::<Split>(shift, start, order, &rounds);
        transmits::<Packed>(shift, start, order, &rounds);
    }

    #[test]
    fn a_liar_costs_counters_only(
        shift in 2u32..8, any in any::<bool>(), start in starts(),
        words in prop::collection::vec((any::<u16>(), any::<u64>(), 0u8..4), 1..300),
    ) {
        let order = if any { Order::Any } else { Order::InOrder };
        lies::<Split>(shift, start, order, &words);
        lies::<Packed>(shift, start, order, &words);
    }

    #[test]
    fn in_order_one_entry_may_speak_for_many(
        shift in 3u32..9, start in starts(), batches in prop::collection::vec(1usize..30, 1..60),
    ) {
        let (entries, mut bench) = (1 << shift, bench());
        let mut queue = bench.transmit::<Packed>(entries, start, Order::InOrder);
        let mut device = Device::new::<Packed>(&bench, queue.places(), start);
        let mut burst = Burst::new();
        for batch in batches {
            bench.caches.take_into(&bench.pool, &mut burst, batch);
            burst.frames_mut().filter(|frame| frame.is_empty()).for_each(|frame| assert!(frame.set_len(60)));
            queue.send(&mut burst, &mut bench.caches);
            let given: Vec<Given> = std::iter::from_fn(|| device.take()).collect();
            if let Some(last) = given.last() {
                device.give_back(last.id, 0, given.len());
            }
            prop_assert_eq!(queue.reclaim(&mut bench.caches).slots, given.len());
        }
        drop((queue, burst));
        prop_assert!(bench.all_home());
    }
}

/// Random words where the device may write, then whatever both queues make of it.
fn lies<F: Format>(shift: u32, start: u32, order: Order, words: &[(u16, u64, u8)]) {
    let (entries, mut bench) = (1usize << shift, bench());
    for transmit in [false, true] {
        let mut receive = bench.receive::<F>(entries, start, order);
        let places = receive.places();
        let mut sender = (transmit).then(|| bench.transmit::<F>(entries, start, order));
        let mut burst = Burst::new();
        for (at, word, what) in words {
            // Plausible ids and lengths half of the time, so that lies get far.
            let small = word & 0xff | (word >> 32 & 0x7ff) << 32;
            let value = if what & 1 == 0 { *word } else { small };
            let slot = u64::from(*at) % entries as u64;
            let target = match (F::COUNTED, what) {
                (true, 0) => places.device.bits(),
                (true, _) => places.device.bits() + 4 + slot * 8,
                (false, _) => places.descriptors.bits() + slot * 16 + 8,
            };
            bench.iommu.dma_write(target, &value.to_le_bytes()[..if *what == 0 { 4 } else { 8 }]).unwrap();
            match &mut sender {
                None => {
                    receive.post(&mut bench.caches, 8);
                    receive.collect(&mut burst);
                }
                Some(queue) => {
                    bench.caches.take_into(&bench.pool, &mut burst, 4);
                    burst.frames_mut().for_each(|frame| assert!(frame.set_len(60)));
                    queue.send(&mut burst, &mut bench.caches);
                    queue.reclaim(&mut bench.caches);
                }
            }
            let mut owners = std::collections::HashSet::new();
            while let Some(chain) = burst.pop_chain() {
                for segment in chain.into_segments() {
                    let Segment::Frame(frame) = segment else { panic!("a span") };
                    assert!(frame.len() <= 2048 && owners.insert(frame.iova()), "{frame:?}");
                    std::hint::black_box(frame.bytes().iter().fold(0, |sum, byte| sum ^ byte));
                }
            }
        }
    }
    assert!(bench.all_home());
}

/// A device that sleeps until it is notified, and asks by event index: no frame may wait for ever.
fn wakes<F: Format>(start: u32) {
    let (entries, mut bench) = (16, bench());
    let mut queue = bench.receive::<F>(entries, start, Order::InOrder);
    let mut device = Device::new::<F>(&bench, queue.places(), start);
    let (mut burst, mut kicks) = (Burst::new(), 0);
    for round in 0..70_000u32 {
        // It looks once more after it asked, then sleeps.
        let event = device.seen;
        if F::COUNTED {
            let at = queue.places().device.bits() + 4 + entries as u64 * 8;
            bench.iommu.dma_write(at, &(event as u16).to_le_bytes()).unwrap();
        } else {
            let wrap = u32::from(event & entries as u32 == 0);
            let word = event & (entries as u32 - 1) | wrap << 15 | 2 << 16;
            bench.iommu.dma_write(queue.places().device.bits(), &word.to_le_bytes()).unwrap();
        }
        let posted = queue.post(&mut bench.caches, 1 + round as usize % 5);
        let due = queue.kick_due();
        assert_eq!(due, posted > 0, "round {round}");
        kicks += u32::from(due);
        while let Some(given) = device.take() {
            device.give_back(given.id, 72, 1);
        }
        queue.collect(&mut burst);
        bench.caches.put_all(&mut burst);
        // A second look at the same event, already passed, is no reason to notify.
        assert!(!queue.kick_due());
    }
    assert_eq!(kicks, 70_000);
    drop((queue, burst));
    assert!(bench.all_home());
}

#[test]
fn a_sleeping_device_is_woken_across_every_wrap() {
    for start in [0, 65_500, 32_700, u32::MAX - 40_000] {
        wakes::<Split>(start);
        wakes::<Packed>(start);
    }
}

#[test]
fn recall_empties_a_queue_for_the_next_peer() {
    let mut bench = bench();
    let mut receive = bench.receive::<Packed>(64, 0, Order::InOrder);
    let mut sender = bench.transmit::<Split>(64, 0, Order::InOrder);
    let mut burst = Burst::new();
    for _ in 0..3 {
        assert_eq!(receive.post(&mut bench.caches, 40), 40);
        receive.recall(&mut bench.caches);
        bench.caches.take_into(&bench.pool, &mut burst, 30);
        burst.frames_mut().for_each(|frame| assert!(frame.set_len(60)));
        assert_eq!(sender.send(&mut burst, &mut bench.caches).frames, 30);
        sender.recall(&mut bench.caches);
        assert_eq!((receive.posted(), sender.pending()), (0, 0));
    }
    drop((receive, sender));
    assert!(bench.all_home());
}

#[test]
fn a_frame_that_fills_its_buffer_is_still_one_frame() {
    let mut bench = bench();
    let mut queue = bench.receive::<Split>(16, 0, Order::InOrder);
    let mut device = Device::new::<Split>(&bench, queue.places(), 0);
    let frame = pattern(1, bench.pool.room_bytes());
    queue.post(&mut bench.caches, 4);
    let mut held: VecDeque<Given> = std::iter::from_fn(|| device.take()).collect();
    assert!(device.fill(&mut held, &frame));
    let mut burst = Burst::new();
    assert_eq!(queue.collect(&mut burst).frames, 1);
    assert!(burst.is_plain());
    let taken: Frame = burst.pop().unwrap();
    assert_eq!(taken.bytes(), frame);
    drop((taken, queue));
    assert!(bench.all_home());
}

#[test]
fn control_commands_are_answered_over_the_wrap() {
    fn run<F: Format>() {
        let bench = bench();
        let options = QueueOptions { order: Order::Any, suppression: Suppression::Flags };
        let mut queue = ControlQueue::<F>::new(&bench.memory, 0, 8, options);
        let mut device = Device::new::<F>(&bench, queue.places(), 0);
        for round in 0..40u8 {
            assert_eq!(queue.poll(), None);
            queue.submit(4, 0, &[round, 0]).unwrap();
            assert_eq!(queue.submit(4, 0, &[]), Err(ControlError::Busy));
            assert_eq!(queue.poll(), None);
            let given = device.take().unwrap();
            let mut command = [0; 4];
            bench.iommu.dma_read(given.parts[0].0, &mut command).unwrap();
            assert_eq!((command, given.parts[0].1, given.parts[1].1), ([4, 0, round, 0], 4, 1));
            bench.iommu.dma_write(given.parts[1].0, &[round & 1]).unwrap();
            device.give_back(given.id, 1, 2);
            assert_eq!(queue.poll(), Some(round & 1));
        }
    }
    run::<Split>();
    run::<Packed>();
}
