//! What a port can do, and what it is asked to do: checked before any register is touched.

use super::PortError;
use crate::buffer::{Both, Pool};
use crate::bus::Simulated;
use pollring_hugepages::NumaNode;
use std::ops::RangeInclusive;

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// Whether a port can have it: not a group address and not all zeros.
    pub fn is_unicast(&self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }
}

impl std::fmt::Display for MacAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Whether frames for other addresses are received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promiscuous {
    /// Only frames for this port, and broadcasts.
    Off,
    /// All frames.
    On,
}

/// What a port can do.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// Driver and device in words.
    pub model: String,
    /// Queue pairs at most.
    pub queue_pairs: usize,
    /// Ring sizes in descriptors; powers of two.
    pub ring_entries: RangeInclusive<usize>,
    /// Largest MTU in bytes.
    pub max_mtu: u16,
    /// Segments that it gathers into one frame; 1 where it cannot gather.
    pub max_segments: usize,
    /// Whether the device is software in this process or another.
    pub simulated: Simulated,
}

/// What a port is asked to do.
///
/// Memory that devices may not fill is no place to receive to, and the compiler says so:
///
/// ```compile_fail,E0308
/// # use pollring::{buffer::{Pool, ToDevice}, port::PortConfig};
/// fn refused(pool: &Pool<ToDevice>) -> PortConfig {
///     PortConfig::new(pool)
/// }
/// ```
#[derive(Clone)]
pub struct PortConfig {
    /// Queue pairs; flows are spread over them by RSS when there are several.
    pub queue_pairs: usize,
    /// Descriptors in each receive ring.
    pub rx_entries: usize,
    /// Descriptors in each transmit ring.
    pub tx_entries: usize,
    /// Largest payload of an Ethernet frame in bytes.
    pub mtu: u16,
    /// Whether frames for other addresses are received.
    pub promiscuous: Promiscuous,
    /// Where received frames lie. Only memory that devices may fill fits here.
    pub rx_pool: Pool<Both>,
    /// NUMA node for the rings.
    pub node: Option<NumaNode>,
}

/// Header, two VLAN tags and CRC around the payload.
const FRAME_OVERHEAD_BYTES: usize = 14 + 2 * 4 + 4;

impl PortConfig {
    /// One queue pair, rings of 512, MTU 1500, frames for this port only.
    pub fn new(rx_pool: &Pool<Both>) -> PortConfig {
        PortConfig {
            queue_pairs: 1,
            rx_entries: 512,
            tx_entries: 512,
            mtu: 1500,
            promiscuous: Promiscuous::Off,
            rx_pool: rx_pool.clone(),
            node: None,
        }
    }

    /// The longest frame on the wire in bytes: MTU, header, two VLAN tags, CRC. The one number from which a driver sets its
    /// limits and buffer sizes.
    pub fn max_frame_bytes(&self) -> usize {
        usize::from(self.mtu) + FRAME_OVERHEAD_BYTES
    }

    /// Checks the configuration against what `port` can do.
    ///
    /// # Errors
    /// The first number that does not fit, with what it may be.
    pub fn validate(&self, port: &str, capabilities: &Capabilities) -> Result<(), PortError> {
        let fail = |what: String| Err(PortError::Config { port: port.to_owned(), what });
        let Capabilities { queue_pairs, ring_entries, max_mtu, .. } = capabilities;
        if self.queue_pairs == 0 || self.queue_pairs > *queue_pairs {
            return fail(format!("{} queue pairs asked, it has 1 to {queue_pairs}", self.queue_pairs));
        }
        for (name, entries) in [("receive", self.rx_entries), ("transmit", self.tx_entries)] {
            if !ring_entries.contains(&entries) || !entries.is_power_of_two() {
                let (low, high) = (ring_entries.start(), ring_entries.end());
                return fail(format!("a {name} ring of {entries}; use a power of two from {low} to {high}"));
            }
        }
        if !(68..=*max_mtu).contains(&self.mtu) {
            return fail(format!("MTU {}; use 68 to {max_mtu}", self.mtu));
        }
        let (room, frame) = (self.rx_pool.room_bytes(), self.max_frame_bytes());
        if frame > room {
            let pool = self.rx_pool.name();
            return fail(format!(
                "MTU {} means frames of {frame} bytes, buffers of pool `{pool}` hold {room}; use larger buffers",
                self.mtu
            ));
        }
        Ok(())
    }
}
