//! Receive-side scaling, whoever does it: what of a frame is hashed, and the Toeplitz hash over it.
//!
//! [`Input`] are the addresses of a frame, and its ports where it has any; a device decides which of both it hashes. Fragments have no
//! ports, and IPv6 with extension headers has none that are found. [`toeplitz`] is that of Microsoft's "Receive Side Scaling",
//! which the 82576 (7.1.1.7) and virtio-net (5.1.6.4.3) both take.

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLAN: u16 = 0x8100;
/// Protocol numbers (RFC 791, RFC 8200).
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Bytes of a key: what an input of two IPv6 addresses and two ports takes.
pub const KEY_BYTES: usize = 40;

/// What stands in front of the ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// What is hashed: at most two IPv6 addresses and two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    bytes: [u8; 36],
    address_bytes: usize,
    transport: Option<Transport>,
}

impl Input {
    /// Of `frame`, with at most one VLAN tag; nothing where it carries no IP.
    pub fn of(frame: &[u8]) -> Option<Input> {
        let ethertype = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
        let (kind, at) = match ethertype(12)? {
            VLAN => (ethertype(16)?, 18),
            kind => (kind, 14),
        };
        let packet = frame.get(at..)?;
        match kind {
            IPV4 => Input::v4(packet),
            IPV6 => Input::v6(packet),
            _ => None,
        }
    }

    /// RFC 791.
    fn v4(packet: &[u8]) -> Option<Input> {
        let header: [u8; 20] = *packet.first_chunk()?;
        let header_bytes = usize::from(header[0] & 0xf) * 4;
        let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
        let protocol = (!fragment).then_some(header[9]);
        Some(Input::new(&header[12..20], protocol, packet.get(header_bytes..)))
    }

    /// RFC 8200.
    fn v6(packet: &[u8]) -> Option<Input> {
        let header: [u8; 40] = *packet.first_chunk()?;
        Some(Input::new(&header[8..40], Some(header[6]), packet.get(40..)))
    }

    fn new(addresses: &[u8], protocol: Option<u8>, rest: Option<&[u8]>) -> Input {
        let mut input = Input { bytes: [0; 36], address_bytes: addresses.len(), transport: None };
        input.bytes[..addresses.len()].copy_from_slice(addresses);
        let transport = match protocol {
            Some(TCP) => Transport::Tcp,
            Some(UDP) => Transport::Udp,
            _ => return input,
        };
        if let Some(ports) = rest.and_then(|rest| rest.first_chunk::<4>()) {
            input.bytes[addresses.len()..addresses.len() + 4].copy_from_slice(ports);
            input.transport = Some(transport);
        }
        input
    }

    /// Whether the addresses are IPv4's; else they are IPv6's.
    pub fn is_v4(&self) -> bool {
        self.address_bytes == 8
    }

    /// Whose ports it has.
    pub fn transport(&self) -> Option<Transport> {
        self.transport
    }

    /// Source and destination.
    pub fn addresses(&self) -> &[u8] {
        &self.bytes[..self.address_bytes]
    }

    /// The addresses and both ports; zeros where there are none.
    pub fn addresses_and_ports(&self) -> &[u8] {
        &self.bytes[..self.address_bytes + 4]
    }
}

/// For each one bit of the input, the 32 bits of the key that begin at the same position, xored.
pub fn toeplitz(key: &[u8; KEY_BYTES], input: &[u8]) -> u32 {
    let mut window = key.iter().take(8).fold(0u64, |window, byte| window << 8 | u64::from(*byte));
    let mut hash = 0;
    for (at, byte) in input.iter().enumerate() {
        for bit in 0..8 {
            if byte & 0x80 >> bit != 0 {
                hash ^= (window << bit >> 32) as u32;
            }
        }
        // The window's first 40 bits served this byte; the next byte starts 8 bits on.
        window = window << 8 | u64::from(key.get(at + 8).copied().unwrap_or(0));
    }
    hash
}
