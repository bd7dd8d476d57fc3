//! Drivers that nobody here wrote on the software I/OAT, and ours on the same: `pollring simulate ioat` serves it, QEMU's `vfio-user-pci`
//! puts it into the guest.
//!
//! The referees are the kernel's ioatdma with its self-test and dmatest, and DPDK's dmadev_autotest. Each runs once more on an engine that
//! flips one bit of every copy, and must refuse it.

use crate::guest::{self, FIRST};
use pollring_vm::{Finished, Machine};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use tempfile::TempDir;

/// Operations that dmatest runs.
const OPERATIONS: u64 = 100_000;

/// Whether the engine is honest.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Copies {
    True,
    OneBitFlipped,
}

/// An engine that is served.
pub struct Served {
    child: Child,
    stdout: BufReader<ChildStdout>,
    folder: TempDir,
}

impl Served {
    pub fn start(copies: Copies) -> Served {
        let folder = tempfile::Builder::new().prefix("pollring-copy-").tempdir().unwrap();
        let mut command = Command::new(guest::programs().join("pollring"));
        command.args(["simulate", "ioat", "--socket"]).arg(folder.path().join("socket"));
        if copies == Copies::OneBitFlipped {
            command.arg("--corrupt");
        }
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert!(line.contains("listening at"), "{line}");
        Served { child, stdout, folder }
    }

    pub fn machine(&self) -> Machine {
        let socket = self.folder.path().join("socket");
        let device = format!(
            r#"{{"driver":"vfio-user-pci","bus":"served","socket":{{"type":"unix","path":"{}"}}}}"#,
            socket.display()
        );
        let port = "pcie-root-port,id=served,chassis=1,slot=1,bus=pcie.0,addr=0x10";
        guest::machine().qemu_arguments(&["-device", port, "-device", &device])
    }

    /// Ends it; what it counted.
    pub fn end(mut self) -> String {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        let mut summary = String::new();
        self.stdout.read_to_string(&mut summary).unwrap();
        assert!(self.child.wait().unwrap().success(), "{summary}");
        summary
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a script in a machine with the engine; what it printed, and what the engine counted.
fn run(copies: Copies, script: &str) -> (Finished, String) {
    let served = Served::start(copies);
    let finished = guest::finish(guest::script(served.machine(), &script.replace("FIRST", FIRST)));
    let summary = served.end();
    let report = format!("{summary}\n{}\nconsole:\n{}", finished.stdout, finished.console);
    (finished, report)
}

/// Descriptors that the engine executed, by its summary.
pub fn descriptors(report: &str) -> u64 {
    let line = report.lines().find_map(|line| line.strip_prefix("descriptors")).unwrap_or_default();
    line.split(',').next().and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

const DMATEST: &str = r#"
echo driver $(basename $(readlink /sys/bus/pci/devices/FIRST/driver))
ls /sys/class/dma
cd /sys/module/dmatest/parameters
echo 5000 >timeout; echo COUNT >iterations; echo 4096 >test_buf_size; echo 1 >threads_per_chan
channel=$(ls /sys/class/dma | head -1); [ -n "$channel" ] && echo $channel >channel && echo 1 >run
timeout 300 cat wait
dmesg | grep -i 'dmatest\|ioat'
"#;

#[test]
fn the_kernels_ioatdma_and_a_hundred_thousand_operations_of_dmatest_pass() {
    let _turn = guest::turn();
    let (finished, report) = run(Copies::True, &DMATEST.replace("COUNT", &OPERATIONS.to_string()));
    let text = &finished.stdout;
    assert!(text.contains("driver ioatdma"), "{report}");
    assert!(text.contains(&format!("{OPERATIONS} tests, 0 failures")), "{report}");
    println!("{report}");
}

#[test]
fn the_kernels_ioatdma_refuses_one_flipped_bit() {
    let _turn = guest::turn();
    let script =
        "echo driver $(basename $(readlink /sys/bus/pci/devices/FIRST/driver)); dmesg | grep -i ioat; exit 0";
    let (finished, report) = run(Copies::OneBitFlipped, script);
    assert!(!finished.stdout.contains("driver ioatdma"), "{report}");
    assert!(finished.stdout.contains("Self-test copy failed compare"), "{report}");
}

/// Puts the engine under vfio-pci.
pub const TAKE: &str = r#"
nic=/sys/bus/pci/devices/FIRST
echo FIRST >$nic/driver/unbind 2>/dev/null; echo vfio-pci >$nic/driver_override; echo FIRST >/sys/bus/pci/drivers_probe
echo bound to $(basename $(readlink $nic/driver))
"#;

const DPDK: &str = r#"
echo dmadev_autotest >/tmp/commands; echo quit >>/tmp/commands
timeout 300 dpdk-test -l 0,1 -a FIRST --in-memory -m 256 --no-telemetry </tmp/commands 2>&1 | tail -60
exit 0
"#;

#[test]
fn dpdks_dmadev_autotest_passes() {
    let _turn = guest::turn();
    let (finished, report) = run(Copies::True, &format!("{TAKE}{DPDK}"));
    assert!(finished.stdout.contains("bound to vfio-pci"), "{report}");
    assert!(finished.stdout.contains("Test OK"), "{report}");
    // DPDK's own software engine passes too, so it counts that this one worked.
    assert!(descriptors(&report) > OPERATIONS, "{report}");
    println!("{report}");
}

#[test]
fn dpdks_dmadev_autotest_refuses_one_flipped_bit() {
    let _turn = guest::turn();
    let (finished, report) = run(Copies::OneBitFlipped, &format!("{TAKE}{DPDK}"));
    assert!(finished.stdout.contains("Test Failed") && !finished.stdout.contains("Test OK"), "{report}");
    assert!(descriptors(&report) > 0, "{report}");
}

const OURS: &str =
    "timeout 120 pollring copy pci:FIRST --verify --duration 5 --ops copy,fill 2>&1; echo status $?";

#[test]
fn our_driver_runs_the_served_engine_through_vfio_and_the_iommu() {
    let _turn = guest::turn();
    let (finished, report) = run(Copies::True, &format!("{TAKE}{OURS}"));
    assert!(finished.stdout.contains("status 0") && finished.stdout.contains("running"), "{report}");
    println!("{report}");
}

#[test]
fn our_command_refuses_one_flipped_bit() {
    let _turn = guest::turn();
    let (finished, report) = run(Copies::OneBitFlipped, &format!("{TAKE}{OURS}"));
    assert!(
        finished.stdout.contains("status 1") && finished.stdout.contains("results are wrong"),
        "{report}"
    );
}
