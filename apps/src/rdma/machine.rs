//! Two simulated ports, a wire between them, and an RDMA transport on each: the machine on which the `rdma` commands run.
//!
//! ```text
//! device 0 — endpoint 0 — port 0 — igb 0 ══ wire ══ igb 1 — port 1 — endpoint 1 — device 1
//! ```
//!
//! The software NICs run on a thread of their own. Both endpoints are pollers that [`Machine::open`] gives out, for one worker, so that the
//! load between them is a poller beside them and nothing crosses cores but frames. The order is [`Machine::open`], then a worker that
//! polls, [`Machine::close`] once it has stopped.

use crate::error::AppError;
use crate::ports::SimulatedIgb;
use pollring::buffer::{Pool, PoolConfig, Shared, ToDevice};
use pollring::bus::{Device, simulated};
use pollring::hugepages::{Pages, Region, RegionConfig};
use pollring::iova::{AddressSpace, Direction, Placement};
use pollring::port::{Link, MacAddress, Port, PortConfig, Queues};
use pollring::rdma::{Access, Device as _, MemoryRegion, ProtectionDomain};
use pollring::worker::Poller;
use pollring_drivers::rdma::roce::{Endpoint, RoceConfig, RoceDevice, RocePoller};
use pollring_simulator::igb::{Igb, IgbConfig, Timing};
use pollring_simulator::runner::{Runner, Task};
use pollring_simulator::wire::{self, WireConfig, WireEnd};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Work that a device does before the next one's turn.
const BUDGET: usize = 64;

/// Frames of each pool: rings, caches and bursts on their way.
const FRAMES: usize = 2048;

/// Negotiation of two software NICs takes a few steps of theirs.
const LINK_LIMIT: Duration = Duration::from_secs(5);

/// One port with its transport.
pub(super) struct Side {
    pub(super) device: RoceDevice,
    pub(super) pd: ProtectionDomain,
    pub(super) address: IpAddr,
    pub(super) port: Box<dyn Port>,
    space: AddressSpace,
    model: Arc<Igb>,
}

/// Both, and the thread of their software NICs.
pub(super) struct Machine {
    pub(super) sides: [Side; 2],
    runner: Runner,
}

impl Machine {
    /// Opens and starts the ports `uris`. The pollers are the endpoints, for a worker.
    ///
    /// # Errors
    /// No memory, no thread, or a port that does not start.
    pub(super) fn open(
        uris: [&str; 2],
        names: [SimulatedIgb; 2],
    ) -> Result<(Machine, Vec<Box<dyn Poller>>), AppError> {
        let (near, far) = wire::pair(WireConfig::default());
        let (side_0, poller_0) = open_side(0, uris[0], names[0], near)?;
        let (side_1, poller_1) = open_side(1, uris[1], names[1], far)?;
        let sides = [side_0, side_1];
        let models = sides.each_ref().map(|side| side.model.clone());
        let tasks = models.map(|model| Box::new(move || model.step(BUDGET)) as Task);
        let runner = Runner::start("sim devices", tasks.into())?;
        let mut machine = Machine { sides, runner };
        machine.sides.iter_mut().try_for_each(await_link)?;
        Ok((machine, vec![poller_0, poller_1]))
    }

    /// Stops the ports, whose worker is gone, and then the software NICs; gives what these hold against their driver.
    pub(super) fn close(mut self) -> Vec<String> {
        let mut errors = Vec::new();
        for side in &mut self.sides {
            errors.extend(side.port.stop(Queues::default()).err().map(|error| error.to_string()));
        }
        errors.extend(self.runner.stop().err().map(|error| error.to_string()));
        for side in &self.sides {
            if side.model.violations() > 0 {
                let (uri, rules) = (side.port.uri(), side.model.violation_counts());
                errors.push(format!(
                    "{uri}: its driver broke rules of the datasheet: {rules:?}; please report it"
                ));
            }
        }
        errors
    }
}

impl Side {
    /// Registers `bytes` of new memory, with all rights. The port's device only reads it: the CPU places what arrives.
    ///
    /// # Errors
    /// No memory.
    pub(super) fn memory(&mut self, bytes: usize) -> Result<MemoryRegion, AppError> {
        let config = RegionConfig { name: "rdma".into(), bytes, pages: Pages::Huge2M, node: None };
        let region = Region::allocate_or_small(&config)
            .map_err(|error| AppError::Usage(format!("{bytes} bytes to register: {error}")))?;
        let placement = Placement::new(Arc::new(region), &[&self.space])?;
        let mapping = self.space.map(&placement, Direction::ToDevice)?;
        let memory = Shared::mapped(Arc::new(mapping)).slice(0, bytes);
        let memory = memory.map_err(|error| AppError::Failed(vec![error.to_string()]))?;
        Ok(self.device.register(&self.pd, memory, 0, Access::all())?)
    }
}

/// A port that has no link sends nothing. Each look takes the driver one step further.
fn await_link(side: &mut Side) -> Result<(), AppError> {
    let start = Instant::now();
    while side.port.link() == Link::Down {
        if start.elapsed() > LINK_LIMIT {
            let (uri, seconds) = (side.port.uri(), LINK_LIMIT.as_secs());
            return Err(AppError::Failed(vec![format!(
                "{uri}: no link within {seconds} s on a wire of this process; please report it"
            )]));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn open_side(
    number: u8,
    uri: &str,
    name: SimulatedIgb,
    wire: WireEnd,
) -> Result<(Side, Box<dyn Poller>), AppError> {
    let mac = [2, 0, 0, 0x70, 1, number];
    let timing = match name.delay_steps {
        0 => Timing::Immediate,
        longest => Timing::Delayed { longest },
    };
    let config = IgbConfig { timing, seed: name.seed.unwrap_or(number.into()), ..IgbConfig::new(mac, wire) };
    let model = Igb::new(config);
    let iommu = Arc::new(simulated::SimulatedIommu::default());
    let space = AddressSpace::new(uri, iommu.clone());
    let device = Device::open(uri, simulated::backend(model.clone(), iommu))?;
    let (vendor, id) = device.id();
    let entry = pollring_drivers::find(pollring_drivers::builtin(), vendor, id)
        .ok_or_else(|| AppError::Usage(format!("port `{uri}` is {vendor:04x}:{id:04x}: no driver for it")))?;
    let mut port = (entry.open)(device, &space)?;
    let small = || Pages::Small4K { reason: "packets of a simulated device".to_owned() };
    let config = |name: &str| PoolConfig { pages: small(), ..PoolConfig::new(name, FRAMES) };
    let received = Pool::new(&config("rdma receive"), &[&space])?;
    let headers = Pool::<ToDevice>::new(&config("rdma send"), &[&space])?;
    let config = PortConfig::new(&received);
    let address = IpAddr::V4(Ipv4Addr::new(10, 0, 0, number + 1));
    let transport = RoceConfig { port_mtu: config.mtu, ..RoceConfig::new(uri, MacAddress(mac), address) };
    let (mut device, stack) = RoceDevice::new(transport)?;
    let pd = device.allocate_pd()?;
    let endpoint = Endpoint::new(stack, headers, port.capabilities());
    let mut queues = port.start(&config)?;
    let (Some(rx), Some(tx)) = (queues.rx.pop(), queues.tx.pop()) else {
        return Err(AppError::Failed(vec![format!("port `{uri}` started without queues; please report it")]));
    };
    // Frames that are no RoCE have no other user here: what the function leaves is dropped.
    let poller = RocePoller::new(endpoint, rx, tx, Box::new(|_, _| {}));
    Ok((Side { device, pd, address, port, space, model }, Box::new(poller)))
}
