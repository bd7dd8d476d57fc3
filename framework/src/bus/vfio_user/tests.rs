//! A peer that does its part, and one that lies in every way that a seed finds: what the client makes of both.

use super::protocol::*;
use super::wire::{receive_some, send_some};
use super::{Peer, PeerError};
use crate::bus::{Device, Health, Registers};
use crate::iova::{Direction, Iommu};
use crate::os::EventFd;
use pollring_hugepages::{Pages, Region, RegionConfig};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

const LIMIT: Duration = Duration::from_secs(2);
const BAR_BYTES: u64 = 8192;
const AREA_BYTES: u64 = 4096;
const IOVA: u64 = 0x4000_0000;

fn region(bytes: usize) -> Arc<Region> {
    let pages = Pages::Small4K { reason: "a test".into() };
    Region::allocate(&RegionConfig { name: "test".into(), bytes, pages, node: None }).unwrap().into()
}

/// A function with two BARs of 8 KiB: the first half of BAR 0 may be mapped, all else goes by messages. What is written there is kept.
struct Model {
    bar: Arc<Region>,
    file: File,
    words: Mutex<[Vec<u8>; 3]>,
    /// Commands and descriptors as they came.
    log: Mutex<Vec<(u16, usize)>>,
}

impl Model {
    fn new() -> Arc<Model> {
        let bar = region(BAR_BYTES as usize);
        let file = File::from(bar.fd().try_clone_to_owned().unwrap());
        let mut config = vec![0; 4096];
        config[..4].copy_from_slice(&[0x86, 0x80, 0xc9, 0x10]);
        let words = Mutex::new([vec![0; BAR_BYTES as usize], vec![0; BAR_BYTES as usize], config]);
        Arc::new(Model { bar, file, words, log: Mutex::default() })
    }

    fn answer(&self, command: u16, body: &[u8]) -> (Vec<u8>, Vec<BorrowedFd<'_>>) {
        let text = match command {
            command::VERSION => [&[0; 4][..], b"{}\0"].concat(),
            command::GET_INFO => [16u32, 3, 9, 5].as_bytes().to_vec(),
            command::GET_REGION_INFO => {
                return self.region(u32::from_ne_bytes(*body[8..].first_chunk().unwrap()));
            }
            command::GET_IRQ_INFO => [16u32, 1, 2, 4].as_bytes().to_vec(),
            command::DMA_UNMAP => body.to_vec(),
            command::REGION_READ | command::REGION_WRITE => self.access(body),
            _ => Vec::new(),
        };
        (text, Vec::new())
    }

    fn region(&self, index: u32) -> (Vec<u8>, Vec<BorrowedFd<'_>>) {
        let bytes = [BAR_BYTES, BAR_BYTES, 0, 0, 0, 0, 0, 4096, 0][index as usize];
        let mut info = RegionInfo { argument_bytes: 32, flags: 3, index, bytes, ..Default::default() };
        if index != 0 {
            return (info.as_bytes().to_vec(), Vec::new());
        }
        info.flags |= REGION_MMAP | REGION_CAPABILITIES;
        info.capabilities_at = 32;
        let sparse = [1u32 | 1 << 16, 0, 1, 0];
        let body = [info.as_bytes(), sparse.as_bytes(), [0, AREA_BYTES].as_bytes()].concat();
        (body, vec![self.bar.fd()])
    }

    fn access(&self, body: &[u8]) -> Vec<u8> {
        let (access, data) = RegionAccess::read_from_prefix(body).unwrap();
        let (start, count) = (access.offset as usize, access.count as usize);
        let mut words = self.words.lock().unwrap();
        let bytes = &mut words[if access.region == 7 { 2 } else { access.region as usize }];
        let reply = if data.is_empty() { bytes[start..start + count].to_vec() } else { Vec::new() };
        bytes[start..start + data.len()].copy_from_slice(data);
        [access.as_bytes(), &reply].concat()
    }
}

/// One reply on its way.
struct Outgoing<'a> {
    bytes: Vec<u8>,
    fds: Vec<BorrowedFd<'a>>,
    then: Then,
}

#[derive(Clone, Copy, PartialEq)]
enum Then {
    GoOn,
    Leave,
}

/// Serves until the client or the script ends it.
fn serve(model: Arc<Model>, mut stream: UnixStream, mut script: impl FnMut(u16, &mut Outgoing<'_>)) {
    let mut bytes = [0; HEADER_BYTES];
    let mut fds = Vec::new();
    while matches!(receive_some(&stream, &mut bytes, &mut fds), Ok(HEADER_BYTES)) {
        let header = Header::read_from_bytes(&bytes).unwrap();
        let mut body = vec![0; header.bytes as usize - HEADER_BYTES];
        if stream.read_exact(&mut body).is_err() {
            return;
        }
        model.log.lock().unwrap().push((header.command, fds.drain(..).count()));
        let (reply, fds) = model.answer(header.command, &body);
        if header.flags & flag::NO_REPLY != 0 {
            continue;
        }
        let head = Header { bytes: (HEADER_BYTES + reply.len()) as u32, flags: flag::REPLY, ..header };
        let mut out = Outgoing { bytes: [head.as_bytes(), &reply].concat(), fds, then: Then::GoOn };
        script(header.command, &mut out);
        let sent = if out.bytes.is_empty() { Ok(0) } else { send_some(&stream, &out.bytes, &out.fds) };
        match sent {
            Ok(count) if out.then == Then::GoOn && stream.write_all(&out.bytes[count..]).is_ok() => {}
            _ => return,
        }
    }
}

fn start(
    model: &Arc<Model>,
    script: impl FnMut(u16, &mut Outgoing<'_>) + Send + 'static,
) -> (UnixStream, JoinHandle<()>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let model = model.clone();
    (ours, std::thread::spawn(move || serve(model, theirs, script)))
}

/// Everything that a driver does, as far as the peer lets it; then what it left is looked at.
fn use_it(
    stream: UnixStream,
    memory: &Arc<Region>,
    limit: Duration,
) -> Result<(), Box<dyn std::error::Error>> {
    let peer = Peer::over(stream, limit)?;
    let mut device = Device::open("vfio-user:test", peer.open()?)?;
    let bars: Vec<Registers> = (0..2).filter_map(|bar| device.window(bar).ok()).collect();
    for bar in bars.iter().filter(|bar| bar.bytes() > 0x1014) {
        bar.write32(0x10, 7);
        bar.write32(0x1010, 8);
        bar.write16(0x1012, 9);
        bar.read8(0x13);
        bar.read32(0x1010);
    }
    let events: Vec<EventFd> = (0..3).map(|_| EventFd::new().unwrap()).collect();
    let fds: Vec<BorrowedFd<'_>> = events.iter().map(AsFd::as_fd).collect();
    let _ = device.set_interrupts(1, &fds);
    let _ = peer.map(IOVA, memory, Direction::Both).and_then(|()| peer.unmap(IOVA, memory.bytes()));
    let _ = device.reset();
    let connected = peer.is_connected();
    if !connected {
        assert_eq!(device.config_read32(0), u32::MAX);
        // As any register does that reads as all ones.
        device.status().suspect_gone();
        assert!(device.reset().is_err() && device.start_dma().is_err());
        assert_eq!(device.status().health(), Health::Gone);
    }
    if connected { Ok(()) } else { Err(PeerError::Away.into()) }
}

#[test]
fn a_peer_that_does_its_part_is_a_device() {
    let model = Model::new();
    let (stream, thread) = start(&model, |_, _| {});
    let peer = Peer::over(stream, LIMIT).unwrap();
    let mut device = Device::open("vfio-user:test", peer.open().unwrap()).unwrap();
    assert_eq!(device.id(), (0x8086, 0x10c9));
    let (first, second) = (device.window(0).unwrap(), device.window(1).unwrap());
    // Mapped: the file has it, and no message went.
    let before = model.log.lock().unwrap().len();
    first.write32(0x10, 0x1234_5678);
    let mut word = [0; 4];
    model.file.read_exact_at(&mut word, 0x10).unwrap();
    assert_eq!((word, first.read32(0x10)), (0x1234_5678u32.to_le_bytes(), 0x1234_5678));
    assert_eq!(model.log.lock().unwrap().len(), before);
    // By messages: behind the area, and in a BAR without a file.
    first.write32(0x1010, 5);
    second.write32(0x10, 0xa1b2_c3d4);
    second.write16(0x12, 0x1122);
    assert_eq!((first.read32(0x1010), second.read32(0x10), second.read8(0x13)), (5, 0x1122_c3d4, 0x11));
    assert_eq!(model.words.lock().unwrap()[0][0x10], 0);
    device.start_dma().unwrap();
    assert!(device.dma_enabled());
    let memory = region(1 << 20);
    peer.map(IOVA, &memory, Direction::ToDevice).unwrap();
    peer.unmap(IOVA, memory.bytes()).unwrap();
    let events: Vec<EventFd> = (0..3).map(|_| EventFd::new().unwrap()).collect();
    let fds: Vec<BorrowedFd<'_>> = events.iter().map(AsFd::as_fd).collect();
    device.set_interrupts(1, &fds).unwrap();
    assert!(device.set_interrupts(2, &fds).unwrap_err().to_string().contains("4 MSI-X"));
    device.set_interrupts(0, &[]).unwrap();
    let log = model.log.lock().unwrap().clone();
    let sent = |wanted| {
        log.iter().filter(|(command, _)| *command == wanted).map(|(_, fds)| *fds).collect::<Vec<_>>()
    };
    assert_eq!((sent(command::DMA_MAP), sent(command::SET_IRQS)), (vec![1], vec![1, 1, 1, 0]));
    drop((device, first, second, peer));
    thread.join().unwrap();
}

#[test]
fn a_file_that_can_shrink_is_not_mapped() {
    let path = std::env::temp_dir().join(format!("pollring-vfio-user-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file.set_len(BAR_BYTES).unwrap();
    let model = Model::new();
    let lent: &'static File = Box::leak(Box::new(file));
    let (stream, thread) = start(&model, move |_, out| {
        if !out.fds.is_empty() {
            out.fds = vec![lent.as_fd()];
        }
    });
    let peer = Peer::over(stream, LIMIT).unwrap();
    let mut device = Device::open("vfio-user:test", peer.open().unwrap()).unwrap();
    let bar = device.window(0).unwrap();
    bar.write32(0x10, 3);
    assert_eq!((bar.read32(0x10), model.words.lock().unwrap()[0][0x10]), (3, 3));
    drop((device, bar, peer));
    thread.join().unwrap();
}

#[test]
fn refusals_carry_the_errno_and_the_connection_goes_on() {
    let model = Model::new();
    let (stream, thread) = start(&model, |command, out| {
        if matches!(command, command::RESET | command::DMA_MAP) {
            out.bytes[8..16].copy_from_slice([flag::REPLY | flag::ERROR, libc::ENOSPC as u32].as_bytes());
        }
    });
    let peer = Peer::over(stream, LIMIT).unwrap();
    let device = Device::open("vfio-user:test", peer.open().unwrap()).unwrap();
    let text = device.reset().unwrap_err().to_string();
    assert!(text.contains("reset") && text.contains("No space left") && text.contains("its log"), "{text}");
    let error = peer.map(IOVA, &region(4096), Direction::Both).unwrap_err();
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<PeerError>());
    assert!(matches!(inner, Some(PeerError::Refused(errno)) if errno.raw_os_error() == Some(libc::ENOSPC)));
    assert!(peer.is_connected());
    drop((device, peer));
    thread.join().unwrap();
}

#[test]
fn a_peer_that_hangs_or_dies_is_gone_and_memory_goes_back_only_from_the_dead() {
    for dies in [true, false] {
        let model = Model::new();
        let (stream, thread) = start(&model, move |command, out| {
            if command == command::RESET {
                out.bytes.clear();
                out.then = if dies { Then::Leave } else { Then::GoOn };
            }
        });
        let peer = Peer::over(stream, Duration::from_millis(50)).unwrap();
        let mut device = Device::open("vfio-user:test", peer.open().unwrap()).unwrap();
        let (bar, memory) = (device.window(1).unwrap(), region(4096));
        peer.map(IOVA, &memory, Direction::Both).unwrap();
        let start = Instant::now();
        let text = device.reset().unwrap_err().to_string();
        assert!(text.contains(if dies { "away" } else { "no answer in time" }), "{text}");
        (0..1000).for_each(|_| bar.write32(0, 1));
        assert_eq!((bar.read32(0), device.status().health()), (u32::MAX, Health::Gone));
        assert!(start.elapsed() < LIMIT);
        assert_eq!(peer.unmap(IOVA, memory.bytes()).is_ok(), dies);
        drop((device, bar, peer));
        thread.join().unwrap();
    }
}

/// xorshift64*: the same lies for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % below
    }
}

const EXTREMES: [u64; 8] = [0, 1, 4095, 4096, 1 << 31, u32::MAX as u64, 1 << 62, u64::MAX];

fn lie<'a>(random: &mut Random, out: &mut Outgoing<'a>, spare: BorrowedFd<'a>) {
    let length = out.bytes.len();
    match random.next(12) {
        0 => out.bytes[random.next(HEADER_BYTES)] ^= 1 << random.next(8),
        1 | 2 => out.bytes[random.next(length)] ^= 1 << random.next(8),
        3 => (out.bytes.truncate(random.next(length)), out.then = Then::Leave).1,
        4 => out.bytes.extend(std::iter::repeat_n(0xee, 1 + random.next(40))),
        5 => out.bytes[4..8].copy_from_slice(&(EXTREMES[random.next(8)] as u32).to_ne_bytes()),
        6 => out.bytes[8..16].copy_from_slice([0x21, EXTREMES[random.next(8)] as u32].as_bytes()),
        7 => out.fds = vec![spare; 1 + random.next(16)],
        8 => out.fds.clear(),
        9 => (out.bytes.clear(), out.then = Then::Leave).1,
        10 => out.bytes.extend_from_within(..),
        _ => {
            // An honest size around a word that is not.
            let words = (length - HEADER_BYTES) / 8;
            if words > 0 {
                let at = HEADER_BYTES + 8 * random.next(words);
                out.bytes[at..at + 8].copy_from_slice(&EXTREMES[random.next(8)].to_ne_bytes());
            }
        }
    }
}

#[test]
fn no_lie_makes_the_client_panic_hang_or_believe() {
    let (model, memory) = (Model::new(), region(1 << 16));
    let lies = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let (mut survived, mut lost) = (0, 0);
    let begin = Instant::now();
    for seed in 1..=6000u64 {
        let (mut random, count) = (Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)), lies.clone());
        let spare: BorrowedFd<'static> = {
            // Standard error is open as long as the process.
            static ERRORS: std::sync::OnceLock<std::io::Stderr> = std::sync::OnceLock::new();
            ERRORS.get_or_init(std::io::stderr).as_fd()
        };
        let (stream, thread) = start(&model, move |_, out| {
            if random.next(8) == 0 {
                count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                lie(&mut random, out, spare);
            }
        });
        let start = Instant::now();
        match use_it(stream, &memory, Duration::from_millis(5)) {
            Ok(()) => survived += 1,
            Err(_) => lost += 1,
        }
        assert!(start.elapsed() < LIMIT, "seed {seed}");
        thread.join().unwrap();
    }
    let lies = lies.load(std::sync::atomic::Ordering::Relaxed);
    println!("{lies} lies in {:?}: {survived} sessions survived, {lost} were lost", begin.elapsed());
    assert!(lies > 5000 && survived > 100 && lost > 1000, "{lies} {survived} {lost}");
}
