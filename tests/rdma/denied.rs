//! The table of denied accesses: each one gets the right NAK and status, ends its own queue pair, and writes nothing.

use crate::rig::*;
use pollring::rdma::*;
use pollring_drivers::rdma::roce::DropReason;

const BYTES: usize = 8192;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Read,
    Write,
    Atomic,
}

use Kind::{Atomic, Read, Write};

fn operation(kind: Kind, local: &MemoryRegion, remote: Remote, bytes: usize) -> SendOperation {
    match kind {
        Read => SendOperation::Read { into: sge(local, 0, bytes).into(), remote },
        Write => write(gather(local, 0, bytes), remote),
        Atomic => SendOperation::FetchAndAdd { into: sge(local, 0, 8), remote, add: 1 },
    }
}

struct Case {
    name: &'static str,
    kind: Kind,
    /// Rights of the region and of the queue pair.
    rights: (Access, Access),
    bytes: usize,
    status: Status,
    reason: DropReason,
    aim: fn(&MemoryRegion, &MemoryRegion) -> Remote,
}

const ALL: Access = Access::all();
const READ_ONLY: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ);
const WRITE_ONLY: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

fn at(region: &MemoryRegion, offset: u64) -> Remote {
    Remote { address: region.base().wrapping_add(offset), rkey: region.rkey() }
}

fn cases() -> Vec<Case> {
    let access = Status::RemoteAccess;
    let case = |name, kind, bytes, reason, aim| Case {
        name,
        kind,
        rights: (ALL, ALL),
        bytes,
        status: access,
        reason,
        aim,
    };
    let (rkey, bounds) = (DropReason::RKey, DropReason::Bounds);
    let mut cases = Vec::new();
    for kind in [Read, Write] {
        cases.extend([
            case("wrong key", kind, 100, rkey, |region, _| Remote {
                rkey: RKey(region.rkey().0 ^ 1),
                ..at(region, 0)
            }),
            case("key of another domain", kind, 100, rkey, |_, foreign| at(foreign, 0)),
            case("one byte behind the end", kind, 100, bounds, |region, _| at(region, BYTES as u64 - 99)),
            case("one byte before the start", kind, 100, bounds, |region, _| {
                at(region, 0u64.wrapping_sub(1))
            }),
            case("several packets, the last outside", kind, 5000, bounds, |region, _| {
                at(region, BYTES as u64 - 4999)
            }),
            case("behind the end", kind, 1, bounds, |region, _| at(region, BYTES as u64)),
            case("an address that wraps", kind, 100, bounds, |region, _| Remote {
                address: u64::MAX - 50,
                ..at(region, 0)
            }),
        ]);
    }
    let right = |name, kind, region, qp| Case {
        rights: (region, qp),
        ..case(name, kind, 8, rkey, |region, _| at(region, 0))
    };
    cases.extend([
        right("region without WRITE", Write, READ_ONLY, ALL),
        right("queue pair without WRITE", Write, ALL, READ_ONLY),
        right("region without READ", Read, WRITE_ONLY, ALL),
        right("queue pair without READ", Read, ALL, WRITE_ONLY),
        right("region without atomics", Atomic, READ_ONLY | WRITE_ONLY, ALL),
        right("queue pair without atomics", Atomic, ALL, READ_ONLY | WRITE_ONLY),
        case("atomic out of bounds", Atomic, 8, bounds, |region, _| at(region, BYTES as u64)),
        case("atomic with a wrong key", Atomic, 8, rkey, |region, _| Remote {
            rkey: RKey(0),
            ..at(region, 0)
        }),
    ]);
    let odd = case("misaligned atomic", Atomic, 8, bounds, |region, _| at(region, 4));
    cases.push(Case { status: Status::RemoteInvalidRequest, ..odd });
    cases
}

#[test]
fn denied_accesses_write_nothing_and_end_only_their_own_queue_pair() {
    for case in cases() {
        let mut net = Net::new(1, Faults::default());
        let mut qps = net.connect(&Link { access: case.rights.1, ..Link::new(QpType::Rc) });
        let mut others = net.connect(&Link::new(QpType::Rc));
        let local = net.memory(0, BYTES);
        let region = net.memory_with(1, BYTES, case.rights.0);
        let stranger = net.nodes[1].device.allocate_pd().unwrap();
        let foreign = net.nodes[1].device.register(&stranger, shared(BYTES), 0x5000, ALL).unwrap();
        fill(&region, 4);
        fill(&foreign, 5);
        let before = (read(&region, 0, BYTES), read(&foreign, 0, BYTES), read(&local, 0, BYTES));
        receive(&mut *qps[1], 50, sge(&local, 0, 8));
        post(&mut *qps[0], 1, operation(case.kind, &local, (case.aim)(&region, &foreign), case.bytes));
        post(&mut *qps[0], 2, operation(Write, &local, at(&region, 0), 8));
        let done = net.completions(0, 2);
        assert_eq!((done[0].id, done[0].status), (1, case.status), "{}", case.name);
        assert_eq!((done[1].id, done[1].status), (2, Status::WorkRequestFlushed), "{}", case.name);
        let after = (read(&region, 0, BYTES), read(&foreign, 0, BYTES), read(&local, 0, BYTES));
        assert!(before == after, "{}: memory changed", case.name);
        assert_eq!(net.nodes[1].device.counters().dropped(case.reason), 1, "{}", case.name);
        assert_eq!((qps[0].state(), qps[1].state()), (State::Err, State::Err), "{}", case.name);
        let flushed = net.completions(1, 1)[0];
        assert_eq!((flushed.id, flushed.status), (50, Status::WorkRequestFlushed), "{}", case.name);
        let well = net.memory(1, 64);
        post(&mut *others[0], 3, write(gather(&local, 0, 64), remote(&well, 0)));
        ok(&net.completions(0, 1), [3]);
    }
}

#[test]
fn no_bytes_need_no_key() {
    let mut net = Net::new(1, Faults::default());
    let mut qps = net.connect(&Link::new(QpType::Rc));
    let nowhere = Remote { address: 0xdead_beef, rkey: RKey(0xbad) };
    post(&mut *qps[0], 1, write(Payload::Gather(SgeList::Empty), nowhere));
    post(&mut *qps[0], 2, SendOperation::Read { into: SgeList::Empty, remote: nowhere });
    ok(&net.completions(0, 2), [1, 2]);
}

#[test]
fn a_stale_key_opens_nothing_and_memory_comes_back_when_it_is_quiet() {
    let mut net = Net::new(1, Faults::default());
    let mut qps = net.connect(&Link::new(QpType::Rc));
    let (local, region) = (net.memory(0, 1 << 16), net.memory(1, 1 << 16));
    let aim = at(&region, 0);
    // While a READ streams, its region is deregistered: what was granted ends, and only then the memory comes back.
    post(&mut *qps[0], 1, operation(Read, &local, aim, 1 << 16));
    net.run(|net| net.nodes[0].device.counters().copied_in_bytes > 1000);
    let mut waiting = Err(region.deregister());
    let mut polls = 0;
    net.run(|_| {
        polls += 1;
        waiting = std::mem::replace(&mut waiting, Ok(shared(1))).or_else(Deregistration::poll);
        waiting.is_ok()
    });
    assert!(waiting.is_ok());
    ok(&net.completions(0, 1), [1]);
    fill(&local, 1);
    post(&mut *qps[0], 2, operation(Write, &local, aim, 8));
    assert_eq!(net.completions(0, 1)[0].status, Status::RemoteAccess);
    assert_eq!(net.nodes[1].device.census().1, 0, "no key is left");
}

#[test]
fn a_key_that_is_revoked_stops_a_message_between_two_packets() {
    let mut net = Net::new(1, Faults::default());
    let mut qps = net.connect(&Link::new(QpType::Rc));
    let (local, region) = (net.memory(0, 1 << 18), net.memory(1, 1 << 18));
    fill(&local, 1);
    post(&mut *qps[0], 1, operation(Write, &local, at(&region, 0), 1 << 18));
    net.run(|net| net.nodes[1].device.counters().copied_in_bytes > 10_000);
    region.invalidate();
    let seen = net.nodes[1].device.counters().copied_in_bytes as usize;
    assert_eq!(net.completions(0, 1)[0].status, Status::RemoteAccess);
    assert_eq!(net.nodes[1].device.counters().copied_in_bytes as usize, seen);
    assert!(read(&region, seen, (1 << 18) - seen).iter().all(|byte| *byte == 0));
}

#[test]
fn local_mistakes_are_local_errors() {
    type Make = fn(&MemoryRegion, &MemoryRegion) -> SendOperation;
    let makes: [Make; 4] = [
        |_, read_only| SendOperation::Read {
            into: sge(read_only, 0, 8).into(),
            remote: Remote { address: 0, rkey: RKey(1) },
        },
        |own, _| write(gather(own, 4090, 100), Remote { address: 0, rkey: RKey(1) }),
        |own, _| send(gather(own, usize::MAX - 4, 8)),
        |_, read_only| SendOperation::FetchAndAdd {
            into: sge(read_only, 0, 8),
            remote: Remote { address: 0, rkey: RKey(1) },
            add: 1,
        },
    ];
    for make in makes {
        let mut net = Net::new(1, Faults::default());
        let mut qps = net.connect(&Link::new(QpType::Rc));
        let (own, there) = (net.memory(0, 4096), net.memory(1, 4096));
        let read_only = net.memory_with(0, 4096, Access::empty());
        post(&mut *qps[0], 1, write(gather(&own, 0, 4096), remote(&there, 0)));
        post(&mut *qps[0], 2, make(&own, &read_only));
        post(&mut *qps[0], 3, write(gather(&own, 0, 4096), remote(&there, 0)));
        let done = net.completions(0, 3);
        let statuses: Vec<Status> = done.iter().map(|completion| completion.status).collect();
        assert_eq!(statuses, [Status::Success, Status::LocalProtection, Status::WorkRequestFlushed]);
    }
}

#[test]
fn a_receive_that_is_too_small_or_forbidden_fails_on_both_sides() {
    for (allowed, bytes, here, there) in [
        (Access::all(), 99, Status::RemoteInvalidRequest, Status::LocalLength),
        (Access::empty(), 100, Status::RemoteOperation, Status::LocalProtection),
    ] {
        let mut net = Net::new(1, Faults::default());
        let mut qps = net.connect(&Link::new(QpType::Rc));
        let (own, inbox) = (net.memory(0, 4096), net.memory_with(1, 4096, allowed));
        fill(&own, 3);
        receive(&mut *qps[1], 7, sge(&inbox, 0, bytes));
        receive(&mut *qps[1], 8, sge(&inbox, 0, bytes));
        post(&mut *qps[0], 1, send(gather(&own, 0, 100)));
        assert_eq!(net.completions(0, 1)[0].status, here);
        let done = net.completions(1, 2);
        assert_eq!((done[0].id, done[0].status, done[1].status), (7, there, Status::WorkRequestFlushed));
        assert!(read(&inbox, 0, 4096).iter().all(|byte| *byte == 0));
    }
}
