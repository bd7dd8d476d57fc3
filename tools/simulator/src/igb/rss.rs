//! Receive-side scaling: which hash the registers ask for, and where it leads (82576 datasheet 7.1.1.7).
//!
//! A frame's hash covers addresses and ports when MRQC asks for its kind, addresses alone when MRQC asks for that, nothing otherwise.
//! IPv6 with extension headers is hashed over addresses alone.

use super::registers::RegisterWords;
use crate::rss::{Input, Transport, toeplitz};
use pollring_drivers::nic::igb::regs::*;

/// Packet type in bits 16:4 of word 0 of the write-back (7.1.5.2).
mod packet_type {
    pub(super) const IPV4: u64 = 1 << 4;
    pub(super) const IPV6: u64 = 1 << 6;
    pub(super) const TCP: u64 = 1 << 8;
    pub(super) const UDP: u64 = 1 << 9;
}

/// RSS type in bits 3:0 of word 0 of the write-back (7.1.5.2).
mod rss_type {
    pub(super) const TCP_IPV4: u64 = 1;
    pub(super) const IPV4: u64 = 2;
    pub(super) const TCP_IPV6: u64 = 3;
    pub(super) const IPV6: u64 = 5;
    pub(super) const UDP_IPV4: u64 = 7;
    pub(super) const UDP_IPV6: u64 = 8;
}

/// Where a frame goes, and word 0 of its write-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Steering {
    pub queue: usize,
    pub info: u64,
    /// More bits for word 1 of the last descriptor.
    pub status: u64,
}

impl Steering {
    fn to(queue: usize, info: u64) -> Steering {
        Steering { queue, info, status: 0 }
    }
}

/// Chooses the queue of `frame`.
pub(super) fn steer(registers: &RegisterWords, frame: &[u8]) -> Steering {
    let Some(input) = Input::of(frame) else { return Steering::to(0, 0) };
    let (control, kind) = (registers[MRQC.at(0)], kind(&input));
    if control & 7 != mrqc::RSS {
        return Steering::to(0, kind);
    }
    let Some((bytes, rss_type)) = covered(control, &input) else {
        return Steering::to(0, kind);
    };
    let key = std::array::from_fn(|at| registers[RSSRK.at(at / 4)].to_le_bytes()[at % 4]);
    let hash = toeplitz(&key, bytes);
    let entry = hash as usize & 0x7f;
    let queue = registers[RETA.at(entry / 4)].to_le_bytes()[entry % 4] & 0xf;
    Steering::to(usize::from(queue), u64::from(hash) << 32 | kind | rss_type)
}

/// What the write-back calls the packet.
fn kind(input: &Input) -> u64 {
    let network = if input.is_v4() { packet_type::IPV4 } else { packet_type::IPV6 };
    match input.transport() {
        Some(Transport::Tcp) => network | packet_type::TCP,
        Some(Transport::Udp) => network | packet_type::UDP,
        None => network,
    }
}

/// What is hashed, and what that is called.
fn covered(control: u32, input: &Input) -> Option<(&[u8], u64)> {
    let ports = match (input.is_v4(), input.transport()) {
        (true, Some(Transport::Tcp)) => Some((mrqc::HASH_TCP_IPV4, rss_type::TCP_IPV4)),
        (true, Some(Transport::Udp)) => Some((mrqc::HASH_UDP_IPV4, rss_type::UDP_IPV4)),
        (false, Some(Transport::Tcp)) => Some((mrqc::HASH_TCP_IPV6, rss_type::TCP_IPV6)),
        (false, Some(Transport::Udp)) => Some((mrqc::HASH_UDP_IPV6, rss_type::UDP_IPV6)),
        _ => None,
    };
    let (asked, named) = match input.is_v4() {
        true => (mrqc::HASH_IPV4, rss_type::IPV4),
        false => (mrqc::HASH_IPV6, rss_type::IPV6),
    };
    match ports {
        Some((bit, named)) if control & bit != 0 => Some((input.addresses_and_ports(), named)),
        _ => (control & asked != 0).then_some((input.addresses(), named)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{TCP, UDP};

    /// The key and the cases of Microsoft's "Verifying the RSS hash calculation".
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    fn registers(control: u32) -> RegisterWords {
        let mut registers = RegisterWords::new();
        for (at, word) in KEY.as_chunks::<4>().0.iter().enumerate() {
            registers[RSSRK.at(at)] = u32::from_le_bytes(*word);
        }
        for at in 0..RETA.count {
            registers[RETA.at(at)] =
                u32::from_le_bytes(std::array::from_fn(|entry| (at * 4 + entry) as u8 % 4));
        }
        registers[MRQC.at(0)] = control;
        registers
    }

    fn v4(protocol: u8, fragment: u8, source: [u8; 4], destination: [u8; 4], ports: [u16; 2]) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0, 0, 46, 0, 0, fragment, 0, 64, protocol, 0, 0]);
        frame.extend(source.into_iter().chain(destination));
        ports.iter().for_each(|port| frame.extend(port.to_be_bytes()));
        frame.resize(60, 0);
        frame
    }

    fn v6(next: u8, source: [u16; 8], destination: [u16; 8], ports: [u16; 2]) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, next, 64]);
        source.iter().chain(&destination).chain(&ports).for_each(|word| frame.extend(word.to_be_bytes()));
        frame.resize(74, 0);
        frame
    }

    #[test]
    fn hashes_are_those_of_the_published_cases() {
        let all = mrqc::RSS | mrqc::HASH_IPV4 | mrqc::HASH_TCP_IPV4 | mrqc::HASH_IPV6 | mrqc::HASH_TCP_IPV6;
        let registers = registers(all);
        let hash = |frame: &[u8]| steer(&registers, frame).info >> 32;
        let (source, destination) = ([66, 9, 149, 187], [161, 142, 100, 80]);
        assert_eq!(hash(&v4(TCP, 0, source, destination, [2794, 1766])), 0x51cc_c178);
        for (protocol, fragment) in [(UDP, 0), (TCP, 0x20), (1, 0)] {
            assert_eq!(hash(&v4(protocol, fragment, source, destination, [2794, 1766])), 0x323e_8fc2);
        }
        let source = [0x3ffe, 0x2501, 0x200, 0x1fff, 0, 0, 0, 7];
        let destination = [0x3ffe, 0x2501, 0x200, 3, 0, 0, 0, 1];
        assert_eq!(hash(&v6(TCP, source, destination, [2794, 1766])), 0x4020_7d3d);
        assert_eq!(hash(&v6(0, source, destination, [2794, 1766])), 0x2cc1_8cd5);
    }

    #[test]
    fn flows_spread_and_stay() {
        let registers = registers(mrqc::RSS | mrqc::HASH_UDP_IPV4);
        let frame = |port| v4(UDP, 0, [10, 0, 0, 1], [10, 0, 0, 2], [port, 9]);
        let queues: Vec<usize> = (0..64).map(|port| steer(&registers, &frame(port)).queue).collect();
        assert!((0..4).all(|queue| queues.iter().filter(|found| **found == queue).count() > 4), "{queues:?}");
        assert_eq!(queues, (0..64).map(|port| steer(&registers, &frame(port)).queue).collect::<Vec<_>>());
        let mut tagged = frame(5);
        tagged.splice(12..12, [0x81, 0, 0, 7]);
        assert_eq!(steer(&registers, &tagged), steer(&registers, &frame(5)));
    }

    #[test]
    fn what_is_not_hashed_goes_to_queue_0() {
        let off = registers(0);
        let on = registers(mrqc::RSS | mrqc::HASH_TCP_IPV4);
        let frame = v4(UDP, 0, [10, 0, 0, 1], [10, 0, 0, 2], [1, 2]);
        for registers in [&off, &on] {
            let steering = steer(registers, &frame);
            assert_eq!((steering.queue, steering.info), (0, packet_type::IPV4 | packet_type::UDP));
        }
        for length in 0..frame.len() {
            steer(&on, &frame[..length]);
        }
        assert_eq!(steer(&on, &[0; 60]), Steering::to(0, 0));
    }
}
