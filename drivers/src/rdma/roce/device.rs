//! The control side: makes everything else, and is asked what there is. See [`RoceDevice`].

use super::counters::{Counters, History};
use super::engine::Engine;
use super::handles::{CqHandle, QpHandle, SrqHandle};
use super::memory::Keys;
use super::qp::Qp;
use super::stack::{Peers, Stack, lock};
use super::wire::network::Path;
use super::world::{Cq, Srq};
use pollring::buffer::Shared;
use pollring::bus::Health;
use pollring::copy::Fifo;
use pollring::os::EventFd;
use pollring::port::MacAddress;
use pollring::rdma::{
    Access, AddressHandle, AddressVector, AsyncEvent, AtomicScope, CompletionQueue, CqConfig,
};
use pollring::rdma::{CqNumber, Device, DeviceAttributes, Features, Gid, GidEntry, MemoryRegion, Mtu, PKey};
use pollring::rdma::{PortAttributes, PortState, ProtectionDomain, QpConfig, QpLimits, Qpn, QueuePair};
use pollring::rdma::{RdmaError, Receives, SharedReceiveQueue, SrqConfig, SrqNumber};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

/// Where keys and numbers come from. Whoever can foresee it can guess keys.
pub type Random = Box<dyn FnMut() -> u32 + Send>;

/// What a transport is made of.
pub struct RoceConfig {
    /// Name in errors and reports, such as the port's URI.
    pub name: String,
    /// The port's address.
    pub mac: MacAddress,
    /// The port's IP addresses, each with its VLAN; they become its GIDs.
    pub addresses: Vec<(IpAddr, Option<u16>)>,
    /// The port's MTU in bytes.
    pub port_mtu: u16,
    /// The port's speed in Mbit/s; 0 when unknown.
    pub speed_mbps: u32,
    /// Who may talk to it.
    pub peers: Peers,
    /// Keys and numbers.
    pub random: Random,
}

impl RoceConfig {
    /// A port with MTU 1500 and one address, that talks to everybody, with numbers from the kernel.
    pub fn new(name: &str, mac: MacAddress, address: IpAddr) -> RoceConfig {
        RoceConfig {
            name: name.to_owned(),
            mac,
            addresses: vec![(address, None)],
            port_mtu: 1500,
            speed_mbps: 0,
            peers: Peers::Any,
            random: Box::new(kernel_random),
        }
    }
}

/// A number from the kernel. Without one there is no safe key, so a kernel that has none is waited for.
fn kernel_random() -> u32 {
    loop {
        let mut bytes = [0; 4];
        if getrandom::fill(&mut bytes).is_ok() {
            return u32::from_ne_bytes(bytes);
        }
        std::thread::yield_now();
    }
}

/// RoCEv2 in software, as a device of the verbs. Its queues live in the engine that it shares with its [`Stack`]; the handles
/// that it gives out lock that engine for each batch.
pub struct RoceDevice {
    engine: Arc<Mutex<Engine>>,
    keys: Arc<Keys>,
    attributes: DeviceAttributes,
    mac: MacAddress,
    mtu: Mtu,
    speed_mbps: u32,
    random: Random,
    pds: u32,
    event_fd: Option<Arc<EventFd>>,
}

const MAX_MESSAGE_BYTES: u32 = 1 << 31;

fn attributes(config: &RoceConfig) -> DeviceAttributes {
    let [a, b, c, d, e, f] = config.mac.0;
    let limits = QpLimits {
        send_requests: 1 << 15,
        receive_requests: 1 << 15,
        send_sges: 12,
        receive_sges: 32,
        inline_bytes: 64,
    };
    let services = Features::RC | Features::UC | Features::UD;
    DeviceAttributes {
        name: config.name.clone(),
        node_guid: u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]),
        features: services | Features::SRQ | Features::INVALIDATE | Features::SOFTWARE,
        atomics: AtomicScope::Memory,
        vectors: 1,
        max_pds: 1 << 16,
        max_regions: 1 << 20,
        max_region_bytes: 1 << 47,
        max_cqs: 1 << 16,
        max_cq_entries: 1 << 22,
        max_qps: 1 << 20,
        max_qp: limits,
        max_srqs: 1 << 16,
        max_srq_requests: 1 << 15,
        max_address_handles: 1 << 20,
        max_responder_resources: 128,
        max_initiator_depth: 128,
        max_message_bytes: MAX_MESSAGE_BYTES,
    }
}

fn limit(what: &'static str, asked: u64, limit: u64) -> Result<(), RdmaError> {
    if asked > limit { Err(RdmaError::Limit { what, asked, limit }) } else { Ok(()) }
}

impl RoceDevice {
    /// A device and the stack that moves its packets.
    ///
    /// # Errors
    /// A port whose MTU leaves no room for the smallest packet.
    pub fn new(config: RoceConfig) -> Result<(RoceDevice, Stack), RdmaError> {
        let mtu = Mtu::within(usize::from(config.port_mtu));
        let mtu = mtu.ok_or(RdmaError::Unsupported("a port MTU below 336 bytes"))?;
        let keys = Arc::new(Keys::default());
        let mut engine = Engine::new(keys.clone());
        let gid =
            |(address, vlan): &(IpAddr, Option<u16>)| GidEntry { gid: Gid::from(*address), vlan: *vlan };
        engine.world.gids = config.addresses.iter().map(gid).collect();
        let event_fd = engine.world.event_fd.clone();
        let engine = Arc::new(Mutex::new(engine));
        let stack = Stack::new(engine.clone(), config.mac, config.peers.clone());
        let attributes = attributes(&config);
        let RoceConfig { mac, speed_mbps, random, .. } = config;
        Ok((RoceDevice { engine, keys, attributes, mac, mtu, speed_mbps, random, pds: 0, event_fd }, stack))
    }

    /// What happened to packets since the device was made.
    pub fn counters(&self) -> Counters {
        lock(&self.engine).world.counters.clone()
    }

    /// The last events of a queue pair.
    pub fn history(&self, qp: Qpn) -> Option<History> {
        lock(&self.engine).qps.get(&qp.bits()).map(|qp| qp.history)
    }

    /// Queue pairs that exist, and keys that are valid.
    pub fn census(&self) -> (usize, usize) {
        (lock(&self.engine).qps.len(), self.keys.len())
    }

    /// Replaces the port's addresses. Queue pairs that use one that is gone fall silent.
    pub fn set_addresses(&mut self, addresses: &[(IpAddr, Option<u16>)]) {
        let entry =
            |(address, vlan): &(IpAddr, Option<u16>)| GidEntry { gid: Gid::from(*address), vlan: *vlan };
        let mut engine = lock(&self.engine);
        engine.world.gids = addresses.iter().map(entry).collect();
        engine.world.event(AsyncEvent::GidsChanged);
    }

    fn draw_qpn(&mut self, engine: &Engine) -> Qpn {
        loop {
            let number = Qpn::new((self.random)());
            // QP0 and QP1 are management's, the highest means multicast.
            let usable = (2..0xff_ffff).contains(&number.bits());
            if usable && !engine.qps.contains_key(&number.bits()) {
                return number;
            }
        }
    }

    fn check_qp(&self, engine: &Engine, config: &QpConfig) -> Result<(), RdmaError> {
        let (asked, most) = (&config.limits, &self.attributes.max_qp);
        limit("queue pairs", engine.qps.len() as u64 + 1, u64::from(self.attributes.max_qps))?;
        limit("send requests", asked.send_requests.into(), most.send_requests.into())?;
        limit("receive requests", asked.receive_requests.into(), most.receive_requests.into())?;
        limit("pieces of a send", asked.send_sges.into(), most.send_sges.into())?;
        limit("pieces of a receive", asked.receive_sges.into(), most.receive_sges.into())?;
        limit("inline bytes", asked.inline_bytes.into(), most.inline_bytes.into())?;
        for cq in [config.send_cq, config.receive_cq] {
            if !matches!(engine.world.cqs.get(cq.0 as usize), Some(Some(_))) {
                return Err(RdmaError::Unknown { what: "completion queue", number: cq.0 });
            }
        }
        match config.receives {
            Receives::Shared(srq) if !matches!(engine.world.srqs.get(srq.0 as usize), Some(Some(_))) => {
                Err(RdmaError::Unknown { what: "shared receive queue", number: srq.0 })
            }
            _ => Ok(()),
        }
    }
}

/// Puts `value` in the first free place.
fn insert<T>(places: &mut Vec<Option<T>>, value: T) -> u32 {
    let free = places.iter().position(Option::is_none);
    let index = free.unwrap_or_else(|| {
        places.push(None);
        places.len() - 1
    });
    places[index] = Some(value);
    index as u32
}

impl Device for RoceDevice {
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn port(&self) -> PortAttributes {
        let gids = lock(&self.engine).world.gids.clone();
        let state = if gids.is_empty() { PortState::Down } else { PortState::Active };
        let (mtu, speed_mbps) = (self.mtu, self.speed_mbps);
        PortAttributes { state, mtu, speed_mbps, gids, pkeys: vec![PKey::DEFAULT] }
    }

    fn health(&self) -> Health {
        Health::Running
    }

    fn allocate_pd(&mut self) -> Result<ProtectionDomain, RdmaError> {
        self.pds = self.pds.wrapping_add(1);
        Ok(ProtectionDomain::new(self.pds, Box::new(())))
    }

    fn register(
        &mut self,
        pd: &ProtectionDomain,
        memory: Shared,
        base: u64,
        access: Access,
    ) -> Result<MemoryRegion, RdmaError> {
        limit("memory regions", self.keys.len() as u64 + 1, self.attributes.max_regions.into())?;
        self.keys.register(pd, memory, base, access, &mut *self.random)
    }

    fn create_cq(&mut self, config: &CqConfig) -> Result<Box<dyn CompletionQueue>, RdmaError> {
        limit("vector", config.vector.into(), 0)?;
        limit("completions", config.entries.into(), self.attributes.max_cq_entries.into())?;
        let mut engine = lock(&self.engine);
        let capacity = config.entries.max(1) as usize;
        let number = CqNumber(insert(&mut engine.world.cqs, Cq::new(capacity, config.channel.clone())));
        Ok(Box::new(CqHandle::new(self.engine.clone(), number, capacity)))
    }

    fn create_srq(
        &mut self,
        pd: &ProtectionDomain,
        config: &SrqConfig,
    ) -> Result<Box<dyn SharedReceiveQueue>, RdmaError> {
        limit("vector", config.vector.into(), 0)?;
        limit("receive requests", config.requests.into(), self.attributes.max_srq_requests.into())?;
        limit("pieces of a receive", config.sges.into(), self.attributes.max_qp.receive_sges.into())?;
        let srq = Srq { pd: pd.clone(), queue: Default::default(), limit: 0 };
        let number = SrqNumber(insert(&mut lock(&self.engine).world.srqs, srq));
        Ok(Box::new(SrqHandle::new(self.engine.clone(), number, *config)))
    }

    fn create_qp(
        &mut self,
        pd: &ProtectionDomain,
        config: &QpConfig,
    ) -> Result<Box<dyn QueuePair>, RdmaError> {
        let shared = self.engine.clone();
        let mut engine = lock(&shared);
        self.check_qp(&engine, config)?;
        if let Receives::Shared(srq) = config.receives {
            let same = engine.world.srqs[srq.0 as usize].as_ref().is_some_and(|srq| srq.pd.is(pd));
            if !same {
                return Err(RdmaError::Unknown {
                    what: "shared receive queue of this domain",
                    number: srq.0,
                });
            }
        }
        let number = self.draw_qpn(&engine);
        let qp = Qp::new(number, pd.clone(), *config, self.mtu.bytes());
        engine.qps.insert(number.bits(), Box::new(qp));
        Ok(Box::new(QpHandle::new(self.engine.clone(), number, config, self.mac, self.mtu)))
    }

    fn create_ah(
        &mut self,
        pd: &ProtectionDomain,
        vector: &AddressVector,
    ) -> Result<AddressHandle, RdmaError> {
        let vlan = source_vlan(&lock(&self.engine), vector)?;
        let path = Path::new(vector, self.mac, vlan, (self.random)());
        Ok(AddressHandle::new(pd.clone(), *vector, Box::new(path)))
    }

    fn events(&mut self, events: &mut Fifo<AsyncEvent>) -> usize {
        let mut engine = lock(&self.engine);
        let _ = engine.world.event_fd.as_ref().map(|fd| fd.drain());
        let count = engine.world.events.len().min(events.room());
        for event in engine.world.events.drain(..count) {
            let pushed = events.push(event);
            debug_assert!(pushed.is_ok(), "bounded by the room");
        }
        count
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.event_fd.as_ref().map(|fd| fd.as_fd())
    }
}

/// The VLAN of a vector's source address.
pub(super) fn source_vlan(engine: &Engine, vector: &AddressVector) -> Result<Option<u16>, RdmaError> {
    let (to, from) = (IpAddr::from(vector.destination), IpAddr::from(vector.source));
    let refuse = |reason| Err(RdmaError::Address { to, from, reason });
    if to.is_ipv4() != from.is_ipv4() {
        return refuse("one is IPv4, the other IPv6; use two of one family");
    }
    if to.is_multicast() || to.is_unspecified() {
        return refuse("not the address of one peer; give one");
    }
    let entry = engine.world.gids.iter().find(|entry| entry.gid == vector.source);
    match entry {
        Some(entry) => Ok(entry.vlan),
        None => refuse("the source is not an address of the port; choose one of its GIDs"),
    }
}
