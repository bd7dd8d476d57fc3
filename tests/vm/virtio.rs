//! virtio-net on PCI: our driver on QEMU's device, behind the emulated IOMMU.

use crate::cable::{self, Direction};
use crate::guest::{self, FIRST, SECOND};
use std::time::Duration;

/// 50,000 frames each way through two devices with these options, exactly once, in order, byte for byte.
fn every_frame_comes_back(options: &str, queues: usize) {
    let _turn = guest::turn();
    let script = format!(
        r#"
        pollring bind {FIRST} {SECOND} || exit 1
        start /tmp/forward pollring forward pci:{FIRST} pci:{SECOND} --entries 256 --queues {queues} --json || exit 1
        echo READY
        read -r _
        kill -INT $program; wait $program; echo "STATUS $?"
        cat /tmp/forward.err >&2
        pollring unbind {FIRST} {SECOND} || exit 1
        for nic in {FIRST} {SECOND}; do readlink /sys/bus/pci/devices/$nic/driver; done
        "#
    );
    let model = format!("virtio-net-pci,iommu_platform=on,disable-legacy=on{options}");
    let mut running = guest::script(guest::machine().nic(&model).nic(&model), &script);
    guest::line(&mut running, "READY");
    let mut wires = running.take_wires();
    let seed = 1;
    let mut directions = [Direction::new(seed, 0, 1), Direction::new(seed + 1, 1, 0)];
    cable::run(&mut wires, &mut directions, 50_000, Duration::from_secs(5));
    for direction in &directions {
        let counts = direction.counts();
        assert!(counts.is_clean() && counts.verified == 50_000, "seed {seed}, {options}: {counts:?}");
    }
    running.say("enough").unwrap();
    let finished = guest::finish(running);
    assert!(finished.stdout.contains("STATUS 0"), "{}", finished.stdout);
    assert_eq!(finished.stdout.matches("drivers/virtio-pci").count(), 2, "{}", finished.stdout);
}

#[test]
fn qemus_virtio_net_split() {
    every_frame_comes_back("", 1);
}

#[test]
fn qemus_virtio_net_packed() {
    every_frame_comes_back(",packed=on", 1);
}

/// Without ACCESS_PLATFORM QEMU's device does DMA past the IOMMU: it must not be used.
#[test]
fn a_device_that_goes_past_the_iommu_is_refused() {
    let _turn = guest::turn();
    let script = format!(
        r#"
        pollring bind {FIRST} || exit 1
        expect 2 "iommu_platform=on" pollring forward pci:{FIRST} --entries 256
        "#
    );
    let finished =
        guest::finish(guest::script(guest::machine().nic("virtio-net-pci,disable-legacy=on"), &script));
    assert_eq!(finished.stdout.matches("ok: ").count(), 1, "{}", finished.stdout);
}
