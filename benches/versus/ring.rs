//! Our SPSC ring and frame pool beside DPDK's, alternating in one run.
//!
//! `versus-ring [RUNS]`: each run measures ours and then lets `dpdk_ring.sh` run DPDK's own `ring_perf_autotest` and
//! `mempool_perf_autotest` once. A row's ratio is theirs over ours, so over 1 is better for us.

use pollring::buffer::{Burst, Caches, Pool, PoolConfig, ToDevice};
use pollring::hugepages::Pages;
use pollring::ring::spsc;
use pollring_benches::{cycles, median};
use std::collections::BTreeMap;
use std::error::Error;
use std::hint::black_box;
use std::process::Command;

const BURST: usize = 32;
const ROUNDS: u64 = 1 << 20;

/// Name of the row, unit, our figure, and the name of DPDK's in its script's output.
const ROWS: [(&str, &str, Measure, &str); 3] = [
    ("spsc_burst32_one_core", "cycles/burst", ring_one_core, "ring_spsc_burst32_cycles"),
    ("spsc_burst32_two_cores", "cycles/burst", ring_two_cores, "ring_spsc_two_cores_burst32_cycles"),
    ("pool_burst32_get_put", "cycles/frame", pool, "mempool_keep32_const0_cycles"),
];

type Measure = fn() -> Result<f64, Box<dyn Error>>;

fn main() -> Result<(), Box<dyn Error>> {
    let runs: usize = std::env::args().nth(1).map_or(Ok(5), |runs| runs.parse())?;
    let (mut ours, mut theirs) = (BTreeMap::<&str, Vec<f64>>::new(), BTreeMap::<&str, Vec<f64>>::new());
    for _ in 0..runs.max(1) {
        for (row, _, measure, _) in ROWS {
            ours.entry(row).or_default().push(measure()?);
        }
        let figures = dpdk()?;
        for (row, _, _, name) in ROWS {
            theirs.entry(row).or_default().extend(figures.get(name));
        }
    }
    for (row, unit, _, _) in ROWS {
        let ours = median(ours.entry(row).or_default());
        let theirs = median(theirs.entry(row).or_default());
        println!("ring row={row} unit={unit} ours={ours:.2} theirs={theirs:.2} ratio={:.2}", theirs / ours);
    }
    println!(
        "conditions: medians of {runs} alternating runs; one burst is 32 in and 32 out; ring of 4096 words"
    );
    Ok(())
}

/// One thread puts 32 words in and takes them out.
fn ring_one_core() -> Result<f64, Box<dyn Error>> {
    let (mut producer, mut consumer) = spsc::channel::<u64>(4096);
    let (items, mut out) = ([7; BURST], [0; BURST]);
    let start = cycles();
    for _ in 0..ROUNDS {
        producer.enqueue(black_box(&items[..]));
        consumer.dequeue(black_box(&mut out[..]));
    }
    Ok((cycles() - start) as f64 / ROUNDS as f64)
}

/// One thread puts bursts in, another takes them out; the time between two bursts.
fn ring_two_cores() -> Result<f64, Box<dyn Error>> {
    let (mut producer, mut consumer) = spsc::channel::<u64>(4096);
    let cores = pollring::os::allowed_cores()?;
    let &[first, second, ..] = cores.as_slice() else { return Ok(f64::NAN) };
    let feeder = std::thread::spawn(move || {
        let pinned = pollring::os::pin_current_thread(first);
        let mut left = ROUNDS as usize * BURST;
        while left > 0 && pinned.is_ok() {
            left -= producer.enqueue(black_box(&[7; BURST][..left.min(BURST)]));
        }
        pinned
    });
    let drain = std::thread::spawn(move || {
        let pinned = pollring::os::pin_current_thread(second);
        let (mut out, mut left, start) = ([0; BURST], ROUNDS as usize * BURST, cycles());
        while left > 0 && pinned.is_ok() && !(consumer.is_closed() && consumer.is_empty()) {
            left -= consumer.dequeue(black_box(&mut out[..]));
        }
        pinned.map(|()| (cycles() - start) as f64 / ROUNDS as f64)
    });
    feeder.join().map_err(|_| "the feeding thread panicked")??;
    Ok(drain.join().map_err(|_| "the draining thread panicked")??)
}

/// Takes 32 frames from a worker's cache and gives them back; one get and one put of a frame.
fn pool() -> Result<f64, Box<dyn Error>> {
    let pages = Pages::Small4K { reason: "as DPDK's test is run here: without huge pages".into() };
    let pool = Pool::<ToDevice>::new(&PoolConfig { pages, ..PoolConfig::new("versus", 8192) }, &[])?;
    let (mut caches, mut burst) = (Caches::new("versus"), Burst::new());
    let start = cycles();
    for _ in 0..ROUNDS {
        caches.take_into(black_box(&pool), &mut burst, BURST);
        caches.put_all(black_box(&mut burst));
    }
    Ok((cycles() - start) as f64 / (ROUNDS * BURST as u64) as f64)
}

/// One run of DPDK's tests: figures by name.
fn dpdk() -> Result<BTreeMap<String, f64>, Box<dyn Error>> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/versus/dpdk_ring.sh");
    let output = Command::new(script).arg("1").output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    let text = String::from_utf8(output.stdout)?;
    let figures = text.lines().filter_map(|line| line.split_once('='));
    Ok(figures.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect())
}
