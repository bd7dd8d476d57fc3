//! Linux's own user-space driver test over VFIO (tools/testing/selftests/vfio) with its I/OAT driver, on the software engine: the
//! third driver that nobody here wrote. It copies from and to memory that is not mapped, stops, resets and goes on, and it asks
//! one descriptor that follows itself for thousands of copies.

use crate::copy::{Copies, Served, TAKE, descriptors};
use crate::guest::{self, FIRST};
use pollring_vm::{Cache, Finished};

/// The engine under `vfio-pci`, and the test's cases through iommufd.
fn run(copies: Copies, cases: &[&str]) -> (Finished, String) {
    let folder = Cache::new().selftests();
    let served = Served::start(copies);
    let machine = served.machine().memory_mib(3072).share(&folder);
    let run = |case: &&str| {
        let program = folder.join("vfio_pci_driver_test");
        format!("timeout 180 {} -r vfio_pci_driver_test.iommufd.{case} {FIRST} 2>&1; echo", program.display())
    };
    let cases: Vec<String> = cases.iter().map(run).collect();
    let huge = "cd /sys/kernel/mm/transparent_hugepage; echo always >enabled; echo always >shmem_enabled; cat enabled shmem_enabled; cd /";
    let script = format!("{huge}\n{}\n{}\nexit 0", TAKE.replace("FIRST", FIRST), cases.join("\n"));
    let finished = guest::finish(guest::script(machine, &script));
    let report = format!("{}\n{}\nconsole:\n{}", served.end(), finished.stdout, finished.console);
    (finished, report)
}

const CASES: [&str; 7] = [
    "init_remove",
    "memcpy_success",
    "memcpy_from_unmapped_iova",
    "memcpy_to_unmapped_iova",
    "send_msi",
    "mix_and_match",
    "memcpy_storm",
];

#[test]
fn linuxs_vfio_selftest_drives_the_software_ioat() {
    let _turn = guest::turn();
    let (finished, report) = run(Copies::True, &CASES);
    let passed = finished.stdout.matches("# PASSED: 1 / 1 tests passed.").count();
    assert_eq!(passed, CASES.len(), "{report}");
    assert!(descriptors(&report) > 60_000, "{report}");
    println!("{report}");
}

#[test]
fn linuxs_vfio_selftest_refuses_one_flipped_bit() {
    let _turn = guest::turn();
    let (finished, report) = run(Copies::OneBitFlipped, &["memcpy_success"]);
    assert!(finished.stdout.contains("# FAILED: 0 / 1 tests passed."), "{report}");
    assert!(descriptors(&report) > 0, "{report}");
}
