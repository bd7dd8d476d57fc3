//! `pollring simulate` as a user and as a vfio-user client meet it, without QEMU.
//!
//! The well-behaved client is that of the crate `vfio_user`, which others wrote; the one that lies writes bytes.

// Helpers of tests, which the lint does not take for tests.
#![allow(clippy::unwrap_used, clippy::panic)]

use pollring::hugepages::{Pages, Region, RegionConfig};
use pollring::os::EventFd;
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};
use vfio_user::Client;

/// Longer than anything here takes, even on a machine that is busy with something else.
const LIMIT: Duration = Duration::from_secs(60);

/// Commands and flags of the protocol.
const VERSION: u16 = 1;
const DMA_MAP: u16 = 2;
const GET_INFO: u16 = 4;
const GET_REGION_INFO: u16 = 5;
const SET_IRQS: u16 = 8;
const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;
const NO_REPLY: u32 = 1 << 4;
const BAR_0: u32 = 0;
const CONFIG: u32 = 7;

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pollring"));
    command.args(arguments).env_remove("POLLRING_LOG").stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("pollring-simulate-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A device that is served.
struct Served {
    child: Child,
    _stdout: BufReader<ChildStdout>,
    folder: PathBuf,
}

impl Served {
    fn start(name: &str, more: &[&str]) -> Served {
        let folder = folder(name);
        let (socket, wire) = (folder.join("sock"), format!("dgram:{0}/device,{0}/host", folder.display()));
        let own = ["simulate", "igb", "--socket", socket.to_str().unwrap(), "--wire", &wire];
        let mut child = command(&[&own, more].concat()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        if !more.contains(&"--json") {
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            assert!(line.contains("listening at"), "{line}");
        }
        let start = Instant::now();
        while UnixStream::connect(&socket).is_err() {
            assert!(start.elapsed() < LIMIT, "it never listened");
            std::thread::sleep(Duration::from_millis(5));
        }
        Served { child, _stdout: stdout, folder }
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("sock")
    }

    fn raw(&self) -> Raw {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Raw(stream)
    }

    /// SIGINT; gives the exit status and the rest of standard output.
    fn end(mut self) -> (Option<i32>, String) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        let mut rest = String::new();
        self._stdout.read_to_string(&mut rest).unwrap();
        let status = self.child.wait().unwrap();
        assert!(!self.socket().exists() && !self.folder.join("device").exists());
        std::fs::remove_dir_all(&self.folder).unwrap();
        (status.code(), rest)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that writes what it wants.
struct Raw(UnixStream);

impl Raw {
    fn send(&mut self, command: u16, bytes: u32, flags: u32, body: &[u8]) {
        let header = [&7u16.to_ne_bytes()[..], &command.to_ne_bytes(), &bytes.to_ne_bytes()].concat();
        let rest = [&flags.to_ne_bytes()[..], &[0; 4], body].concat();
        self.0.write_all(&[header, rest].concat()).unwrap();
    }

    /// Asks and gives the errno that was answered, and the body.
    fn ask(&mut self, command: u16, body: &[u8]) -> (u32, Vec<u8>) {
        self.send(command, 16 + body.len() as u32, 0, body);
        self.answer(command)
    }

    fn answer(&mut self, command: u16) -> (u32, Vec<u8>) {
        let mut header = [0; 16];
        self.0.read_exact(&mut header).unwrap();
        let number = |at: usize| u32::from_ne_bytes(*header[at..].first_chunk().unwrap());
        assert_eq!(header[..4], [&7u16.to_ne_bytes()[..], &command.to_ne_bytes()].concat());
        let (flags, error) = (number(8), number(12));
        assert_eq!((flags & 0xf, flags & 1 << 5 != 0), (1, error != 0));
        let mut body = vec![0; number(4) as usize - 16];
        self.0.read_exact(&mut body).unwrap();
        (error, body)
    }

    fn agree(&mut self) {
        let (error, body) = self.ask(VERSION, b"\0\0\0\0{}\0");
        assert_eq!((error, &body[..4]), (0, &[0; 4][..]));
    }

    fn is_cut_off(&mut self) -> bool {
        matches!(self.0.read(&mut [0; 64]), Ok(0) | Err(_))
    }
}

/// Words, as the protocol has them in its bodies.
fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

#[test]
fn wrong_usage_has_status_2_and_names_the_thing() {
    let folder = folder("usage");
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    std::fs::write(path("file"), "mine").unwrap();
    let _live = UnixListener::bind(path("live")).unwrap();
    let (free, file, live, far) = (path("free"), path("file"), path("live"), path("none/sock"));
    let taken = format!("dgram:{file},{free}");
    let cases: &[(&[&str], &str)] = &[
        (&[], "<MODEL>"),
        (&["zebra", "--socket", &free], "zebra"),
        (&["igb"], "--socket"),
        (&["igb", "--socket", &free, "--wire", "tap:x"], "dgram:LOCAL,REMOTE"),
        (&["igb", "--socket", &free, "--mac", "01:00:00:00:00:00"], "one station"),
        (&["igb", "--socket", &free, "--mac", "x"], "six octets"),
        (&["igb", "--socket", &free, "--corrupt"], "--wire dgram"),
        (&["igb", "--socket", &free, "--wire", &taken], "bind"),
        (&["ioat", "--socket", &free, "--wire", "loopback"], "a copy engine has none"),
        (&["igb", "--socket", &file], "is no socket"),
        (&["igb", "--socket", &live], "another process listens"),
        (&["igb", "--socket", &far], "No such file"),
    ];
    for (arguments, word) in cases {
        let Output { status, stdout, stderr } =
            command(&[&["simulate"], *arguments].concat()).output().unwrap();
        let stderr = text(&stderr);
        assert_eq!(status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(word) && !stderr.contains("panicked"), "{arguments:?}: {stderr}");
        assert!(stdout.is_empty());
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_dead_socket_is_replaced_and_a_signal_ends_it_with_a_summary() {
    let folder = folder("dead");
    let socket = folder.join("sock");
    drop(UnixListener::bind(&socket).unwrap());
    assert!(socket.exists());
    let mut child =
        command(&["simulate", "igb", "--socket", socket.to_str().unwrap(), "--json"]).spawn().unwrap();
    let start = Instant::now();
    while UnixStream::connect(&socket).is_err() {
        assert!(start.elapsed() < LIMIT && child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&summary["dma_faults"], &summary["tx_frames"]), (&0.into(), &0.into()));
    assert!(text(&output.stderr).contains("listening at"));
    assert!(!socket.exists());
    std::fs::remove_dir_all(folder).unwrap();
}

/// Memory that the client shares, and its device address.
struct Memory {
    region: Region,
    file: File,
}

const IOVA: u64 = 0x4000_0000;
const MEMORY_BYTES: usize = 1 << 20;
const RX_RING: u64 = 0;
const TX_RING: u64 = 0x1000;
const RX_BUFFER: u64 = 0x2000;
const TX_BUFFER: u64 = 0x4000;

impl Memory {
    fn new() -> Memory {
        let pages = Pages::Small4K { reason: "a test".into() };
        let config = RegionConfig { name: "client".into(), bytes: MEMORY_BYTES, pages, node: None };
        let region = Region::allocate(&config).unwrap();
        let file = File::from(region.fd().try_clone_to_owned().unwrap());
        Memory { region, file }
    }

    fn write(&self, offset: u64, words: &[u64]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.file.write_all_at(&bytes, offset).unwrap();
    }

    fn bytes(&self, offset: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.file.read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }

    /// Whether the descriptor at `offset` is done: bit `bit` of its second word.
    fn is_done(&self, offset: u64, bit: u32) -> bool {
        let word = u64::from_le_bytes(*self.bytes(offset + 8, 8).first_chunk().unwrap());
        word >> bit & 1 != 0
    }
}

fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

struct Registers<'a>(&'a mut Client);

impl Registers<'_> {
    fn read(&mut self, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.0.region_read(BAR_0, offset, &mut bytes).unwrap();
        u32::from_le_bytes(bytes)
    }

    fn write(&mut self, offset: u64, value: u32) {
        self.0.region_write(BAR_0, offset, &value.to_le_bytes()).unwrap();
    }

    /// Link up, one ring each way with queue 0 raising vector 1, both units on.
    fn bring_up(&mut self) {
        self.0.region_write(CONFIG, 4, &6u16.to_le_bytes()).unwrap();
        self.write(0, 1 << 6);
        self.write(0x20, 1 << 26 | 1 << 21 | 0x1200);
        for (base, ring) in [(0xc000, RX_RING), (0xe000, TX_RING)] {
            self.write(base, (IOVA + ring) as u32);
            self.write(base + 8, 8 * 16);
        }
        self.write(0xc00c, 2 | 1 << 25);
        self.write(0x1514, 1 << 4);
        self.write(0x1700, 0x81);
        self.write(0x1524, 2);
        self.write(0x152c, 2);
        (0..2).for_each(|side| self.write(0xc028 + side * 0x2000, 1 << 25));
        self.write(0x400, 2);
        self.write(0x100, 1 << 1 | 3 << 3 | 1 << 15 | 1 << 26);
        wait("the link", || self.read(8) & 2 != 0);
    }
}

/// One frame out and one in, by hand; the vector of the receive queue is signalled.
fn exchange(client: &mut Client, memory: &Memory, host: &UnixDatagram, device: &Path) -> [Vec<u8>; 2] {
    let event = EventFd::new().unwrap();
    client.set_irqs(2, 1 << 2 | 1 << 5, 1, 1, &[event.as_raw_fd()]).unwrap();
    let mut registers = Registers(client);
    registers.bring_up();
    memory.file.write_all_at(&[0xaa; 100], TX_BUFFER).unwrap();
    let command = 3 << 20 | 1 << 29 | 1 << 24 | 1 << 25 | 1 << 27 | 100 | 100 << 46;
    memory.write(TX_RING, &[IOVA + TX_BUFFER, command]);
    registers.write(0xe018, 1);
    let mut buffer = vec![0; 2000];
    let bytes = host.recv(&mut buffer).unwrap();
    wait("the write-back", || memory.is_done(TX_RING, 32));
    memory.write(RX_RING, &[IOVA + RX_BUFFER, 0]);
    registers.write(0xc018, 1);
    host.send_to(&[0x55; 80], device).unwrap();
    wait("the frame", || memory.is_done(RX_RING, 0));
    wait("the interrupt", || event.drain().unwrap() > 0);
    [buffer[..bytes].to_vec(), memory.bytes(RX_BUFFER, 80)]
}

#[test]
fn a_client_that_others_wrote_runs_the_device() {
    let served = Served::start("client", &[]);
    let (host, device) = (served.folder.join("host"), served.folder.join("device"));
    let host = UnixDatagram::bind(host).unwrap();
    host.set_read_timeout(Some(LIMIT)).unwrap();
    let memory = Memory::new();
    // Each client finds the device as after power-on.
    for _ in 0..2 {
        let mut client = Client::new(&served.socket()).unwrap();
        let sizes: Vec<u64> =
            (0..9).map(|index| client.region(index).map_or(0, |region| region.size)).collect();
        assert_eq!(sizes, [128 << 10, 0, 0, 16 << 10, 0, 0, 0, 4096, 0]);
        let counts: Vec<u32> = (0..5).map(|index| client.get_irq_info(index).unwrap().count).collect();
        assert_eq!(counts, [0, 1, 10, 1, 0]);
        let mut id = [0; 4];
        client.region_read(CONFIG, 0, &mut id).unwrap();
        assert_eq!(id, [0x86, 0x80, 0xc9, 0x10]);
        assert_eq!(Registers(&mut client).read(0xc000), u32::MAX, "memory space is off");
        client.dma_map(0, IOVA, MEMORY_BYTES as u64, memory.region.fd().as_raw_fd()).unwrap();
        let frames = exchange(&mut client, &memory, &host, &device);
        assert_eq!(frames, [vec![0xaa; 100], vec![0x55; 80]]);
        // Without its memory the device faults; a reset ends everything.
        client.dma_unmap(IOVA, MEMORY_BYTES as u64).unwrap();
        Registers(&mut client).write(0xe018, 2);
        wait("the fault", || Registers(&mut client).read(0xe010) == 2);
        client.reset().unwrap();
        client.region_write(CONFIG, 4, &[2, 0]).unwrap();
        assert_eq!(Registers(&mut client).read(0xe000), 0);
        client.shutdown().unwrap();
    }
    let (status, summary) = served.end();
    assert_eq!(status, Some(0));
    for line in ["2 sent, 2 received", "DMA faults         2", "violations         none", "registers  none"] {
        assert!(summary.contains(line), "{summary}");
    }
}

#[test]
fn corrupt_flips_one_bit_each_way() {
    let served = Served::start("corrupt", &["--corrupt"]);
    let (host, device) = (served.folder.join("host"), served.folder.join("device"));
    let host = UnixDatagram::bind(host).unwrap();
    host.set_read_timeout(Some(LIMIT)).unwrap();
    let memory = Memory::new();
    let mut client = Client::new(&served.socket()).unwrap();
    client.dma_map(0, IOVA, MEMORY_BYTES as u64, memory.region.fd().as_raw_fd()).unwrap();
    let [out, into] = exchange(&mut client, &memory, &host, &device);
    assert_eq!(out, [vec![0xaa; 99], vec![0xa8]].concat());
    assert_eq!(into, [vec![0x55; 79], vec![0x54]].concat());
    drop(client);
    assert_eq!(served.end().0, Some(0));
}

/// The body of a region access.
fn access(region: u32, offset: u64, count: u32) -> Vec<u8> {
    [&offset.to_ne_bytes()[..], &words(&[region, count])].concat()
}

/// The body of a window.
fn window(flags: u32, offset: u64, iova: u64, bytes: u64) -> Vec<u8> {
    let numbers = [offset, iova, bytes].map(u64::to_ne_bytes);
    [words(&[32, flags]), numbers.concat()].concat()
}

/// Commands and bodies that are wrong, but for one.
fn wrong_cases() -> Vec<(u16, Vec<u8>)> {
    let max = u64::MAX;
    vec![
        (0, vec![]),
        (6, vec![0; 8]),
        (11, vec![0; 16]),
        (99, vec![]),
        (u16::MAX, vec![1; 100]),
        (DMA_MAP, vec![]),
        (DMA_MAP, window(3, 0, 0, 0)),
        (DMA_MAP, window(0, 0, 0, 4096)),
        (DMA_MAP, window(8, 0, 0, 4096)),
        (DMA_MAP, window(1, 0, 1, 4096)),
        (DMA_MAP, window(1, 0, max - 4095, 8192)),
        (DMA_MAP, window(1, max - 4095, 0, 8192)),
        (3, words(&[24, 7, 0, 0, 0, 0])),
        (3, [words(&[24, 0, 0x1000, 0]), max.to_ne_bytes().to_vec()].concat()),
        (GET_REGION_INFO, vec![0; 31]),
        (GET_REGION_INFO, words(&[32, 0, 9, 0, 0, 0, 0, 0])),
        (GET_REGION_INFO, words(&[8, 0, 0, 0, 0, 0, 0, 0])),
        (7, words(&[16, 0, 5, 0])),
        (SET_IRQS, words(&[20, 0x24, 2, 0, 1])),
        (SET_IRQS, words(&[20, 0x21, 2, 0, u32::MAX])),
        (SET_IRQS, words(&[20, 0x21, 2, 9, 2])),
        (SET_IRQS, words(&[20, 0x22, 2, 0, 2])),
        (SET_IRQS, words(&[20, 0x29, 2, 0, 1])),
        (SET_IRQS, words(&[20, 0x21, 0, 0, 1])),
        (SET_IRQS, words(&[20, 0x21, 99, 0, 0])),
        (REGION_READ, access(0, 0, u32::MAX)),
        (REGION_READ, access(0, max, 4)),
        (REGION_READ, access(0, 0x1_ffff, 2)),
        (REGION_READ, access(u32::MAX, 0, 4)),
        (REGION_WRITE, access(0, 0, 4)),
        (REGION_WRITE, [access(1, 0, 4), vec![0; 4]].concat()),
    ]
}

/// Bodies that are refused with an errno; the connection goes on.
#[test]
fn wrong_messages_are_refused() {
    let served = Served::start("wrong", &[]);
    let mut raw = served.raw();
    assert_ne!(raw.ask(GET_INFO, &[0; 16]).0, 0, "the version comes first");
    for bad in
        [&b""[..], b"\0\0", b"\x01\0\0\0", b"\0\0\0\0{", b"\0\0\0\0{}", b"\0\0\0\0[]\0", b"\0\0\0\0\xff\0"]
    {
        assert_ne!(raw.ask(VERSION, bad).0, 0, "{bad:?}");
    }
    raw.agree();
    // A PCI function that can be reset, with its regions and interrupts (the crate's client reads the flag the wrong way round).
    assert_eq!(raw.ask(GET_INFO, &[0; 16]), (0, words(&[16, 3, 9, 5])));
    for (number, (command, body)) in wrong_cases().iter().enumerate() {
        let (error, reply) = raw.ask(*command, body);
        // Clearing eventfds that were never set is no mistake.
        let fine = *command == SET_IRQS && body == &words(&[20, 0x24, 2, 0, 1]);
        assert_eq!(error != 0, !fine, "case {number}: command {command}");
        assert!(reply.is_empty());
    }
    // What asks for no answer gets none, not even of its failure.
    raw.send(REGION_WRITE, 36, NO_REPLY, &[access(1, 0, 4), vec![0; 4]].concat());
    raw.send(REGION_WRITE, 36, NO_REPLY, &[access(CONFIG, 4, 4), vec![2, 0, 0, 0]].concat());
    let (error, body) = raw.ask(REGION_READ, &access(CONFIG, 4, 4));
    assert_eq!((error, &body[16..]), (0, &[2, 0, 0x10, 0][..]));
    // A window without a file is taken, and taken back.
    assert_eq!(raw.ask(DMA_MAP, &window(1, 0, 0xc_0000, 0x4_0000)).0, 0);
    assert_ne!(raw.ask(DMA_MAP, &window(3, 0, 0xd_0000, 0x1000)).0, 0);
    let whole = [words(&[24, 0]), 0u64.to_ne_bytes().to_vec(), (1u64 << 40).to_ne_bytes().to_vec()].concat();
    let (error, body) = raw.ask(3, &whole);
    assert_eq!((error, &body[16..]), (0, &0x4_0000u64.to_ne_bytes()[..]));
    drop(raw);
    assert_eq!(served.end().0, Some(0));
}

#[test]
fn who_speaks_no_protocol_is_cut_off_and_the_next_one_served() {
    let served = Served::start("garbage", &[]);
    let lies: [(u32, u32); 5] = [(0, 0), (15, 0), (u32::MAX, 0), (2 << 20, 0), (16, 1)];
    for (bytes, flags) in lies {
        let mut raw = served.raw();
        raw.agree();
        raw.send(GET_INFO, bytes, flags, &[]);
        assert!(raw.is_cut_off(), "{bytes} {flags}");
    }
    // Half a header, half a message, then nothing: the client leaves.
    for half in [&[1u8; 7][..], &[1, 0, 9, 0, 100, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]] {
        let mut raw = served.raw();
        raw.0.write_all(half).unwrap();
    }
    let mut random = 1u64;
    for _ in 0..50 {
        let mut raw = served.raw();
        raw.agree();
        let noise: Vec<u8> = (0..200)
            .map(|_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 56) as u8
            })
            .collect();
        let _ = raw.0.write_all(&noise);
    }
    let mut client = Client::new(&served.socket()).unwrap();
    let mut id = [0; 4];
    client.region_read(CONFIG, 0, &mut id).unwrap();
    assert_eq!(id, [0x86, 0x80, 0xc9, 0x10]);
    drop(client);
    let (status, summary) = served.end();
    assert!(status == Some(0) && !summary.contains("0 refused"), "{summary}");
}
