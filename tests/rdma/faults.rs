//! The same guarantees on a bad wire: memory equal, completions exactly once and in order, atomics exactly once, and a peer that is
//! dead is known to be in time.

use crate::rig::*;
use pollring::rdma::*;
use pollring_tests::{Random, amount, seed};
use std::collections::VecDeque;
use std::time::Duration;

const SPACE: usize = 1 << 17;
const SLOTS: usize = 32;
/// Bytes that one request may use, at each end.
const SLOT: usize = SPACE / SLOTS * 16;

const RATES: [Faults; 6] = [
    Faults { loss: 100, duplicate: 0, reorder: 0, corrupt: 0 },
    Faults { loss: 10_000, duplicate: 0, reorder: 0, corrupt: 0 },
    Faults { loss: 200_000, duplicate: 0, reorder: 0, corrupt: 0 },
    Faults { loss: 0, duplicate: 100_000, reorder: 100_000, corrupt: 0 },
    Faults { loss: 0, duplicate: 0, reorder: 0, corrupt: 50_000 },
    Faults { loss: 30_000, duplicate: 30_000, reorder: 50_000, corrupt: 30_000 },
];

/// What a request must have done once it completed.
enum Expect {
    There { at: usize, bytes: Vec<u8> },
    Here { at: usize, bytes: Vec<u8> },
    Received { bytes: Vec<u8>, attached: Attached },
    Old(u64),
}

struct Storm {
    net: Net,
    qps: Pair,
    /// Data of side 0, data of side 1, and the word for atomics.
    here: MemoryRegion,
    there: MemoryRegion,
    word: MemoryRegion,
    inbox: MemoryRegion,
    random: Random,
    next: u64,
    sum: u64,
    expected: VecDeque<(u64, Expect)>,
    received: u64,
    arrivals: VecDeque<(Vec<u8>, Attached)>,
}

impl Storm {
    fn new(seed: u64, faults: Faults, mtu: Mtu) -> Storm {
        let mut net = Net::new(seed, faults);
        let qps = net.connect(&Link { mtu, ..Link::new(QpType::Rc) });
        let here = net.memory(0, SPACE * 16);
        let there = net.memory(1, SPACE * 16);
        let (word, inbox) = (net.memory(1, 4096), net.memory(1, SPACE * 16));
        fill(&here, seed);
        fill(&there, seed + 1);
        let random = Random(seed ^ 0x5702);
        let (expected, arrivals) = (VecDeque::new(), VecDeque::new());
        Storm { net, qps, here, there, word, inbox, random, next: 0, sum: 0, expected, received: 0, arrivals }
    }

    fn length(&mut self) -> usize {
        match self.random.within(0, 9) {
            0 => 0,
            1..=5 => self.random.within(1, 5000),
            6..=8 => self.random.within(1, 200),
            _ => self.random.within(1, SLOT.min(65_536)),
        }
    }

    /// Posts one random request, whose slots at both ends nothing outstanding uses.
    fn post(&mut self) {
        let id = self.next;
        self.next += 1;
        let at = id as usize % SLOTS * SLOT;
        let bytes = self.length();
        let payload = gather(&self.here, at, bytes);
        let data = || read(&self.here, at, bytes);
        let (operation, expect) = match self.random.within(0, 5) {
            0 => (write(payload, remote(&self.there, at)), Expect::There { at, bytes: data() }),
            1 => {
                let expected = read(&self.there, at, bytes);
                let into = sge(&self.here, at, bytes).into();
                let operation = SendOperation::Read { into, remote: remote(&self.there, at) };
                (operation, Expect::Here { at, bytes: expected })
            }
            2 => {
                let attached = Attached::Immediate(id as u32);
                receive(&mut *self.qps[1], id, sge(&self.inbox, at, SLOT));
                let expect = Expect::Received { bytes: data(), attached };
                (SendOperation::Send { payload, attached }, expect)
            }
            3 => {
                receive(&mut *self.qps[1], id, sge(&self.inbox, at, SLOT));
                (send(payload), Expect::Received { bytes: data(), attached: Attached::Nothing })
            }
            4 => {
                let (into, add) = (sge(&self.here, at, 8), self.random.word());
                let old = self.sum;
                self.sum = self.sum.wrapping_add(add);
                (SendOperation::FetchAndAdd { into, remote: remote(&self.word, 0), add }, Expect::Old(old))
            }
            _ => {
                let (into, swap, old) = (sge(&self.here, at, 8), self.random.word(), self.sum);
                let compare = if self.random.within(0, 1) == 0 { old } else { old.wrapping_add(1) };
                self.sum = if compare == old { swap } else { old };
                let remote = remote(&self.word, 0);
                (SendOperation::CompareAndSwap { into, remote, compare, swap }, Expect::Old(old))
            }
        };
        if let Expect::Received { bytes, attached } = &expect {
            self.arrivals.push_back((bytes.clone(), *attached));
        }
        self.expected.push_back((id, expect));
        post(&mut *self.qps[0], id, operation);
    }

    fn check_sent(&mut self) {
        for completion in self.net.poll(0) {
            let (id, expect) = self.expected.pop_front().expect("one completion too many");
            let failure = self.qps[0].failure();
            assert_eq!((completion.id, completion.status), (id, Status::Success), "{failure:?}");
            let at = id as usize % SLOTS * SLOT;
            match expect {
                Expect::There { at, bytes } => {
                    assert!(read(&self.there, at, bytes.len()) == bytes, "WRITE {id}")
                }
                Expect::Here { at, bytes } => {
                    assert!(read(&self.here, at, bytes.len()) == bytes, "READ {id}")
                }
                Expect::Old(old) => assert_eq!(read(&self.here, at, 8), old.to_ne_bytes(), "atomic {id}"),
                Expect::Received { .. } => {}
            }
        }
    }

    fn check_received(&mut self) {
        for completion in self.net.poll(1) {
            let (bytes, attached) = self.arrivals.pop_front().expect("one message too many");
            assert_eq!((completion.status, completion.attached), (Status::Success, attached));
            assert_eq!(completion.bytes as usize, bytes.len());
            let at = completion.id as usize % SLOTS * SLOT;
            assert!(read(&self.inbox, at, bytes.len()) == bytes, "message {}", completion.id);
            self.received += 1;
        }
    }

    fn run(&mut self, requests: u64) {
        loop {
            while self.next < requests && self.expected.len() < SLOTS {
                self.post();
            }
            let moving = self.net.step();
            self.check_received();
            self.check_sent();
            if self.expected.is_empty() && self.next >= requests {
                break;
            }
            assert!(moving, "{} requests never complete", self.expected.len());
        }
        assert!(self.arrivals.is_empty());
        assert_eq!(self.word.memory().load_u64(0).unwrap(), self.sum, "atomics exactly once");
    }
}

#[test]
fn random_requests_on_bad_wires() {
    let seed = seed();
    for (number, faults) in RATES.into_iter().enumerate() {
        for (round, mtu) in [Mtu::Bytes256, Mtu::Bytes1024, Mtu::Bytes4096].into_iter().enumerate() {
            let mut storm = Storm::new(seed + (number * 3 + round) as u64, faults, mtu);
            storm.run(amount(150, 5000) as u64);
            let counters = storm.net.nodes.each_ref().map(|node| node.device.counters());
            let corrupt = counters.iter().map(|counters| counters.dropped(DropReason::Icrc)).sum::<u64>();
            assert!(faults.corrupt == 0 || corrupt > 0, "some corruption was seen");
        }
    }
}

use pollring_drivers::rdma::roce::DropReason;

#[test]
fn gigabytes_at_low_loss_over_memory_that_is_used_again() {
    let bytes = amount(64 << 20, 1 << 31) as u64;
    let mut net = Net::new(11, Faults { loss: 100, ..Faults::default() });
    let mut qps = net.connect(&Link { mtu: Mtu::Bytes4096, ..Link::new(QpType::Rc) });
    // One MiB of memory, which a list of pieces names eight times in each message.
    let (from, to) = (net.memory(0, 1 << 20), net.memory(1, bytes.min(64 << 20) as usize));
    fill(&from, 9);
    let pieces = bytes >> 20;
    let piece = (bytes / 8).min(1 << 20);
    let list: Vec<Sge> = (0..8).map(|_| sge(&from, 0, piece as usize)).collect();
    let message = piece * 8;
    let whole = to.memory().bytes() as u64 / message;
    for id in 0..pieces * (1 << 20) / message {
        let payload = Payload::Gather(SgeList::Many(list.clone()));
        post(&mut *qps[0], id, write(payload, remote(&to, (id % whole * message) as usize)));
        ok(&net.completions(0, 1), [id]);
    }
    let first = read(&from, 0, 1 << 20);
    for at in (0..to.memory().bytes()).step_by(1 << 20) {
        assert!(read(&to, at, 1 << 20) == first, "at {at}");
    }
}

/// How long until the first completion, in virtual nanoseconds.
fn time_to_fail(net: &mut Net, status: Status) -> u64 {
    let start = net.now_ns;
    let completion = net.completions(0, 1)[0];
    assert_eq!(completion.status, status);
    net.now_ns - start
}

#[test]
fn a_dead_peer_is_known_in_time() {
    for (ack_us, dead_ms) in [(100, 5), (500, 50), (60_000, 100), (400_000, 1000), (0, 30)] {
        let mut net = Net::new(5, Faults::default());
        let mut link = Link::new(QpType::Rc);
        link.retry.ack_timeout = Duration::from_micros(ack_us);
        link.retry.dead_after = Duration::from_millis(dead_ms);
        let mut qps = net.connect(&link);
        let (from, to) = (net.memory(0, 4096), net.memory(1, 4096));
        post(&mut *qps[0], 1, write(gather(&from, 0, 4096), remote(&to, 0)));
        ok(&net.completions(0, 1), [1]);
        net.wire.faults.loss = 1_000_000;
        post(&mut *qps[0], 2, write(gather(&from, 0, 4096), remote(&to, 0)));
        let spent_ns = time_to_fail(&mut net, Status::RetryExceeded);
        let asked_ns = dead_ms * 1_000_000;
        assert!((asked_ns..asked_ns * 11 / 10).contains(&spent_ns), "{spent_ns} for {asked_ns}");
        let failure = qps[0].failure().unwrap().to_string();
        assert!(failure.contains("10.0.0.2") && failure.contains("dead_after"), "{failure}");
        assert_eq!(qps[0].state(), State::Err);
    }
}

#[test]
fn a_peer_that_never_answered_for_its_address_is_dead_in_time_too() {
    let mut net = Net::new(5, Faults { loss: 1_000_000, ..Faults::default() });
    let mut link = Link::new(QpType::Rc);
    link.retry.dead_after = Duration::from_secs(3);
    let mut qps = net.connect(&link);
    let from = net.memory(0, 4096);
    post(&mut *qps[0], 2, write(gather(&from, 0, 64), Remote { address: 0, rkey: RKey(1) }));
    let spent_ns = time_to_fail(&mut net, Status::RetryExceeded);
    assert!((3_000_000_000..3_300_000_000).contains(&spent_ns), "{spent_ns}");
}

#[test]
fn retries_are_counted_and_progress_fills_them_up() {
    let mut net = Net::new(5, Faults::default());
    let mut link = Link::new(QpType::Rc);
    link.retry.retries = Attempts::Times(3);
    let mut qps = net.connect(&link);
    let (from, to) = (net.memory(0, 4096), net.memory(1, 4096));
    for id in 0..3 {
        post(&mut *qps[0], id, write(gather(&from, 0, 64), remote(&to, 0)));
        net.wire.faults.loss = if id == 0 { 0 } else { 1_000_000 };
        let start = net.now_ns;
        net.run(|net| net.now_ns > start + 1_100_000);
        net.wire.faults.loss = 0;
        ok(&net.completions(0, 1), [id]);
    }
    net.wire.faults.loss = 1_000_000;
    post(&mut *qps[0], 9, write(gather(&from, 0, 64), remote(&to, 0)));
    let spent_ns = time_to_fail(&mut net, Status::RetryExceeded);
    assert_eq!(spent_ns / 500_000, 4, "the first attempt and three retries");
}

#[test]
fn a_peer_without_receives_is_waited_for() {
    let mut net = Net::new(5, Faults::default());
    let mut link = Link::new(QpType::Rc);
    link.min_rnr = Duration::from_micros(640);
    link.retry.rnr_retries = Attempts::Times(2);
    let mut qps = net.connect(&link);
    let (from, to) = (net.memory(0, 4096), net.memory(1, 4096));
    fill(&from, 3);
    post(&mut *qps[0], 1, send(gather(&from, 0, 3000)));
    post(&mut *qps[0], 2, write(gather(&from, 0, 100), remote(&to, 3900)));
    let start = net.now_ns;
    net.run(|net| net.now_ns > start + 700_000);
    receive(&mut *qps[1], 7, sge(&to, 0, 3000));
    ok(&net.completions(0, 2), [1, 2]);
    ok(&net.completions(1, 1), [7]);
    assert_eq!(read(&to, 0, 3000), read(&from, 0, 3000));
    assert!(net.nodes[0].device.counters().rnr_naks >= 1);

    post(&mut *qps[0], 3, send(gather(&from, 0, 1)));
    let spent_ns = time_to_fail(&mut net, Status::RnrRetryExceeded);
    assert!((2 * 640_000..3 * 640_000).contains(&spent_ns), "{spent_ns}");
}

#[test]
fn a_peer_that_is_never_ready_is_dead_in_time() {
    let mut net = Net::new(5, Faults::default());
    let mut link = Link::new(QpType::Rc);
    link.retry.dead_after = Duration::from_millis(20);
    let mut qps = net.connect(&link);
    let from = net.memory(0, 4096);
    post(&mut *qps[0], 3, send(gather(&from, 0, 1)));
    let spent_ns = time_to_fail(&mut net, Status::RnrRetryExceeded);
    assert!((20_000_000..22_000_000).contains(&spent_ns), "{spent_ns}");
}
