//! Engine to BAR: the served I/OAT writes into the memory of another PCI function, through the guest's IOMMU.

use crate::copy::{Copies, Served, TAKE, descriptors};
use crate::guest::{self, FIRST};

/// QEMU's shared memory device: BAR 2 is plain memory. Its memfd is one that the engine's process can be given.
const ACCELERATOR: [&str; 4] = [
    "-object",
    "memory-backend-memfd,id=accelerator,size=4M,share=on,seal=on",
    "-device",
    "ivshmem-plain,memdev=accelerator,bus=pcie.0,addr=0x12",
];
const TARGET: &str = "0000:00:12.0";

const SCRIPT: &str = r#"
other=/sys/bus/pci/devices/TARGET
echo vfio-pci >$other/driver_override; echo TARGET >/sys/bus/pci/drivers_probe
copy() { timeout 120 pollring copy "$@" 2>&1; echo "status $?"; }
copy pci:FIRST --into pci:TARGET,bar=2 --verify --duration 3 --ops copy,fill
copy memcpy --into pci:TARGET,bar=2 --verify --duration 1
expect 2 'one smaller' pollring copy pci:FIRST --into pci:TARGET,bar=2 --size 1048576 --depth 8
expect 1 'BAR' pollring copy pci:FIRST --into pci:TARGET,bar=4
"#;

#[test]
fn an_engine_copies_into_the_memory_of_another_device() {
    let _turn = guest::turn();
    let served = Served::start(Copies::True);
    let machine = served.machine().qemu_arguments(&ACCELERATOR);
    let script = format!("{TAKE}{SCRIPT}").replace("FIRST", FIRST).replace("TARGET", TARGET);
    let finished = guest::finish(guest::script(machine, &script));
    let report = format!("{}\n{}\nconsole:\n{}", served.end(), finished.stdout, finished.console);
    assert_eq!(finished.stdout.matches("status 0").count(), 2, "{report}");
    assert!(descriptors(&report) > 100, "{report}");
    println!("{report}");
}
