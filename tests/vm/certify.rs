//! Drivers that nobody here wrote on the software igb: `pollring simulate igb` serves it, QEMU's `vfio-user-pci` puts it into the guest.
//!
//! The referees are the kernel's igb and DPDK's net_e1000_igb; what they are given to carry is checked at both ends. Each check runs once
//! more on a device that flips a bit in every frame, and must fail there.

use crate::cable::{self, Direction};
use crate::guest::{self, FIRST};
use pollring_vm::{Machine, Running, Wire};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;

/// Pings and frames that must pass, and how many a corrupting device gets.
const PINGS: u64 = 10_000;
const FRAMES: u64 = 100_000;
const FEW: u64 = 200;

/// The host's end of the wire, for ARP and IPv4.
const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xee];
const HOST_IP: [u8; 4] = [10, 9, 0, 1];

/// What `ping -p` fills its payload with, behind a time stamp of 16 bytes.
const PATTERN: [u8; 2] = [0xa5, 0x5a];
const STAMP_BYTES: usize = 16;

/// Whether the device is honest.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Frames {
    Intact,
    Corrupt,
}

/// A device that is served, and the far end of its wire.
struct Served {
    child: Child,
    stdout: BufReader<ChildStdout>,
    folder: TempDir,
}

impl Served {
    fn start(frames: Frames) -> (Served, Wire) {
        let folder = folder();
        let (device, host) = (folder.path().join("device"), folder.path().join("host"));
        let wire = format!("dgram:{},{}", device.display(), host.display());
        (Served::with_wire(frames, folder, &wire, 1), Wire::bind(&host, &device).unwrap())
    }

    /// The device numbered `number`, on a wire as `pollring simulate` takes it.
    fn with_wire(frames: Frames, folder: TempDir, wire: &str, number: u8) -> Served {
        let mut command = Command::new(guest::programs().join("pollring"));
        command.args(["simulate", "igb", "--wire", wire, "--mac", &format!("02:00:00:70:00:0{number}")]);
        command.arg("--socket").arg(folder.path().join("socket"));
        if frames == Frames::Corrupt {
            command.arg("--corrupt");
        }
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert!(line.contains("listening at"), "{line}");
        Served { child, stdout, folder }
    }

    /// Ends it; what it counted. Nothing that it was driven to may have been against its rules or unknown to it, but for what `excused`
    /// names.
    fn end(mut self, excused: &[&str]) -> String {
        assert!(
            Command::new("kill").args(["-INT", &self.child.id().to_string()]).status().unwrap().success()
        );
        let mut summary = String::new();
        self.stdout.read_to_string(&mut summary).unwrap();
        assert!(self.child.wait().unwrap().success(), "{summary}");
        let found = |line: &str| -> Vec<String> {
            let values = summary.lines().find_map(|found| found.strip_prefix(line)).unwrap_or(line);
            values.split(',').map(str::trim).filter(|value| *value != "none").map(str::to_owned).collect()
        };
        let mut found: Vec<String> = [found("violations"), found("unknown registers")].concat();
        found.retain(|value| !excused.iter().any(|excused| value.starts_with(excused)));
        assert!(found.is_empty() && summary.contains("DMA faults         0"), "{summary}");
        summary
    }
}

fn folder() -> TempDir {
    tempfile::Builder::new().prefix("pollring-certify-").tempdir().unwrap()
}

/// A machine whose first functions behind root ports are these devices.
fn machine(devices: &[&Served]) -> Machine {
    devices.iter().enumerate().fold(guest::machine(), |machine, (at, served)| {
        let socket = served.folder.path().join("socket");
        let device = format!(
            r#"{{"driver":"vfio-user-pci","bus":"served{at}","socket":{{"type":"unix","path":"{}"}}}}"#,
            socket.display()
        );
        let port = format!(
            "pcie-root-port,id=served{at},chassis={0},slot={0},bus=pcie.0,addr={1:#x}",
            at + 1,
            at + 16
        );
        machine.qemu_arguments(&["-device", &port, "-device", &device])
    })
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Answers ARP and pings at the host's end; counts requests that were as they should be, and others.
struct Responder {
    stop: std::sync::Arc<AtomicBool>,
    thread: JoinHandle<(u64, u64)>,
}

impl Responder {
    fn start(mut wire: Wire) -> Responder {
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let thread = std::thread::spawn(move || {
            let (mut good, mut bad) = (0, 0);
            let mut reply = Vec::new();
            while !seen.load(Ordering::Relaxed) {
                let Some(frame) = wire.receive(Duration::from_millis(20)).unwrap() else { continue };
                reply.clear();
                match answer(frame, &mut reply) {
                    Heard::Nothing => continue,
                    Heard::Arp => {}
                    Heard::GoodPing => good += 1,
                    Heard::BadPing => {
                        bad += 1;
                        continue;
                    }
                }
                while !wire.send(&reply).unwrap() {
                    std::thread::yield_now();
                }
            }
            (good, bad)
        });
        Responder { stop, thread }
    }

    fn end(self) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

enum Heard {
    Nothing,
    Arp,
    GoodPing,
    BadPing,
}

/// RFC 826, RFC 792.
fn answer(frame: &[u8], reply: &mut Vec<u8>) -> Heard {
    let (Some(source), Some(kind)) = (frame.get(6..12), frame.get(12..14)) else { return Heard::Nothing };
    reply.extend([source, &HOST_MAC, kind].concat());
    match kind {
        [0x08, 0x06] if frame.get(20..22) == Some(&[0, 1]) && frame.get(38..42) == Some(&HOST_IP) => {
            reply.extend([&frame[14..20], &[0, 2], &HOST_MAC, &HOST_IP, &frame[22..32]].concat());
            Heard::Arp
        }
        [0x08, 0x00] if frame.len() > 42 + STAMP_BYTES && frame[23] == 1 && frame[34] == 8 => {
            let end = 14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]));
            let Some(message) = frame.get(34..end) else { return Heard::BadPing };
            if checksum(message) != 0 || !message[8 + STAMP_BYTES..].iter().enumerate().all(is_pattern) {
                return Heard::BadPing;
            }
            let mut message = message.to_vec();
            message[0] = 0;
            message[2..4].fill(0);
            let sum = checksum(&message).to_be_bytes();
            message[2..4].copy_from_slice(&sum);
            reply.extend([&frame[14..26], &frame[30..34], &frame[26..30], &message].concat());
            Heard::GoodPing
        }
        _ => Heard::Nothing,
    }
}

fn is_pattern((at, byte): (usize, &u8)) -> bool {
    *byte == PATTERN[at % 2]
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let words =
        bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |low| u32::from(*low)));
    let sum = words.sum::<u32>();
    let sum = (sum >> 16) + (sum & 0xffff);
    !((sum >> 16) + sum) as u16
}

/// Pings from the kernel's igb; whether all of them passed, unaltered both ways.
fn ping(frames: Frames, count: u64) -> Result<String, String> {
    let (served, wire) = Served::start(frames);
    let responder = Responder::start(wire);
    let script = format!(
        "nic=$(ls /sys/bus/pci/devices/{FIRST}/net) || exit 1
         readlink /sys/bus/pci/devices/{FIRST}/driver
         ip addr add 10.9.0.2/24 dev $nic; ip link set $nic up
         for _ in $(seq 100); do [ \"$(cat /sys/class/net/$nic/carrier)\" = 1 ] && break; sleep 0.1; done
         sleep 0.5
         timeout 90 ping -q -f -l 16 -s 1000 -p a55a -c {count} -W 3 10.9.0.1
         ethtool -i $nic | head -1; grep $nic /proc/interrupts; exit 0"
    );
    let finished = guest::finish(guest::script(machine(&[&served]), &script));
    let (good, bad) = responder.end();
    let summary = served.end(&["PostedAsDone"]);
    let numbers = finished.stdout.lines().find(|line| line.contains(" packets transmitted, ")).unwrap_or("");
    let [sent, received] = numbers_of(numbers);
    let report = format!("host: {good} good, {bad} bad; {summary}\n{}", finished.stdout);
    assert!(finished.stdout.contains("drivers/igb") && finished.stdout.contains("driver: igb"), "{report}");
    let whole = sent == count && received == sent && !finished.stdout.contains("wrong data");
    if whole && good == sent && bad == 0 { Ok(report) } else { Err(report) }
}

/// The first two numbers of a line.
fn numbers_of(line: &str) -> [u64; 2] {
    let mut numbers = line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok());
    [0; 2].map(|none| numbers.next().unwrap_or(none))
}

/// The stock driver leaves the done bit of the write-back in receive descriptors that it posts again, which ours must not: that rule
/// is excused.
#[test]
fn the_kernels_igb_pings_ten_thousand_times() {
    let _turn = guest::turn();
    let report = ping(Frames::Intact, PINGS).unwrap_or_else(|report| panic!("{report}"));
    println!("{report}");
}

#[test]
fn the_kernels_igb_does_not_pass_with_corrupt_frames() {
    let _turn = guest::turn();
    let Err(report) = ping(Frames::Corrupt, FEW) else { panic!("corrupt frames passed for good ones") };
    assert!(report.contains("host: 0 good"), "{report}");
}

/// Two devices joined by a wire, each with a stock driver in a name space of its own: 8 MiB over TCP arrive as they were sent, cut into
/// segments and given checksums by one device, which the other one found right; and so does what has a VLAN tag, which
/// the devices insert and take out.
#[test]
fn the_kernels_igb_leaves_segments_checksums_and_tags_to_the_device() {
    let _turn = guest::turn();
    let folders = [folder(), folder()];
    let [a, b] = folders.each_ref().map(|folder| folder.path().join("wire"));
    let wires = [(&a, &b), (&b, &a)].map(|(own, far)| format!("dgram:{},{}", own.display(), far.display()));
    let mut numbers = 1..;
    let devices: Vec<Served> = folders
        .into_iter()
        .zip(&wires)
        .map(|(folder, wire)| Served::with_wire(Frames::Intact, folder, wire, numbers.next().unwrap()))
        .collect();
    let running = guest::script(machine(&devices.iter().collect::<Vec<_>>()), &TCP.replace("FIRST", FIRST));
    let finished = guest::finish(running);
    let summaries: Vec<String> = devices.into_iter().map(|device| device.end(&["PostedAsDone"])).collect();
    let report = format!("{summaries:?}\n{}", finished.stdout);
    let value =
        |name: &str| finished.stdout.lines().find_map(|line| line.trim().strip_prefix(name)).unwrap_or("");
    assert!(value("SENT").starts_with(" 8388608 ") && value("SENT") == value("GOT"), "{report}");
    let segmented: u64 = value("tx_tcp_seg_good:").trim().parse().unwrap_or(0);
    assert!(segmented > 100, "{report}");
    for right in ["TcpInCsumErrors 0", "csum errors 0", "3 received", "igb igb"] {
        assert!(finished.stdout.contains(right), "no `{right}` in {report}");
    }
}

const TCP: &str = r#"
one=/sys/bus/pci/devices/FIRST two=/sys/bus/pci/devices/0000:02:00.0
a=$(ls $one/net) b=$(ls $two/net)
echo $(basename $(readlink $one/driver)) $(basename $(readlink $two/driver))
ip netns add far; ip link set $b netns far
ip addr add 10.9.0.1/24 dev $a; ip link set $a up
ip -n far addr add 10.9.0.2/24 dev $b; ip -n far link set $b up
for _ in $(seq 100); do [ "$(cat /sys/class/net/$a/carrier)" = 1 ] && break; sleep 0.1; done
ip netns exec far python3 -c '
import socket, hashlib
s = socket.create_server(("10.9.0.2", 5000)); print("READY", flush=True)
c, _ = s.accept(); data = b"".join(iter(lambda: c.recv(65536), b""))
print("GOT", len(data), hashlib.sha256(data).hexdigest(), flush=True)' >/tmp/got &
for _ in $(seq 200); do grep -q READY /tmp/got && break; sleep 0.1; done
python3 -c '
import socket, hashlib, os
data = os.urandom(8 << 20)
s = socket.create_connection(("10.9.0.2", 5000), 30); s.sendall(data); s.close()
print("SENT", len(data), hashlib.sha256(data).hexdigest(), flush=True)'
wait
cat /tmp/got
ethtool -S $a | grep tx_tcp_seg_good
echo TcpInCsumErrors $(ip netns exec far nstat -az TcpInCsumErrors | awk '/Csum/ { print $2 }')
echo csum errors $(ip netns exec far ethtool -S $b | awk '/csum_err/ { n += $2 } END { print n + 0 }')
ip link add link $a name tagged type vlan id 5; ip addr add 10.8.0.1/24 dev tagged; ip link set tagged up
ip -n far link add link $b name tagged type vlan id 5
ip -n far addr add 10.8.0.2/24 dev tagged; ip -n far link set tagged up
ping -c 3 -i 0.2 -w 20 10.8.0.2
"#;

/// Frames through DPDK's driver and back, and whether each came once, in order, byte for byte.
fn forward(frames: Frames, count: u64) -> (bool, String) {
    let (served, wire) = Served::start(frames);
    let script = format!(
        "nic=/sys/bus/pci/devices/{FIRST}
         echo {FIRST} >$nic/driver/unbind; echo vfio-pci >$nic/driver_override; echo {FIRST} >/sys/bus/pci/drivers_probe
         readlink $nic/driver
         stdbuf -oL dpdk-testpmd -l 0,1 -a {FIRST} --in-memory -m 128 --no-telemetry -- --forward-mode=io \
           --port-topology=loop --no-flush-rx --total-num-mbufs=8192 --rxd=512 --txd=512"
    );
    let mut running: Running = guest::script(machine(&[&served]), &script);
    guest::line(&mut running, "Press enter to exit");
    let mut directions = [Direction::new(3, 0, 0)];
    cable::run(&mut [wire], &mut directions, count, Duration::from_secs(3));
    running.say("").unwrap();
    let finished = guest::finish(running);
    let counts = directions[0].counts();
    // A register of which DPDK alone knows, and only to read it.
    let summary = served.end(&["0x04044"]);
    let report = format!("{counts:?}; {summary}\n{}", finished.stdout);
    assert!(finished.stdout.contains("drivers/vfio-pci"), "{report}");
    (counts.is_clean() && counts.verified == count, report)
}

#[test]
fn dpdks_igb_forwards_a_hundred_thousand_frames() {
    let _turn = guest::turn();
    let (passed, report) = forward(Frames::Intact, FRAMES);
    assert!(passed, "{report}");
    println!("{report}");
}

#[test]
fn dpdks_igb_does_not_pass_with_corrupt_frames() {
    let _turn = guest::turn();
    let (passed, report) = forward(Frames::Corrupt, FEW);
    assert!(!passed, "corrupt frames passed for good ones: {report}");
    assert!(report.contains("verified: 0"), "{report}");
}

/// The host's end itself: good pings are answered, and one flipped bit is noticed.
#[test]
fn the_responder_notices_one_bit() {
    let payload: Vec<u8> = (0..100).map(|at| PATTERN[at % 2]).collect();
    let mut message = [&[8, 0, 0, 0, 0, 1, 0, 1][..], &[7; STAMP_BYTES], &payload].concat();
    let sum = checksum(&message).to_be_bytes();
    message[2..4].copy_from_slice(&sum);
    let header = [0x45, 0, 0, 20 + message.len() as u8, 0, 0, 0, 0, 64, 1, 0, 0, 10, 9, 0, 2, 10, 9, 0, 1];
    let frame = [&[2; 12][..], &[8, 0], &header, &message].concat();
    let mut reply = Vec::new();
    assert!(matches!(answer(&frame, &mut reply), Heard::GoodPing));
    assert_eq!((reply.len(), reply[34], checksum(&reply[34..])), (frame.len(), 0, 0));
    let mut bad = frame.clone();
    *bad.last_mut().unwrap() ^= 2;
    assert!(matches!(answer(&bad, &mut Vec::new()), Heard::BadPing));
}
