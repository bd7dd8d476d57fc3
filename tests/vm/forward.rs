//! Frames through two of QEMU's igb, taken from the kernel and given back.

use crate::cable::{self, Direction};
use crate::guest::{self, FIRST, SECOND};
use pollring_vm::{Running, Wire};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Point 1: both ports from the stock driver, 200,000 frames back exactly once, in order, byte for byte; then the NICs serve the kernel.
#[test]
fn every_frame_comes_back_and_the_kernel_gets_its_nics_back() {
    let _turn = guest::turn();
    let script = format!(
        r#"
        pollring devices
        pollring bind {FIRST} {SECOND} || exit 1
        pollring devices
        start /tmp/forward pollring forward pci:{FIRST} pci:{SECOND} --json || exit 1
        echo READY
        read -r _
        kill -INT $program; wait $program; echo "STATUS $?"
        cat /tmp/forward.err >&2
        echo "JSON $(tr -d '\n' </tmp/forward.out)"
        pollring unbind {FIRST} {SECOND} || exit 1
        pollring devices
        for nic in {FIRST} {SECOND}; do readlink /sys/bus/pci/devices/$nic/driver; done
        ip netns add far
        a=$(ls /sys/bus/pci/devices/{FIRST}/net) b=$(ls /sys/bus/pci/devices/{SECOND}/net)
        ip link set $b netns far
        ip addr add 10.9.0.1/24 dev $a; ip link set $a up
        ip -n far addr add 10.9.0.2/24 dev $b; ip -n far link set $b up
        echo CABLE
        # The kernel's igb needs seconds for its link, and pings that wait for it count as lost.
        for _ in $(seq 100); do [ "$(cat /sys/class/net/$a/carrier)" = 1 ] && break; sleep 0.1; done
        sleep 1
        ping -c 5 -i 0.2 -w 30 10.9.0.2
        "#
    );
    let mut running = guest::script(guest::machine().nic("igb").nic("igb"), &script);
    guest::line(&mut running, "READY");
    let mut wires = running.take_wires();
    let seed = 1;
    let mut directions = [Direction::new(seed, 0, 1), Direction::new(seed + 1, 1, 0)];
    let each = 100_000;
    cable::run(&mut wires, &mut directions, each, Duration::from_secs(5));
    for direction in &directions {
        let counts = direction.counts();
        assert!(counts.is_clean() && counts.verified == each, "seed {seed}: {counts:?}");
    }
    running.say("enough").unwrap();
    let json = guest::line(&mut running, "JSON ");
    let summary: serde_json::Value = serde_json::from_str(json.split_once(' ').unwrap().1).unwrap();
    for port in summary["ports"].as_array().unwrap() {
        let count = |key: &str| port[key].as_u64().unwrap();
        assert_eq!((count("rx_frames"), count("tx_frames")), (each, each), "{port}");
        assert_eq!((count("rx_dropped"), count("tx_dropped")), (0, 0), "{port}");
    }
    guest::line(&mut running, "CABLE");
    let crossed = join_until_pinged(&mut running, &mut wires);
    let finished = guest::finish(running);
    assert!(finished.stdout.contains("STATUS 0"), "{}", finished.stdout);
    assert!(finished.stdout.matches("drivers/igb").count() == 2, "{}", finished.stdout);
    assert!(finished.stdout.contains("5 received") && crossed >= 10, "{crossed}: {}", finished.stdout);
}

/// Joins the two wires while the guest pings itself across them; gives how many frames crossed.
fn join_until_pinged(running: &mut Running, wires: &mut [Wire]) -> u64 {
    let enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let cable = scope.spawn(|| cable::join(wires, &enough));
        let pinged = running.line("packets transmitted");
        enough.store(true, Ordering::Relaxed);
        pinged.unwrap_or_else(|error| panic!("{error}"));
        cable.join().unwrap()
    })
}
