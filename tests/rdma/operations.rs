//! Every operation, at every size around a packet's border, at every MTU, on a perfect wire.

use crate::rig::*;
use pollring::rdma::*;

const BYTES: usize = 20_000;

fn sizes(mtu: usize) -> Vec<usize> {
    let mut sizes = vec![0, 1, 2, 3, 4, 5, 63, 64, 65];
    for packets in 1..=3 {
        sizes.extend((packets * mtu - 2)..=(packets * mtu + 2));
    }
    sizes.retain(|bytes| *bytes + 64 < BYTES);
    sizes
}

struct Bench {
    net: Net,
    qps: Pair,
    memory: [MemoryRegion; 2],
    id: u64,
}

impl Bench {
    fn new(mtu: Mtu) -> Bench {
        let mut net = Net::new(7, Faults::default());
        let qps = net.connect(&Link { mtu, ..Link::new(QpType::Rc) });
        let memory = [net.memory(0, BYTES), net.memory(1, BYTES)];
        fill(&memory[0], 1);
        fill(&memory[1], 2);
        Bench { net, qps, memory, id: 0 }
    }

    /// Posts and waits for the one completion of each side that has one.
    fn done(&mut self, operation: SendOperation, receives: bool) -> (Completion, Option<Completion>) {
        self.id += 1;
        post(&mut *self.qps[0], self.id, operation);
        let sent = self.net.completions(0, 1)[0];
        assert_eq!((sent.id, sent.status), (self.id, Status::Success), "{:?}", self.qps[0].failure());
        let received = receives.then(|| self.net.completions(1, 1)[0]);
        assert!(self.net.poll(1).is_empty());
        (sent, received)
    }

    fn check(&self, bytes: usize, before: &[u8], at: usize) {
        assert_eq!(read(&self.memory[1], at, bytes), read(&self.memory[0], 3, bytes), "{bytes} bytes");
        let after = read(&self.memory[1], 0, BYTES);
        assert!(
            after[..at] == before[..at] && after[at + bytes..] == before[at + bytes..],
            "only the target"
        );
    }
}

#[test]
fn sends_writes_and_reads_of_every_size() {
    for mtu in Mtu::ALL {
        let mut bench = Bench::new(mtu);
        for bytes in sizes(mtu.bytes()) {
            let before = read(&bench.memory[1], 0, BYTES);
            let (at, source) = (5, gather(&bench.memory[0], 3, bytes));
            receive(&mut *bench.qps[1], 100, sge(&bench.memory[1], at, bytes + 7));
            let (_, received) = bench.done(send(source.clone()), true);
            assert_eq!((received.unwrap().bytes, received.unwrap().id), (bytes as u32, 100));
            bench.check(bytes, &before, at);

            let before = read(&bench.memory[1], 0, BYTES);
            let to = remote(&bench.memory[1], 11);
            bench.done(write(source.clone(), to), false);
            bench.check(bytes, &before, 11);

            receive(&mut *bench.qps[1], 101, SgeList::Empty);
            let immediate =
                SendOperation::Write { payload: source, remote: to, immediate: Some(0xabcd_0001) };
            let (_, received) = bench.done(immediate, true);
            let received = received.unwrap();
            assert_eq!((received.bytes, received.opcode), (bytes as u32, Opcode::ReceiveWrite));
            assert_eq!(received.attached, Attached::Immediate(0xabcd_0001));

            fill(&bench.memory[1], bytes as u64);
            let into = sge(&bench.memory[0], 3, bytes).into();
            let before = read(&bench.memory[1], 0, BYTES);
            let from = remote(&bench.memory[1], 13);
            let (read_back, _) = bench.done(SendOperation::Read { into, remote: from }, false);
            assert_eq!(read_back.bytes, bytes as u32);
            bench.check(bytes, &before, 13);
        }
        let counters = bench.net.nodes[1].device.counters();
        assert_eq!((counters.all_dropped(), counters.timeouts), (0, 0), "{mtu:?}");
    }
}

#[test]
fn pieces_inline_data_and_what_is_attached() {
    let mut bench = Bench::new(Mtu::Bytes256);
    let memory = bench.memory.clone();
    let pieces = |region: &MemoryRegion, cuts: &[(usize, usize)]| {
        SgeList::Many(cuts.iter().map(|(at, bytes)| sge(region, *at, *bytes)).collect())
    };
    receive(&mut *bench.qps[1], 1, pieces(&memory[1], &[(0, 3), (100, 0), (200, 400), (1000, 300)]));
    let payload = Payload::Gather(pieces(&memory[0], &[(10, 255), (500, 2), (800, 1), (4000, 300)]));
    bench.done(send(payload), true);
    let sent =
        [(10, 255), (500, 2), (800, 1), (4000, 300)].map(|(at, bytes)| read(&memory[0], at, bytes)).concat();
    let got = [(0, 3), (200, 400), (1000, 155)].map(|(at, bytes)| read(&memory[1], at, bytes)).concat();
    assert_eq!(sent, got);

    receive(&mut *bench.qps[1], 2, sge(&memory[1], 0, 64));
    let payload = Payload::Inline(Inline::new(b"inline data of odd length").unwrap());
    let operation = SendOperation::Send { payload, attached: Attached::Immediate(7) };
    let (_, received) = bench.done(operation, true);
    assert_eq!(received.unwrap().attached, Attached::Immediate(7));
    assert_eq!(read(&memory[1], 0, 25), b"inline data of odd length");

    let doomed = bench.net.memory(1, 4096);
    receive(&mut *bench.qps[1], 3, SgeList::Empty);
    let attached = Attached::Invalidate(doomed.rkey());
    let payload = Payload::Gather(SgeList::Empty);
    let (_, received) = bench.done(SendOperation::Send { payload, attached }, true);
    assert_eq!(received.unwrap().attached, attached);
    post(&mut *bench.qps[0], 99, write(gather(&memory[0], 0, 1), remote(&doomed, 0)));
    assert_eq!(bench.net.completions(0, 1)[0].status, Status::RemoteAccess);
}

#[test]
fn atomics_give_the_old_value_and_wrap() {
    let mut bench = Bench::new(Mtu::Bytes1024);
    let memory = bench.memory.clone();
    memory[1].memory().store_u64(16, u64::MAX - 1).unwrap();
    let into = || sge(&memory[0], 8, 8);
    let word = remote(&memory[1], 16);
    let old = |bench: &mut Bench, operation| {
        let (completion, _) = bench.done(operation, false);
        assert_eq!(completion.bytes, 8);
        memory[0].memory().load_u64(8).unwrap()
    };
    assert_eq!(
        old(&mut bench, SendOperation::FetchAndAdd { into: into(), remote: word, add: 5 }),
        u64::MAX - 1
    );
    let swap = |compare, swap| SendOperation::CompareAndSwap { into: into(), remote: word, compare, swap };
    assert_eq!(old(&mut bench, swap(4, 9)), 3);
    assert_eq!(old(&mut bench, swap(3, 9)), 3);
    assert_eq!(memory[1].memory().load_u64(16).unwrap(), 9);
}

#[test]
fn completions_come_in_order_whatever_they_wait_for() {
    let mut bench = Bench::new(Mtu::Bytes256);
    let memory = bench.memory.clone();
    for id in 0..40 {
        let (local, there) = (id as usize * 100, remote(&memory[1], id as usize * 64));
        let operation = match id % 4 {
            0 => SendOperation::Read { into: sge(&memory[0], local, 1000).into(), remote: there },
            1 => write(gather(&memory[0], local, 700), there),
            2 => SendOperation::FetchAndAdd { into: sge(&memory[0], local, 8), remote: there, add: 1 },
            _ => write(gather(&memory[0], local, 0), there),
        };
        let flags = if id % 8 == 5 { SendFlags::FENCE } else { SendFlags::empty() };
        let signalled = if id % 3 == 0 { SendFlags::SIGNALLED } else { SendFlags::empty() };
        post_with(&mut *bench.qps[0], id, operation, flags | signalled);
    }
    let signalled: Vec<u64> = (0..40).filter(|id| id % 3 == 0).collect();
    ok(&bench.net.completions(0, signalled.len()), signalled);
}

#[test]
fn a_fence_waits_for_the_read_before_it() {
    let mut bench = Bench::new(Mtu::Bytes256);
    let memory = bench.memory.clone();
    let into = sge(&memory[0], 0, 2000).into();
    let expected = read(&memory[1], 0, 2000);
    post(&mut *bench.qps[0], 1, SendOperation::Read { into, remote: remote(&memory[1], 0) });
    // What was read is sent on, which is right only behind the fence.
    let back = write(gather(&memory[0], 0, 2000), remote(&memory[1], 8000));
    post_with(&mut *bench.qps[0], 2, back, SendFlags::SIGNALLED | SendFlags::FENCE);
    ok(&bench.net.completions(0, 2), [1, 2]);
    assert_eq!(read(&memory[1], 8000, 2000), expected);
}

#[test]
fn a_port_talks_to_itself() {
    let mut net = Net::new(3, Faults::default());
    let link = Link::new(QpType::Rc);
    let mut qps = [net.qp(0, QpType::Rc, Receives::Own), net.qp(0, QpType::Rc, Receives::Own)];
    let numbers = [qps[0].number(), qps[1].number()];
    for (number, qp) in numbers.iter().rev().zip(qps.iter_mut()) {
        for mut step in net.steps(0, *number, &Link { first_psn: 5, ..link }) {
            let own = |connection: &mut Connection| {
                connection.address.destination = connection.address.source;
                connection.receive_psn = Psn::new(5);
            };
            if let Modify::ReadyToReceive(ReadyToReceive::Reliable { connection, .. }) = &mut step {
                own(connection);
            }
            qp.modify(step).unwrap();
        }
    }
    let (from, to) = (net.memory(0, 8192), net.memory(0, 8192));
    fill(&from, 5);
    post(&mut *qps[0], 1, write(gather(&from, 0, 8000), remote(&to, 0)));
    ok(&net.completions(0, 1), [1]);
    assert_eq!(read(&to, 0, 8000), read(&from, 0, 8000));
    assert_eq!(net.wire.sent, 0);
}
