//! The endpoint on the software NIC: its own frames leave a burst, an app's stay, and payload is gathered where it lies.

use crate::rig::{Link, fill, gather, post, read, receive, remote, send, sge, write};
use pollring::buffer::{Burst, Caches, Pool, PoolConfig, Shared, ToDevice};
use pollring::copy::Fifo;
use pollring::hugepages::{Region, RegionConfig};
use pollring::iova::{Direction, Placement};
use pollring::port::{MacAddress, Queues, RxQueue, TxQueue};
use pollring::rdma::*;
use pollring_drivers::rdma::roce::{Endpoint, RoceConfig, RoceDevice};
use pollring_tests::{Side, mac, small_pages};
use std::sync::Arc;

struct Host {
    side: Side,
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    device: RoceDevice,
    endpoint: Endpoint,
    cq: Box<dyn CompletionQueue>,
    region: MemoryRegion,
    pd: ProtectionDomain,
    foreign: usize,
}

fn address(number: u8) -> std::net::IpAddr {
    [10, 0, 0, number].into()
}

fn host(number: u8) -> Host {
    let mut side = Side::new(number, |_| {});
    let (rx, tx) = side.start(256);
    let config = RoceConfig::new("sim", MacAddress(mac(number)), address(number));
    let (mut device, stack) = RoceDevice::new(config).unwrap();
    let config = PoolConfig { pages: small_pages(), ..PoolConfig::new(&format!("roce {number}"), 512) };
    let pool = Pool::<ToDevice>::new(&config, &[&side.space]).unwrap();
    let endpoint = Endpoint::new(stack, pool, side.port.capabilities());
    let pd = device.allocate_pd().unwrap();
    let cq = device.create_cq(&CqConfig { entries: 64, vector: 0, channel: None }).unwrap();
    let config = RegionConfig { name: "mr".into(), bytes: 1 << 16, pages: small_pages(), node: None };
    let placement = Placement::new(Arc::new(Region::allocate(&config).unwrap()), &[&side.space]).unwrap();
    let mapping = side.space.map(&placement, Direction::ToDevice).unwrap();
    let memory = Shared::mapped(Arc::new(mapping));
    let region = device.register(&pd, memory, 0x10_0000, Access::all()).unwrap();
    Host { side, rx, tx, device, endpoint, cq, region, pd, foreign: 0 }
}

impl Host {
    fn turn(&mut self, now_ns: u64, caches: &mut Caches) {
        let mut burst = Burst::new();
        self.rx.refill(caches);
        self.side.step();
        self.rx.receive(&mut burst);
        self.endpoint.accept(now_ns, &mut burst, caches);
        self.foreign += burst.len();
        caches.put_all(&mut burst);
        self.endpoint.transmit(now_ns, &mut *self.tx, caches);
        self.side.step();
    }
}

fn connect(hosts: &mut [Host; 2]) -> [Box<dyn QueuePair>; 2] {
    let link = Link::new(QpType::Rc);
    let mut qps = hosts.each_mut().map(|host| {
        let cq = host.cq.number();
        let (receives, signalling) = (Receives::Own, Signalling::OnRequest);
        let limits = crate::rig::LIMITS;
        let config = QpConfig { kind: QpType::Rc, send_cq: cq, receive_cq: cq, receives, limits, signalling };
        host.device.create_qp(&host.pd, &config).unwrap()
    });
    let numbers = [qps[0].number(), qps[1].number()];
    for (side, qp) in qps.iter_mut().enumerate() {
        let address = AddressVector {
            destination: address(2 - side as u8).into(),
            source: address(1 + side as u8).into(),
            flow_label: 0,
            hop_limit: 64,
            traffic_class: 0,
            service_level: 0,
        };
        let psn = Psn::new(5);
        let destination = numbers[1 - side];
        let connection = Connection { destination, address, mtu: Mtu::Bytes1024, receive_psn: psn };
        let (responder_resources, min_rnr) = (16, link.min_rnr);
        let init = Init::Connected { pkey_index: 0, access: Access::all() };
        let receive = ReadyToReceive::Reliable { connection, responder_resources, min_rnr };
        let send = ReadyToSend::Reliable { send_psn: psn, initiator_depth: 16, retry: link.retry };
        for step in [Modify::Init(init), Modify::ReadyToReceive(receive), Modify::ReadyToSend(send)] {
            qp.modify(step).unwrap();
        }
    }
    qps
}

#[test]
fn queue_pairs_and_an_app_share_a_port() {
    let (mut hosts, mut caches) = ([host(1), host(2)], Caches::new("roce"));
    let mut qps = connect(&mut hosts);
    fill(&hosts[0].region, 1);
    let (from, to) = (hosts[0].region.clone(), hosts[1].region.clone());
    receive(&mut *qps[1], 9, sge(&to, 40_000, 8000));
    post(&mut *qps[0], 1, write(gather(&from, 3, 30_001), remote(&to, 1)));
    post(&mut *qps[0], 2, send(gather(&from, 0, 5000)));
    let (mut done, mut completions) = (Vec::new(), Fifo::new(64));
    let mut other = vec![0; 64];
    other[..6].copy_from_slice(&mac(2));
    other[12..14].copy_from_slice(&[0x88, 0xb5]);
    hosts[1].side.send_in(&other);
    for turn in 0..2000 {
        for host in &mut hosts {
            host.turn(turn * 1000, &mut caches);
        }
        for (from, to) in [(0, 1), (1, 0)] {
            while let Some(frame) = hosts[from].side.take_out() {
                hosts[to].side.send_in(&frame);
            }
        }
        hosts[0].cq.poll(&mut completions);
        done.extend(completions.drain().map(|completion| (completion.id, completion.status)));
    }
    assert_eq!(done, [(1, Status::Success), (2, Status::Success)], "{:?}", qps[0].failure());
    assert_eq!(read(&to, 1, 30_001), read(&from, 3, 30_001));
    assert_eq!(read(&to, 40_000, 5000), read(&from, 0, 5000));
    assert_eq!(hosts[1].foreign, 1, "the app's frame stayed in the burst");
    let counters = hosts[0].device.counters();
    println!("gathered {}, copied {}", counters.gathered_bytes, counters.copied_out_bytes);
    drop((qps, from, to));
    for mut host in hosts {
        host.side.port.stop(Queues { rx: vec![host.rx], tx: vec![host.tx] }).unwrap();
        assert_eq!(host.side.iommu.faults().0, 0);
    }
}
