//! Faults, halts and lies: an error completion or a halted channel, never silence, and never an operation that ends twice.

use crate::rig::{DEPTH, Rig, elsewhere, mapped};
use pollring::bus::Health;
use pollring::copy::*;
use pollring::iova::Direction;
use pollring_simulator::hostile::Lies;
use pollring_simulator::ioat::Copies;
use pollring_tests::{amount, seed};

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
    let mut rig = Rig::ioat(Copies::True, None);
    (0..5).for_each(|cookie| rig.submit(rig.numbered(cookie)));
    rig.channel.flush();
    rig.step(2);
    rig.ioat.as_ref().unwrap().unplug();
    let ends = rig.wait(5);
    assert!(ends.iter().all(|(_, status)| *status == Status::Aborted), "{ends:?}");
    assert_eq!(rig.channel.health(), Health::Gone);
    assert!(rig.channel.reset().is_err());
    assert_eq!(rig.channel.submit(rig.numbered(0)).unwrap_err().reason, Reason::Halted);
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
        assert!(rig.ioat.as_ref().unwrap().lies_told().iter().any(|(_, count)| *count > 0));
    }
    assert!(halts > 100, "only {halts} halts: the lies were not seen");
}
