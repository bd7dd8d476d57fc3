//! Devices of other processes: `pollring forward vfio-user:PATH` and the client beneath it, without any privilege.
//!
//! The devices are `pollring simulate` in processes of their own, with this test at the outer ends of their wires, and the server of the crate
//! `vfio_user`, which others wrote.

// Helpers of tests, which the lint does not take for tests.
#![allow(clippy::unwrap_used, clippy::panic)]

use pollring::bus::vfio_user::{Peer, VfioUserError};
use pollring::bus::{Device, Health};
use pollring::hugepages::{Pages, Region, RegionConfig};
use pollring::iova::{AddressSpace, Direction, Placement};
use serde_json::Value;
use std::fs::{File, Permissions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion};

/// Longer than anything here takes, even on a machine that is busy with something else.
const LIMIT: Duration = Duration::from_secs(60);

/// A user that nothing belongs to.
const NOBODY: u32 = 65534;

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pollring"));
    command.args(arguments).env_remove("POLLRING_LOG").stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A child that does not outlive its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder of this test's own, which every user may enter.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("pollring-vfio-user-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A served igb and the outer end of its wire.
struct Served {
    process: Running,
    uri: String,
    device: PathBuf,
    host: UnixDatagram,
}

impl Served {
    fn start(folder: &Path, number: usize) -> Served {
        let path = |what: &str| folder.join(format!("{what}{number}"));
        let (socket, device) = (path("sock"), path("device"));
        let host = UnixDatagram::bind(path("host")).unwrap();
        host.set_read_timeout(Some(LIMIT)).unwrap();
        let wire = format!("dgram:{},{}", device.display(), path("host").display());
        let arguments = ["simulate", "igb", "--socket", socket.to_str().unwrap(), "--wire", &wire];
        let process = Running(command(&arguments).stderr(Stdio::null()).spawn().unwrap());
        wait("the socket", || socket.exists());
        std::fs::set_permissions(&socket, Permissions::from_mode(0o666)).unwrap();
        Served { process, uri: format!("vfio-user:{}", socket.display()), device, host }
    }
}

/// A forwarder between two served devices, as a user who may do nothing.
struct Forwarding {
    process: Running,
    stderr: BufReader<ChildStderr>,
}

impl Forwarding {
    fn start(ends: &[Served; 2], more: &[&str]) -> Forwarding {
        let own = ["forward", &ends[0].uri, &ends[1].uri, "--pages", "small", "--json"];
        let mut forward = command(&[&own, more].concat());
        // Only root can become another user; who is not root is a plain user already.
        if std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0) {
            forward.uid(NOBODY).gid(NOBODY);
        }
        let mut process = Running(forward.spawn().unwrap());
        let mut stderr = BufReader::new(process.0.stderr.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("forwarding") {
            line.clear();
            assert_ne!(stderr.read_line(&mut line).unwrap(), 0, "it ended before it forwarded");
        }
        Forwarding { process, stderr }
    }

    /// The exit status, the summary, and what standard error has.
    fn end(mut self) -> (Option<i32>, Value, String) {
        let mut status = None;
        wait("its end", || {
            status = self.process.0.try_wait().unwrap();
            status.is_some()
        });
        let (mut summary, mut errors) = (Vec::new(), String::new());
        self.process.0.stdout.take().unwrap().read_to_end(&mut summary).unwrap();
        self.stderr.read_to_string(&mut errors).unwrap();
        assert!(!errors.contains("panicked"), "{errors}");
        (status.and_then(|status| status.code()), serde_json::from_slice(&summary).unwrap(), errors)
    }
}

/// A frame that tells its number in every word.
fn frame(number: u32) -> Vec<u8> {
    let length = 64 + number as usize % 1400;
    let ethernet = [&[2, 0, 0, 0, 0, 9][..], &[2, 0, 0, 0, 0, 8], &[0x88, 0xb5]].concat();
    let words = (0u32..).flat_map(|at| (number.wrapping_mul(0x9e37_79b1) ^ at).to_le_bytes());
    ethernet.into_iter().chain(words).take(length).collect()
}

/// Sends frames from one end and looks at every byte that arrives at the other.
fn pass(from: &Served, to: &Served, numbers: std::ops::Range<u32>) {
    let mut buffer = vec![0; 2048];
    for start in numbers.clone().step_by(8) {
        let burst = start..(start + 8).min(numbers.end);
        for number in burst.clone() {
            from.host.send_to(&frame(number), &from.device).unwrap();
        }
        for number in burst {
            let bytes = to.host.recv(&mut buffer).unwrap();
            assert!(buffer[..bytes] == frame(number), "frame {number}");
        }
    }
}

#[test]
fn forward_between_two_processes_without_privilege() {
    forward_between("forward", &[]);
}

#[test]
fn with_the_copier_between_them_the_same_frames_pass() {
    forward_between("copier", &["--copy", "memcpy"]);
}

fn forward_between(name: &str, more: &[&str]) {
    let folder = Folder::new(name);
    let ends = [Served::start(&folder.0, 0), Served::start(&folder.0, 1)];
    let forwarding = Forwarding::start(&ends, more);
    pass(&ends[0], &ends[1], 0..4000);
    pass(&ends[1], &ends[0], 4000..8000);
    let id = forwarding.process.0.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let (status, summary, errors) = forwarding.end();
    assert_eq!(status, Some(0), "{errors}");
    let count = |port: usize, what: &str| summary["ports"][port][what].as_u64().unwrap();
    for port in 0..2 {
        assert_eq!([count(port, "rx_frames"), count(port, "tx_frames")], [4000, 4000]);
        assert_eq!([count(port, "rx_dropped"), count(port, "tx_dropped")], [0, 0]);
    }
}

#[test]
fn a_server_that_is_killed_under_traffic_ends_the_run_with_status_1() {
    let folder = Folder::new("killed");
    let mut ends = [Served::start(&folder.0, 0), Served::start(&folder.0, 1)];
    let forwarding = Forwarding::start(&ends, &[]);
    pass(&ends[0], &ends[1], 0..400);
    for number in 0..8 {
        ends[0].host.send_to(&frame(number), &ends[0].device).unwrap();
    }
    ends[1].process.0.kill().unwrap();
    let start = Instant::now();
    let (status, summary, errors) = forwarding.end();
    println!("ended {:?} after the kill", start.elapsed());
    assert_eq!(status, Some(1), "{errors}");
    assert!(errors.contains("gone"), "{errors}");
    assert_eq!(summary["stopped_by"], "failure", "{summary}");
}

/// What the crate's server was asked.
#[derive(Debug, PartialEq)]
enum Asked {
    Map(u32, u64, u64, bool),
    Unmap(u64, u64),
    Reset,
    Interrupts(u32, u32, usize),
}

struct Backend {
    asked: Sender<Asked>,
    bar: Vec<u8>,
    config: Vec<u8>,
    /// Of the last window.
    memory: Option<File>,
}

impl Backend {
    fn bytes(&mut self, region: u32, offset: u64, count: usize) -> io::Result<&mut [u8]> {
        let bytes = if region == 7 { &mut self.config } else { &mut self.bar };
        bytes.get_mut(offset as usize..offset as usize + count).ok_or(io::ErrorKind::InvalidInput.into())
    }
}

impl ServerBackend for Backend {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let count = data.len();
        data.copy_from_slice(self.bytes(region, offset, count)?);
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        self.bytes(region, offset, data.len())?.copy_from_slice(data);
        Ok(())
    }

    fn dma_map(
        &mut self,
        flags: DmaMapFlags,
        _: u64,
        iova: u64,
        bytes: u64,
        file: Option<File>,
    ) -> io::Result<()> {
        self.asked.send(Asked::Map(flags.bits(), iova, bytes, file.is_some())).unwrap();
        self.memory = file;
        Ok(())
    }

    fn dma_unmap(&mut self, _: DmaUnmapFlags, iova: u64, bytes: u64) -> io::Result<()> {
        self.asked.send(Asked::Unmap(iova, bytes)).unwrap();
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        self.asked.send(Asked::Reset).unwrap();
        Ok(())
    }

    fn set_irqs(&mut self, index: u32, _: u32, start: u32, _: u32, fds: Vec<File>) -> io::Result<()> {
        self.asked.send(Asked::Interrupts(index, start, fds.len())).unwrap();
        Ok(())
    }
}

/// Nine regions: BAR 0 of 4 KiB and config space.
fn crate_server(path: &Path) -> Server {
    let region = |index: u32| {
        let size = if matches!(index, 0 | 7) { 4096 } else { 0 };
        let mut info = ServerRegion { region_info: Default::default(), sparse_areas: vec![], mmap_fd: None };
        info.region_info.argsz = 32;
        (info.region_info.index, info.region_info.size, info.region_info.flags) = (index, size, 3);
        info
    };
    let interrupts = (0..5).map(|index| IrqInfo { index, flags: 1, count: if index == 2 { 4 } else { 0 } });
    Server::new(path, true, interrupts.collect(), (0..9).map(region).collect()).unwrap()
}

#[test]
fn a_server_that_others_wrote_is_a_device() {
    let folder = Folder::new("crate");
    let path = folder.0.join("sock");
    let server = crate_server(&path);
    let (sender, asked) = channel();
    let mut config = vec![0; 4096];
    config[..4].copy_from_slice(&[0x34, 0x12, 0x78, 0x56]);
    let mut backend = Backend { asked: sender, bar: vec![0; 4096], config, memory: None };
    let thread = std::thread::spawn(move || (server.run(&mut backend).is_ok(), backend));
    let peer = Peer::connect(&path).unwrap();
    let space = AddressSpace::new("peer", peer.clone());
    let mut device = Device::open("vfio-user:crate", peer.open().unwrap()).unwrap();
    assert_eq!(device.id(), (0x1234, 0x5678));
    device.join(&space, u64::MAX).unwrap();
    let bar = device.window(0).unwrap();
    bar.write32(8, 0x1234_5678);
    bar.write16(10, 0xabcd);
    assert_eq!((bar.read32(8), bar.read8(11)), (0xabcd_5678, 0xab));
    device.start_dma().unwrap();
    let pages = Pages::Small4K { reason: "a test".into() };
    let config = RegionConfig { name: "memory".into(), bytes: 1 << 20, pages, node: None };
    let placement = Placement::new(Arc::new(Region::allocate(&config).unwrap()), &[&space]).unwrap();
    let iova = placement.iova().bits();
    drop(space.map(&placement, Direction::ToDevice).unwrap());
    device.reset().unwrap();
    let event = pollring::os::EventFd::new().unwrap();
    device.set_interrupts(3, &[std::os::fd::AsFd::as_fd(&event)]).unwrap();
    let log: Vec<Asked> = asked.try_iter().collect();
    let mapped = [Asked::Map(1, iova, 1 << 20, true), Asked::Unmap(iova, 1 << 20)];
    assert_eq!(log, mapped.into_iter().chain([Asked::Reset, Asked::Interrupts(2, 3, 1)]).collect::<Vec<_>>());
    assert_eq!(device.status().health(), Health::Open);
    drop((device, bar, space, placement, peer));
    let (_, backend) = thread.join().unwrap();
    assert_eq!(backend.bar[8..12], 0xabcd_5678u32.to_le_bytes());
}

/// A device that calls itself an 82576 and has a BAR of 4 KiB.
#[test]
fn a_bar_that_is_too_small_for_its_driver_is_an_error() {
    let folder = Folder::new("small");
    let path = folder.0.join("sock");
    let server = crate_server(&path);
    let mut config = vec![0; 4096];
    config[..4].copy_from_slice(&[0x86, 0x80, 0xc9, 0x10]);
    let (asked, _log) = channel();
    let thread = std::thread::spawn(move || {
        let mut backend = Backend { asked, bar: vec![0; 4096], config, memory: None };
        drop(server.run(&mut backend));
    });
    let output = command(&["forward", &format!("vfio-user:{}", path.display())]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && errors.contains("its driver needs 131072"), "{errors}");
    thread.join().unwrap();
}

#[test]
fn who_does_not_answer_is_given_up() {
    let folder = Folder::new("silent");
    let path = folder.0.join("sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let start = Instant::now();
    let error = Peer::connect(&path).err().unwrap();
    assert!(matches!(error, VfioUserError::Exchange { .. }), "{error}");
    assert!(error.to_string().contains("another client") && start.elapsed() < LIMIT / 2, "{error}");
    let error = Peer::connect(&folder.0.join("nothing")).err().unwrap().to_string();
    assert!(error.contains("nothing") && error.contains("start it"), "{error}");
}
