//! Our frontend against DPDK's vhost backend: what we send comes back whole and in order, a backend that dies is replaced, and we are.

use crate::testpmd::{Place, Testpmd};
use pollring::buffer::{Both, Burst, Caches, Pool, PoolConfig};
use pollring::bus::Health;
use pollring::port::{Link, Port, PortConfig, Queues, RxQueue, TxQueue};
use pollring_drivers::nic::virtio::regs::feature;
use pollring_drivers::nic::virtio::{Layout, VirtioOptions, vhost_user};
use pollring_tests::{Random, amount, mac, seed, small_pages};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A started port and what is on its way round.
struct Frontend {
    port: Box<dyn Port>,
    pool: Pool<Both>,
    rx: Vec<Box<dyn RxQueue>>,
    tx: Vec<Box<dyn TxQueue>>,
    caches: Caches,
    burst: Burst,
    random: Random,
    under_way: VecDeque<Vec<u8>>,
    returned: u64,
}

/// Frames under way at most: fewer than any ring on the way holds.
const WINDOW: usize = 128;

impl Frontend {
    fn new(place: &Place, options: VirtioOptions, pairs: usize) -> Frontend {
        let uri = format!("vhost-user:{}", place.socket.display());
        let opened = vhost_user::open(&uri, &place.socket, options);
        let (mut port, space) = opened.unwrap_or_else(|error| panic!("{error}"));
        let config = PoolConfig { pages: small_pages(), ..PoolConfig::new("vhost", 4096) };
        let pool = Pool::new(&config, &[&space]).unwrap();
        let config =
            PortConfig { rx_entries: 256, tx_entries: 256, queue_pairs: pairs, ..PortConfig::new(&pool) };
        let queues = port.start(&config).unwrap_or_else(|error| panic!("{error}"));
        Frontend {
            port,
            pool,
            rx: queues.rx,
            tx: queues.tx,
            caches: Caches::new("frontend"),
            burst: Burst::new(),
            random: Random(seed()),
            under_way: VecDeque::new(),
            returned: 0,
        }
    }

    /// Sends a few frames and checks what came back. `losses` says that frames may be missing, never that they may be wrong.
    fn turn(&mut self, sending: bool, losses: bool) {
        while sending && self.under_way.len() < WINDOW && self.burst.room() > 0 {
            let Some(mut frame) = self.caches.take(&self.pool) else { break };
            let bytes = self.random.frame(mac(1));
            assert!(frame.fill_from(&bytes));
            self.under_way.push_back(bytes);
            self.burst.push(frame).unwrap();
        }
        self.tx[0].send(&mut self.burst, &mut self.caches);
        self.tx[0].reclaim(&mut self.caches);
        let mut received = Burst::new();
        for rx in &mut self.rx {
            rx.refill(&mut self.caches);
            rx.receive(&mut received);
        }
        while let Some(frame) = received.pop() {
            let mut expected = self.under_way.pop_front();
            while losses && expected.as_deref().is_some_and(|expected| expected != frame.bytes()) {
                expected = self.under_way.pop_front();
            }
            assert_eq!(expected.as_deref(), Some(frame.bytes()), "frame {} came back wrong", self.returned);
            self.returned += 1;
            self.caches.put(frame);
        }
    }

    /// Turns until `frames` more came back.
    fn round_trips(&mut self, frames: u64, losses: bool) {
        let (wanted, end) = (self.returned + frames, Instant::now() + Duration::from_secs(60));
        while self.returned < wanted {
            self.turn(true, losses);
            assert!(Instant::now() < end, "{} of {wanted} frames came back", self.returned);
        }
    }

    fn finish(mut self) {
        let end = Instant::now() + Duration::from_secs(10);
        while !(self.under_way.is_empty() && self.burst.is_empty()) {
            self.turn(false, false);
            assert!(Instant::now() < end, "{} frames are missing", self.under_way.len());
        }
        let counted = self.port.statistics();
        assert_eq!((counted.rx.bad, counted.tx.rejected), (0, 0));
        assert!(counted.device.iter().all(|(name, count)| name != "used_lies" || *count == 0));
        self.port.stop(Queues { rx: self.rx, tx: self.tx }).unwrap_or_else(|error| panic!("{error}"));
        drop((self.caches, self.burst));
        let census = self.pool.census();
        assert_eq!(census.home, census.total, "every frame is home");
    }
}

fn options(layout: Layout, without: u64) -> VirtioOptions {
    VirtioOptions { layout, without }
}

fn both_ways(layout: Layout, without: u64) {
    let place = Place::new();
    let mut backend = place.backend(1);
    let mut frontend = Frontend::new(&place, options(layout, without), 1);
    println!("features of {layout:?}: {:?}", frontend.port.inspect().at(&["features"]));
    frontend.round_trips(amount(200_000, 5_000_000) as u64, false);
    frontend.finish();
    backend.say("show port stats all");
    println!(
        "{}",
        backend.said().lines().filter(|line| line.contains("ackets")).collect::<Vec<_>>().join("; ")
    );
}

#[test]
fn split_queues_carry_frames_both_ways() {
    both_ways(Layout::Split, 0);
}

#[test]
fn packed_queues_carry_frames_both_ways() {
    both_ways(Layout::Packed, 0);
}

#[test]
fn so_do_they_without_the_features_that_make_it_fast() {
    let without = feature::IN_ORDER | feature::EVENT_IDX;
    both_ways(Layout::Split, without);
    both_ways(Layout::Packed, without | feature::MRG_RXBUF);
}

#[test]
fn two_pairs_carry_frames() {
    let place = Place::new();
    let _backend: Testpmd = place.backend(2);
    let mut frontend = Frontend::new(&place, options(Layout::Split, 0), 2);
    frontend.round_trips(20_000, false);
    frontend.finish();
}

fn backend_dies(layout: Layout) {
    let place = Place::new();
    let mut backend = place.backend(1);
    let mut frontend = Frontend::new(&place, options(layout, 0), 1);
    for round in 0..3 {
        frontend.round_trips(20_000, true);
        backend.kill();
        let killed = Instant::now();
        while frontend.port.link() != Link::Down {
            frontend.turn(true, true);
            assert!(killed.elapsed() < Duration::from_secs(2), "nobody noticed");
        }
        let noticed = killed.elapsed();
        // Frames of the dead backend's rings are ours again.
        for _ in 0..100 {
            frontend.turn(false, true);
        }
        frontend.caches.flush();
        assert_eq!(frontend.pool.census().elsewhere(), frontend.burst.len(), "frames of dead rings");
        frontend.under_way.clear();
        frontend.caches.put_all(&mut frontend.burst);
        drop(backend);
        backend = place.backend(1);
        let started = Instant::now();
        while frontend.port.link() == Link::Down {
            frontend.turn(false, true);
            assert!(started.elapsed() < Duration::from_secs(5), "never connected again");
        }
        println!("round {round}: noticed after {noticed:?}, connected again after {:?}", started.elapsed());
        assert_eq!(frontend.port.health(), Health::Running);
    }
    frontend.round_trips(20_000, true);
    frontend.finish();
}

#[test]
fn a_backend_that_is_killed_is_replaced_split() {
    backend_dies(Layout::Split);
}

#[test]
fn a_backend_that_is_killed_is_replaced_packed() {
    backend_dies(Layout::Packed);
}

#[test]
fn a_frontend_starts_again_at_the_same_backend() {
    let place = Place::new();
    let _backend = place.backend(1);
    for layout in [Layout::Split, Layout::Packed, Layout::Split] {
        let mut frontend = Frontend::new(&place, options(layout, 0), 1);
        frontend.round_trips(5_000, false);
        frontend.finish();
    }
}

#[test]
fn without_a_backend_the_error_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let opened =
        vhost_user::open("vhost-user:nobody", &directory.path().join("no"), VirtioOptions::default());
    let text = opened.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(text.contains("start the backend"), "{text}");
}

/// `pollring forward` as a child; it ends with this value.
struct Forwarder(std::process::Child);

impl Forwarder {
    fn start(place: &Place, options: &str) -> Forwarder {
        let uri = format!("vhost-user:{}{options}", place.socket.display());
        let mut child = std::process::Command::new(crate::testpmd::pollring())
            .args(["forward", &uri, "--pages", "small", "--entries", "256", "--cores", "1"])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_secs(3));
        assert!(child.try_wait().unwrap().is_none(), "the forwarder ended early");
        Forwarder(child)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn we_die(options: &str) {
    let place = Place::new();
    let mut backend = place.backend(1);
    for round in 0..3 {
        let forwarder = Forwarder::start(&place, options);
        // Frames that testpmd sends first go round for ever.
        backend.say("stop");
        backend.say("start tx_first 4");
        let before = backend.received();
        std::thread::sleep(Duration::from_secs(1));
        let after = backend.received();
        println!("round {round}: {} frames came back to DPDK in a second", after - before);
        assert!(after > before + 10_000, "round {round}: from {before} to {after}");
        forwarder.kill();
    }
}

#[test]
fn we_are_killed_and_start_again_split() {
    we_die("");
}

#[test]
fn we_are_killed_and_start_again_packed() {
    we_die(",packed");
}
