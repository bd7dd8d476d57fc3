//! Lives of queue pairs: states, draining, flushing in order, ten thousand of them, and nothing left behind.

use crate::rig::*;
use pollring::copy::Fifo;
use pollring::rdma::*;
use pollring_tests::amount;

#[test]
fn ten_thousand_connections_come_and_go() {
    let mut net = Net::new(1, Faults::default());
    let (from, to) = (net.memory(0, 4096), net.memory(1, 4096));
    for id in 0..amount(2_000, 10_000) as u64 {
        let mut qps = net.connect(&Link::new(QpType::Rc));
        post(&mut *qps[0], id, write(gather(&from, 0, 2000), remote(&to, 0)));
        if id % 2 == 0 {
            ok(&net.completions(0, 1), [id]);
        } else {
            net.step();
        }
        drop(qps);
        net.settle();
        net.poll(0);
        assert_eq!(net.nodes.each_ref().map(|node| node.device.census().0), [0, 0]);
    }
    let waiting = from.deregister();
    assert_eq!(waiting.in_flight(), 0);
    assert!(waiting.poll().is_ok() && to.deregister().poll().is_ok());
    assert_eq!(net.nodes.each_ref().map(|node| node.device.census().1), [0, 0]);
}

fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn an_idle_queue_pair_is_small() {
    let mut net = Net::new(1, Faults::default());
    let before = resident_bytes();
    let qps: Vec<Pair> = (0..10_000).map(|_| net.connect(&Link::new(QpType::Rc))).collect();
    let each = resident_bytes().saturating_sub(before) / 2 / qps.len();
    println!("{each} bytes for an idle queue pair");
    assert!(each < 4096, "{each} bytes");
}

#[test]
fn a_drain_ends_what_was_begun_and_begins_nothing() {
    let mut net = Net::new(1, Faults::default());
    let mut qps = net.connect(&Link::new(QpType::Rc));
    let (from, to) = (net.memory(0, 1 << 18), net.memory(1, 1 << 18));
    for id in 0..4 {
        post(&mut *qps[0], id, write(gather(&from, 0, 1 << 17), remote(&to, 0)));
    }
    net.run(|net| net.nodes[0].device.counters().sent > 100);
    qps[0].modify(Modify::Drain(Drain::Notify)).unwrap();
    net.settle();
    let done = net.poll(0).len() as u64;
    assert!((1..4).contains(&done), "{done}");
    let mut events = Fifo::new(16);
    net.nodes[0].device.events(&mut events);
    assert!(events.iter().any(|event| *event == AsyncEvent::SendQueueDrained(qps[0].number())));
    qps[0].modify(Modify::Resume).unwrap();
    ok(&net.completions(0, 4 - done as usize), done..4);
}

#[test]
fn errors_flush_everything_in_order_and_reset_begins_anew() {
    let mut net = Net::new(1, Faults::default());
    let mut qps = net.connect(&Link::new(QpType::Rc));
    let (from, to) = (net.memory(0, 4096), net.memory(1, 4096));
    for id in 0..10 {
        receive(&mut *qps[0], 100 + id, sge(&from, 0, 8));
        post_with(&mut *qps[0], id, write(gather(&from, 0, 4096), remote(&to, 0)), SendFlags::empty());
    }
    qps[0].modify(Modify::Error).unwrap();
    post(&mut *qps[0], 10, write(gather(&from, 0, 4096), remote(&to, 0)));
    let done = net.completions(0, 21);
    assert!(done.iter().all(|completion| completion.status == Status::WorkRequestFlushed));
    let ids: Vec<u64> = done.iter().map(|completion| completion.id).collect();
    assert_eq!(ids, (0..10).chain(100..110).chain([10]).collect::<Vec<_>>());
    let numbers = [qps[0].number(), qps[1].number()];
    for (side, qp) in qps.iter_mut().enumerate() {
        qp.modify(Modify::Reset).unwrap();
        for step in net.steps(side, numbers[1 - side], &Link::new(QpType::Rc)) {
            qp.modify(step).unwrap();
        }
    }
    post(&mut *qps[0], 20, write(gather(&from, 0, 4096), remote(&to, 0)));
    ok(&net.completions(0, 1), [20]);
}
