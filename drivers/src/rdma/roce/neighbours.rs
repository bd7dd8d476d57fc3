//! Who has which MAC address: ARP for IPv4, neighbour discovery for IPv6, both ways, in smoltcp's formats.
//!
//! Questions about the port's own addresses are answered, whoever asks. Answers are believed only when they were asked for, so a
//! stranger cannot move a peer that is known. A neighbour that does not answer is asked again a few times, then called
//! unreachable until the next attempt.

use super::wire::network::link;
use pollring::port::MacAddress;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetProtocol, IpProtocol};
use smoltcp::wire::{Icmpv6Packet, Icmpv6Repr, Ipv6Packet, Ipv6Repr, NdiscNeighborFlags, NdiscRepr};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Time between two questions to the same neighbour.
const ASK_AGAIN_NS: u64 = 250_000_000;

/// Questions before a neighbour is called unreachable.
const QUESTIONS: u8 = 6;

/// Neighbours that are remembered at most.
const ENTRIES: usize = 65_536;

/// Frames that wait to be sent at most; a flood of questions is not answered beyond.
const WAITING: usize = 256;

struct Entry {
    mac: Option<MacAddress>,
    source: IpAddr,
    vlan: Option<u16>,
    asked_ns: u64,
    questions: u8,
}

/// What is known about a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Its address.
    At(MacAddress),
    /// It was asked.
    Asked,
    /// It does not answer.
    Silent,
}

/// See the file's head.
pub(crate) struct Neighbours {
    own: MacAddress,
    entries: HashMap<IpAddr, Entry>,
    /// The last one looked up.
    last: Option<(IpAddr, MacAddress)>,
    /// Those that were asked and have not answered.
    asked: Vec<IpAddr>,
    frames: VecDeque<Vec<u8>>,
    changed: bool,
}

impl Neighbours {
    pub(crate) fn new(own: MacAddress) -> Neighbours {
        let (asked, frames) = (Vec::new(), VecDeque::new());
        Neighbours { own, entries: HashMap::new(), last: None, asked, frames, changed: false }
    }

    /// The neighbour `to`, which is asked from `source` if it is not known.
    #[inline]
    pub(crate) fn look_up(&mut self, to: IpAddr, source: IpAddr, vlan: Option<u16>, now_ns: u64) -> Known {
        if let Some((_, mac)) = self.last.filter(|(address, _)| *address == to) {
            return Known::At(mac);
        }
        self.look_deeper(to, source, vlan, now_ns)
    }

    fn look_deeper(&mut self, to: IpAddr, source: IpAddr, vlan: Option<u16>, now_ns: u64) -> Known {
        let full = self.entries.len() >= ENTRIES;
        match self.entries.get_mut(&to) {
            Some(Entry { mac: Some(mac), .. }) => {
                self.last = Some((to, *mac));
                return Known::At(*mac);
            }
            Some(entry) if entry.questions < QUESTIONS => return Known::Asked,
            Some(entry) if now_ns < entry.asked_ns + ASK_AGAIN_NS => return Known::Silent,
            Some(_) => {}
            None if full => return Known::Silent,
            None => {}
        }
        self.entries.insert(to, Entry { mac: None, source, vlan, asked_ns: now_ns, questions: 1 });
        self.asked.retain(|address| *address != to);
        self.asked.push(to);
        self.ask(to, source, vlan);
        Known::Asked
    }

    /// Asks those again that were asked long ago.
    pub(crate) fn expire(&mut self, now_ns: u64) {
        if self.asked.is_empty() {
            return;
        }
        for to in std::mem::take(&mut self.asked) {
            let Some(entry) = self.entries.get_mut(&to).filter(|entry| entry.mac.is_none()) else { continue };
            if now_ns < entry.asked_ns + ASK_AGAIN_NS {
                self.asked.push(to);
                continue;
            }
            (entry.asked_ns, entry.questions) = (now_ns, entry.questions + 1);
            let (source, vlan) = (entry.source, entry.vlan);
            if entry.questions < QUESTIONS {
                self.asked.push(to);
                self.ask(to, source, vlan);
            } else {
                self.changed = true;
            }
        }
    }

    /// When [`expire`](Neighbours::expire) has something to do at the earliest.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let asked = self.asked.iter().filter_map(|to| self.entries.get(to));
        asked.map(|entry| entry.asked_ns + ASK_AGAIN_NS).min()
    }

    /// Whether somebody answered, or was given up, since the last call.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// The next frame to send.
    pub(crate) fn next_frame(&mut self) -> Option<Vec<u8>> {
        self.frames.pop_front()
    }

    pub(crate) fn has_frames(&self) -> bool {
        !self.frames.is_empty()
    }

    fn learn(&mut self, from: IpAddr, mac: EthernetAddress) {
        let mac = MacAddress(mac.0);
        let Some(entry) = self.entries.get_mut(&from).filter(|_| mac.is_unicast()) else { return };
        if entry.mac.is_none() {
            entry.mac = Some(mac);
            self.changed = true;
        }
    }

    fn queue(&mut self, frame: Vec<u8>) {
        if self.frames.len() < WAITING {
            self.frames.push_back(frame);
        }
    }

    fn ask(&mut self, to: IpAddr, source: IpAddr, vlan: Option<u16>) {
        match (to, source) {
            (IpAddr::V4(to), IpAddr::V4(source)) => {
                let other = (EthernetAddress([0; 6]), to);
                self.send_arp(ArpOperation::Request, source, other, EthernetAddress::BROADCAST, vlan);
            }
            (IpAddr::V6(to), IpAddr::V6(source)) => {
                let lladdr = Some(EthernetAddress(self.own.0).into());
                let question = NdiscRepr::NeighborSolicit { target_addr: to, lladdr };
                let [.., a, b, c] = to.octets();
                let group =
                    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
                let mac = EthernetAddress([0x33, 0x33, 0xff, a, b, c]);
                self.send_icmp(question, source, group, mac, vlan);
            }
            _ => {}
        }
    }

    /// Looks at an ARP packet; whether it was for `is_own` addresses, and so is done with.
    pub(crate) fn arp(&mut self, packet: &[u8], vlan: Option<u16>, is_own: impl Fn(IpAddr) -> bool) -> bool {
        let parsed = ArpPacket::new_checked(packet).and_then(|packet| ArpRepr::parse(&packet));
        let Ok(ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr,
            source_protocol_addr,
            target_protocol_addr,
            ..
        }) = parsed
        else {
            return false;
        };
        if !is_own(target_protocol_addr.into()) {
            return false;
        }
        match operation {
            ArpOperation::Request => {
                let other = (source_hardware_addr, source_protocol_addr);
                self.send_arp(ArpOperation::Reply, target_protocol_addr, other, source_hardware_addr, vlan);
            }
            ArpOperation::Reply => self.learn(source_protocol_addr.into(), source_hardware_addr),
            ArpOperation::Unknown(_) => return false,
        }
        true
    }

    /// Looks at an ICMPv6 packet; whether it was a question for or an answer to `is_own` addresses, and so is done with.
    pub(crate) fn icmp(&mut self, packet: &[u8], vlan: Option<u16>, is_own: impl Fn(IpAddr) -> bool) -> bool {
        let Ok(ip) = Ipv6Packet::new_checked(packet) else { return false };
        if ip.hop_limit() != 255 {
            return false;
        }
        let (source, destination) = (ip.src_addr(), ip.dst_addr());
        let checksums = ChecksumCapabilities::default();
        let Ok(icmp) = Icmpv6Packet::new_checked(ip.payload()) else { return false };
        match Icmpv6Repr::parse(&source, &destination, &icmp, &checksums) {
            Ok(Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr, lladdr }))
                if is_own(target_addr.into()) =>
            {
                let asker = lladdr.and_then(|address| <[u8; 6]>::try_from(address.as_bytes()).ok());
                let Some(asker) = asker.map(EthernetAddress) else { return true };
                let flags = NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE;
                let lladdr = Some(EthernetAddress(self.own.0).into());
                let answer = NdiscRepr::NeighborAdvert { flags, target_addr, lladdr };
                self.send_icmp(answer, target_addr, source, asker, vlan);
                true
            }
            Ok(Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert {
                target_addr, lladdr: Some(address), ..
            })) if is_own(destination.into()) => {
                let address = <[u8; 6]>::try_from(address.as_bytes()).map(EthernetAddress);
                address.into_iter().for_each(|address| self.learn(target_addr.into(), address));
                true
            }
            _ => false,
        }
    }

    fn send_arp(
        &mut self,
        operation: ArpOperation,
        source: Ipv4Addr,
        other: (EthernetAddress, Ipv4Addr),
        to: EthernetAddress,
        vlan: Option<u16>,
    ) {
        let arp = ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr: EthernetAddress(self.own.0),
            source_protocol_addr: source,
            target_hardware_addr: other.0,
            target_protocol_addr: other.1,
        };
        let mut frame = vec![0; 60];
        let start = link(&mut frame, self.own, vlan.map(|id| (id, 0)), EthernetProtocol::Arp);
        frame[..6].copy_from_slice(to.as_bytes());
        arp.emit(&mut ArpPacket::new_unchecked(&mut frame[start..]));
        self.queue(frame);
    }

    fn send_icmp(
        &mut self,
        message: NdiscRepr<'_>,
        source: Ipv6Addr,
        destination: Ipv6Addr,
        to: EthernetAddress,
        vlan: Option<u16>,
    ) {
        let message = Icmpv6Repr::Ndisc(message);
        let ip = Ipv6Repr {
            src_addr: source,
            dst_addr: destination,
            next_header: IpProtocol::Icmpv6,
            payload_len: message.buffer_len(),
            hop_limit: 255,
        };
        let mut frame = vec![0; 18 + ip.buffer_len() + message.buffer_len()];
        let start = link(&mut frame, self.own, vlan.map(|id| (id, 0)), EthernetProtocol::Ipv6);
        frame[..6].copy_from_slice(to.as_bytes());
        let end = start + ip.buffer_len() + message.buffer_len();
        frame.truncate(end);
        ip.emit(&mut Ipv6Packet::new_unchecked(&mut frame[start..]));
        let mut icmp = Icmpv6Packet::new_unchecked(&mut frame[start + ip.buffer_len()..]);
        message.emit(&source, &destination, &mut icmp, &ChecksumCapabilities::default());
        self.queue(frame);
    }
}
