//! The IOMMU confines a device, whatever its descriptors say: `pollring-stray` writes bad ones.

use crate::cable::{self, Direction};
use crate::guest::{self, FIRST, SECOND};
use pollring_vm::{Running, Wire};
use std::time::Duration;

fn ask(running: &mut Running, what: &str, answer: &str) -> String {
    running.say(what).unwrap();
    guest::line(running, answer)
}

/// The address that the program says it posted.
fn address(line: &str) -> String {
    line.rsplit_once(' ').unwrap().1.to_owned()
}

/// One frame to the bad port, once it has a buffer in `memory`; gives the buffer's address.
fn receive(running: &mut Running, wires: &[Wire], memory: &str) -> String {
    let posted = address(&ask(running, &format!("receive {memory}"), "posted"));
    assert!(wires[1].send(&[0xff; 200]).unwrap());
    posted
}

/// Point 2: neither unmapped memory nor memory that is mapped for reading is written; unmapped memory is not read; each shows in the log
/// and as an event, and the other port goes on.
#[test]
fn a_device_reaches_only_what_is_mapped_for_it() {
    let _turn = guest::turn();
    let script = format!(
        "pollring bind {FIRST} {SECOND} >&2 || exit 1
         pollring-stray {FIRST} {SECOND}; status=$?
         dmesg | grep DMAR >&2; exit $status"
    );
    let mut running = guest::script(guest::machine().nic("igb").nic("igb"), &script);
    guest::line(&mut running, "READY");
    let mut wires = running.take_wires();
    let mut good = [Direction::new(7, 0, 0)];
    cable::run(&mut wires, &mut good, 2000, Duration::from_secs(5));

    let unmapped = receive(&mut running, &wires, "unmapped");
    let after = ask(&mut running, "check", "touched");
    assert!(after.contains("unmapped 0, readonly 0, good 0"), "{after}");
    let readonly = receive(&mut running, &wires, "readonly");
    let after = ask(&mut running, "check", "touched");
    assert!(after.contains("unmapped 0, readonly 0, good 0"), "{after}");
    assert_ne!(unmapped, readonly);
    ask(&mut running, "send unmapped", "posted");
    std::thread::sleep(Duration::from_millis(200));
    let events = ask(&mut running, "events", "events:");
    for (access, address) in [("write", &unmapped), ("write", &readonly), ("read", &unmapped)] {
        let found = events
            .split(';')
            .any(|event| event.contains(SECOND) && event.contains(access) && event.contains(address));
        assert!(found, "{access} {address}: {events}");
    }

    // The same device with a good address: the test would notice a write.
    receive(&mut running, &wires, "good");
    let after = ask(&mut running, "check", "touched");
    assert!(after.contains("unmapped 0, readonly 0, good 200"), "{after}");
    cable::run(&mut wires, &mut good, 4000, Duration::from_secs(5));
    let counts = good[0].counts();
    assert!(counts.is_clean() && counts.verified == 4000, "{counts:?}");
    ask(&mut running, "end", "good port: ");
    let finished = guest::finish(running);
    let log = finished.stderr;
    for (access, address) in [("Write", &unmapped), ("Write", &readonly), ("Read", &unmapped)] {
        let wanted = format!("fault addr {address}");
        let found = log
            .lines()
            .any(|line| line.contains(access) && line.contains("02:00.0") && line.contains(&wanted));
        assert!(found, "{access} {address}: {log}");
    }
}
