//! Our driver on QEMU's `edu`, a DMA engine that nobody here wrote, through VFIO and an IOMMU: a conventional PCI function that reaches 28
//! bits of addresses, has no reset of its own and no MSI-X. One copy takes it 200 ms.

use crate::copy::TAKE;
use crate::guest::{self, FIRST};

/// Sizes that are run: the whole buffer, a byte, and no multiple of anything.
const SIZES: [usize; 3] = [4096, 1, 1021];

/// Copies that three seconds have room for at least, on a machine that is half as fast as the device's clock.
const LEAST: u64 = 5;

fn script() -> String {
    let runs = SIZES.map(|size| {
        format!(
            "timeout 60 pollring copy pci:FIRST --size {size} --depth 4 --verify --duration 3 --json 2>/dev/null; echo status $?\n"
        )
    });
    format!("{TAKE}{}", runs.concat()).replace("FIRST", FIRST)
}

/// The numbers of that name in the reports, one a run.
fn numbers(reports: &str, name: &str) -> Vec<u64> {
    let values = reports.lines().filter_map(|line| line.trim().strip_prefix(&format!("\"{name}\":")));
    values.filter_map(|value| value.trim().trim_end_matches(',').parse().ok()).collect()
}

#[test]
fn our_driver_runs_qemus_edu_through_vfio_and_the_iommu() {
    let _turn = guest::turn();
    let port = "pcie-root-port,id=edu,chassis=1,slot=1,bus=pcie.0,addr=0x10";
    let machine = guest::machine().qemu_arguments(&["-device", port, "-device", "edu,bus=edu"]);
    let finished = guest::finish(guest::script(machine, &script()));
    let report = format!("{}\nconsole:\n{}", finished.stdout, finished.console);
    assert!(finished.stdout.contains("bound to vfio-pci"), "{report}");
    assert_eq!(finished.stdout.matches("status 0").count(), SIZES.len(), "{report}");
    let counted = |name| numbers(&finished.stdout, name);
    assert_eq!(counted("size_bytes"), SIZES.map(|size| size as u64), "{report}");
    assert_eq!(counted("corrupt"), [0; SIZES.len()], "{report}");
    assert_eq!(counted("verified"), counted("operations"), "{report}");
    assert!(counted("operations").iter().all(|operations| *operations >= LEAST), "{report}");
    println!("{report}");
}
