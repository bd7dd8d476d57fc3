//! Two nodes in virtual time, the wire between them, and short words for common requests.

use pollring::buffer::Shared;
use pollring::copy::Fifo;
use pollring::hugepages::{Region, RegionConfig};
use pollring::port::MacAddress;
use pollring::rdma::*;
use pollring_drivers::rdma::roce::{FrameSink, Peers, RoceConfig, RoceDevice, Stack};
use pollring_tests::{Random, small_pages};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Time on the wire.
const LATENCY_NS: u64 = 2_000;

/// Rates in parts per million.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub loss: u32,
    pub duplicate: u32,
    pub reorder: u32,
    pub corrupt: u32,
}

/// What is on its way, by time and number.
pub struct Wire {
    pub faults: Faults,
    random: Random,
    frames: BTreeMap<(u64, u64), (usize, Vec<u8>)>,
    number: u64,
    /// Every frame that was sent, if asked for.
    pub capture: Option<Vec<Vec<u8>>>,
    pub sent: u64,
}

impl Wire {
    fn hits(&mut self, rate: u32) -> bool {
        rate > 0 && self.random.within(0, 999_999) < rate as usize
    }

    /// A frame for node `to` enters the wire.
    pub fn send(&mut self, to: usize, mut frame: Vec<u8>, now_ns: u64) {
        self.sent += 1;
        if let Some(capture) = &mut self.capture {
            capture.push(frame.clone());
        }
        if self.hits(self.faults.loss) {
            return;
        }
        if self.hits(self.faults.duplicate) {
            let late = self.random.within(0, 20_000) as u64;
            self.enqueue(to, frame.clone(), now_ns + LATENCY_NS + late);
        }
        if self.hits(self.faults.corrupt) {
            let at = self.random.within(14, frame.len() - 1);
            frame[at] ^= 1 << self.random.within(0, 7);
        }
        let late = if self.hits(self.faults.reorder) { self.random.within(1, 20_000) as u64 } else { 0 };
        self.enqueue(to, frame, now_ns + LATENCY_NS + late);
    }

    fn enqueue(&mut self, to: usize, frame: Vec<u8>, at_ns: u64) {
        self.number += 1;
        self.frames.insert((at_ns, self.number), (to, frame));
    }
}

struct Collect<'a> {
    frames: &'a mut Vec<Vec<u8>>,
}

impl FrameSink for Collect<'_> {
    fn has_room(&self) -> bool {
        self.frames.len() < 64
    }

    fn push(&mut self, bytes: usize, fill: &mut dyn FnMut(&mut [u8])) {
        let mut frame = vec![0xee; bytes];
        fill(&mut frame);
        self.frames.push(frame);
    }
}

/// One side.
pub struct Node {
    pub device: RoceDevice,
    pub stack: Stack,
    pub pd: ProtectionDomain,
    pub cq: Box<dyn CompletionQueue>,
    pub address: IpAddr,
}

/// How nodes are made.
#[derive(Clone)]
pub struct Shape {
    pub addresses: [IpAddr; 2],
    pub vlan: Option<u16>,
    pub port_mtu: u16,
    pub peers: Peers,
}

impl Default for Shape {
    fn default() -> Shape {
        let addresses = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        Shape { addresses, vlan: None, port_mtu: 9000, peers: Peers::Any }
    }
}

pub fn mac(side: usize) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, side as u8 + 1])
}

/// Both sides and the wire.
pub struct Net {
    pub nodes: [Node; 2],
    pub wire: Wire,
    pub now_ns: u64,
}

/// How queue pairs are made and connected.
#[derive(Clone, Copy)]
pub struct Link {
    pub kind: QpType,
    pub mtu: Mtu,
    pub retry: Retry,
    pub depth: u8,
    pub access: Access,
    pub first_psn: u32,
    pub min_rnr: Duration,
    pub receives: [Receives; 2],
}

impl Link {
    pub fn new(kind: QpType) -> Link {
        Link {
            kind,
            mtu: Mtu::Bytes1024,
            retry: Retry {
                ack_timeout: Duration::from_micros(500),
                retries: Attempts::UntilDead,
                rnr_retries: Attempts::UntilDead,
                dead_after: Duration::from_secs(10),
            },
            depth: 16,
            access: Access::all(),
            first_psn: 0xff_fff0,
            min_rnr: Duration::from_micros(10),
            receives: [Receives::Own; 2],
        }
    }
}

pub const LIMITS: QpLimits =
    QpLimits { send_requests: 256, receive_requests: 256, send_sges: 8, receive_sges: 8, inline_bytes: 64 };

pub type Pair = [Box<dyn QueuePair>; 2];

impl Net {
    pub fn new(seed: u64, faults: Faults) -> Net {
        Net::with(seed, faults, &Shape::default())
    }

    pub fn with(seed: u64, faults: Faults, shape: &Shape) -> Net {
        let node = |side: usize| {
            let mut random = Random(seed ^ (side as u64 + 1) << 32);
            let mut config = RoceConfig::new("virtual", mac(side), shape.addresses[side]);
            config.addresses[0].1 = shape.vlan;
            (config.port_mtu, config.peers) = (shape.port_mtu, shape.peers.clone());
            config.random = Box::new(move || random.word() as u32);
            let (mut device, stack) = RoceDevice::new(config).unwrap();
            let pd = device.allocate_pd().unwrap();
            let cq = device.create_cq(&CqConfig { entries: 65_536, vector: 0, channel: None }).unwrap();
            Node { device, stack, pd, cq, address: shape.addresses[side] }
        };
        let wire =
            Wire { faults, random: Random(seed), frames: BTreeMap::new(), number: 0, capture: None, sent: 0 };
        Net { nodes: [node(0), node(1)], wire, now_ns: 1_000 }
    }

    pub fn vector(&self, side: usize) -> AddressVector {
        AddressVector {
            destination: self.nodes[1 - side].address.into(),
            source: self.nodes[side].address.into(),
            flow_label: 0,
            hop_limit: 64,
            traffic_class: 0,
            service_level: 0,
        }
    }

    pub fn qp(&mut self, side: usize, kind: QpType, receives: Receives) -> Box<dyn QueuePair> {
        let node = &mut self.nodes[side];
        let cq = node.cq.number();
        let signalling = Signalling::OnRequest;
        let limits = LIMITS;
        let config = QpConfig { kind, send_cq: cq, receive_cq: cq, receives, limits, signalling };
        node.device.create_qp(&node.pd, &config).unwrap()
    }

    /// Two queue pairs in RTS, connected to each other.
    pub fn connect(&mut self, link: &Link) -> Pair {
        let mut pair = [0, 1].map(|side| self.qp(side, link.kind, link.receives[side]));
        let numbers = [pair[0].number(), pair[1].number()];
        for (side, qp) in pair.iter_mut().enumerate() {
            for step in self.steps(side, numbers[1 - side], link) {
                qp.modify(step).unwrap();
            }
        }
        pair
    }

    /// What brings a queue pair of `side` to RTS.
    pub fn steps(&self, side: usize, destination: Qpn, link: &Link) -> [Modify; 3] {
        let psn = |side: usize| Psn::new(link.first_psn + side as u32 * 1000);
        let (address, mtu) = (self.vector(side), link.mtu);
        let connection = Connection { destination, address, mtu, receive_psn: psn(1 - side) };
        let (send_psn, retry) = (psn(side), link.retry);
        let (receive, send) = match link.kind {
            QpType::Rc => (
                ReadyToReceive::Reliable {
                    connection,
                    responder_resources: link.depth,
                    min_rnr: link.min_rnr,
                },
                ReadyToSend::Reliable { send_psn, initiator_depth: link.depth, retry },
            ),
            QpType::Uc => (ReadyToReceive::Unreliable { connection }, ReadyToSend::Unreliable { send_psn }),
            QpType::Ud => (ReadyToReceive::Datagram, ReadyToSend::Datagram { send_psn }),
        };
        let init = match link.kind {
            QpType::Ud => Init::Datagram { pkey_index: 0, q_key: QKey(0x1234) },
            _ => Init::Connected { pkey_index: 0, access: link.access },
        };
        [Modify::Init(init), Modify::ReadyToReceive(receive), Modify::ReadyToSend(send)]
    }

    pub fn memory(&mut self, side: usize, bytes: usize) -> MemoryRegion {
        self.memory_with(side, bytes, Access::all())
    }

    pub fn memory_with(&mut self, side: usize, bytes: usize, access: Access) -> MemoryRegion {
        let base = 0x1000_0000 * (side as u64 + 1);
        let memory = shared(bytes);
        let node = &mut self.nodes[side];
        node.device.register(&node.pd, memory, base, access).unwrap()
    }

    /// Sends what is due, delivers what arrived, and moves time on if there was neither. False when nothing will happen any
    /// more.
    pub fn step(&mut self) -> bool {
        let mut moved = false;
        for side in 0..2 {
            let mut frames = Vec::new();
            self.nodes[side].stack.transmit(self.now_ns, 64, &mut Collect { frames: &mut frames });
            for frame in frames {
                moved = true;
                self.wire.send(1 - side, frame, self.now_ns);
            }
        }
        while let Some(entry) = self.wire.frames.first_entry() {
            if entry.key().0 > self.now_ns {
                break;
            }
            let (to, frame) = entry.remove();
            self.nodes[to].stack.receive(self.now_ns, &frame);
            moved = true;
        }
        if moved {
            return true;
        }
        let wire = self.wire.frames.keys().next().map(|(at_ns, _)| *at_ns);
        let due = self.nodes.iter().filter_map(|node| node.stack.due_ns());
        let Some(next) = due.chain(wire).min() else { return false };
        let stuck = next <= self.now_ns;
        self.now_ns = if stuck { self.now_ns + 1 } else { next };
        true
    }

    /// Steps until `done`, or until nothing happens any more; whether it was done.
    pub fn run(&mut self, mut done: impl FnMut(&mut Net) -> bool) -> bool {
        for _ in 0..200_000_000u64 {
            if done(self) {
                return true;
            }
            if !self.step() {
                return done(self);
            }
        }
        panic!("no end in sight");
    }

    /// Runs until nothing happens any more.
    pub fn settle(&mut self) {
        self.run(|_| false);
    }

    pub fn poll(&mut self, side: usize) -> Vec<Completion> {
        let mut completions = Fifo::new(1024);
        let mut all = Vec::new();
        while self.nodes[side].cq.poll(&mut completions) > 0 {
            all.extend(completions.drain());
        }
        all
    }

    /// Runs until `side` has `count` completions.
    pub fn completions(&mut self, side: usize, count: usize) -> Vec<Completion> {
        let mut all = Vec::new();
        self.run(|net| {
            all.extend(net.poll(side));
            all.len() >= count
        });
        assert_eq!(all.len(), count, "completions of side {side}: {all:?}");
        all
    }
}

/// Memory of no device.
pub fn shared(bytes: usize) -> Shared {
    let config = RegionConfig { name: "rdma test".into(), bytes, pages: small_pages(), node: None };
    Shared::local(Arc::new(Region::allocate(&config).unwrap()))
}

pub fn sge(region: &MemoryRegion, offset: usize, bytes: usize) -> Sge {
    Sge { region: region.clone(), offset, bytes: bytes as u32 }
}

pub fn gather(region: &MemoryRegion, offset: usize, bytes: usize) -> Payload {
    Payload::Gather(sge(region, offset, bytes).into())
}

pub fn remote(region: &MemoryRegion, offset: usize) -> Remote {
    Remote { address: region.base() + offset as u64, rkey: region.rkey() }
}

pub fn send(payload: Payload) -> SendOperation {
    SendOperation::Send { payload, attached: Attached::Nothing }
}

pub fn write(payload: Payload, to: Remote) -> SendOperation {
    SendOperation::Write { payload, remote: to, immediate: None }
}

/// Posts one signalled request.
pub fn post(qp: &mut dyn QueuePair, id: u64, operation: SendOperation) {
    post_with(qp, id, operation, SendFlags::SIGNALLED);
}

pub fn post_with(qp: &mut dyn QueuePair, id: u64, operation: SendOperation, flags: SendFlags) {
    assert_eq!(try_post(qp, id, operation, flags), Ok(1), "no room for request {id}");
}

pub fn try_post(
    qp: &mut dyn QueuePair,
    id: u64,
    operation: SendOperation,
    flags: SendFlags,
) -> Result<usize, Refused> {
    let mut batch = Fifo::new(1);
    assert!(batch.push(SendRequest { id, operation, flags }).is_ok());
    let taken = qp.post_send(&mut batch);
    qp.flush();
    taken
}

pub fn receive(qp: &mut dyn QueuePair, id: u64, into: impl Into<SgeList>) {
    let mut batch = Fifo::new(1);
    assert!(batch.push(ReceiveRequest { id, into: into.into() }).is_ok());
    assert_eq!(qp.post_receive(&mut batch), Ok(1));
    qp.flush();
}

pub fn fill(region: &MemoryRegion, seed: u64) {
    let mut random = Random(seed);
    let bytes: Vec<u8> =
        (0..region.memory().bytes().div_ceil(8)).flat_map(|_| random.word().to_le_bytes()).collect();
    region.memory().copy_in(0, &bytes[..region.memory().bytes()]).unwrap();
}

pub fn read(region: &MemoryRegion, offset: usize, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    region.memory().copy_out(offset, &mut out).unwrap();
    out
}

pub fn ok(completions: &[Completion], ids: impl IntoIterator<Item = u64>) {
    let ids: Vec<u64> = ids.into_iter().collect();
    assert_eq!(completions.iter().map(|completion| completion.id).collect::<Vec<_>>(), ids);
    for completion in completions {
        assert_eq!(completion.status, Status::Success, "request {}", completion.id);
    }
}
