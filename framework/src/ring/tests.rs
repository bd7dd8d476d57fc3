//! Rings against a device of three lines, across every wrap: what goes in comes out once, in order, whatever the device says.

use super::*;
use crate::buffer::{Both, Burst, Caches, Chain, Frame, Pool, PoolConfig, Segment, Shared, Span};
use crate::bus::simulated::SimulatedIommu;
use crate::hugepages::{Pages, Region, RegionConfig};
use crate::iova::{AddressSpace, Direction, Iova, Placement};
use proptest::prelude::*;
use std::sync::Arc;
use zerocopy::{Immutable, IntoBytes};

#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct Toy {
    buffer: Iova,
    status: u64,
}

const DONE: u64 = 1 << 32;
const BAD: u64 = 1 << 33;

impl ReceiveDescriptor for Toy {
    const STATUS_WORD: usize = 1;
    fn post(buffer: Iova) -> Toy {
        Toy { buffer, status: 0 }
    }
    fn good_length(status: u64) -> Option<u16> {
        (status & (DONE | BAD) == DONE).then_some(status as u16)
    }
    fn is_done(status: u64) -> bool {
        status & DONE != 0
    }
}

struct Bench {
    iommu: Arc<SimulatedIommu>,
    space: AddressSpace,
    pool: Pool<Both>,
    caches: Caches,
    session: Session,
    memory: Arc<RingMemory>,
}

fn small() -> Pages {
    Pages::Small4K { reason: "a unit test".into() }
}

fn bench(entries: usize) -> Bench {
    let iommu = Arc::new(SimulatedIommu::default());
    let space = AddressSpace::new("test", iommu.clone());
    let pool = Pool::new(&PoolConfig { pages: small(), ..PoolConfig::new("rings", 512) }, &[&space]).unwrap();
    let mut layout = RingLayout::new();
    layout.ring(entries * 16);
    let memory = RingMemory::new("test", &layout, &space, None).unwrap();
    Bench { iommu, space, pool, caches: Caches::new("test"), session: Session::new(), memory }
}

impl Bench {
    fn receive_ring(&self, entries: usize, start: u32) -> ReceiveRing<Toy> {
        let mut ring = ReceiveRing::new(&self.memory, 0, entries, &self.pool, self.session.lease());
        ring.start_at(start);
        ring
    }

    fn transmit_ring(&self, entries: usize, start: u32, segments: usize) -> TransmitRing<Toy> {
        let limits = SendLimits { lengths: 14..=1600, segments };
        let mut ring = TransmitRing::new(&self.memory, 0, entries, limits, self.session.lease());
        ring.start_at(start);
        ring
    }

    fn set_status(&self, ring: Iova, entries: usize, slot: u32, status: u64) {
        let at = ring.bits() + u64::from(slot % entries as u32) * 16 + 8;
        self.iommu.dma_write(at, &status.to_le_bytes()).unwrap();
    }

    fn frame(&mut self, bytes: usize) -> Frame {
        let mut frame = self.caches.take(&self.pool).unwrap();
        assert!(frame.set_len(bytes));
        frame
    }

    fn all_home(self) -> bool {
        self.session.end();
        drop(self.caches);
        self.pool.census().home == 512
    }
}

proptest! {
    #[test]
    fn a_receive_ring_hands_out_what_was_filled(
        shift in 1u32..9, start in prop_oneof![Just(0u32), Just(u32::MAX - 40)],
        rounds in prop::collection::vec((1usize..65, 0usize..65, 0u8..10), 1..60),
    ) {
        let entries = 1 << shift;
        let mut bench = bench(entries);
        let mut ring = bench.receive_ring(entries, start);
        let (mut device, mut seen, mut expected) = (start, start, std::collections::VecDeque::new());
        for (post, fill, bad) in rounds {
            let vacant = ring.vacant();
            prop_assert_eq!(ring.post(&mut bench.caches, post), post.min(vacant));
            prop_assert!(ring.posted() < entries, "a full ring looks empty to the device");
            for _ in 0..fill.min(ring.posted() - device.wrapping_sub(seen) as usize) {
                let length = u64::from(device as u16 % 1500);
                let lie = if bad == 0 { BAD } else { 0 };
                bench.set_status(ring.iova(), entries, device, DONE | lie | length);
                expected.push_back((bad != 0).then_some(length as usize));
                device = device.wrapping_add(1);
            }
            let mut burst = Burst::new();
            let done = ring.collect(&mut burst);
            seen = seen.wrapping_add((done.frames + done.bad) as u32);
            for _ in 0..done.frames + done.bad {
                if let Some(length) = expected.pop_front().unwrap() {
                    prop_assert_eq!(burst.pop().unwrap().len(), length);
                }
            }
            prop_assert!(burst.is_empty());
        }
        drop(ring);
        prop_assert!(bench.all_home());
    }

    #[test]
    fn a_transmit_ring_gives_back_what_was_done(
        shift in 1u32..9, start in prop_oneof![Just(0u32), Just(u32::MAX - 40)],
        rounds in prop::collection::vec((0usize..65, 0usize..100, any::<bool>()), 1..60),
    ) {
        let entries = 1 << shift;
        let mut bench = bench(entries);
        let mut ring = bench.transmit_ring(entries, start, 1);
        let mut burst = Burst::new();
        let reports = std::cell::RefCell::new(Vec::new());
        let describe = |out: Outgoing| {
            reports.borrow_mut().push(out.report);
            Toy { buffer: out.iova, status: 0 }
        };
        let mut unreported = std::collections::VecDeque::new();
        for (count, done, runt) in rounds {
            bench.caches.take_into(&bench.pool, &mut burst, count);
            burst.frames_mut().for_each(|frame| assert!(frame.set_len(if runt { 5 } else { 60 })));
            let (frames, vacant, before) = (burst.len(), ring.vacant(), ring.pending());
            let sent = ring.send(&mut burst, &mut bench.caches, describe);
            if !runt {
                prop_assert_eq!(sent.frames, frames.min(vacant));
            }
            prop_assert_eq!(ring.pending(), before + sent.frames - sent.rejected);
            for report in reports.borrow_mut().drain(..) {
                if report == Report::WriteBack {
                    unreported.push_back(());
                }
            }
            // The device finishes whole blocks in order.
            let mut slots: Vec<u32> = ring.block_ends();
            prop_assert_eq!(slots.len(), unreported.len(), "each block asks for one write-back");
            slots.truncate(done);
            for slot in &slots {
                bench.set_status(ring.iova(), entries, *slot, DONE);
                unreported.pop_front();
            }
            let expected = slots.last().map_or(0, |last| last.wrapping_sub(ring.oldest()) as usize + 1);
            prop_assert_eq!(ring.reclaim(&mut bench.caches, |slot| slot.word(1) & DONE != 0), expected);
        }
        drop(burst);
        drop(ring);
        prop_assert!(bench.all_home());
    }
}

#[test]
fn chains_and_spans_leave_as_one_frame_and_come_back() {
    let mut bench = bench(16);
    let region = RegionConfig { name: "span".into(), bytes: 4096, pages: small(), node: None };
    let placement = Placement::new(Arc::new(Region::allocate(&region).unwrap()), &[&bench.space]).unwrap();
    let shared = Shared::mapped(Arc::new(bench.space.map(&placement, Direction::ToDevice).unwrap()));
    let mut ring = bench.transmit_ring(16, u32::MAX - 1, 3);
    let mut burst = Burst::new();
    let mut chain = Chain::from(bench.frame(40));
    chain.push(Segment::Span(Span::new(&shared, 100, 1000, 77).unwrap())).unwrap_or_else(|_| panic!("room"));
    burst.push(bench.frame(60)).unwrap();
    burst.push_chain(chain).unwrap_or_else(|_| panic!("room"));
    burst.push(bench.frame(61)).unwrap();
    let mut long = Chain::from(bench.frame(20));
    for _ in 0..3 {
        long.push(Segment::Frame(bench.frame(20))).unwrap_or_else(|_| panic!("room"));
    }
    burst.push_chain(long).unwrap_or_else(|_| panic!("room"));
    let written = std::cell::RefCell::new(Vec::new());
    let sent = ring.send(&mut burst, &mut bench.caches, |out| {
        written.borrow_mut().push((out.bytes, out.frame_bytes, out.last, out.report == Report::WriteBack));
        Toy { buffer: out.iova, status: DONE }
    });
    assert_eq!((sent.frames, sent.rejected, sent.bytes), (4, 1, 60 + 1040 + 61));
    let expected =
        [(60, 60, true, true), (40, 1040, false, false), (1000, 1040, true, true), (61, 61, true, true)];
    assert_eq!(written.into_inner(), expected);
    drop(shared);
    assert_eq!(bench.space.mappings(), 3, "a span keeps its memory mapped until the device is done");
    assert_eq!(ring.reclaim(&mut bench.caches, |slot| slot.word(1) & DONE != 0), 4);
    assert_eq!(bench.caches.take_cookies(), [77]);
    assert_eq!(bench.space.mappings(), 2);
    drop(ring);
    assert!(bench.all_home());
}

#[test]
fn frames_of_a_queue_that_dies_wait_for_the_end_of_dma() {
    let mut bench = bench(64);
    let mut ring = bench.receive_ring(64, 0);
    assert_eq!(ring.post(&mut bench.caches, 40), 40);
    drop(ring);
    bench.caches.flush();
    assert_eq!(
        (bench.session.quarantined(), bench.pool.census().elsewhere(), bench.session.live()),
        (40, 40, 0)
    );
    bench.session.end();
    assert_eq!((bench.session.quarantined(), bench.pool.census().home), (0, 512));
}

#[test]
fn a_length_beyond_the_buffer_is_a_bad_frame() {
    let mut bench = bench(64);
    let mut ring = bench.receive_ring(64, 0);
    ring.post(&mut bench.caches, 3);
    bench.set_status(ring.iova(), 64, 0, DONE | 1921);
    bench.set_status(ring.iova(), 64, 1, DONE | 1920);
    let mut burst = Burst::new();
    let done = ring.collect(&mut burst);
    assert_eq!((done.frames, done.bad), (1, 1));
    assert_eq!(burst.pop().unwrap().bytes().len(), 1920);
    drop(ring);
    assert!(bench.all_home());
}
