//! Control of one 82576 port.
//!
//! The port owns the device, its register window and the memory of the rings; the queues own their tail registers. A run begins
//! with a reset and ends with one list of steps, whether it was stopped, aborted or dropped: both units off, bus mastering off, then
//! the session ends and frames go home. Bus mastering goes on only when every ring is valid.

use super::desc::{RxRead, TxData};
use super::init::{self, Places, RingPlace, Steps};
use super::link::LinkState;
use super::regs::{self, *};
use super::rx::IgbRx;
use super::tx::IgbTx;
use super::{DEVICES, LONGEST_FRAME, SHORTEST_FRAME};
use pollring::bus::{Access, BusError, Device, Health, Register, Registers};
use pollring::inspect::Node;
use pollring::iova::AddressSpace;
use pollring::port::lifecycle::{self, Life, Lifecycle};
use pollring::port::*;
use pollring::ring::{ReceiveRing, RingLayout, RingMemory, SendLimits, TransmitRing};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Frames gathered from at most this many descriptors; the device takes more (datasheet 7.2.1.1: 40).
const MAX_SEGMENTS: usize = 16;

/// Bytes from one queue's registers to the next queue's.
const QUEUE_STRIDE: usize = 0x40;

pub(crate) fn open(device: Device, space: &AddressSpace) -> Result<Box<dyn Port>, PortError> {
    Ok(Box::new(IgbPort::open(device, space)?))
}

/// A port of an 82576, I350 or I210.
pub struct IgbPort {
    device: Device,
    registers: Registers,
    capabilities: Capabilities,
    mac: MacAddress,
    link: LinkState,
    life: Life<Run>,
    /// Device counters since the port was opened, by name.
    counted: BTreeMap<&'static str, u64>,
    /// Looks at which the device said that a receive ring had been full: QEMU's model counts such frames nowhere else.
    overruns: u64,
    /// Queue counters of the runs before this one.
    before: (RxCounters, TxCounters),
}

/// From start to stop.
pub struct Run {
    rx: Vec<CounterReader<RxCounters>>,
    tx: Vec<CounterReader<TxCounters>>,
    _rings: Arc<RingMemory>,
}

impl IgbPort {
    /// Takes the device, lets it join `space` and resets it.
    ///
    /// # Errors
    /// The bus or the space refuses, or the device does not answer.
    pub fn open(mut device: Device, space: &AddressSpace) -> Result<IgbPort, PortError> {
        // Descriptors hold 64-bit addresses (datasheet 7.1.5.1).
        device.join(space, u64::MAX)?;
        let registers = device.window_of(0, regs::BAR_BYTES)?;
        let mac = init::reset(Steps { registers: &registers, port: device.name() })?;
        let capabilities = capabilities(&device);
        Ok(IgbPort {
            device,
            registers,
            capabilities,
            mac,
            link: LinkState::after_reset(),
            life: Life::default(),
            counted: BTreeMap::new(),
            overruns: 0,
            before: Default::default(),
        })
    }

    fn steps(&self) -> Steps<'_> {
        Steps { registers: &self.registers, port: self.device.name() }
    }

    fn make_queues(
        &self,
        config: &PortConfig,
        space: &AddressSpace,
    ) -> Result<(Run, Queues, Places), PortError> {
        let (rx_bytes, tx_bytes) =
            (config.rx_entries * size_of::<RxRead>(), config.tx_entries * size_of::<TxData>());
        let mut layout = RingLayout::new();
        let offsets: Vec<_> =
            (0..config.queue_pairs).map(|_| (layout.ring(rx_bytes), layout.ring(tx_bytes))).collect();
        let rings = RingMemory::new(self.uri(), &layout, space, config.node)?;
        let (mut queues, mut places) = (Queues::default(), Places::default());
        let mut run = Run { rx: Vec::new(), tx: Vec::new(), _rings: rings.clone() };
        for (queue, (rx_at, tx_at)) in offsets.into_iter().enumerate() {
            let (rx, tx) =
                (self.rx_queue(queue, &rings, rx_at, config), self.tx_queue(queue, &rings, tx_at, config));
            places.rx.push(RingPlace { iova: rx.ring.iova(), bytes: rx_bytes });
            places.tx.push(RingPlace { iova: tx.ring.iova(), bytes: tx_bytes });
            run.rx.push(rx.counters.reader());
            run.tx.push(tx.counters.reader());
            queues.rx.push(Box::new(rx));
            queues.tx.push(Box::new(tx));
        }
        Ok((run, queues, places))
    }

    fn rx_queue(&self, queue: usize, rings: &Arc<RingMemory>, offset: usize, config: &PortConfig) -> IgbRx {
        IgbRx {
            ring: ReceiveRing::new(
                rings,
                offset,
                config.rx_entries,
                &config.rx_pool,
                self.life.session.lease(),
            ),
            tail: self.registers.doorbell(RDT.at(queue)),
            counters: QueueCounters::default(),
            status: self.device.status().clone(),
        }
    }

    fn tx_queue(&self, queue: usize, rings: &Arc<RingMemory>, offset: usize, config: &PortConfig) -> IgbTx {
        let limits = SendLimits { lengths: SHORTEST_FRAME..=LONGEST_FRAME, segments: MAX_SEGMENTS };
        IgbTx {
            ring: TransmitRing::new(rings, offset, config.tx_entries, limits, self.life.session.lease()),
            low_water: config.tx_entries / 2,
            tail: self.registers.doorbell(TDT.at(queue)),
            counters: QueueCounters::default(),
            status: self.device.status().clone(),
        }
    }

    fn count_device(&mut self) {
        let counts =
            |register: &&Register| register.access == Access::ReadClears && register.offset != ICR.offset;
        for register in regs::REGISTERS.iter().filter(counts) {
            let values = (0..register.count).map(|at| self.registers.read_at(*register, at));
            let value: u64 = values.filter(|value| *value != u32::MAX).map(u64::from).sum();
            *self.counted.entry(register.name).or_default() += value;
        }
        let causes = self.registers.read(ICR);
        if causes != u32::MAX && causes & icr::RX_OVERRUN != 0 {
            self.overruns += 1;
        }
    }

    fn registers_node(&self, pairs: usize) -> Node {
        let quiet = |register: &&Register| matches!(register.access, Access::ReadWrite | Access::ReadOnly);
        let mut node = Node::parts();
        for register in regs::REGISTERS.iter().filter(quiet) {
            let count = if register.stride == QUEUE_STRIDE { pairs } else { 1 };
            for at in 0..count {
                let name =
                    if count == 1 { register.name.to_owned() } else { format!("{}[{at}]", register.name) };
                node = node.with(name, format!("{:#010x}", self.registers.read_at(*register, at)));
            }
        }
        node
    }

    /// STATUS has reserved zeros (8.2.2), so all ones is no state of a device that is on its bus: it has hung.
    fn check_registers(&self) {
        if self.registers.read(STATUS) == u32::MAX && self.health() == Health::Running {
            self.device.status().fail("its registers read as all ones although it is on its bus");
        }
    }
}

impl Lifecycle for IgbPort {
    type Run = Run;

    fn name(&self) -> &str {
        self.device.name()
    }

    fn abilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn life(&mut self) -> &mut Life<Run> {
        &mut self.life
    }

    fn bring_up(&mut self, config: &PortConfig) -> Result<(Run, Queues), PortError> {
        self.device.reset()?;
        init::reset(self.steps())?;
        self.link = LinkState::after_reset();
        let space = self.device.space().cloned();
        let space = space.ok_or_else(|| lifecycle::wrong_state(self, "start", "in no address space"))?;
        let (run, queues, places) = self.make_queues(config, &space)?;
        init::configure(self.steps(), config, &places);
        self.device.start_dma()?;
        init::enable(self.steps(), config)?;
        self.link.poll(&self.registers);
        match self.device.status().health() {
            Health::Gone => Err(BusError::Gone { step: "start", device: self.uri().to_owned() }.into()),
            _ => Ok((run, queues)),
        }
    }

    /// From the inside if the device answers, and at its bus master gate in any case.
    fn end_dma(&mut self) -> Result<(), PortError> {
        let quiet = self.steps().quiesce();
        self.device.stop_dma();
        match self.device.status().health() {
            Health::Gone => Ok(()),
            _ if quiet => Ok(()),
            _ => Ok(self.device.reset()?),
        }
    }

    fn keep_counts(&mut self, run: &Run) {
        self.count_device();
        let (rx, tx) = totals(run);
        self.before = (self.before.0.plus(rx), self.before.1.plus(tx));
    }

    fn fail(&self, reason: &str) {
        self.device.status().fail(reason);
    }
}

impl Port for IgbPort {
    fn uri(&self) -> &str {
        self.device.name()
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn mac(&self) -> MacAddress {
        self.mac
    }

    fn start(&mut self, config: &PortConfig) -> Result<Queues, PortError> {
        lifecycle::start(self, config)
    }

    fn stop(&mut self, queues: Queues) -> Result<(), PortError> {
        lifecycle::stop(self, queues)
    }

    fn abort(&mut self) -> Result<(), PortError> {
        lifecycle::abort(self)
    }

    fn link(&mut self) -> Link {
        if self.life.run.is_none() {
            return Link::Down;
        }
        let link = self.link.poll(&self.registers);
        self.check_registers();
        link
    }

    fn set_promiscuous(&mut self, promiscuous: Promiscuous) -> Result<(), PortError> {
        if self.life.run.is_none() {
            return Err(lifecycle::wrong_state(self, "set promiscuous mode of", "not started"));
        }
        self.steps().set_receive_control(promiscuous);
        match self.health() {
            Health::Gone => {
                Err(BusError::Gone { step: "set promiscuous mode", device: self.uri().to_owned() }.into())
            }
            _ => Ok(()),
        }
    }

    fn statistics(&mut self) -> PortStatistics {
        self.count_device();
        let (rx, tx) = self.life.run.as_ref().map(totals).unwrap_or_default();
        let sum = |names: &[&str]| names.iter().filter_map(|name| self.counted.get(name)).sum();
        PortStatistics {
            rx: self.before.0.plus(rx),
            tx: self.before.1.plus(tx),
            rx_dropped: sum(&["MPC", "RQDPC"]),
            rx_overruns: self.overruns,
            rx_damaged: sum(&["CRCERRS", "RXERRC", "RLEC", "RUC", "ROC"]),
            device: self.counted.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        }
    }

    fn health(&self) -> Health {
        self.device.status().health()
    }

    fn inspect(&mut self) -> Node {
        let pairs = self.life.run.as_ref().map_or(0, |run| run.rx.len());
        let registers = self.registers_node(pairs);
        Node::parts()
            .with("model", self.capabilities.model.clone())
            .with("mac", self.mac.to_string())
            .with("health", self.health().to_string())
            .with("link", format!("{:?}", self.link()))
            .with("queue pairs", pairs as u64)
            .with("registers", registers)
    }
}

impl Drop for IgbPort {
    fn drop(&mut self) {
        // Nobody is left to hear of an error; bus mastering is off in any case.
        let _ = self.abort();
    }
}

fn totals(run: &Run) -> (RxCounters, TxCounters) {
    let rx = run.rx.iter().fold(RxCounters::default(), |sum, queue| sum.plus(queue.read()));
    let tx = run.tx.iter().fold(TxCounters::default(), |sum, queue| sum.plus(queue.read()));
    (rx, tx)
}

fn capabilities(device: &Device) -> Capabilities {
    let (vendor, id) = device.id();
    let entry = crate::find(DEVICES, vendor, id);
    Capabilities {
        model: format!("{} (igb)", entry.map_or("unknown", |entry| entry.model)),
        // The I210 has four pairs, the I350 eight (their datasheets, section 1).
        queue_pairs: match id {
            0x1533 => 4,
            0x1521 => 8,
            _ => 16,
        },
        ring_entries: 64..=4096,
        max_mtu: LONGEST_FRAME - 22,
        max_segments: MAX_SEGMENTS,
        simulated: device.simulated(),
    }
}
