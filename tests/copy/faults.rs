//! Faults, halts and lies: an error completion or a halted channel, never silence, and never an operation that ends twice.

use crate::rig::{DEPTH, Engine, MEMORY, Rig, elsewhere, elsewhere_low, mapped, region};
use pollring::buffer::Shared;
use pollring::bus::{BusError, Health};
use pollring::copy::*;
use pollring::iova::{Direction, IovaError, Placement, Ranges};
use pollring_simulator::edu;
use pollring_simulator::hostile::Lies;
use pollring_simulator::ioat::Copies;
use pollring_tests::{amount, seed};
use std::io::ErrorKind;
use std::time::{Duration, Instant};

#[test]
fn an_unmapped_address_is_an_error_completion_and_the_channel_comes_back() {
    let mut rig = Rig::ioat(Copies::True, None);
    for round in 0..3 {
        for (bad_source, status) in [(true, Status::ReadFault), (false, Status::WriteFault)] {
            let (near, far) = (rig.part(0, 64), elsewhere().slice(0, 64).unwrap());
            let (source, destination) = if bad_source { (far, near) } else { (near, far) };
            rig.submit(rig.numbered(0));
            rig.submit(Operation::copy(source, destination, 1));
            rig.submit(rig.numbered(2));
            rig.channel.flush();
            let ends = rig.wait(3);
            assert_eq!(ends, [(0, Status::Done), (1, status), (2, Status::Aborted)], "round {round}");
            let Health::Failed(reason) = rig.channel.health() else { panic!("it runs on") };
            assert!(reason.contains("CHANERR 0x"), "{reason}");
            rig.channel.reset().unwrap();
            assert_eq!(rig.run(rig.numbered(3)), Status::Done);
        }
    }
    assert_eq!(rig.iommu.faults().0, 6);
}

#[test]
fn the_first_descriptor_of_all_may_be_the_culprit() {
    let mut rig = Rig::ioat(Copies::True, None);
    let far = elsewhere().slice(0, 64).unwrap();
    assert_eq!(rig.run(Operation::copy(far, rig.part(0, 64), 0)), Status::ReadFault);
}

#[test]
fn memory_that_devices_only_read_is_not_written() {
    let mut rig = Rig::ioat(Copies::True, None);
    let read_only = mapped(&rig.space, 4096, Direction::ToDevice);
    let status = rig.run(Operation::copy(rig.part(0, 64), read_only.slice(0, 64).unwrap(), 0));
    assert_eq!(status, Status::WriteFault);
    let local = Operation::copy(read_only.slice(0, 64).unwrap(), rig.part(64, 64), 1);
    rig.channel.reset().unwrap();
    assert_eq!(rig.run(local), Status::Done);
}

#[test]
fn a_device_that_is_gone_aborts_what_was_outstanding() {
    for mut rig in Rig::devices(Copies::True) {
        (0..5).for_each(|cookie| rig.submit(rig.numbered(cookie)));
        rig.channel.flush();
        rig.step(2);
        rig.engine.unplug();
        let ends = rig.wait(5);
        // Edu's driver saw two of them end; I/OAT's word about the fifth never came.
        let done = if matches!(rig.engine, Engine::Edu(_)) { 2 } else { 0 };
        let status = |cookie| if cookie < done { Status::Done } else { Status::Aborted };
        assert_eq!(ends, [0, 1, 2, 3, 4].map(|cookie| (cookie, status(cookie))));
        assert_eq!(rig.channel.health(), Health::Gone);
        assert!(rig.channel.reset().is_err());
        assert_eq!(rig.channel.submit(rig.numbered(0)).unwrap_err().reason, Reason::Halted);
    }
}

/// Each operation ends once and in order, whatever the engine says, and a halted channel comes back.
#[test]
fn lies_about_completions_halt_the_channel_and_no_more() {
    let seed = seed();
    let mut halts = 0;
    for run in 0..amount(40, 2000) as u64 {
        let lies = Lies { seed: seed.wrapping_add(run), per_mille: 60 };
        let mut rig = Rig::ioat(Copies::True, Some(lies));
        let (mut next, mut back) = (0, 0);
        for _ in 0..300 {
            for _ in 0..6.min(DEPTH - rig.channel.outstanding()) {
                rig.submit(rig.numbered(next));
                next += 1;
            }
            rig.channel.flush();
            rig.step(5);
            for (cookie, _) in rig.poll(DEPTH) {
                assert_eq!(cookie, back, "run {run}");
                back += 1;
            }
            if matches!(rig.channel.health(), Health::Failed(_)) {
                halts += 1;
                rig.channel.reset().unwrap_or_else(|error| panic!("run {run}: {error}"));
            }
        }
        rig.channel.halt();
        let left = rig.channel.outstanding();
        assert_eq!(rig.poll(left).len(), left);
        assert_eq!(rig.iommu.faults().0, 0, "the driver gave it an address that is not mapped");
        let Engine::Ioat(ioat) = &rig.engine else { panic!("it is no I/OAT") };
        assert!(ioat.lies_told().iter().any(|(_, count)| *count > 0));
    }
    assert!(halts > 100, "only {halts} halts: the lies were not seen");
}

/// Edu drops what it cannot reach without a word, so nothing of that kind may get as far as the device.
#[test]
fn an_end_that_edu_does_not_reach_is_refused_at_submit() {
    let mut rig = Rig::edu(Copies::True);
    let read_only = mapped(&rig.space, 4096, Direction::ToDevice);
    let refused = |rig: &mut Rig, source: Shared, destination: Shared| {
        let rejected = rig.channel.submit(Operation::copy(source, destination, 7)).unwrap_err();
        assert_eq!((rejected.operation.cookie, rejected.reason), (7, Reason::NotMapped));
    };
    let near = rig.part(0, 64);
    for far in [elsewhere(), elsewhere_low(), Shared::local(region("not mapped", 4096))] {
        let far = far.slice(0, 64).unwrap();
        refused(&mut rig, far.clone(), near.clone());
        refused(&mut rig, near.clone(), far);
    }
    refused(&mut rig, near.clone(), read_only.slice(0, 64).unwrap());
    assert_eq!(rig.channel.outstanding(), 0);
    let reads = Operation::copy(read_only.slice(64, 64).unwrap(), near, 1);
    assert_eq!(rig.run(reads), Status::Done);
    let Engine::Edu(edu) = &rig.engine else { panic!("it is no edu") };
    assert_eq!(edu.counters(), edu::Counters { moved: 2, ..Default::default() });
    assert_eq!(rig.iommu.faults().0, 0);
}

#[test]
fn edus_space_has_the_addresses_that_it_reaches_and_no_others() {
    let rig = Rig::edu(Copies::True);
    assert_eq!(rig.space.ranges().unwrap(), Ranges::new([(0, (1 << 28) - 1)]));
    let large = region("larger than its window", 1 << 28);
    assert!(matches!(Placement::new(large, &[&rig.space]), Err(IovaError::NoRoom { .. })));
}

#[test]
fn a_transfer_that_never_ends_fails_the_channel_within_a_bound() {
    let mut rig = Rig::edu(Copies::True);
    let Engine::Edu(edu) = rig.engine.clone() else { panic!("it is no edu") };
    (0..3).for_each(|cookie| rig.submit(rig.numbered(cookie)));
    rig.channel.flush();
    rig.step(1);
    edu.stick();
    let (start, mut ends, mut longest) = (Instant::now(), rig.poll(8), Duration::ZERO);
    while ends.len() < 3 {
        assert!(start.elapsed() < Duration::from_secs(30), "silence: {ends:?}");
        std::thread::sleep(Duration::from_millis(5));
        let before = Instant::now();
        ends.extend(rig.poll(8));
        longest = longest.max(before.elapsed());
    }
    assert_eq!(ends, [(0, Status::Done), (1, Status::Aborted), (2, Status::Aborted)]);
    assert!(start.elapsed() > Duration::from_secs(1) && longest < Duration::from_millis(250), "{longest:?}");
    let Health::Failed(reason) = rig.channel.health() else { panic!("it runs on") };
    assert!(reason.contains("did not end within 2 s"), "{reason}");
    // The transfer may still come, so bus mastering stays off.
    let error = rig.channel.reset().unwrap_err();
    assert!(
        matches!(&error, BusError::Refused { error, .. } if error.kind() == ErrorKind::TimedOut),
        "{error}"
    );
    assert!(matches!(rig.channel.health(), Health::Failed(_)));
    assert_eq!(rig.channel.submit(rig.numbered(0)).unwrap_err().reason, Reason::Halted);
}

/// What was under way at a halt must not reach memory after it, whether it ends before bus mastering is on again or has to be reset.
#[test]
fn a_transfer_that_outlives_a_halt_reaches_no_memory() {
    for ends_before_the_reset in [true, false] {
        let mut rig = Rig::edu(Copies::True);
        let Engine::Edu(edu) = rig.engine.clone() else { panic!("it is no edu") };
        rig.write(0, &[7; 64]);
        rig.submit(rig.numbered(0));
        rig.channel.flush();
        // It is in the buffer, and on its way out.
        edu.step(1);
        assert_eq!(rig.poll(8), []);
        rig.channel.halt();
        assert_eq!(rig.poll(8), [(0, Status::Aborted)]);
        if ends_before_the_reset {
            assert_eq!((edu.step(1), edu.counters().dropped), (0, 1), "it reached memory");
        }
        rig.channel.reset().unwrap();
        assert_eq!((edu.step(1), rig.read(MEMORY / 2, 64)), (0, vec![0; 64]));
        assert_eq!(rig.run(rig.numbered(1)), Status::Done);
        assert_eq!(edu.counters().moved, 3);
    }
}
