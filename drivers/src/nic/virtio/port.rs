//! Control of one virtio-net port, on any transport.
//!
//! The port owns the transport and the memory of the rings; queues own their notifiers. A run begins with a reset and ends with the end of
//! DMA, whether it was stopped, aborted or dropped; then the session ends and frames go home. In between a backend may be lost:
//! [`Port::link`] then pauses the queues, waits until all have taken their frames back, and looks once a call for the next
//! backend, which gets the same rings, empty.

use super::control::{self, Commands, Control, Numbered};
use super::gate::{self, Gate};
use super::init::{self, DeviceConfig};
use super::regs::{command, feature};
use super::rx::VirtioRx;
use super::transport::{Notifier, Presence, Transport, VirtioOptions, Watch};
use super::tx::VirtioTx;
use pollring::bus::Health;
use pollring::inspect::Node;
use pollring::port::lifecycle::{self, Life, Lifecycle};
use pollring::port::*;
use pollring::ring::virtqueue::{
    ControlQueue, Format, Packed, QueuePlaces, ReceiveQueue, Split, TransmitQueue,
};
use pollring::ring::{RingLayout, RingMemory, SendLimits};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Segments of a sent frame at most; a header of its own takes one descriptor more.
const MAX_SEGMENTS: usize = 16;

/// Lengths of sent frames: a header's, and the largest that a chain's length can say.
const SHORTEST_FRAME: u16 = 14;
const LONGEST_FRAME: u16 = 9728;

/// Descriptors of a ring at least.
const FEWEST_ENTRIES: usize = 64;

/// A virtio-net port.
pub struct VirtioPort {
    transport: Box<dyn Transport>,
    options: VirtioOptions,
    capabilities: Capabilities,
    mac: MacAddress,
    features: u64,
    life: Life<Run>,
    /// Queue counters of the runs before this one.
    before: (RxCounters, TxCounters),
    lies_before: u64,
    backends_lost: u64,
}

/// From start to stop.
pub struct Run {
    rx: Vec<CounterReader<RxCounters>>,
    tx: Vec<CounterReader<TxCounters>>,
    lies: Vec<Arc<AtomicU64>>,
    gates: Vec<Gate>,
    /// Every data queue by number.
    places: Vec<(u16, QueuePlaces)>,
    control: Option<Control>,
    pairs: usize,
    promiscuous: Promiscuous,
    epoch: u32,
    rings: Arc<RingMemory>,
}

impl VirtioPort {
    /// Takes the device behind `transport` and looks at what it has.
    ///
    /// # Errors
    /// It does not answer, or has not what the driver needs.
    pub fn open(mut transport: Box<dyn Transport>, options: VirtioOptions) -> Result<VirtioPort, PortError> {
        transport.reset()?;
        // With more than one pair in mind, so that MQ shows how many there may be.
        let features = init::negotiate(transport.as_ref(), options, 2)?;
        let device = DeviceConfig::read(transport.as_ref(), features);
        let mac = device.mac.unwrap_or_else(|| init::address_of(transport.name()));
        let capabilities = capabilities(transport.as_ref(), features, &device);
        Ok(VirtioPort {
            transport,
            options,
            capabilities,
            mac,
            features,
            life: Life::default(),
            before: Default::default(),
            lies_before: 0,
            backends_lost: 0,
        })
    }

    /// The features that were agreed on last.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Rings, queues, and the device's knowledge of them.
    fn make<F: Format>(&mut self, config: &PortConfig) -> Result<(Run, Queues), PortError> {
        let mut layout = RingLayout::new();
        let (rx_bytes, tx_bytes) =
            (F::bytes(config.rx_entries), TransmitQueue::<F>::bytes(config.tx_entries));
        let offsets: Vec<(usize, usize)> =
            (0..config.queue_pairs).map(|_| (layout.ring(rx_bytes), layout.ring(tx_bytes))).collect();
        let control_at = layout.ring(ControlQueue::<F>::bytes(control::ENTRIES));
        let rings = RingMemory::new(self.uri(), &layout, self.transport.space(), config.node)?;
        let (mut run, mut queues) = (Run::new(config, rings.clone()), Queues::default());
        for (pair, (rx_at, tx_at)) in offsets.into_iter().enumerate() {
            let rx = self.rx_queue::<F>(pair, rx_at, config, &mut run)?;
            let tx = self.tx_queue::<F>(pair, tx_at, config, &mut run)?;
            queues.rx.push(Box::new(rx));
            queues.tx.push(Box::new(tx));
        }
        if self.features & feature::CTRL_VQ != 0 {
            run.control = Some(self.control_queue::<F>(&rings, control_at)?);
        }
        Ok((run, queues))
    }

    fn rx_queue<F: Format>(
        &mut self,
        pair: usize,
        offset: usize,
        config: &PortConfig,
        run: &mut Run,
    ) -> Result<VirtioRx<F>, PortError> {
        let (options, merging) = (init::queue_options(self.features), init::merging(self.features));
        let (entries, lease) = (config.rx_entries, self.life.session.lease());
        let ring = ReceiveQueue::new(&run.rings, offset, entries, options, merging, &config.rx_pool, lease);
        let queue = pair as u16 * 2;
        let notifier = self.tell(queue, ring.places(), run)?;
        let (gate, turnstile) = gate::gate();
        run.gates.push(gate);
        let counters = QueueCounters::default();
        run.rx.push(counters.reader());
        Ok(VirtioRx { ring, queue, notifier, turnstile, counters, watch: self.transport.watch() })
    }

    fn tx_queue<F: Format>(
        &mut self,
        pair: usize,
        offset: usize,
        config: &PortConfig,
        run: &mut Run,
    ) -> Result<VirtioTx<F>, PortError> {
        let limits = SendLimits { lengths: SHORTEST_FRAME..=LONGEST_FRAME, segments: MAX_SEGMENTS };
        let (entries, options) = (config.tx_entries, init::queue_options(self.features));
        let ring =
            TransmitQueue::new(&run.rings, offset, entries, options, limits, self.life.session.lease());
        let queue = pair as u16 * 2 + 1;
        let notifier = self.tell(queue, ring.places(), run)?;
        let (gate, turnstile) = gate::gate();
        run.gates.push(gate);
        let (counters, lies) = (QueueCounters::default(), Arc::new(AtomicU64::new(0)));
        run.tx.push(counters.reader());
        run.lies.push(lies.clone());
        let (low_water, watch) = (entries / 2, self.transport.watch());
        Ok(VirtioTx { ring, queue, low_water, notifier, turnstile, counters, idle_looks: 0, lies, watch })
    }

    fn tell(
        &mut self,
        queue: u16,
        places: QueuePlaces,
        run: &mut Run,
    ) -> Result<Box<dyn Notifier>, PortError> {
        run.places.push((queue, places));
        self.transport.set_queue(queue, &places)
    }

    /// The control queue comes behind those of all pairs that the device has, in use or not (5.1.2).
    fn control_queue<F: Format>(&mut self, rings: &Arc<RingMemory>, at: usize) -> Result<Control, PortError> {
        let pairs = DeviceConfig::read(self.transport.as_ref(), self.features).max_pairs;
        let queue = pairs * 2;
        let options = init::queue_options(self.features);
        let made = Numbered(ControlQueue::<F>::new(rings, at, control::ENTRIES, options), queue);
        let notifier = self.transport.set_queue(queue, &made.places())?;
        Ok(Control { queue: Box::new(made), notifier })
    }

    /// What only commands can set.
    fn command_all(&mut self, run: &mut Run) -> Result<(), PortError> {
        self.command_spread(run)?;
        self.command_promiscuous(run)
    }

    /// Several pairs are used from the command on (5.1.6.5.5). Over vhost-user there is none: every pair is used that is there.
    fn command_spread(&self, run: &mut Run) -> Result<(), PortError> {
        let Some(control) = run.control.as_mut().filter(|_| run.pairs > 1) else { return Ok(()) };
        let (name, pairs) = (self.transport.name(), run.pairs as u16);
        if self.features & feature::RSS == 0 {
            return control.command(
                name,
                "set the number of pairs",
                command::SET_PAIRS,
                &pairs.to_le_bytes(),
            );
        }
        let rss = DeviceConfig::read(self.transport.as_ref(), self.features).rss;
        if !rss.fits(run.pairs) {
            let what = format!("what it says of its RSS changed to {rss:?}; reset the device");
            return Err(PortError::Config { port: name.to_owned(), what });
        }
        control.command(name, "spread flows by hash", command::SET_RSS, &rss.command(pairs))
    }

    fn command_promiscuous(&self, run: &mut Run) -> Result<(), PortError> {
        let Some(control) = run.control.as_mut().filter(|_| self.features & feature::CTRL_RX != 0) else {
            // Without the command a device gives everything that its switch sends it.
            return Ok(());
        };
        let on = [u8::from(run.promiscuous == Promiscuous::On)];
        let name = self.transport.name();
        control.command(name, "set promiscuous mode", command::PROMISCUOUS, &on)?;
        control.command(name, "set all-multicast mode", command::ALL_MULTICAST, &on)
    }

    /// Moves a lost backend's successor on by one step.
    fn recover(&mut self) {
        let Some(run) = &mut self.life.run else { return };
        let paused = run.epoch & 1 == 1;
        if !paused {
            if self.transport.presence() == Presence::Settled {
                return;
            }
            tracing::warn!(port = self.transport.name(), "the backend went away; waiting for another");
            self.backends_lost += 1;
            run.set_epoch();
            return;
        }
        if !run.gates.iter().all(|gate| gate.is_at(run.epoch)) {
            return;
        }
        match self.reconnect() {
            Ok(()) => tracing::info!(port = self.transport.name(), "a backend is there again"),
            Err(PortError::Config { what, .. }) => self.transport.fail(&what),
            Err(error) => tracing::debug!(%error, "no backend yet"),
        }
    }

    fn reconnect(&mut self) -> Result<(), PortError> {
        self.transport.reset()?;
        let Some(run) = &mut self.life.run else { return Ok(()) };
        let missing = self.features & !self.transport.offered();
        if missing != 0 {
            let what = format!("the new backend lacks {}; start the port again", names(missing));
            return Err(PortError::Config { port: self.transport.name().to_owned(), what });
        }
        self.transport.accept(self.features)?;
        for (queue, places) in &run.places {
            self.transport.set_queue(*queue, places)?;
        }
        self.transport.run()?;
        run.set_epoch();
        Ok(())
    }
}

impl Run {
    fn new(config: &PortConfig, rings: Arc<RingMemory>) -> Run {
        Run {
            rx: Vec::new(),
            tx: Vec::new(),
            lies: Vec::new(),
            gates: Vec::new(),
            places: Vec::new(),
            control: None,
            pairs: config.queue_pairs,
            promiscuous: config.promiscuous,
            epoch: 0,
            rings,
        }
    }

    /// From running to paused, or back.
    fn set_epoch(&mut self) {
        self.epoch = self.epoch.wrapping_add(1) & 0xffff;
        self.gates.iter().for_each(|gate| gate.set(self.epoch));
    }

    fn totals(&self) -> (RxCounters, TxCounters, u64) {
        let rx = self.rx.iter().fold(RxCounters::default(), |sum, queue| sum.plus(queue.read()));
        let tx = self.tx.iter().fold(TxCounters::default(), |sum, queue| sum.plus(queue.read()));
        (rx, tx, self.lies.iter().map(|lies| lies.load(Ordering::Relaxed)).sum())
    }
}

impl Lifecycle for VirtioPort {
    type Run = Run;

    fn name(&self) -> &str {
        self.transport.name()
    }

    fn abilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn life(&mut self) -> &mut Life<Run> {
        &mut self.life
    }

    fn check(&self, config: &PortConfig) -> Result<(), PortError> {
        init::check(self.transport.name(), config)
    }

    fn bring_up(&mut self, config: &PortConfig) -> Result<(Run, Queues), PortError> {
        self.transport.reset()?;
        self.features = init::negotiate(self.transport.as_ref(), self.options, config.queue_pairs)?;
        init::check_pairs(self.transport.name(), self.features, config.queue_pairs)?;
        self.transport.accept(self.features)?;
        let (mut run, queues) = match self.features & feature::RING_PACKED {
            0 => self.make::<Split>(config)?,
            _ => self.make::<Packed>(config)?,
        };
        self.transport.run()?;
        self.command_all(&mut run)?;
        Ok((run, queues))
    }

    fn end_dma(&mut self) -> Result<(), PortError> {
        self.transport.end_dma()
    }

    fn keep_counts(&mut self, run: &Run) {
        let (rx, tx, lies) = run.totals();
        self.before = (self.before.0.plus(rx), self.before.1.plus(tx));
        self.lies_before += lies;
    }

    fn fail(&self, reason: &str) {
        self.transport.fail(reason);
    }
}

impl Port for VirtioPort {
    fn uri(&self) -> &str {
        self.transport.name()
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
        self.recover();
        let Some(run) = &self.life.run else { return Link::Down };
        let device = DeviceConfig::read(self.transport.as_ref(), self.features);
        // A device that is gone reads as all ones, and its link as up.
        match device.link_up && run.epoch & 1 == 0 && self.health() == Health::Running {
            true => Link::Up { speed_mbps: device.speed_mbps, duplex: Duplex::Full },
            false => Link::Down,
        }
    }

    fn set_promiscuous(&mut self, promiscuous: Promiscuous) -> Result<(), PortError> {
        let Some(mut run) = self.life.run.take() else {
            return Err(lifecycle::wrong_state(self, "set promiscuous mode of", "not started"));
        };
        run.promiscuous = promiscuous;
        let done = self.command_promiscuous(&mut run);
        self.life.run = Some(run);
        done
    }

    fn statistics(&mut self) -> PortStatistics {
        let (rx, tx, lies) = self.life.run.as_ref().map(Run::totals).unwrap_or_default();
        let device = [("used_lies", self.lies_before + lies), ("backends_lost", self.backends_lost)];
        PortStatistics {
            rx: self.before.0.plus(rx),
            tx: self.before.1.plus(tx),
            device: device.map(|(name, value)| (name.to_owned(), value)).to_vec(),
            ..PortStatistics::default()
        }
    }

    fn health(&self) -> Health {
        let watch: Arc<dyn Watch> = self.transport.watch();
        watch.health()
    }

    fn inspect(&mut self) -> Node {
        let pairs = self.life.run.as_ref().map_or(0, |run| run.rx.len());
        Node::parts()
            .with("model", self.capabilities.model.clone())
            .with("mac", self.mac.to_string())
            .with("health", self.health().to_string())
            .with("link", format!("{:?}", self.link()))
            .with("queue pairs", pairs as u64)
            .with("features", names(self.features))
            .with("registers", self.transport.registers())
    }
}

impl Drop for VirtioPort {
    fn drop(&mut self) {
        // Nobody is left to hear of an error; the device is cut off in any case.
        let _ = self.abort();
    }
}

/// The names of feature bits.
fn names(features: u64) -> String {
    let known = feature::NAMES.iter().filter(|(bit, _)| features & bit != 0).map(|(_, name)| *name);
    known.collect::<Vec<_>>().join(" ")
}

fn capabilities(transport: &dyn Transport, features: u64, device: &DeviceConfig) -> Capabilities {
    let data_queues =
        transport.queues() - u16::from(features & feature::CTRL_VQ != 0).min(transport.queues());
    let queue_pairs = match (transport.config(&mut []), features & init::SEVERAL_PAIRS) {
        (_, 0) => 1,
        (true, _) => usize::from(device.max_pairs),
        (false, _) => usize::from(data_queues / 2).max(1),
    };
    let most = usize::from(transport.most_entries(0).min(transport.most_entries(1)));
    let largest = 1 << most.max(FEWEST_ENTRIES).ilog2();
    Capabilities {
        model: transport.model(),
        queue_pairs,
        ring_entries: FEWEST_ENTRIES..=largest,
        max_mtu: device.mtu.unwrap_or(LONGEST_FRAME - 22).min(LONGEST_FRAME - 22),
        max_segments: MAX_SEGMENTS,
        simulated: transport.simulated(),
    }
}
