//! What is missing on the way to a NIC: each link of the chain, its text and its exit status.

use crate::guest::{self, FIRST, SECOND};
use std::time::Duration;

/// Point 4, on one machine: addresses, binding, groups, permissions, limits, pages, routes.
#[test]
fn each_missing_link_is_named_with_what_to_do() {
    let _turn = guest::turn();
    // Two conventional functions behind a bridge have one group, as the IOMMU cannot tell them apart.
    let bridge = "-device pcie-root-port,id=rp9,chassis=9,slot=9,bus=pcie.0,addr=0x1a -device pcie-pci-bridge,id=old,bus=rp9 \
                  -device e1000,bus=old,addr=1,romfile= -device e1000,bus=old,addr=2,romfile=";
    let bridge: Vec<&str> = bridge.split_whitespace().collect();
    let script = format!(
        r#"
        expect 2 "0000:09:00.0" pollring forward pci:0000:09:00.0
        expect 2 "0000:09:00.0" pollring bind 0000:09:00.0
        expect 2 "pollring bind {FIRST}" pollring forward pci:{FIRST} pci:{SECOND}

        name=$(ls /sys/bus/pci/devices/{FIRST}/net)
        ip addr add 10.9.0.1/24 dev $name; ip link set $name up; ip route add default via 10.9.0.2
        expect 2 "default route" pollring bind {FIRST}
        [ "$(basename $(readlink /sys/bus/pci/devices/{FIRST}/driver))" = igb ] || echo "FAILED: the NIC with the route was taken"
        expect 0 "" pollring bind --force {FIRST}
        expect 0 "" pollring bind {SECOND}

        old=$(for f in /sys/bus/pci/devices/*; do [ "$(cat $f/device)" = 0x100e ] && basename $f; done)
        set -- $old
        expect 2 "$2" pollring bind $1
        # Bound past that check, as another tool may do.
        echo vfio-pci >/sys/bus/pci/devices/$1/driver_override
        echo $1 >/sys/bus/pci/devices/$1/driver/unbind; echo $1 >/sys/bus/pci/drivers_probe
        expect 2 "$2 (class 0200, e1000)" pollring forward pci:$1
        expect 0 "" pollring bind --group $1
        expect 2 "no driver for 8086:100e" pollring forward pci:$1
        expect 0 "" pollring unbind $1 $2

        group=/dev/vfio/$(basename $(readlink /sys/bus/pci/devices/{FIRST}/iommu_group))
        other=/dev/vfio/$(basename $(readlink /sys/bus/pci/devices/{SECOND}/iommu_group))
        nobody="setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all"
        expect 2 "$group" $nobody pollring forward pci:{FIRST}
        expect 2 "--user" $nobody pollring forward pci:{FIRST}
        chown 65534 $group $other
        (ulimit -l 64; expect 2 "65536" $nobody pollring forward pci:{FIRST} pci:{SECOND})
        (ulimit -l 64; expect 2 "limit" $nobody pollring forward pci:{FIRST} pci:{SECOND})
        expect 0 "" $nobody pollring forward pci:{FIRST} pci:{SECOND} --duration 1

        echo 0 >/proc/sys/vm/nr_hugepages
        expect 2 "pollring hugepages" pollring forward pci:{FIRST} pci:{SECOND} --pages huge
        expect 0 "4 KiB" pollring forward pci:{FIRST} pci:{SECOND} --duration 1 --json
        expect 0 "" pollring unbind {FIRST} {SECOND}
        pollring devices
        "#
    );
    let machine = guest::machine().nic("igb").nic("igb").qemu_arguments(&bridge);
    let mut running = guest::script(machine, &script);
    drop(running.take_wires());
    let finished = guest::finish(running);
    println!("{}", finished.stdout);
    assert_eq!(finished.stdout.matches("ok: ").count(), 19, "{}", finished.stdout);
}

/// Point 4: machines that lack a part.
#[test]
fn a_machine_without_the_module_or_the_iommu_is_explained() {
    let _turn = guest::turn();
    for (argument, word) in
        [("initcall_blacklist=vfio_pci_init", "vfio-pci"), ("intel_iommu=off", "intel_iommu=on")]
    {
        let machine = guest::machine().nic("igb").kernel_argument(argument).limit(Duration::from_secs(60));
        let script = format!(
            r#"
            expect 2 "{word}" pollring bind {FIRST}
            expect 2 "{word}" pollring forward pci:{FIRST}
            [ "$(basename $(readlink /sys/bus/pci/devices/{FIRST}/driver))" = igb ] || echo "FAILED: the NIC was taken"
            pollring devices
            "#
        );
        let finished = guest::finish(guest::script(machine, &script));
        println!("{}", finished.stdout);
        assert_eq!(finished.stdout.matches("ok: ").count(), 2, "{argument}: {}", finished.stdout);
    }
}

/// A stock Debian kernel has the group API too.
#[test]
fn a_stock_debian_kernel_works_too() {
    let _turn = guest::turn();
    let script = format!(
        r#"
        pollring bind {FIRST} {SECOND} || exit 1
        pollring forward pci:{FIRST} pci:{SECOND} --prime 32 --duration 2 --json >/tmp/json || exit 1
        tr -d '\n' </tmp/json; echo
        pollring unbind {FIRST} {SECOND} || exit 1
        [ "$(basename $(readlink /sys/bus/pci/devices/{FIRST}/driver))" = igb ] || echo "FAILED: not given back"
        uname -r
        "#
    );
    let machine = guest::machine().kernel(pollring_vm::Kernel::Debian).joined_nics("igb");
    let finished = guest::finish(guest::script(machine, &script));
    let json = finished.stdout.lines().find(|line| line.starts_with('{')).unwrap();
    let summary: serde_json::Value = serde_json::from_str(json).unwrap();
    let received: u64 =
        summary["ports"].as_array().unwrap().iter().map(|port| port["rx_frames"].as_u64().unwrap()).sum();
    assert!(received > 1000 && finished.stdout.contains("deb"), "{}", finished.stdout);
}
