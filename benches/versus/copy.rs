//! Our half of `versus/copy`: the I/OAT driver at a software engine in this process, and the CPU's copy engine.
//!
//! `versus-copy submit SECONDS`: bursts of 32 copies of 64 bytes; prints TSC cycles of the driver's calls for each copy (the median
//! burst) and all copies since the start. The engine works between the calls. `versus-copy memory JOB BYTES SECONDS`: JOB is copy or
//! fill; prints GB/s of the median operation. `copy_dpdk.c` is the same for DPDK and libc.

use pollring::buffer::Shared;
use pollring::bus::Device;
use pollring::bus::simulated::{self, SimulatedIommu};
use pollring::copy::{Channel, Completed, Completion, MemcpyChannel, Operation, Status};
use pollring::hugepages::{Pages, Region, RegionConfig};
use pollring::iova::{AddressSpace, Direction, Placement};
use pollring_benches::{cycles, median};
use pollring_drivers::copy::ioat::IoatChannel;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

// The engine of `tools/simulator` is compiled in from its source, so that this crate does not depend on that one.
#[allow(dead_code, unreachable_pub)]
#[path = "../../tools/simulator/src/hostile.rs"]
mod hostile;
#[allow(dead_code, unreachable_pub)]
#[path = "../../tools/simulator/src/ioat/mod.rs"]
mod ioat;
#[allow(dead_code, unreachable_pub)]
#[path = "../../tools/simulator/src/random.rs"]
mod random;
/// What the engine's source expects beside it; nobody here lets it run on a thread.
mod serve {
    #[allow(dead_code)]
    pub(crate) trait Steps: Send {
        fn step(&mut self) -> usize;
        fn rest(&self) -> std::time::Duration;
    }
}

/// Copies submitted at a time.
const BATCH: usize = 32;
/// Bytes of each.
const BYTES: usize = 64;
/// Outstanding copies: a ring of 256.
const DEPTH: usize = 255;
/// Before the clock runs.
const WARM_UP: Duration = Duration::from_millis(200);
/// What is written by a fill.
const PATTERN: u64 = 0x5a5a_5a5a_5a5a_5a5a;
/// What is copied.
const CONTENT: u64 = 0x3333_3333_3333_3333;
/// Figures that are kept of one run.
const KEPT: usize = 1_000_000;

fn region(bytes: usize) -> Result<Arc<Region>, Box<dyn Error>> {
    let config = RegionConfig { name: "bench".into(), bytes, pages: Pages::Huge2M, node: None };
    Ok(Arc::new(Region::allocate_or_small(&config)?))
}

/// The driver, its engine, and the copies that are not under way.
struct Bench {
    channel: Box<dyn Channel>,
    engine: Arc<ioat::Ioat>,
    memory: Shared,
    idle: Completed,
    copies: u64,
}

impl Bench {
    fn open() -> Result<Bench, Box<dyn Error>> {
        let (engine, iommu) =
            (ioat::Ioat::new(ioat::Copies::True, None), Arc::new(SimulatedIommu::default()));
        let space = AddressSpace::new("bench", iommu.clone());
        let device = Device::open("sim:ioat", simulated::backend(engine.clone(), iommu))?;
        let channel = Box::new(IoatChannel::open(device, &space, DEPTH)?);
        let placement = Placement::new(region(2 * BATCH * BYTES)?, &[&space])?;
        let memory = Shared::mapped(Arc::new(space.map(&placement, Direction::Both)?));
        let mut idle = Completed::new(BATCH);
        for at in 0..BATCH {
            let from = memory.slice(at * BYTES, BYTES)?;
            from.copy_in(0, &[at as u8 + 1; BYTES])?;
            let operation = Operation::copy(from, memory.slice((BATCH + at) * BYTES, BYTES)?, at as u64);
            idle.push(Completion { status: Status::Done, operation }).map_err(|_| "no room")?;
        }
        Ok(Bench { channel, engine, memory, idle, copies: 0 })
    }

    /// Callgrind counts in here. So it does in `measured_poll`, and in DPDK's half in functions of the same names.
    #[inline(never)]
    fn measured_submit(&mut self) -> usize {
        let mut refused = 0;
        while let Some(Completion { operation, .. }) = self.idle.pop() {
            refused += usize::from(self.channel.submit(operation).is_err());
        }
        self.channel.flush();
        refused
    }

    #[inline(never)]
    fn measured_poll(&mut self) -> usize {
        self.channel.poll(&mut self.idle)
    }

    /// One burst; gives the cycles of its calls.
    fn burst(&mut self) -> Result<f64, Box<dyn Error>> {
        let start = cycles();
        let refused = self.measured_submit();
        let mut spent = cycles() - start;
        while self.engine.step(BATCH) > 0 {}
        let start = cycles();
        let back = self.measured_poll();
        spent += cycles() - start;
        let done = self.idle.iter().filter(|completion| completion.status == Status::Done).count();
        if refused > 0 || back != BATCH || done != BATCH {
            return Err(format!("refused {refused}, back {back}, done {done} of {BATCH}").into());
        }
        self.copies += BATCH as u64;
        Ok(spent as f64 / BATCH as f64)
    }

    fn run(&mut self, limit: Duration) -> Result<Vec<f64>, Box<dyn Error>> {
        let (start, mut figures) = (Instant::now(), Vec::with_capacity(KEPT));
        while start.elapsed() < limit && figures.len() < KEPT {
            figures.push(self.burst()?);
        }
        Ok(figures)
    }
}

fn submit(limit: Duration) -> Result<(), Box<dyn Error>> {
    let mut bench = Bench::open()?;
    bench.run(WARM_UP)?;
    let mut figures = bench.run(limit)?;
    let [mut from, mut to] = [[0; BATCH * BYTES]; 2];
    bench.memory.copy_out(0, &mut from)?;
    bench.memory.copy_out(BATCH * BYTES, &mut to)?;
    if from != to {
        return Err("the engine's copies are wrong".into());
    }
    println!("cycles={:.2} all={}", median(&mut figures), bench.copies);
    Ok(())
}

/// The operations of one pass over `bytes`, as many as the channel's limit asks for.
fn pass(memory: &Shared, job: &str, bytes: usize, piece: usize) -> Result<Vec<Operation>, Box<dyn Error>> {
    let cut = |at: usize| {
        let length = piece.min(bytes - at);
        let to = memory.slice(bytes + at, length)?;
        Ok(match job {
            "copy" => Operation::copy(memory.slice(at, length)?, to, 0),
            _ => Operation::fill(to, PATTERN, 0),
        })
    };
    (0..bytes).step_by(piece).map(cut).collect()
}

fn stream(job: &str, bytes: usize, limit: Duration) -> Result<(), Box<dyn Error>> {
    let memory = Shared::local(region((2 * bytes).next_multiple_of(2 << 20))?);
    memory.fill(0, bytes, CONTENT)?;
    let mut channel = MemcpyChannel::new(DEPTH);
    let mut idle = pass(&memory, job, bytes, channel.limits().max_bytes)?;
    let (begin, mut figures) = (Instant::now(), Vec::new());
    let mut completed = Completed::new(idle.len());
    while figures.len() < 5 || (begin.elapsed() < limit && figures.len() < KEPT) {
        let start = Instant::now();
        idle.drain(..).try_for_each(|operation| channel.submit(operation))?;
        channel.flush();
        channel.poll(&mut completed);
        figures.push(bytes as f64 / start.elapsed().as_secs_f64() * 1e-9);
        idle.extend(completed.drain().map(|completion| completion.operation));
    }
    let expected = if job == "copy" { CONTENT } else { PATTERN };
    let ends = (memory.load_u64(bytes)?, memory.load_u64(2 * bytes - 8)?);
    if ends != (expected, expected) {
        return Err(format!("the {job} left {ends:x?}").into());
    }
    println!("rate={:.4}", median(&mut figures));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seconds = |text: &str| text.parse().map(Duration::from_secs_f64);
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["submit", limit] => submit(seconds(limit)?),
        ["memory", job @ ("copy" | "fill"), bytes, limit] => stream(job, bytes.parse()?, seconds(limit)?),
        _ => Err("versus-copy submit SECONDS | memory JOB BYTES SECONDS".into()),
    }
}
