//! What goes wrong while it runs: a process that is killed, a second one for the same device, a ring that is full.

use crate::cable::{self, Direction};
use crate::guest::{self, FIRST, SECOND};
use pollring_vm::Wire;
use std::time::{Duration, Instant};

const KILLS: u64 = 20;

/// Traffic both ways until each direction has `frames` more back, or nothing comes for `limit`.
fn flow(wires: &mut [Wire], directions: &mut [Direction], frames: u64, limit: Duration) {
    let goals: Vec<u64> = directions.iter().map(|direction| direction.counts().verified + frames).collect();
    let mut moved = Instant::now();
    while directions.iter().zip(&goals).any(|(direction, goal)| direction.counts().verified < *goal) {
        if directions.iter_mut().map(|direction| direction.step(wires, u64::MAX)).sum::<usize>() > 0 {
            moved = Instant::now();
        }
        assert!(moved.elapsed() < limit, "no frame for {limit:?}");
    }
}

/// Point 3: killed in full traffic and started again, 20 times in one boot. No frame arrives damaged or twice.
#[test]
fn a_killed_forwarder_leaves_devices_that_the_next_one_can_use() {
    let _turn = guest::turn();
    let script = format!(
        r#"
        pollring bind {FIRST} {SECOND} >&2 || exit 1
        for round in $(seq {KILLS}); do
          start /tmp/forward$round pollring forward pci:{FIRST} pci:{SECOND} || exit 1
          if [ $round = 1 ]; then
            expect 2 "another process" pollring forward pci:{FIRST} pci:{SECOND} --duration 1
            expect 2 "process" pollring unbind {FIRST}
          fi
          echo "UP $round"; read -r _
          kill -9 $program; wait $program
        done
        dmesg | grep -c DMAR.*fault
        true
        "#
    );
    let mut running = guest::script(guest::machine().nic("igb").nic("igb"), &script);
    let mut directions = [Direction::new(3, 0, 1), Direction::new(4, 1, 0)];
    let mut wires = running.take_wires();
    for round in 1..=KILLS {
        guest::line(&mut running, &format!("UP {round}"));
        flow(&mut wires, &mut directions, 500, Duration::from_secs(10));
        running.say("kill").unwrap();
        let killed = Instant::now();
        while killed.elapsed() < Duration::from_millis(300) {
            directions.iter_mut().for_each(|direction| {
                direction.step(&mut wires, u64::MAX);
            });
        }
        directions.iter_mut().for_each(Direction::give_up);
    }
    let finished = guest::finish(running);
    for direction in &directions {
        let counts = direction.counts();
        assert!(counts.verified >= 500 * KILLS, "{counts:?}");
        assert_eq!((counts.corrupt, counts.duplicate, counts.out_of_order), (0, 0, 0), "{counts:?}");
    }
    assert_eq!(finished.stdout.matches("ok: ").count(), 2, "{}", finished.stdout);
}

/// Point 3: a forwarder that stands still while frames come loses some, says so, and goes on. QEMU's igb holds the wire up while all
/// of its rings are full, and drops when only the one is that a frame belongs to: so there are two.
#[test]
fn a_full_ring_is_counted_and_recovers() {
    let _turn = guest::turn();
    let script = format!(
        r#"
        pollring bind {FIRST} {SECOND} >&2 || exit 1
        start /tmp/forward pollring forward pci:{FIRST} pci:{SECOND} --queues 2 --json || exit 1
        kill -STOP $program; echo STOPPED; read -r _
        kill -CONT $program; echo GOES; read -r _
        kill -INT $program; wait $program; echo "STATUS $?"; cat /tmp/forward.err >&2
        echo "JSON $(tr -d '\n' </tmp/forward.out)"
        "#
    );
    let mut running = guest::script(guest::machine().nic("igb").nic("igb"), &script);
    guest::line(&mut running, "STOPPED");
    let mut wires = running.take_wires();
    let start = Instant::now();
    let mut sent = 0;
    while sent < 5000 && start.elapsed() < Duration::from_secs(3) {
        sent += u64::from(wires[0].send(&[0xff; 300]).unwrap());
    }
    running.say("go").unwrap();
    guest::line(&mut running, "GOES");
    let mut back = 0;
    while wires[1].receive(Duration::from_millis(500)).unwrap().is_some() {
        back += 1;
    }
    let mut directions = [Direction::new(5, 0, 1), Direction::new(6, 1, 0)];
    cable::run(&mut wires, &mut directions, 5000, Duration::from_secs(5));
    for direction in &directions {
        let counts = direction.counts();
        assert!(counts.is_clean() && counts.verified == 5000, "{counts:?}");
    }
    running.say("enough").unwrap();
    let json = guest::line(&mut running, "JSON ");
    let finished = guest::finish(running);
    println!("of {sent} frames to a forwarder that stood still, {back} came back");
    let summary: serde_json::Value = serde_json::from_str(json.split_once(' ').unwrap().1).unwrap();
    let overruns = summary["ports"][0]["rx_overruns"].as_u64().unwrap();
    assert!(
        sent == 5000 && (400..sent).contains(&back) && overruns > 0,
        "{sent} sent, {back} back, {summary}"
    );
    assert!(finished.stdout.contains("STATUS 0"), "{}", finished.stdout);
}
