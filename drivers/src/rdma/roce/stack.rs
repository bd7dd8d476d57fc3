//! Frames in and frames out, without a port: the engine with the network around it. Sans-IO: time is an argument, and frames go
//! to a [`FrameSink`].
//!
//! [`Stack::receive`] takes a frame if it is RoCEv2, ARP or neighbour discovery for this port, and says so if it is not.
//! [`Stack::transmit`] sends what is due. A packet to an address of the port itself comes back in here and never reaches a
//! port. One `Stack` and one [`RoceDevice`](super::RoceDevice) share one engine, whose lock only set-up contends for.

use super::counters::{Counters, DropReason};
use super::engine::Engine;
use super::memory::Gather;
use super::neighbours::{Known, Neighbours};
use super::wire::network::{self, Arrival, Classified, Path};
use super::wire::{Headers, ICRC_BYTES, Packet, icrc};
use super::world::{Output, Readiness};
use pollring::port::MacAddress;
use pollring::rdma::Gid;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Payloads from this size on are gathered where they lie, if the port can; smaller ones are cheaper to copy.
const GATHER_BYTES: usize = 512;

/// Packets to itself that wait at most.
const LOOPBACK: usize = 64;

/// Whose a frame was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is done with.
    Taken,
    /// The app's.
    Foreign,
}

/// Which peers may talk to this port at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peers {
    /// Everybody; connected queue pairs still hear only their own peer.
    Any,
    /// These.
    Only(Vec<IpAddr>),
}

/// Where frames go.
pub trait FrameSink {
    /// Whether one more frame is taken now.
    fn has_room(&self) -> bool;
    /// Takes a frame of `bytes`, which `fill` writes. Called only when there is room.
    fn push(&mut self, bytes: usize, fill: &mut dyn FnMut(&mut [u8]));
    /// Whether [`push_gathered`](FrameSink::push_gathered) works.
    fn gathers(&self) -> bool {
        false
    }
    /// Takes a frame of header, payload where it lies, and trailer. False, and nothing done, when a piece is out of a device's reach.
    fn push_gathered(&mut self, header: &[u8], payload: Gather<'_>, trailer: &[u8]) -> bool {
        let _ = (header, payload, trailer);
        false
    }
}

/// See the file's head.
pub struct Stack {
    engine: Arc<Mutex<Engine>>,
    own: MacAddress,
    peers: Peers,
    neighbours: Neighbours,
    loopback: VecDeque<Vec<u8>>,
}

pub(super) fn lock(engine: &Mutex<Engine>) -> MutexGuard<'_, Engine> {
    engine.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_own(engine: &Engine, address: IpAddr) -> bool {
    let gid = Gid::from(address);
    engine.world.gids.iter().any(|entry| entry.gid == gid)
}

impl Stack {
    pub(super) fn new(engine: Arc<Mutex<Engine>>, own: MacAddress, peers: Peers) -> Stack {
        Stack { engine, own, peers, neighbours: Neighbours::new(own), loopback: VecDeque::new() }
    }

    /// Looks at a frame that came in at `now_ns`.
    pub fn receive(&mut self, now_ns: u64, frame: &[u8]) -> Verdict {
        self.receive_all(now_ns, std::iter::once(frame), |_, _| {})
    }

    /// Looks at several frames under one lock; tells each one's verdict by its number, and gives the last.
    pub(super) fn receive_all<'a>(
        &mut self,
        now_ns: u64,
        frames: impl Iterator<Item = &'a [u8]>,
        mut tell: impl FnMut(usize, Verdict),
    ) -> Verdict {
        let shared = self.engine.clone();
        let mut engine = lock(&shared);
        engine.world.now_ns = now_ns;
        let mut last = Verdict::Foreign;
        for (number, frame) in frames.enumerate() {
            last = self.take(&mut engine, frame);
            tell(number, last);
        }
        if self.neighbours.take_changed() {
            engine.unpark();
        }
        last
    }

    fn take(&mut self, engine: &mut Engine, frame: &[u8]) -> Verdict {
        let own = |address| is_own(engine, address);
        let taken = match network::classify(frame, self.own) {
            Ok(Classified::Foreign) => false,
            Ok(Classified::Arp(vlan, packet)) => self.neighbours.arp(packet, vlan, own),
            Ok(Classified::Icmp6(vlan, packet)) => self.neighbours.icmp(packet, vlan, own),
            Ok(Classified::Roce(arrival, packet, ip_bytes)) => {
                if let Err(reason) = self.deliver(engine, &arrival, packet, ip_bytes) {
                    engine.world.counters.drop(reason);
                }
                true
            }
            Err(reason) => {
                engine.world.counters.drop(reason);
                true
            }
        };
        if taken { Verdict::Taken } else { Verdict::Foreign }
    }

    #[inline]
    fn deliver(
        &self,
        engine: &mut Engine,
        arrival: &Arrival,
        packet: &[u8],
        ip_bytes: usize,
    ) -> Result<(), DropReason> {
        if !is_own(engine, arrival.destination) {
            return Err(DropReason::NotOurs);
        }
        if let Peers::Only(list) = &self.peers
            && !list.contains(&arrival.source)
        {
            return Err(DropReason::NotAllowed);
        }
        if let Err(mismatch) = Packet::verify(packet, ip_bytes) {
            engine.world.counters.last_icrc = mismatch.or(engine.world.counters.last_icrc);
            return Err(if mismatch.is_some() { DropReason::Icrc } else { DropReason::Truncated });
        }
        let parsed = Packet::parse(&packet[ip_bytes + 8..])?;
        engine.receive(arrival, &parsed);
        Ok(())
    }

    /// Does what is due at `now_ns` and sends up to `budget` packets; gives how many frames went out.
    pub fn transmit(&mut self, now_ns: u64, budget: usize, sink: &mut dyn FrameSink) -> usize {
        let shared = self.engine.clone();
        let mut engine = lock(&shared);
        engine.world.now_ns = now_ns;
        engine.expire();
        self.neighbours.expire(now_ns);
        if self.neighbours.take_changed() {
            engine.unpark();
        }
        let questions = self.send_questions(sink);
        let gids: Vec<Gid> = engine.world.gids.iter().map(|entry| entry.gid).collect();
        let mut builder = Builder {
            own: self.own,
            gids,
            neighbours: &mut self.neighbours,
            loopback: &mut self.loopback,
            sink,
            now_ns,
        };
        let mut sent = engine.transmit(budget, &mut builder);
        while let Some(frame) = self.loopback.pop_front() {
            self.take(&mut engine, &frame);
        }
        sent += self.send_questions(sink);
        questions + sent
    }

    fn send_questions(&mut self, sink: &mut dyn FrameSink) -> usize {
        let mut sent = 0;
        while sink.has_room() {
            let Some(frame) = self.neighbours.next_frame() else { break };
            sink.push(frame.len(), &mut |out| out.copy_from_slice(&frame));
            sent += 1;
        }
        sent
    }

    /// When [`transmit`](Stack::transmit) is due next, in nanoseconds; `None` when nothing is.
    pub fn due_ns(&self) -> Option<u64> {
        let engine = lock(&self.engine);
        if engine.wants_to_send() || self.neighbours.has_frames() {
            return Some(engine.world.now_ns);
        }
        let due = [engine.due_ns(), self.neighbours.due_ns()];
        due.into_iter().flatten().min()
    }
}

/// Builds frames for the engine.
struct Builder<'a> {
    own: MacAddress,
    gids: Vec<Gid>,
    neighbours: &'a mut Neighbours,
    loopback: &'a mut VecDeque<Vec<u8>>,
    sink: &'a mut dyn FrameSink,
    now_ns: u64,
}

impl Builder<'_> {
    fn is_loopback(&self, path: &Path) -> bool {
        path.destination == path.source || self.gids.contains(&Gid::from(path.destination))
    }
}

impl Output for Builder<'_> {
    fn readiness(&mut self, path: &Path) -> Readiness {
        if self.is_loopback(path) {
            return if self.loopback.len() < LOOPBACK { Readiness::Ready } else { Readiness::Full };
        }
        if !self.sink.has_room() {
            return Readiness::Full;
        }
        match self.neighbours.look_up(path.destination, path.source, path.vlan, self.now_ns) {
            Known::At(_) => Readiness::Ready,
            Known::Asked => Readiness::Resolving,
            Known::Silent => Readiness::Unreachable,
        }
    }

    fn send(&mut self, path: &Path, headers: &Headers, payload: Gather<'_>, counters: &mut Counters) {
        counters.sent += 1;
        if self.is_loopback(path) {
            let mut frame = vec![0; frame_bytes(path, headers, payload)];
            fill(path, self.own, headers, payload, &mut frame);
            counters.copied_out_bytes += payload.len() as u64;
            self.loopback.push_back(frame);
            return;
        }
        let known = self.neighbours.look_up(path.destination, path.source, path.vlan, self.now_ns);
        let Known::At(mac) = known else { return };
        if payload.len() >= GATHER_BYTES && self.sink.gathers() && self.gather(path, mac, headers, payload) {
            counters.gathered_bytes += payload.len() as u64;
            return;
        }
        counters.copied_out_bytes += payload.len() as u64;
        let bytes = frame_bytes(path, headers, payload);
        self.sink.push(bytes, &mut |out| fill(path, mac, headers, payload, out));
    }
}

impl Builder<'_> {
    /// Sends the payload from where it lies; the CPU still reads it once, for the CRC.
    fn gather(&mut self, path: &Path, mac: MacAddress, headers: &Headers, payload: Gather<'_>) -> bool {
        let (start, transport) = (path.bytes(), headers.as_slice());
        let mut header = [0; network::MAX_BYTES + Headers::MAX_BYTES];
        let header = &mut header[..start + transport.len()];
        path.write(mac, transport.len() + payload.len() + payload.pad() + ICRC_BYTES, header);
        header[start..].copy_from_slice(transport);
        let masked = path.ip_bytes() + 8 + 12;
        let mut crc = icrc::start(&header[path.link_bytes()..], path.ip_bytes());
        crc.update(&header[path.link_bytes() + masked..]);
        payload.for_each_block(|block| crc.update(block));
        let mut trailer = [0; 3 + ICRC_BYTES];
        crc.update(&trailer[..payload.pad()]);
        let trailer = &mut trailer[..payload.pad() + ICRC_BYTES];
        trailer[payload.pad()..].copy_from_slice(&crc.finalize().to_le_bytes());
        self.sink.push_gathered(header, payload, trailer)
    }
}

fn frame_bytes(path: &Path, headers: &Headers, payload: Gather<'_>) -> usize {
    path.bytes() + headers.as_slice().len() + payload.len() + payload.pad() + ICRC_BYTES
}

/// Writes a whole frame.
fn fill(path: &Path, mac: MacAddress, headers: &Headers, payload: Gather<'_>, out: &mut [u8]) {
    let (start, transport) = (path.bytes(), headers.as_slice());
    path.write(mac, out.len() - start, out);
    let data = start + transport.len();
    out[start..data].copy_from_slice(transport);
    let end = data + payload.len();
    payload.copy_to(&mut out[data..end]);
    out[end..].fill(0);
    let (crc_at, link) = (out.len() - ICRC_BYTES, path.link_bytes());
    let crc = icrc::of_packet(&out[link..crc_at], path.ip_bytes());
    out[crc_at..].copy_from_slice(&crc.to_le_bytes());
}
