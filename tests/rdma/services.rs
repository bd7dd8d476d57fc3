//! Services beside RC, shared receives, addresses, and what completion queues tell.

use crate::rig::*;
use pollring::copy::Fifo;
use pollring::os::EventFd;
use pollring::rdma::*;
use pollring_drivers::rdma::roce::{DropReason, Peers};
use pollring_tests::amount;
use std::sync::Arc;

fn shape(one: &str, two: &str, vlan: Option<u16>) -> Shape {
    Shape { addresses: [one, two].map(|text| text.parse().unwrap()), vlan, ..Shape::default() }
}

#[test]
fn both_families_with_and_without_a_vlan_find_each_other() {
    for vlan in [None, Some(42)] {
        for shape in [shape("10.0.0.1", "10.0.0.2", vlan), shape("fe80::1", "fe80::aabb:ccdd", vlan)] {
            let mut net = Net::with(1, Faults::default(), &shape);
            let mut qps = net.connect(&Link::new(QpType::Rc));
            let (from, to) = (net.memory(0, 8192), net.memory(1, 8192));
            fill(&from, 1);
            post(&mut *qps[0], 1, write(gather(&from, 0, 8001), remote(&to, 0)));
            let into = sge(&to, 0, 8001).into();
            post(&mut *qps[1], 2, SendOperation::Read { into, remote: remote(&from, 0) });
            ok(&net.completions(0, 1), [1]);
            ok(&net.completions(1, 1), [2]);
            assert_eq!(read(&to, 0, 8001), read(&from, 0, 8001));
        }
    }
}

fn destination(net: &mut Net, side: usize, qp: Qpn) -> Destination {
    let vector = net.vector(side);
    let node = &mut net.nodes[side];
    let address = node.device.create_ah(&node.pd, &vector).unwrap();
    Destination { address, qp, q_key: QKey(0x1234) }
}

fn datagram(payload: Payload, to: &Destination, immediate: Option<u32>) -> SendOperation {
    SendOperation::SendDatagram { payload, immediate, to: to.clone() }
}

#[test]
fn datagrams_arrive_with_their_header_or_not_at_all() {
    for shape in [shape("10.0.0.1", "10.0.0.2", None), shape("fe80::1", "fe80::2", None)] {
        let mut net = Net::with(1, Faults::default(), &shape);
        let mut qps = net.connect(&Link::new(QpType::Ud));
        let (from, to) = (net.memory(0, 8192), net.memory(1, 8192));
        fill(&from, 1);
        let there = destination(&mut net, 0, qps[1].number());
        for (id, bytes) in [(0, 0), (1, 1), (2, 1023), (3, 4096)] {
            receive(&mut *qps[1], id, sge(&to, 0, bytes + 40));
            post(&mut *qps[0], id, datagram(gather(&from, 0, bytes), &there, Some(id as u32)));
            ok(&net.completions(0, 1), [id]);
            let got = net.completions(1, 1)[0];
            assert_eq!((got.id, got.bytes as usize, got.source), (id, bytes + 40, Some(qps[0].number())));
            assert_eq!(got.attached, Attached::Immediate(id as u32));
            assert!(got.flags.contains(CompletionFlags::NETWORK_HEADER));
            assert_eq!(read(&to, 40, bytes), read(&from, 0, bytes));
            let version = read(&to, if net.nodes[0].address.is_ipv4() { 20 } else { 0 }, 1)[0] >> 4;
            assert_eq!(version, if net.nodes[0].address.is_ipv4() { 4 } else { 6 });
        }
        let too_long = datagram(gather(&from, 0, 4097), &there, None);
        let refused = try_post(&mut *qps[0], 9, too_long, SendFlags::empty()).unwrap_err();
        assert!(matches!(refused.reason, PostError::Message { limit: 4096, .. }));
        // Without a receive, with too small a one, and with a wrong key: dropped, and the queue pair lives.
        let wrong = Destination { q_key: QKey(0x77), ..there.clone() };
        post(&mut *qps[0], 10, datagram(gather(&from, 0, 10), &there, None));
        net.settle();
        receive(&mut *qps[1], 11, sge(&to, 0, 49));
        post(&mut *qps[0], 11, datagram(gather(&from, 0, 10), &there, None));
        post(&mut *qps[0], 12, datagram(gather(&from, 0, 9), &wrong, None));
        net.settle();
        let counters = net.nodes[1].device.counters();
        let drops = [DropReason::NotReady, DropReason::ReceiveTooSmall, DropReason::QKey];
        assert_eq!(drops.map(|reason| counters.dropped(reason)), [1, 1, 1]);
        post(&mut *qps[0], 13, datagram(gather(&from, 0, 9), &there, None));
        assert_eq!(net.completions(1, 1)[0].id, 11);
    }
}

#[test]
fn unreliable_connections_lose_whole_messages_and_never_mix_them() {
    let mut net = Net::new(4, Faults { loss: 50_000, ..Faults::default() });
    let mut qps = net.connect(&Link { mtu: Mtu::Bytes256, ..Link::new(QpType::Uc) });
    let (from, to) = (net.memory(0, 4096), net.memory(1, 1 << 20));
    let rounds = amount(300, 5000) as u64;
    let mut arrived = 0;
    for id in 0..rounds {
        fill(&from, id);
        if net.nodes[1].device.counters().received == 0 || arrived > 0 || id == 0 {
            // One receive is always posted; a lost message leaves it for the next one.
            if id == 0 {
                receive(&mut *qps[1], id, sge(&to, 0, 4096));
            }
        }
        let attached = Attached::Immediate(id as u32);
        post(&mut *qps[0], id, SendOperation::Send { payload: gather(&from, 0, 2000), attached });
        ok(&net.completions(0, 1), [id]);
        net.settle();
        for completion in net.poll(1) {
            assert_eq!((completion.status, completion.bytes), (Status::Success, 2000));
            assert_eq!(completion.attached, attached);
            assert_eq!(read(&to, 0, 2000), read(&from, 0, 2000));
            arrived += 1;
            receive(&mut *qps[1], id, sge(&to, 0, 4096));
        }
    }
    assert!(arrived > rounds / 3 && arrived < rounds, "{arrived} of {rounds}");
    assert_eq!((qps[0].state(), qps[1].state()), (State::Rts, State::Rts));
    net.wire.faults = Faults::default();
    post(&mut *qps[0], 1, write(gather(&from, 0, 4096), remote(&to, 8192)));
    ok(&net.completions(0, 1), [1]);
    net.settle();
    assert_eq!(read(&to, 8192, 4096), read(&from, 0, 4096));
    // A write that is denied is dropped in silence.
    post(&mut *qps[0], 2, write(gather(&from, 0, 4096), Remote { address: 1, rkey: RKey(2) }));
    ok(&net.completions(0, 1), [2]);
    net.settle();
    assert!(net.nodes[1].device.counters().dropped(DropReason::RKey) > 0);
    assert_eq!(qps[1].state(), State::Rts);
}

#[test]
fn a_shared_queue_serves_several_and_tells_when_it_runs_low() {
    let mut net = Net::new(4, Faults::default());
    let config = SrqConfig { requests: 64, sges: 4, vector: 0 };
    let node = &mut net.nodes[1];
    let mut srq = node.device.create_srq(&node.pd, &config).unwrap();
    let mut link = Link::new(QpType::Rc);
    link.receives[1] = Receives::Shared(srq.number());
    let mut pairs = [net.connect(&link), net.connect(&link), net.connect(&link)];
    let (from, to) = (net.memory(0, 4096), net.memory(1, 1 << 16));
    let mut batch = Fifo::new(8);
    for id in 0..8 {
        batch.push(ReceiveRequest { id, into: sge(&to, id as usize * 4096, 4096).into() }).ok().unwrap();
    }
    assert_eq!(srq.post_receive(&mut batch), Ok(8));
    srq.arm_limit(3);
    for id in 0..6 {
        post(&mut *pairs[id as usize % 3][0], id, send(gather(&from, 0, 3000)));
        ok(&net.completions(0, 1), [id]);
        let got = net.completions(1, 1)[0];
        assert_eq!((got.id, got.qp), (id, pairs[id as usize % 3][1].number()));
    }
    let mut events = Fifo::new(64);
    net.nodes[1].device.events(&mut events);
    let low = AsyncEvent::SrqLimit(srq.number());
    assert_eq!(events.iter().filter(|event| **event == low).count(), 1);
    pairs[0][1].modify(Modify::Error).unwrap();
    net.nodes[1].device.events(&mut events);
    assert!(events.iter().any(|event| *event == AsyncEvent::LastReceive(pairs[0][1].number())));
}

#[test]
fn completion_queues_wake_once_and_overruns_end_their_queue_pairs() {
    let mut net = Net::new(4, Faults::default());
    let channel = Arc::new(EventFd::new().unwrap());
    let config = CqConfig { entries: 4, vector: 0, channel: Some(channel.clone()) };
    let small = net.nodes[1].device.create_cq(&config).unwrap();
    let old = std::mem::replace(&mut net.nodes[1].cq, small);
    let mut qps = net.connect(&Link::new(QpType::Rc));
    let (from, to) = (net.memory(0, 4096), net.memory(1, 4096));
    let mut say = |net: &mut Net, id: u64, flags: SendFlags| {
        receive(&mut *qps[1], id, sge(&to, 0, 64));
        post_with(&mut *qps[0], id, send(gather(&from, 0, 64)), flags);
        net.settle();
    };
    assert_eq!(net.nodes[1].cq.arm(Notify::NextSolicited), Armed::Waiting);
    say(&mut net, 1, SendFlags::empty());
    assert_eq!(channel.drain().unwrap(), 0);
    say(&mut net, 2, SendFlags::SOLICITED);
    assert_eq!(channel.drain().unwrap(), 1);
    assert_eq!(net.nodes[1].cq.arm(Notify::Next), Armed::NotEmpty);
    say(&mut net, 3, SendFlags::SOLICITED);
    assert_eq!(channel.drain().unwrap(), 0, "armed for one");
    say(&mut net, 4, SendFlags::empty());
    assert_eq!(qps[1].state(), State::Rts);
    receive(&mut *qps[1], 5, sge(&to, 0, 64));
    post(&mut *qps[0], 5, send(gather(&from, 0, 64)));
    net.settle();
    assert_eq!(qps[1].state(), State::Err, "the fifth did not fit");
    assert!(qps[1].failure().unwrap().to_string().contains("overran"));
    ok(&net.poll(1), [1, 2, 3, 4]);
    let mut events = Fifo::new(64);
    net.nodes[1].device.events(&mut events);
    assert!(events.iter().any(|event| *event == AsyncEvent::CqOverrun(net.nodes[1].cq.number())));
    drop(old);
}

#[test]
fn strangers_are_not_heard() {
    let only = Peers::Only(vec!["10.0.0.9".parse().unwrap()]);
    let mut net = Net::with(1, Faults::default(), &Shape { peers: only, ..Shape::default() });
    let mut link = Link::new(QpType::Rc);
    link.retry.dead_after = std::time::Duration::from_millis(5);
    let mut qps = net.connect(&link);
    let (from, to) = (net.memory(0, 64), net.memory(1, 64));
    post(&mut *qps[0], 1, write(gather(&from, 0, 64), remote(&to, 0)));
    assert_eq!(net.completions(0, 1)[0].status, Status::RetryExceeded);
    assert!(net.nodes[1].device.counters().dropped(DropReason::NotAllowed) > 0);
}
