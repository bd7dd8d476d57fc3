//! One suite for every copy engine: what the trait promises holds on each, and no engine's lie costs more than its own work.

mod bar;
mod faults;
mod rig;

use pollring::bus::Health;
use pollring::copy::*;
use pollring_simulator::ioat::Copies;
use pollring_tests::{Random, seed};
use rig::{DEPTH, Engine, MEMORY, Rig};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const UPPER: usize = MEMORY / 2;

/// A copy moves its bytes and no others.
fn check_copy(rig: &mut Rig, random: &mut Random, from: usize, to: usize, bytes: usize) {
    let guard = 16;
    let data: Vec<u8> = (0..bytes).map(|_| random.word() as u8).collect();
    rig.write(from, &data);
    rig.write(UPPER + to, &vec![0xa5; bytes + 2 * guard]);
    let operation = Operation::copy(rig.part(from, bytes), rig.part(UPPER + to + guard, bytes), 1);
    assert_eq!(rig.run(operation), Status::Done, "{} {bytes} bytes", rig.channel.name());
    let result = rig.read(UPPER + to, bytes + 2 * guard);
    assert!(
        result[guard..guard + bytes] == data,
        "{}: {bytes} bytes from {from} to {to}",
        rig.channel.name()
    );
    let around = result[..guard].iter().chain(&result[guard + bytes..]);
    assert!(around.copied().all(|byte| byte == 0xa5), "{}: wrote around {bytes} bytes", rig.channel.name());
}

#[test]
fn copies_of_one_byte_to_the_limit_at_every_alignment_move_exactly_their_bytes() {
    let mut random = Random(seed());
    for mut rig in Rig::all() {
        let limits = rig.channel.limits();
        let (align, limit) = (limits.alignment_bytes, limits.max_bytes.min(1 << 20));
        for bytes in (1..=70).chain([4095, 4096, 4097, limit - 1, limit]) {
            let bytes = bytes.next_multiple_of(align).min(limit);
            let (from, to) = (random.within(0, 8192) & !(align - 1), random.within(0, 8192) & !(align - 1));
            check_copy(&mut rig, &mut random, from, to, bytes);
        }
        for at in (4096 - 9..4096 + 9).step_by(align) {
            check_copy(&mut rig, &mut random, at, 8192 - at, 64);
        }
    }
}

#[test]
fn a_fill_repeats_its_pattern_and_cuts_the_last() {
    for mut rig in
        Rig::all().into_iter().filter(|rig| rig.channel.limits().capabilities.contains(Capabilities::FILL))
    {
        for bytes in [1, 7, 8, 9, 4095, 4096, 5000] {
            rig.write(UPPER, &vec![0; bytes + 8]);
            assert_eq!(
                rig.run(Operation::fill(rig.part(UPPER, bytes), 0x0807_0605_0403_0201, 0)),
                Status::Done
            );
            let expected: Vec<u8> = (0..bytes).map(|at| (at % 8 + 1) as u8).chain([0; 8]).collect();
            assert!(rig.read(UPPER, bytes + 8) == expected, "{} {bytes}", rig.channel.name());
        }
    }
}

#[test]
fn what_an_engine_cannot_do_is_refused_and_comes_back() {
    for mut rig in Rig::all() {
        let limits = rig.channel.limits();
        let mut refuse = |operation| {
            let rejected = rig.channel.submit(operation).unwrap_err();
            assert_eq!(rejected.operation.cookie, 77);
            rejected.reason
        };
        let memory = rig.memory.clone();
        let part = |offset, bytes| memory.slice(offset, bytes).unwrap();
        for to in [0, 1, 63] {
            assert_eq!(refuse(Operation::copy(part(64, 64), part(64 + to, 64), 77)), Reason::Overlap);
            assert_eq!(refuse(Operation::copy(part(64 + to, 64), part(64, 64), 77)), Reason::Overlap);
        }
        assert_eq!(refuse(Operation::copy(part(0, 0), part(64, 0), 77)), Reason::Empty);
        let unequal = Reason::Unequal { source_bytes: 8, destination_bytes: 16 };
        assert_eq!(refuse(Operation::copy(part(0, 8), part(64, 16), 77)), unequal);
        if limits.max_bytes < UPPER {
            let bytes = limits.max_bytes + 8;
            let long = Reason::TooLong { bytes, limit: limits.max_bytes };
            assert_eq!(refuse(Operation::copy(part(0, bytes), part(UPPER, bytes), 77)), long);
        }
        assert_eq!((rig.channel.outstanding(), rig.poll(8)), (0, vec![]));
    }
}

#[test]
fn a_full_channel_gives_the_operation_back() {
    for mut rig in Rig::all() {
        let depth = rig.channel.limits().depth;
        (0..depth as u64).for_each(|cookie| rig.submit(rig.numbered(cookie)));
        let rejected = rig.channel.submit(rig.numbered(99)).unwrap_err();
        assert_eq!((rejected.reason, rejected.operation.cookie), (Reason::Full(depth), 99));
        rig.channel.flush();
        assert_eq!(rig.wait(depth).len(), depth);
        assert_eq!(rig.run(rejected.operation), Status::Done);
    }
}

#[test]
fn nothing_completes_before_its_flush_and_the_order_holds_through_many_turns_of_the_ring() {
    for mut rig in Rig::all() {
        rig.submit(rig.numbered(0));
        rig.step(8);
        assert_eq!(rig.poll(8), [], "{}", rig.channel.name());
        rig.channel.flush();
        assert_eq!(rig.wait(1), [(0, Status::Done)]);
        let (mut random, mut next, mut back) = (Random(seed()), 1, 1);
        // DMACOUNT wraps at 65536.
        while next < 70_000 {
            for _ in 0..random.within(0, DEPTH - rig.channel.outstanding()) {
                rig.submit(rig.numbered(next));
                next += 1;
            }
            rig.channel.flush();
            rig.step(random.within(0, 30));
            for (cookie, status) in rig.poll(random.within(0, DEPTH)) {
                assert_eq!((cookie, status), (back, Status::Done), "{}", rig.channel.name());
                back += 1;
            }
        }
        rig.wait(rig.channel.outstanding());
    }
}

/// The engine works while the driver looks, as silicon does.
#[test]
fn an_engine_on_a_thread_of_its_own_keeps_the_order() {
    Rig::devices(Copies::True).iter_mut().for_each(keeps_the_order_of_a_thread);
}

fn keeps_the_order_of_a_thread(rig: &mut Rig) {
    let (engine, stop) = (rig.engine.clone(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if engine.step(3) == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let (start, mut next, mut back) = (Instant::now(), 0, 0);
        let mut failure = None;
        while back < 100_000 && failure.is_none() {
            while rig.channel.outstanding() < DEPTH {
                rig.submit(rig.numbered(next));
                next += 1;
            }
            rig.channel.flush();
            for (cookie, status) in rig.poll(DEPTH) {
                if (cookie, status) != (back, Status::Done) || start.elapsed() > Duration::from_secs(60) {
                    failure.get_or_insert((cookie, status, back));
                }
                back += 1;
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(failure, None, "{}", rig.channel.health());
    });
}

#[test]
fn a_fenced_operation_reads_what_the_earlier_one_wrote() {
    for mut rig in Rig::all() {
        rig.write(0, b"through the fence");
        rig.submit(Operation::copy(rig.part(0, 17), rig.part(UPPER, 17), 0));
        rig.submit(Operation::copy(rig.part(UPPER, 17), rig.part(UPPER + 64, 17), 1).fenced());
        rig.channel.flush();
        assert_eq!(rig.wait(2), [(0, Status::Done), (1, Status::Done)]);
        assert_eq!(rig.read(UPPER + 64, 17), b"through the fence");
    }
}

#[test]
fn lists_of_different_cuts_are_joined_and_complete_once() {
    for mut rig in Rig::all() {
        rig.write(0, b"abcdefghij");
        let sources = vec![rig.part(0, 3).into(), rig.part(3, 7).into()];
        let destinations = vec![rig.part(UPPER, 5).into(), rig.part(UPPER + 6, 5).into()];
        rig.write(UPPER, &[0; 12]);
        let operation =
            Operation { kind: Kind::CopyList { sources, destinations }, flags: Flags::FENCE, cookie: 5 };
        assert_eq!(rig.run(operation), Status::Done);
        assert_eq!(rig.read(UPPER, 12), b"abcde\0fghij\0");
    }
}

#[test]
fn a_halt_aborts_in_order_and_a_reset_goes_on() {
    for mut rig in Rig::all() {
        for round in 0..3 {
            rig.submit(rig.numbered(0));
            rig.channel.flush();
            rig.step(1);
            rig.submit(rig.numbered(1));
            rig.channel.flush();
            rig.submit(rig.numbered(2));
            rig.channel.halt();
            assert!(matches!(rig.channel.health(), Health::Failed(_)));
            assert_eq!(rig.channel.submit(rig.numbered(9)).unwrap_err().reason, Reason::Halted);
            // The CPU works only in a poll; the device did the first.
            let first = if rig.engine.is_device() { Status::Done } else { Status::Aborted };
            assert_eq!(rig.poll(1), [(0, first)], "round {round}");
            rig.channel.reset().unwrap();
            assert_eq!(rig.channel.health(), Health::Running);
            rig.submit(rig.numbered(3));
            rig.channel.flush();
            assert_eq!(rig.wait(3), [(1, Status::Aborted), (2, Status::Aborted), (3, Status::Done)]);
        }
    }
}

#[test]
fn a_reset_in_flight_ends_all_once_and_a_channel_that_is_dropped_in_flight_releases_its_memory() {
    for mut rig in Rig::all() {
        (0..20).for_each(|cookie| rig.submit(rig.numbered(cookie)));
        rig.channel.flush();
        rig.step(7);
        rig.channel.reset().unwrap();
        if rig.channel.outstanding() == 20 && !rig.engine.is_device() {
            // A reset of a running memcpy has nothing to abort.
            assert_eq!(rig.wait(20).len(), 20);
            continue;
        }
        let ends = rig.wait(20);
        let done = ends.iter().take_while(|(_, status)| *status == Status::Done).count();
        assert_eq!(done, 7);
        assert!(ends[done..].iter().all(|(_, status)| *status == Status::Aborted));
        // The descriptors of a driver that has some, and the memory.
        let mappings = if matches!(rig.engine, Engine::Edu(_)) { 1 } else { 2 };
        assert_eq!(rig.space.mappings(), mappings);
        rig.submit(rig.numbered(1));
        rig.channel.flush();
        let Rig { channel, memory, space, engine, .. } = rig;
        drop((channel, memory));
        assert_eq!(space.mappings(), 0);
        assert_eq!(engine.step(64), 0, "it goes on after its channel was dropped");
    }
}

#[test]
fn one_flipped_bit_a_copy_is_seen() {
    for mut rig in Rig::devices(Copies::OneBitFlipped) {
        let data: Vec<u8> = (0..200).collect();
        rig.write(0, &data);
        assert_eq!(rig.run(Operation::copy(rig.part(0, 200), rig.part(UPPER, 200), 0)), Status::Done);
        let flipped: u32 = rig.read(UPPER, 200).iter().zip(&data).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert_eq!(flipped, 1, "{}", rig.channel.name());
    }
}
