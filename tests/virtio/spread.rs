//! Flows over several pairs: by the hash and the table that the driver gave, and by MQ where there is no RSS that suits.

use pollring::buffer::{Burst, Caches};
use pollring::port::{PortConfig, Queues};
use pollring_drivers::nic::virtio::regs::{feature, hash};
use pollring_simulator::hostile::Lies;
use pollring_simulator::rss::toeplitz;
use pollring_simulator::virtio::{RssLimits, Virtio, VirtioConfig};
use pollring_tests::{Side, amount, mac, seed};

/// The key that the driver gives.
const KEY: [u8; 40] = {
    let mut key = [0x6d; 40];
    let mut at = 1;
    while at < 40 {
        key[at] = 0x5a;
        at += 2;
    }
    key
};

const PAIRS: usize = 4;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;

/// One flow: addresses, protocol, ports.
#[derive(Clone, Copy)]
struct Flow {
    addresses: [u8; 2],
    v6: bool,
    protocol: u8,
    ports: [u16; 2],
}

impl Flow {
    fn address_bytes(&self) -> Vec<u8> {
        let bytes = if self.v6 { 16 } else { 4 };
        self.addresses.iter().flat_map(|last| (1..bytes).map(|_| 10).chain([*last])).collect()
    }

    fn port_bytes(&self) -> Vec<u8> {
        self.ports.iter().flat_map(|port| port.to_be_bytes()).collect()
    }

    fn frame(&self) -> Vec<u8> {
        let mut frame = mac(0).to_vec();
        frame.extend([2, 0, 0, 0, 0, 9]);
        match self.v6 {
            true => frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, self.protocol, 64]),
            false => frame.extend([8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, self.protocol, 0, 0]),
        }
        frame.extend(self.address_bytes());
        frame.extend(self.port_bytes());
        frame.resize(if self.v6 { 74 } else { 60 }, 0);
        frame
    }

    /// The pair that the table names, by a hash over what `types` asks for.
    fn pair(&self, types: u32, entries: usize) -> usize {
        let (alone, tcp, udp) = match self.v6 {
            true => (hash::IPV6, hash::TCP_IPV6, hash::UDP_IPV6),
            false => (hash::IPV4, hash::TCP_IPV4, hash::UDP_IPV4),
        };
        let with_ports = self.protocol == TCP && types & tcp != 0 || self.protocol == UDP && types & udp != 0;
        let mut input = self.address_bytes();
        match (with_ports, types & alone) {
            (true, _) => input.extend(self.port_bytes()),
            (false, 0) => return 0,
            (false, _) => {}
        }
        toeplitz(&KEY, &input) as usize % entries % PAIRS
    }
}

fn flows() -> Vec<Flow> {
    let mut all = Vec::new();
    for (v6, protocol) in [(false, TCP), (false, UDP), (false, ICMP), (true, TCP), (true, UDP), (true, ICMP)]
    {
        for number in 0..24u8 {
            let ports = [1000 + u16::from(number) * 7, 4791];
            all.push(Flow { addresses: [number, 200], v6, protocol, ports });
        }
    }
    all
}

struct Rig {
    side: Side<Virtio>,
    queues: Queues,
    caches: Caches,
    burst: Burst,
}

impl Rig {
    fn new(change: impl FnOnce(&mut VirtioConfig)) -> Rig {
        let mut side = Side::virtio(0, change);
        let config =
            PortConfig { queue_pairs: PAIRS, rx_entries: 64, tx_entries: 64, ..PortConfig::new(&side.pool) };
        let queues = side.start_with(&config);
        Rig { side, queues, caches: Caches::new("test"), burst: Burst::new() }
    }

    /// The pair at which a frame arrives; it arrives once.
    fn arrives(&mut self, frame: &[u8]) -> usize {
        self.queues.rx.iter_mut().for_each(|rx| {
            rx.refill(&mut self.caches);
        });
        self.side.send_in(frame);
        self.side.step();
        let burst = &mut self.burst;
        let counts: Vec<usize> = self.queues.rx.iter_mut().map(|rx| rx.receive(burst)).collect();
        assert_eq!(counts.iter().sum::<usize>(), 1, "{counts:?}");
        assert_eq!(pollring_tests::take(burst, &mut self.caches).as_deref(), Some(frame));
        counts.iter().position(|count| *count == 1).unwrap_or(PAIRS)
    }

    fn features(&mut self) -> String {
        format!("{:?}", self.side.port.inspect().at(&["features"]))
    }

    fn finish(self) {
        self.side.finish(self.queues, self.caches, self.burst);
    }
}

#[test]
fn flows_go_where_the_table_says_and_stay_there() {
    let few = hash::IPV4 | hash::TCP_IPV6;
    for (types, table_entries, entries) in [(hash::ALL, 128, 128), (u32::MAX, 9, 8), (few, 1000, 128)] {
        for without in [0, feature::RING_PACKED, feature::MQ] {
            let rss = RssLimits { key_bytes: 52, table_entries, hash_types: types };
            let mut rig = Rig::new(|config| (config.rss, config.without) = (rss, without));
            assert!(rig.features().contains("RSS"));
            let mut seen = [0; PAIRS];
            for _ in 0..2 {
                for flow in flows() {
                    let pair = rig.arrives(&flow.frame());
                    assert_eq!(pair, flow.pair(types, entries), "{:?}", flow.ports);
                    seen[pair] += 1;
                }
            }
            assert!(seen.iter().all(|frames| *frames > 12), "{seen:?}");
            rig.finish();
        }
    }
}

#[test]
fn both_directions_of_a_flow_come_to_one_pair_and_the_rest_to_the_first() {
    let mut rig = Rig::new(|_| {});
    for flow in flows() {
        let ([a, b], [source, to]) = (flow.addresses, flow.ports);
        let back = Flow { addresses: [b, a], ports: [to, source], ..flow };
        assert_eq!(rig.arrives(&flow.frame()), rig.arrives(&back.frame()));
    }
    for _ in 0..8 {
        let mut frame = flows()[0].frame();
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        assert_eq!(rig.arrives(&frame), 0);
    }
    rig.finish();
}

#[test]
fn a_frame_for_a_full_pair_waits_and_comes_in_order() {
    let mut rig = Rig::new(|_| {});
    let flow = flows()[0];
    let pair = flow.pair(hash::ALL, 128);
    let rx = &mut rig.queues.rx[pair];
    rx.refill(&mut rig.caches);
    let frame = |number: u8| [flow.frame(), vec![number]].concat();
    (0..150).for_each(|number| rig.side.send_in(&frame(number)));
    let mut next = 0;
    for _ in 0..20 {
        rig.side.step();
        rx.receive(&mut rig.burst);
        while let Some(bytes) = pollring_tests::take(&mut rig.burst, &mut rig.caches) {
            assert_eq!(bytes, frame(next));
            next += 1;
        }
        rx.refill(&mut rig.caches);
    }
    assert_eq!(next, 150);
    rig.finish();
}

#[test]
fn a_device_whose_rss_does_not_suit_is_used_by_mq() {
    let good = RssLimits { key_bytes: 40, table_entries: 128, hash_types: hash::ALL };
    for rss in [
        RssLimits { key_bytes: 39, ..good },
        RssLimits { table_entries: 3, ..good },
        RssLimits { hash_types: !hash::ALL, ..good },
        RssLimits { key_bytes: 0, table_entries: 0, hash_types: 0 },
    ] {
        let mut rig = Rig::new(|config| config.rss = rss);
        assert!(!rig.features().contains("RSS") && rig.features().contains("MQ"));
        let frame = flows()[0].frame();
        let pairs: Vec<usize> = (0..8).map(|_| rig.arrives(&frame)).collect();
        assert_eq!(pairs, [0, 1, 2, 3, 0, 1, 2, 3]);
        rig.finish();
    }
}

#[test]
fn rss_alone_that_is_too_small_for_the_pairs_says_so() {
    let rss = RssLimits { key_bytes: 40, table_entries: 2, hash_types: hash::ALL };
    let mut side = Side::virtio(0, |config| (config.rss, config.without) = (rss, feature::MQ));
    let config = PortConfig { queue_pairs: PAIRS, ..PortConfig::new(&side.pool) };
    let error = side.port.start(&config).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("too small for 4 pairs"), "{error}");
    let queues = side.start_with(&PortConfig { queue_pairs: 2, ..config });
    side.finish(queues, Caches::new("test"), Burst::new());
}

/// The numbers of its RSS are among what it lies about: an attempt to start ends well or with an error, and no pair gets lost.
#[test]
fn a_device_that_lies_about_its_numbers_starts_or_says_why_not() {
    let (mut started, mut refused) = (0, 0);
    for round in 0..amount(60, 2000) as u64 {
        let lies = Lies { seed: seed() ^ round, per_mille: 500 };
        let mut side = Side::virtio(0, |config| config.lies = Some(lies));
        let config =
            PortConfig { queue_pairs: PAIRS, rx_entries: 64, tx_entries: 64, ..PortConfig::new(&side.pool) };
        match side.port.start(&config) {
            Ok(queues) => {
                assert_eq!((queues.rx.len(), queues.tx.len()), (PAIRS, PAIRS));
                // It may lie about its reset as well, and is cut off then.
                let _ = side.port.stop(queues);
                started += 1;
            }
            Err(_) => refused += 1,
        }
        let census = side.pool.census();
        assert_eq!((census.home, side.space.mappings()), (census.total, 1));
    }
    assert!(started > 0 && refused > 0, "{started} started, {refused} refused");
}
