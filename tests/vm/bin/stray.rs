//! Makes a device reach where it may not: a test's program, and the only one that writes addresses of its own into descriptors.
//!
//! `pollring-stray GOOD BAD` drives two 82576 ports through VFIO. GOOD sends back what it receives, by its driver, all the time. BAD is
//! driven here, register by register; lines on standard input say what it shall do, one line of output answers each:
//! `receive MEMORY` gives it one receive buffer there, `send MEMORY` one frame from there, `check` tells what became of all memory,
//! `events` what the kernel's log says. MEMORY is `unmapped`, `readonly` or `good`.

#![forbid(unsafe_code)]

use pollring::buffer::{Burst, Pool, PoolConfig, Shared};
use pollring::bus::faults::FaultWatch;
use pollring::bus::vfio::Container;
use pollring::bus::{Device, PciAddress, Registers, wait_until};
use pollring::hugepages::{Pages, Region, RegionConfig};
use pollring::iova::{AddressSpace, Direction, Placement};
use pollring::port::{Port, PortConfig, Promiscuous, Queues, RxQueue, TxQueue};
use pollring::worker::{IdlePolicy, Poller, Progress, Turn, Worker, WorkerConfig};
use pollring_drivers::nic::igb::desc::{rx, tx};
use pollring_drivers::nic::igb::regs::*;
use std::error::Error;
use std::io::BufRead;
use std::sync::Arc;
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What untouched memory holds.
const PATTERN: u64 = 0x5aa5_5aa5_5aa5_5aa5;
const BYTES: usize = 4096;
const ENTRIES: u32 = 128;

struct Echo {
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    burst: Burst,
}

impl Poller for Echo {
    fn name(&self) -> &str {
        "echo"
    }

    fn poll(&mut self, turn: &mut Turn<'_>) -> Progress {
        self.rx.refill(turn.caches);
        if self.burst.is_empty() {
            self.rx.receive(&mut self.burst);
        }
        let sent = self.tx.send(&mut self.burst, turn.caches);
        self.tx.reclaim(turn.caches);
        if sent > 0 { Progress::Busy } else { Progress::Idle }
    }
}

fn small() -> Pages {
    Pages::Small4K { reason: "a test's few pages".to_owned() }
}

/// The driven port: it must not notice what the other one does.
fn start_good(address: PciAddress) -> Result<(Box<dyn Port>, Worker)> {
    let uri = format!("pci:{address}");
    let container = Container::new()?;
    let space = AddressSpace::new(&uri, container.clone());
    let device = Device::open(&uri, container.open(address)?)?;
    let (vendor, id) = device.id();
    let driver = pollring_drivers::find(pollring_drivers::builtin(), vendor, id).ok_or("no driver")?;
    let mut port = (driver.open)(device, &space)?;
    let pool = Pool::new(&PoolConfig { pages: small(), ..PoolConfig::new(&uri, 2048) }, &[&space])?;
    let Queues { mut rx, mut tx } =
        port.start(&PortConfig { promiscuous: Promiscuous::On, ..PortConfig::new(&pool) })?;
    let (rx, tx) = (rx.pop().ok_or("no queue")?, tx.pop().ok_or("no queue")?);
    let config = WorkerConfig { name: "echo".to_owned(), core: None, idle: IdlePolicy::Pause };
    let worker = Worker::start(config, vec![Box::new(Echo { rx, tx, burst: Burst::new() })])?;
    if !wait_until(Duration::from_secs(10), || matches!(port.link(), pollring::port::Link::Up { .. })) {
        return Err("the good port has no link".into());
    }
    Ok((port, worker))
}

/// Memory of one kind, all of it in the pattern.
struct Target {
    name: &'static str,
    memory: Shared,
    iova: u64,
    /// Keeps the address from being given to another region.
    _placement: Arc<Placement>,
}

impl Target {
    fn new(name: &'static str, space: &AddressSpace, direction: Option<Direction>) -> Result<Target> {
        let config = RegionConfig { name: name.to_owned(), bytes: BYTES, pages: small(), node: None };
        let placement = Placement::new(Arc::new(Region::allocate(&config)?), &[space])?;
        let iova = placement.iova().bits();
        let memory = match direction {
            Some(direction) => Shared::mapped(Arc::new(space.map(&placement, direction)?)),
            None => Shared::local(placement.region().clone()),
        };
        memory.fill(0, BYTES, PATTERN)?;
        Ok(Target { name, memory, iova, _placement: placement })
    }

    fn touched_bytes(&self) -> Result<usize> {
        let mut bytes = [0; BYTES];
        self.memory.copy_out(0, &mut bytes)?;
        Ok(bytes.iter().zip(PATTERN.to_le_bytes().iter().cycle()).filter(|(is, was)| is != was).count())
    }
}

/// The port that is driven here.
struct Bad {
    registers: Registers,
    targets: Vec<Target>,
    receive_ring: Target,
    send_ring: Target,
    received: u32,
    sent: u32,
    space: AddressSpace,
    device: Device,
}

impl Bad {
    fn start(address: PciAddress) -> Result<Bad> {
        let uri = format!("pci:{address}");
        let container = Container::new()?;
        let space = AddressSpace::new(&uri, container.clone());
        let mut device = Device::open(&uri, container.open(address)?)?;
        device.join(&space, u64::MAX)?;
        let registers = device.window(0)?;
        let targets = vec![
            Target::new("unmapped", &space, None)?,
            Target::new("readonly", &space, Some(Direction::ToDevice))?,
            Target::new("good", &space, Some(Direction::Both))?,
        ];
        let receive_ring = Target::new("receive ring", &space, Some(Direction::Both))?;
        let send_ring = Target::new("send ring", &space, Some(Direction::Both))?;
        let bad = Bad { registers, targets, receive_ring, send_ring, received: 0, sent: 0, space, device };
        bad.bring_up()?;
        Ok(bad)
    }

    fn bring_up(&self) -> Result<()> {
        let registers = &self.registers;
        let ring = |[low, high, length, head, tail]: [pollring::bus::Register; 5], iova: u64| {
            let values = [iova as u32, (iova >> 32) as u32, ENTRIES * 16, 0, 0];
            [low, high, length, head, tail]
                .iter()
                .zip(values)
                .for_each(|(register, value)| registers.write_at(*register, 0, value));
        };
        registers.write(CTRL, registers.read(CTRL) | ctrl::SET_LINK_UP);
        let negotiate = mdic::BMCR_AUTONEG | mdic::BMCR_RESTART_AUTONEG;
        registers
            .write(MDIC, negotiate | mdic::BMCR << mdic::REGISTER_SHIFT | 1 << mdic::PHY_SHIFT | mdic::WRITE);
        ring([RDBAL, RDBAH, RDLEN, RDH, RDT], self.receive_ring.iova);
        ring([TDBAL, TDBAH, TDLEN, TDH, TDT], self.send_ring.iova);
        registers.write_at(SRRCTL, 0, 2 | srrctl::ADVANCED_ONE_BUFFER);
        self.device.start_dma()?;
        registers.write_at(RXDCTL, 0, dctl::ENABLE);
        registers.write_at(TXDCTL, 0, dctl::ENABLE);
        registers.write(TCTL, tctl::ENABLE | tctl::PAD_SHORT);
        let all = rctl::UNICAST_PROMISCUOUS | rctl::MULTICAST_PROMISCUOUS | rctl::BROADCAST;
        registers.write(RCTL, rctl::ENABLE | rctl::STRIP_CRC | all);
        let up = || registers.read(STATUS) & status::LINK_UP != 0;
        if wait_until(Duration::from_secs(10), up) { Ok(()) } else { Err("the bad port has no link".into()) }
    }

    fn target(&self, name: &str) -> Result<&Target> {
        Ok(self.targets.iter().find(|target| target.name == name).ok_or("no such memory")?)
    }

    /// One receive buffer; the frame is the host's to send.
    fn receive(&mut self, name: &str) -> Result<String> {
        let at = self.received as usize * 16;
        self.receive_ring.memory.store_u64(at, self.target(name)?.iova)?;
        self.receive_ring.memory.store_u64(at + 8, 0)?;
        self.received += 1;
        self.registers.write_at(RDT, 0, self.received);
        Ok(format!("posted, address {:#x}", self.target(name)?.iova))
    }

    fn send(&mut self, name: &str) -> Result<String> {
        let at = self.sent as usize * 16;
        let bytes = 100;
        let command = bytes
            | tx::DATA
            | tx::END_OF_PACKET
            | tx::INSERT_CRC
            | tx::REPORT_STATUS
            | bytes << tx::PAYLOAD_SHIFT;
        self.send_ring.memory.store_u64(at, self.target(name)?.iova)?;
        self.send_ring.memory.store_u64(at + 8, command)?;
        self.sent += 1;
        self.registers.write_at(TDT, 0, self.sent);
        Ok(format!("posted, address {:#x}", self.target(name)?.iova))
    }

    /// Waits until the device is through with everything; tells which memory it changed.
    fn check(&self) -> Result<String> {
        let (registers, last) = (&self.registers, (self.received as usize - 1) * 16 + 8);
        wait_until(Duration::from_secs(2), || registers.read_at(RDH, 0) == self.received);
        let done = self.receive_ring.memory.load_u64(last)? & rx::DONE != 0;
        let touched: Result<Vec<String>> = self
            .targets
            .iter()
            .map(|target| Ok(format!("{} {}", target.name, target.touched_bytes()?)))
            .collect();
        Ok(format!(
            "head {} of {}, done bit {done}, touched bytes: {}",
            registers.read_at(RDH, 0),
            self.received,
            touched?.join(", ")
        ))
    }
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut address =
        || -> Result<PciAddress> { Ok(arguments.next().ok_or("usage: pollring-stray GOOD BAD")?.parse()?) };
    let (good, bad) = (address()?, address()?);
    let mut watch = FaultWatch::new()?;
    let (mut port, worker) = start_good(good)?;
    let mut bad = Bad::start(bad)?;
    println!("READY");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (verb, name) = line.split_once(' ').unwrap_or((&line, ""));
        println!(
            "{}",
            match verb {
                "receive" => bad.receive(name)?,
                "send" => bad.send(name)?,
                "check" => bad.check()?,
                "events" => {
                    let events = watch.poll()?;
                    let texts: Vec<String> = events
                        .into_iter()
                        .map(|fault| fault.among(&bad.space.mapped()).to_string())
                        .collect();
                    format!("{} events: {}", texts.len(), texts.join("; "))
                }
                _ => break,
            }
        );
    }
    drop(worker.stop()?);
    port.stop(Queues::default())?;
    println!("good port: {}", port.health());
    Ok(())
}
