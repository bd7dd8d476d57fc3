//! The program that `tests/count/gate` runs under callgrind for RDMA: messages between two stacks in virtual time, 32 at a time,
//! frames in memory that was allocated before. Only what [`measured_round`] does is counted: both sides, every packet, every
//! acknowledgement, every completion.
//!
//! `pollring-count-messages write|send|read|atomic BYTES ROUNDS` prints messages, packets, and the time of it all beside that of
//! its CRCs and copies alone, as long as nothing slows the program down.

#[path = "../rdma/rig.rs"]
#[allow(dead_code, reason = "the suite uses the rest of it")]
mod rig;

use pollring::copy::Fifo;
use pollring::rdma::*;
use pollring_drivers::rdma::roce::FrameSink;
use rig::{Faults, Link, Net, Pair, Shape, gather, remote, send, sge, write};
use std::hint::black_box;
use std::time::Instant;

const BATCH: usize = 32;
const FRAME_BYTES: usize = 4400;

/// Frames on their way, in memory that is kept.
struct Slots {
    frames: Vec<[u8; FRAME_BYTES]>,
    lengths: Vec<usize>,
}

impl FrameSink for Slots {
    fn has_room(&self) -> bool {
        self.lengths.len() < self.frames.len()
    }

    fn push(&mut self, bytes: usize, fill: &mut dyn FnMut(&mut [u8])) {
        fill(&mut self.frames[self.lengths.len()][..bytes]);
        self.lengths.push(bytes);
    }
}

/// What a round needs.
struct Bench {
    net: Net,
    qps: Pair,
    regions: [MemoryRegion; 2],
    sends: Fifo<SendRequest>,
    receives: Fifo<ReceiveRequest>,
    completions: Completions,
    slots: Slots,
    packets: usize,
}

impl Bench {
    fn new() -> Bench {
        let mut net = Net::with(1, Faults::default(), &Shape::default());
        let qps = net.connect(&Link { mtu: Mtu::Bytes4096, ..Link::new(QpType::Rc) });
        let regions = [0, 1].map(|side| net.memory(side, 1 << 16));
        let slots = Slots { frames: vec![[0; FRAME_BYTES]; 64], lengths: Vec::with_capacity(64) };
        let (sends, receives) = (Fifo::new(BATCH), Fifo::new(BATCH));
        Bench { net, qps, regions, sends, receives, completions: Fifo::new(2 * BATCH), slots, packets: 0 }
    }

    fn operation(&self, name: &str, bytes: usize) -> SendOperation {
        let [from, to] = &self.regions;
        match name {
            "write" => write(gather(from, 0, bytes), remote(to, 0)),
            "send" => send(gather(from, 0, bytes)),
            "read" => SendOperation::Read { into: sge(from, 0, bytes).into(), remote: remote(to, 0) },
            _ => SendOperation::FetchAndAdd { into: sge(from, 0, 8), remote: remote(to, 0), add: 1 },
        }
    }

    /// Lets one side send all that it wants, and the other take it.
    fn carry(&mut self, from: usize) -> usize {
        let now_ns = self.net.now_ns;
        self.slots.lengths.clear();
        self.net.nodes[from].stack.transmit(now_ns, 64, &mut self.slots);
        for (frame, bytes) in self.slots.frames.iter().zip(&self.slots.lengths) {
            self.net.nodes[1 - from].stack.receive(now_ns, &frame[..*bytes]);
        }
        self.packets += self.slots.lengths.len();
        self.slots.lengths.len()
    }

    /// Posts what was prepared, carries it over and takes the completions of both sides; gives how many of the requester's.
    fn round(&mut self) -> usize {
        self.net.now_ns += 1000;
        let posted = self.qps[1].post_receive(&mut self.receives).is_ok();
        let posted = posted && self.qps[0].post_send(&mut self.sends).is_ok();
        assert!(posted, "the queues take a batch");
        self.qps[0].flush();
        while self.carry(0) + self.carry(1) > 0 {}
        let done = self.net.nodes[0].cq.poll(&mut self.completions);
        self.net.nodes[1].cq.poll(&mut self.completions);
        done
    }
}

/// One round; its name is what callgrind looks for.
#[inline(never)]
fn measured_round(bench: &mut Bench) -> usize {
    bench.round()
}

fn prepare(bench: &mut Bench, name: &str, bytes: usize) {
    for id in 0..BATCH as u64 {
        let flags = SendFlags::SIGNALLED;
        let pushed = bench.sends.push(SendRequest { id, operation: bench.operation(name, bytes), flags });
        assert!(pushed.is_ok());
        if name == "send" {
            let into = sge(&bench.regions[1], 0, bytes).into();
            assert!(bench.receives.push(ReceiveRequest { id, into }).is_ok());
        }
    }
}

/// Nanoseconds of one call, over many.
fn nanoseconds(mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..20_000).for_each(|_| call());
    start.elapsed().as_nanos() as f64 / 20_000.0
}

/// A packet's CRC and the copy of its payload, alone.
fn print_pieces(bench: &Bench, bytes: usize) {
    let (mut packet, memory) = (vec![0x5au8; bytes + 44], bench.regions[0].memory());
    println!(
        "crc_ns {:.1}",
        nanoseconds(|| {
            black_box(crc32fast::hash(black_box(&packet)));
        })
    );
    let out = nanoseconds(|| assert!(memory.copy_out(0, black_box(&mut packet[..bytes])).is_ok()));
    let into = nanoseconds(|| assert!(memory.copy_in(0, black_box(&packet[..bytes])).is_ok()));
    println!("copy_out_ns {out:.1}\ncopy_in_ns {into:.1}");
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, bytes, rounds] = arguments.as_slice() else { panic!("OPERATION BYTES ROUNDS") };
    let (bytes, rounds): (usize, usize) = (bytes.parse().unwrap(), rounds.parse().unwrap());
    let mut bench = Bench::new();
    // Until the neighbours know each other and every queue has its memory.
    for _ in 0..4 {
        prepare(&mut bench, name, bytes);
        bench.round();
        bench.net.settle();
        bench.completions.drain().for_each(drop);
    }
    bench.packets = 0;
    let (mut messages, mut spent_ns) = (0, 0);
    for _ in 0..rounds {
        prepare(&mut bench, name, bytes);
        let start = Instant::now();
        messages += measured_round(&mut bench);
        spent_ns += start.elapsed().as_nanos();
        assert!(bench.completions.drain().all(|completion| completion.status == Status::Success));
    }
    assert_eq!(messages, rounds * BATCH, "each message has its completion");
    println!("messages {messages}\npackets {}", bench.packets);
    println!("message_ns {:.1}", spent_ns as f64 / messages as f64);
    print_pieces(&bench, bytes);
}
