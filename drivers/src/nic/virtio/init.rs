//! What is agreed on with a device: features, its config, and what follows from both (Virtio 1.2, 3.1.1 and 5.1.3).

use super::regs::{config, feature};
use super::spread::Rss;
use super::transport::{Confinement, Layout, Transport, VirtioOptions};
use pollring::port::{MacAddress, PortConfig, PortError};
use pollring::ring::virtqueue::{Merging, Order, QueueOptions, Suppression};

/// Features that are accepted whenever they are offered.
const GOOD: u64 = feature::VERSION_1
    | feature::MAC
    | feature::MTU
    | feature::STATUS
    | feature::SPEED_DUPLEX
    | feature::MRG_RXBUF
    | feature::IN_ORDER
    | feature::EVENT_IDX
    | feature::ACCESS_PLATFORM
    | feature::NOTIFICATION_DATA;

/// The features to accept.
pub(super) fn negotiate(
    transport: &dyn Transport,
    options: VirtioOptions,
    queue_pairs: usize,
) -> Result<u64, PortError> {
    let usable = transport.offered() & !transport.unusable() & !options.without;
    let fail = |what: &str| Err(PortError::Config { port: transport.name().to_owned(), what: what.into() });
    let mut features = usable & GOOD;
    if features & feature::VERSION_1 == 0 {
        return fail("the device is a legacy one; this driver needs VERSION_1 (for QEMU: disable-legacy=on)");
    }
    if transport.confinement() == Confinement::AccessPlatform && features & feature::ACCESS_PLATFORM == 0 {
        return fail(
            "it does not offer ACCESS_PLATFORM, so its DMA would go past the IOMMU, to addresses of its host; have the host \
             turn that on (QEMU: iommu_platform=on)",
        );
    }
    match (options.layout, usable & feature::RING_PACKED) {
        (Layout::Packed, 0) => {
            return fail("packed queues were asked for and the device has none; leave `packed` out");
        }
        (Layout::Packed | Layout::Offered, packed) => features |= packed,
        (Layout::Split, _) => {}
    }
    if usable & feature::CTRL_VQ != 0 {
        features |= usable & (feature::CTRL_VQ | feature::CTRL_RX);
    }
    if queue_pairs > 1 {
        features |= usable & feature::MQ | usable_rss(transport, usable, queue_pairs);
    }
    Ok(features)
}

/// RSS if it is offered, can be commanded and suits the number of pairs.
fn usable_rss(transport: &dyn Transport, usable: u64, queue_pairs: usize) -> u64 {
    let offered = usable & feature::RSS;
    // Config space may be read before features are accepted (2.5.1).
    let fits = || DeviceConfig::read(transport, offered).rss.fits(queue_pairs);
    if offered != 0 && usable & feature::CTRL_VQ != 0 && fits() { offered } else { 0 }
}

/// Either means that there may be several pairs.
pub(super) const SEVERAL_PAIRS: u64 = feature::MQ | feature::RSS;

/// What the device says of itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceConfig {
    pub mac: Option<MacAddress>,
    pub link_up: bool,
    pub max_pairs: u16,
    pub mtu: Option<u16>,
    pub speed_mbps: u32,
    /// All zeros where there is none.
    pub rss: Rss,
}

/// What is said of the speed of a link that has none.
const NOMINAL_SPEED_MBPS: u32 = 10_000;

/// Pairs whose queues, and the control queue behind them, have numbers (5.1.6.5.5 allows one more).
const MOST_PAIRS: u16 = 0x7fff;

impl DeviceConfig {
    /// Reads what `features` say is there.
    pub(super) fn read(transport: &dyn Transport, features: u64) -> DeviceConfig {
        let mut bytes = [0; config::BYTES];
        let has = if transport.config(&mut bytes) { features } else { 0 };
        DeviceConfig::parse(&bytes, has)
    }

    /// What the device wrote, of which `has` says what is there.
    fn parse(bytes: &[u8; config::BYTES], has: u64) -> DeviceConfig {
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let [a, b, c, d, e, f] = [0, 1, 2, 3, 4, 5].map(|at| bytes[config::MAC + at]);
        let word = |at: usize| u32::from(half(at)) | u32::from(half(at + 2)) << 16;
        let speed = word(config::SPEED);
        let known = has & feature::SPEED_DUPLEX != 0 && speed != u32::MAX && speed != 0;
        let rss = Rss {
            key_bytes: bytes[config::RSS_KEY_BYTES],
            table_entries: half(config::RSS_TABLE_ENTRIES),
            hash_types: word(config::HASH_TYPES),
        };
        DeviceConfig {
            mac: (has & feature::MAC != 0).then_some(MacAddress([a, b, c, d, e, f])),
            link_up: has & feature::STATUS == 0 || half(config::STATUS) & config::LINK_UP != 0,
            max_pairs: if has & SEVERAL_PAIRS != 0 {
                half(config::MAX_PAIRS).clamp(1, MOST_PAIRS)
            } else {
                1
            },
            mtu: (has & feature::MTU != 0).then(|| half(config::MTU)),
            speed_mbps: if known { speed } else { NOMINAL_SPEED_MBPS },
            rss: if has & feature::RSS != 0 { rss } else { Rss::default() },
        }
    }
}

/// A locally administered address that follows from a name (FNV-1a).
pub(super) fn address_of(name: &str) -> MacAddress {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let [a, b, c, d, e, ..] = hash.to_le_bytes();
    MacAddress([0x02, a, b, c, d, e])
}

/// What the queues are told of the agreement.
pub(super) fn queue_options(features: u64) -> QueueOptions {
    QueueOptions {
        order: if features & feature::IN_ORDER != 0 { Order::InOrder } else { Order::Any },
        suppression: if features & feature::EVENT_IDX != 0 {
            Suppression::EventIndex
        } else {
            Suppression::Flags
        },
    }
}

pub(super) fn merging(features: u64) -> Merging {
    if features & feature::MRG_RXBUF != 0 { Merging::On } else { Merging::Off }
}

/// Checks what `PortConfig::validate` cannot know.
pub(super) fn check(name: &str, config: &PortConfig) -> Result<(), PortError> {
    if pollring::ring::virtqueue::header_fits(&config.rx_pool) {
        return Ok(());
    }
    let what = format!("pool `{}` has no headroom for the 12 bytes of the header", config.rx_pool.name());
    Err(PortError::Config { port: name.to_owned(), what })
}

/// Several pairs need a way to spread flows over them: a device may have RSS alone, with a table that is too small.
pub(super) fn check_pairs(name: &str, features: u64, queue_pairs: usize) -> Result<(), PortError> {
    if queue_pairs == 1 || features & SEVERAL_PAIRS != 0 {
        return Ok(());
    }
    let what = format!("its RSS is too small for {queue_pairs} pairs and it has no MQ; use fewer pairs");
    Err(PortError::Config { port: name.to_owned(), what })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_of_pairs_makes_a_queue_without_a_number() {
        for (said, taken) in [(0, 1), (1, 1), (8, 8), (0x8000, MOST_PAIRS), (u16::MAX, MOST_PAIRS)] {
            let mut bytes = [0; config::BYTES];
            bytes[config::MAX_PAIRS..config::MAX_PAIRS + 2].copy_from_slice(&u16::to_le_bytes(said));
            assert_eq!(DeviceConfig::parse(&bytes, feature::MQ).max_pairs, taken);
            assert_eq!(DeviceConfig::parse(&bytes, feature::RSS).max_pairs, taken);
            assert_eq!(DeviceConfig::parse(&bytes, 0).max_pairs, 1);
            assert!(taken.checked_mul(2).is_some());
        }
    }
}
