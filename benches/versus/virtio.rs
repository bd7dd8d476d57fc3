//! Our half of `versus/virtio`: one port at a vhost-user backend, one job, for some seconds.
//!
//! `versus-virtio JOB BYTES LAYOUT SOCKET SECONDS`: JOB is tx, rx or loop, LAYOUT split or packed. Prints frames a second that were
//! accepted or received, TSC cycles for each of them (around the queue operations of bursts that moved something), and the share of
//! offered frames that the queue refused, and all frames since the start. `virtio_dpdk.c` is the same for DPDK.

use pollring::buffer::{Both, Burst, Caches, Pool, PoolConfig};
use pollring::hugepages::Pages;
use pollring::port::{Port, PortConfig, Queues, RxQueue, TxQueue};
use pollring_drivers::nic::virtio::{Layout, VirtioOptions, vhost_user};
use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

/// Frames offered at a time.
const BATCH: usize = 32;
/// Frames that go round in the job `loop`: fewer than any ring on the way holds.
const ROUND: usize = 128;
/// Before the clock runs.
const WARM_UP: Duration = Duration::from_millis(300);
/// Bursts between two looks at the clock.
const STRIDE: u32 = 256;

struct Bench {
    pool: Pool<Both>,
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    caches: Caches,
    burst: Burst,
    bytes: usize,
}

#[derive(Clone, Copy, Default)]
struct Tally {
    frames: u64,
    cycles: u64,
    offered: u64,
}

fn cycles() -> u64 {
    // SAFETY: reads a counter of the CPU; it touches no memory.
    unsafe { std::arch::x86_64::_rdtsc() }
}

impl Bench {
    /// Tops the burst up with frames of the right length; their bytes are whatever the buffers hold.
    fn fill(&mut self) {
        let wanted = BATCH.saturating_sub(self.burst.len());
        self.caches.take_into(&self.pool, &mut self.burst, wanted);
        for frame in self.burst.frames_mut().filter(|frame| frame.is_empty()) {
            // The length fits: the pool's buffers are larger than any that is asked for.
            let _ = frame.set_len(self.bytes);
        }
    }

    /// Callgrind counts in here. So it does in `measured_receive`, and in DPDK's half in functions of the same names.
    #[inline(never)]
    fn measured_send(&mut self) -> usize {
        self.tx.send(&mut self.burst, &mut self.caches)
    }

    #[inline(never)]
    fn measured_receive(&mut self) -> usize {
        let received = self.rx.receive(&mut self.burst);
        self.rx.refill(&mut self.caches);
        received
    }

    fn transmit(&mut self, tally: &mut Tally) {
        self.fill();
        let start = cycles();
        let sent = self.measured_send();
        let spent = cycles() - start;
        tally.offered += BATCH as u64;
        if sent > 0 {
            (tally.frames, tally.cycles) = (tally.frames + sent as u64, tally.cycles + spent);
        }
    }

    fn receive(&mut self, tally: &mut Tally) {
        let start = cycles();
        let received = self.measured_receive();
        let spent = cycles() - start;
        if received > 0 {
            (tally.frames, tally.cycles) = (tally.frames + received as u64, tally.cycles + spent);
            self.caches.put_all(&mut self.burst);
        }
    }

    fn forward(&mut self, tally: &mut Tally) {
        let start = cycles();
        let received = self.measured_receive();
        let offered = self.burst.len() as u64;
        let sent = self.measured_send() as u64;
        let spent = cycles() - start;
        if received > 0 {
            (tally.frames, tally.cycles) = (tally.frames + sent, tally.cycles + spent);
            tally.offered += offered;
        }
    }

    fn run(&mut self, job: &str, limit: Duration) -> Tally {
        let (start, mut tally) = (Instant::now(), Tally::default());
        while start.elapsed() < limit {
            for _ in 0..STRIDE {
                match job {
                    "tx" => self.transmit(&mut tally),
                    "rx" => self.receive(&mut tally),
                    _ => self.forward(&mut tally),
                }
            }
        }
        tally
    }

    /// Sends the frames that then go round.
    fn prime(&mut self) {
        for _ in 0..ROUND / BATCH {
            self.fill();
            while !self.burst.is_empty() {
                self.measured_send();
            }
        }
    }
}

fn open(layout: &str, socket: &str, bytes: usize) -> Result<(Box<dyn Port>, Bench), Box<dyn Error>> {
    let layout = if layout == "packed" { Layout::Packed } else { Layout::Split };
    let without = std::env::var("VIRTIO_WITHOUT").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let options = VirtioOptions { layout, without };
    let (mut port, space) = vhost_user::open(&format!("vhost-user:{socket}"), Path::new(socket), options)?;
    let huge = PoolConfig::new("bench", 8192);
    let pool = Pool::new(&huge, &[&space]).or_else(|error| {
        eprintln!("note: {error}");
        let pages = Pages::Small4K { reason: "no huge pages are left".into() };
        Pool::new(&PoolConfig { pages, ..PoolConfig::new("bench", 8192) }, &[&space])
    })?;
    let config = PortConfig { rx_entries: 256, tx_entries: 256, ..PortConfig::new(&pool) };
    let Queues { mut rx, mut tx } = port.start(&config)?;
    let (rx, tx) = (rx.remove(0), tx.remove(0));
    let (caches, burst) = (Caches::new("bench"), Burst::new());
    Ok((port, Bench { pool, rx, tx, caches, burst, bytes }))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [job, bytes, layout, socket, seconds] = arguments.as_slice() else {
        return Err("versus-virtio JOB BYTES LAYOUT SOCKET SECONDS".into());
    };
    let (mut port, mut bench) = open(layout, socket, bytes.parse()?)?;
    bench.rx.refill(&mut bench.caches);
    if job == "loop" {
        bench.prime();
    }
    let warm = bench.run(job, WARM_UP).frames;
    let (start, limit) = (Instant::now(), Duration::from_secs_f64(seconds.parse()?));
    let tally = bench.run(job, limit);
    let (frames, seconds) = (tally.frames.max(1) as f64, start.elapsed().as_secs_f64());
    let refused = if tally.offered == 0 { 0.0 } else { 1.0 - frames / tally.offered as f64 };
    println!(
        "rate={:.0} cycles={:.1} refused={:.3} all={}",
        frames / seconds,
        tally.cycles as f64 / frames,
        refused.max(0.0),
        warm + tally.frames
    );
    let Bench { rx, tx, caches, burst, .. } = bench;
    drop((caches, burst));
    port.stop(Queues { rx: vec![rx], tx: vec![tx] })?;
    Ok(())
}
