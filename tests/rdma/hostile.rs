//! A wire that lies: mutated packets, most with a CRC that was made right again, against live queue pairs. Nothing panics,
//! nothing is written outside what a key allows, memory stays bounded, and queue pairs that were not named go on.

use crate::crc;
use crate::rig::*;
use pollring::rdma::*;
use pollring_tests::{Random, amount, seed};

fn mutate(frame: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..random.within(1, 4) {
        if frame.len() < 80 {
            return;
        }
        let transport = 14 + crc::ip_bytes(frame) + 8;
        let last = frame.len() - 1;
        match random.within(0, 9) {
            0 => frame[random.within(0, last)] ^= 1 << random.within(0, 7),
            1 => frame[transport] = random.within(0, 0x18) as u8,
            2 => frame[transport + 1] = random.word() as u8,
            3..=5 => frame[(transport + random.within(8, 40)).min(last)] ^= 1 << random.within(0, 7),
            6 => frame[(transport + random.within(9, 11)).min(last)] = random.word() as u8,
            7 => frame.truncate(random.within(14 + 40 + 8 + 16, last.max(79))),
            8 => frame.extend((0..random.within(1, 64)).map(|_| 0x5a)),
            _ => frame[random.within(14, last)] = random.word() as u8,
        }
    }
    if random.within(0, 9) == 0 || frame.len() < 14 + 40 + 8 + 16 {
        return;
    }
    // Lengths that fit, so that the change is seen by the transport and not only by IP.
    if frame[14] >> 4 == 4 {
        let total = (frame.len() - 14) as u16;
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        frame[38..40].copy_from_slice(&(total - 20).to_be_bytes());
        frame[24..26].fill(0);
        let words = (14..34).step_by(2).map(|at| u32::from(u16::from_be_bytes([frame[at], frame[at + 1]])));
        let sum: u32 = words.sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    crc::repair(frame);
}

/// Frames of every kind between these two queue pairs, in either direction.
fn templates(net: &mut Net, qps: &mut Pair, from: &MemoryRegion, to: &MemoryRegion) -> Vec<Vec<u8>> {
    net.wire.capture = Some(Vec::new());
    for id in 0..6 {
        receive(&mut *qps[1], id, sge(to, 0, 4096));
    }
    let payload = || gather(from, 0, 3000);
    let to_word = remote(to, 0);
    let into = || sge(from, 0, 8);
    let operations = [
        send(payload()),
        SendOperation::Send { payload: payload(), attached: Attached::Immediate(1) },
        send(gather(from, 0, 100)),
        write(payload(), to_word),
        SendOperation::Write { payload: payload(), remote: to_word, immediate: Some(2) },
        SendOperation::Read { into: sge(from, 0, 3000).into(), remote: to_word },
        SendOperation::FetchAndAdd { into: into(), remote: to_word, add: 1 },
        SendOperation::CompareAndSwap { into: into(), remote: to_word, compare: 1, swap: 1 },
    ];
    let count = operations.len();
    for (id, operation) in operations.into_iter().enumerate() {
        post(&mut *qps[0], id as u64, operation);
    }
    net.completions(0, count);
    net.poll(1);
    net.wire.capture.take().unwrap()
}

#[test]
fn mutated_packets_do_no_harm() {
    let seed = seed();
    let mut random = Random(seed);
    let mut net = Net::new(seed, Faults::default());
    let mut bystanders = net.connect(&Link::new(QpType::Rc));
    let (private, from, to) = (net.memory(1, 4096), net.memory(0, 4096), net.memory(1, 4096));
    let secret = net.memory_with(1, 1 << 16, Access::LOCAL_WRITE);
    fill(&secret, 8);
    let before = read(&secret, 0, 1 << 16);
    let total = amount(200_000, 10_000_000);
    let (mut fed, mut killed) = (0, 0);
    while fed < total {
        let mut qps = net.connect(&Link::new(QpType::Rc));
        let frames = templates(&mut net, &mut qps, &from, &to);
        for _ in 0..2_000 {
            let mut frame = frames[random.within(0, frames.len() - 1)].clone();
            mutate(&mut frame, &mut random);
            let side = if frame[5] == mac(1).0[5] { 1 } else { 0 };
            net.nodes[side].stack.receive(net.now_ns, &frame);
            fed += 1;
            if fed % 64 == 0 {
                net.step();
            }
        }
        killed += qps.iter().filter(|qp| qp.state() == State::Err).count();
        drop(qps);
        net.settle();
        net.poll(0);
        net.poll(1);
        post(&mut *bystanders[0], 77, write(gather(&from, 0, 1000), remote(&private, 0)));
        ok(&net.completions(0, 1), [77]);
    }
    assert_eq!(bystanders.each_ref().map(|qp| qp.state()), [State::Rts; 2]);
    assert!(read(&secret, 0, 1 << 16) == before, "memory without rights was written");
    let counters = net.nodes[1].device.counters();
    assert!(killed > 0 && counters.all_dropped() > 0);
    assert_eq!(net.nodes.each_ref().map(|node| node.device.census().0), [1, 1]);
}

#[test]
fn random_bytes_are_somebody_elses() {
    let (mut random, mut net) = (Random(seed()), Net::new(1, Faults::default()));
    for _ in 0..amount(50_000, 1_000_000) {
        let mut frame = random.frame(mac(1).0);
        let kinds: [[u8; 2]; 4] = [[8, 0], [0x86, 0xdd], [8, 6], [0x81, 0]];
        frame[12..14].copy_from_slice(&kinds[random.within(0, 3)]);
        frame.truncate(random.within(1, frame.len()));
        net.nodes[1].stack.receive(1, &frame);
    }
    assert_eq!(net.nodes[1].device.counters().received, 0);
}
