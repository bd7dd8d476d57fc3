//! DPDK's vhost backend as a child process: dpdk-testpmd with one net_vhost port that sends every frame back where it came from.
//!
//! Huge pages are reserved as long as a [`Testpmd`] lives and given back with it. Only the child that was started here is ever ended, by its
//! handle.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Pages of 2 MiB that testpmd needs for `-m 256` and its own.
const PAGES: usize = 180;

/// One testpmd at a time: pages and cores are few.
static TURN: Mutex<()> = Mutex::new(());

/// Reserved huge pages; the number from before comes back on drop. Another run of these tests on this machine waits meanwhile.
struct Pages {
    before: usize,
    _lock: fs::File,
}

const NR_HUGEPAGES: &str = "/proc/sys/vm/nr_hugepages";

impl Pages {
    fn reserve() -> Pages {
        let lock = fs::File::create(std::env::temp_dir().join("pollring-hugepages.lock")).unwrap();
        lock.lock().unwrap();
        let read = || -> usize { fs::read_to_string(NR_HUGEPAGES).unwrap().trim().parse().unwrap() };
        let before = read();
        fs::write(NR_HUGEPAGES, (before + PAGES).to_string()).unwrap_or_else(|error| {
            panic!("reserve {PAGES} huge pages in {NR_HUGEPAGES}: {error}; run as root")
        });
        let pages = Pages { before, _lock: lock };
        assert!(read() >= before + PAGES * 9 / 10, "the kernel has no {PAGES} huge pages in one piece");
        pages
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let _ = fs::write(NR_HUGEPAGES, self.before.to_string());
    }
}

/// A running backend.
pub struct Testpmd {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

/// Where the backend listens, and what belongs to it over restarts.
pub struct Place {
    pub socket: PathBuf,
    _directory: tempfile::TempDir,
    _pages: Pages,
    _turn: MutexGuard<'static, ()>,
}

impl Place {
    /// Waits for its turn, reserves pages and makes a directory for the socket.
    pub fn new() -> Place {
        assert!(
            Path::new("/usr/bin/dpdk-testpmd").exists(),
            "dpdk-testpmd is missing; install the Debian packages `dpdk` and `dpdk-dev`"
        );
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("vhost.sock");
        Place { socket, _directory: directory, _pages: Pages::reserve(), _turn: turn }
    }

    /// Starts a backend that forwards.
    pub fn backend(&self, queues: usize) -> Testpmd {
        // A killed backend leaves its socket behind.
        let _ = fs::remove_file(&self.socket);
        let vdev = format!("net_vhost0,iface={},queues={queues}", self.socket.display());
        let prefix = format!("pollring{}", std::process::id());
        let mut child = Command::new("stdbuf")
            .args(["-oL", "dpdk-testpmd", "--lcores", "0@0,1@0", "--file-prefix", &prefix, "--in-memory"])
            .args(["--no-pci", "--single-file-segments", "-m", "256", "--vdev", &vdev, "--", "-i"])
            .args(["--total-num-mbufs=16384", "--nb-cores=1", "--no-flush-rx"])
            .args([format!("--rxq={queues}"), format!("--txq={queues}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("start dpdk-testpmd by stdbuf (Debian package `coreutils`): {error}")
            });
        let (sender, lines) = mpsc::channel();
        for output in [
            Box::new(child.stdout.take().unwrap()) as Box<dyn std::io::Read + Send>,
            Box::new(child.stderr.take().unwrap()),
        ] {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    let _ = sender.send(line);
                }
            });
        }
        let input = child.stdin.take().unwrap();
        let mut backend = Testpmd { child, input, lines };
        backend.say("start");
        backend.say("show config fwd");
        backend.wait_for("io packet forwarding");
        backend
    }
}

impl Testpmd {
    /// Gives a command.
    pub fn say(&mut self, command: &str) {
        let _ = writeln!(self.input, "{command}");
        let _ = self.input.flush();
    }

    /// Waits for a line with `text`.
    pub fn wait_for(&mut self, text: &str) {
        let (end, mut seen) = (Instant::now() + Duration::from_secs(30), Vec::new());
        while Instant::now() < end {
            match self.lines.recv_timeout(Duration::from_millis(100)) {
                Ok(line) if line.contains(text) => return,
                Ok(line) => seen.push(line),
                Err(_) if self.child.try_wait().is_ok_and(|status| status.is_some()) => break,
                Err(_) => {}
            }
        }
        panic!("dpdk-testpmd never said `{text}`; it said:\n{}", seen.join("\n"));
    }

    /// What it said meanwhile.
    pub fn said(&self) -> String {
        self.lines.try_iter().collect::<Vec<_>>().join("\n")
    }

    /// Kills it, as a crash would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Testpmd {
    /// Frames that its port received so far.
    pub fn received(&mut self) -> u64 {
        let _ = self.said();
        self.say("show port stats 0");
        let (end, mut seen) = (Instant::now() + Duration::from_secs(10), Vec::new());
        while Instant::now() < end {
            let Ok(line) = self.lines.recv_timeout(Duration::from_millis(100)) else { continue };
            if let Some((_, rest)) = line.split_once("RX-packets:") {
                return rest.split_whitespace().next().and_then(|count| count.parse().ok()).unwrap();
            }
            seen.push(line);
        }
        panic!("dpdk-testpmd shows no statistics: {}", seen.join("\n"));
    }
}

/// The `pollring` command of this build.
pub fn pollring() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let folder = own.ancestors().nth(2).unwrap();
    let profile = folder.file_name().unwrap().to_str().unwrap();
    let profile = if profile == "debug" { "dev" } else { profile };
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "--profile", profile, "--target-dir"]);
    cargo.arg(folder.parent().unwrap()).args(["-p", "pollring-apps", "--bin", "pollring"]);
    assert!(cargo.status().unwrap().success(), "the pollring command does not build");
    folder.join("pollring")
}
