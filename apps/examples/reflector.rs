//! An appliance in one file: it answers every frame that reaches it, with source and destination address swapped.
//!
//! Start to read here. A program on Pollring has two sides. The *data path* is a [`Poller`]: a worker's thread calls it in a loop, and it
//! moves frames with four operations. *Control* is everything else and stays on the main thread: open, start, look on, stop.
//! This one runs for a second on two simulated NICs, and the other ends of their wires check every byte that comes back.
//!
//! Run it: `cargo run --release --example reflector`

use pollring::buffer::{Both, Burst, Pool, PoolConfig};
use pollring::bus::{Device, simulated};
use pollring::hugepages::Pages;
use pollring::iova::AddressSpace;
use pollring::os::allowed_cores;
use pollring::port::{Port, PortConfig, Queues, RxQueue, TxQueue};
use pollring::worker::{IdlePolicy, Poller, Progress, Turn, Worker, WorkerConfig};
use pollring_simulator::igb::{Igb, IgbConfig};
use pollring_simulator::runner::{Runner, Task};
use pollring_simulator::traffic::{Addresses, Flow, TrafficConfig};
use pollring_simulator::wire::{self, WireConfig};
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The data path of one port. It owns its queues: no lock, nobody else touches them.
struct Reflector {
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    /// Received and not yet sent. A frame is one word, and only its owner can reach its bytes.
    burst: Burst,
    answered: Arc<AtomicU64>,
}

impl Poller for Reflector {
    fn name(&self) -> &str {
        "reflector"
    }

    fn poll(&mut self, turn: &mut Turn<'_>) -> Progress {
        // 1. Give the device empty buffers, from this worker's own stock.
        self.rx.refill(turn.caches);
        // 2. Take what arrived, but only once the last burst is gone: so a slow port holds the wire up and loses nothing.
        if self.burst.is_empty() {
            self.rx.receive(&mut self.burst);
            self.burst.frames_mut().for_each(|frame| swap_addresses(frame.bytes_mut()));
        }
        // 3. Send. What does not fit stays in the burst, in order.
        let sent = self.tx.send(&mut self.burst, turn.caches);
        // 4. Buffers that the device is done with go back into the stock.
        self.tx.reclaim(turn.caches);
        self.answered.fetch_add(sent as u64, Ordering::Relaxed);
        if sent > 0 { Progress::Busy } else { Progress::Idle }
    }
}

/// The wire decides how long a frame is, so nothing here may assume it.
fn swap_addresses(bytes: &mut [u8]) {
    if let Some((destination, rest)) = bytes.split_first_chunk_mut::<6>()
        && let Some(source) = rest.first_chunk_mut::<6>()
    {
        std::mem::swap(destination, source);
    }
}

/// One port, ready to start, and the memory that its device fills.
type Opened = (Box<dyn Port>, Pool<Both>);

/// Takes a device and gives it a driver and memory.
fn open(name: &str, device: Arc<Igb>) -> Result<Opened, Box<dyn Error>> {
    // A device reaches only memory that is mapped into its address space. Here the IOMMU is simulated too.
    let iommu = Arc::new(simulated::SimulatedIommu::default());
    let space = AddressSpace::new(name, iommu.clone());
    let device = Device::open(name, simulated::backend(device, iommu))?;
    let (vendor, id) = device.id();
    let driver =
        pollring_drivers::find(pollring_drivers::builtin(), vendor, id).ok_or("no driver for this device")?;
    let port = (driver.open)(device, &space)?;
    let pages = Pages::Small4K { reason: "an example needs no set-up".to_owned() };
    let pool = Pool::new(&PoolConfig { pages, ..PoolConfig::new(name, 2048) }, &[&space])?;
    Ok((port, pool))
}

/// What happens outside of the port: the device itself, and a tester at the other end of its wire, which sends while `asking` and checks
/// what comes back. On real hardware both are somebody else's work.
fn outside(number: u8, asking: Arc<AtomicBool>) -> (Arc<Igb>, Arc<Mutex<Flow>>, [Task; 2]) {
    let (inner, outer) = wire::pair(WireConfig::default());
    let mac = [2, 0, 0, 0, 0, number];
    let device = Igb::new(IgbConfig::new(mac, inner));
    let traffic = TrafficConfig { destination: mac, ..TrafficConfig::new(u64::from(number)) };
    let flow = Arc::new(Mutex::new(Flow::new(traffic, Addresses::Swapped, 128)));
    let (stepping, testing) = (device.clone(), flow.clone());
    let test = move || match testing.lock() {
        Ok(mut flow) if asking.load(Ordering::Relaxed) => flow.step(&outer, &outer, 64),
        Ok(mut flow) => flow.drain(&outer, 64),
        Err(_) => 0,
    };
    (device, flow, [Box::new(move || stepping.step(64)), Box::new(test)])
}

fn main() -> Result<(), Box<dyn Error>> {
    let asking = Arc::new(AtomicBool::new(false));
    let answered = Arc::new(AtomicU64::new(0));
    let (device_0, flow_0, tasks_0) = outside(0, asking.clone());
    let (device_1, flow_1, tasks_1) = outside(1, asking.clone());
    let devices = Runner::start("devices", tasks_0.into_iter().chain(tasks_1).collect())?;

    // Control: open and start, then hand the queues to a worker. Both ports share one thread here.
    let mut ports = [open("sim:igb#0", device_0)?, open("sim:igb#1", device_1)?];
    let mut pollers: Vec<Box<dyn Poller>> = Vec::new();
    for (port, pool) in &mut ports {
        let Queues { rx, tx } = port.start(&PortConfig::new(pool))?;
        for (rx, tx) in rx.into_iter().zip(tx) {
            pollers.push(Box::new(Reflector { rx, tx, burst: Burst::new(), answered: answered.clone() }));
        }
    }
    let core = allowed_cores()?.as_slice().last().copied();
    let config = WorkerConfig { name: "reflector".to_owned(), core, idle: IdlePolicy::Pause };
    let worker = Worker::start(config, pollers)?;

    asking.store(true, Ordering::Relaxed);
    std::thread::sleep(Duration::from_secs(1));
    asking.store(false, Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(200));

    // Control again: stop the worker, then the ports. Frames that were anywhere go home, and the pools can tell.
    drop(worker.stop()?);
    for (port, pool) in &mut ports {
        port.stop(Queues::default())?;
        let census = pool.census();
        println!("{}: {} frames in the pool, {} at home", port.uri(), census.total, census.home);
    }
    devices.stop()?;
    println!("answered {} frames in a second", answered.load(Ordering::Relaxed));
    for flow in [flow_0, flow_1] {
        let flow = flow.lock().map_err(|_| "the tester panicked")?;
        let (sent, counts) = (flow.generator.sent(), flow.checker.counts());
        println!("sent {sent}, came back right {}, in order: {}", counts.verified, counts.is_clean());
        if sent != counts.verified || !counts.is_clean() {
            return Err("some answers were wrong or lost".into());
        }
    }
    Ok(())
}
