//! The running part: ports that are started and the workers that poll their queues.
//!
//! [`Engine`] belongs to the main thread and does everything that is cold: statistics, links, health. Workers own the queues meanwhile.
//! The order is [`Engine::start`], any number of looks, [`Engine::stop`]: workers first, then queues back to their ports, then the
//! count of frames. A port whose worker died is aborted, since its queues are gone.

use super::faults::Faults;
use super::options::Plan;
use super::poller::{Forwarder, ForwarderConfig, Manners, Primer, QueueOf, Returned, Rewrite};
use super::setup::{OpenPort, Setup};
use super::summary::{CoreEnd, PoolEnd, PortEnd};
use crate::error::AppError;
use pollring::buffer::{Access, BURST, Pool, ToDevice};
use pollring::bus::Health;
use pollring::copy::MemcpyChannel;
use pollring::port::wrap::{Copier, CopierCounters};
use pollring::port::{Link, MacAddress, PortStatistics, Queues, RxQueue};
use pollring::worker::{IdlePolicy, Poller, Worker, WorkerConfig};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

/// Started ports and their workers.
pub(super) struct Engine {
    workers: Vec<(usize, Worker)>,
    ports: Vec<OpenPort>,
    /// Of each port's queues, with --copy.
    copiers: Vec<Vec<Arc<CopierCounters>>>,
    prime_pool: Option<Pool<ToDevice>>,
    home: Receiver<Returned>,
    faults: Faults,
}

/// What is left when everything stands still.
pub(super) struct Ended {
    pub(super) ports: Vec<PortEnd>,
    pub(super) pools: Vec<PoolEnd>,
    pub(super) cores: Vec<CoreEnd>,
    pub(super) errors: Vec<String>,
}

/// One look at a port.
pub(super) struct Look {
    pub(super) statistics: PortStatistics,
    pub(super) link: Link,
    pub(super) pool_in_use: usize,
    pub(super) pool_total: usize,
}

impl Engine {
    /// Starts all ports, then the workers. `primer` is what --prime sends.
    ///
    /// # Errors
    /// A port or a worker does not start; everything that did is stopped then.
    pub(super) fn start(plan: &Plan, setup: Setup, primer: &[u8]) -> Result<Engine, AppError> {
        let Setup { mut ports, prime_pool, faults, .. } = setup;
        let (mut queues, mut copiers) = (Vec::new(), Vec::new());
        for open in &mut ports {
            let started = open.port.start(&open.config)?;
            let (started, counters) = with_copies(started, open.copies.as_ref());
            queues.push(started);
            copiers.push(counters);
        }
        let macs: Vec<MacAddress> = ports.iter().map(|open| open.port.mac()).collect();
        let (sender, home) = mpsc::channel();
        let crews =
            Assembly { plan, macs, prime_pool: prime_pool.as_ref(), primer, home: sender }.crews(queues);
        // From here on the engine's parts are dropped in the right order on an error: workers before ports.
        let mut engine = Engine { workers: Vec::new(), ports, copiers, prime_pool, home, faults };
        for (core, crew) in plan.cores.iter().zip(crews) {
            let config =
                WorkerConfig { name: format!("forward-{core}"), core: Some(*core), idle: IdlePolicy::Pause };
            engine.workers.push((*core, Worker::start(config, crew)?));
        }
        Ok(engine)
    }

    /// Counters, link and pool of every port, as of now.
    pub(super) fn look(&mut self) -> Vec<Look> {
        let look = |open: &mut OpenPort| {
            let census = open.pool.census();
            Look {
                statistics: open.port.statistics(),
                link: open.port.link(),
                pool_in_use: census.elsewhere(),
                pool_total: census.total,
            }
        };
        self.ports.iter_mut().map(look).collect()
    }

    /// What the IOMMU refused since the last look.
    pub(super) fn faults(&mut self) -> Vec<String> {
        self.faults.look()
    }

    /// Whether every link is up; each call moves the links' state machines on.
    pub(super) fn links_are_up(&mut self) -> bool {
        let links: Vec<Link> = self.ports.iter_mut().map(|open| open.port.link()).collect();
        !links.contains(&Link::Down)
    }

    /// Whether every worker has turned, and so filled its receive rings.
    pub(super) fn is_polling(&self) -> bool {
        self.workers.iter().all(|(_, worker)| worker.turn() > 0)
    }

    /// Whether a worker died or a port cannot go on.
    pub(super) fn is_broken(&self) -> bool {
        let dead = self.workers.iter().any(|(_, worker)| !worker.is_alive());
        dead || self.ports.iter().any(|open| is_ill(&open.port.health()))
    }

    /// Stops the workers, then the ports, and counts the frames.
    pub(super) fn stop(mut self) -> Ended {
        let mut errors = Vec::new();
        let health: Vec<Health> = self.ports.iter().map(|open| open.port.health()).collect();
        let (cores, died) = self.stop_workers(&mut errors);
        let queues = self.collect_queues();
        for (open, queues) in self.ports.iter_mut().zip(queues) {
            let stopped = if died { open.port.abort() } else { open.port.stop(queues) };
            errors.extend(stopped.err().map(|error| error.to_string()));
        }
        errors.extend(self.faults.end());
        let mut ports = self
            .ports
            .iter_mut()
            .zip(health)
            .map(|(open, before)| end_of_port(open, before))
            .collect::<Vec<_>>();
        for (end, copiers) in ports.iter_mut().zip(&self.copiers) {
            end.rx_dropped += copiers.iter().map(|counters| counters.dropped()).sum::<u64>();
        }
        let mut pools: Vec<PoolEnd> = self.ports.iter().map(|open| end_of_pool(&open.pool)).collect();
        pools.extend(self.ports.iter().filter_map(|open| open.copies.as_ref()).map(end_of_pool));
        pools.extend(self.prime_pool.as_ref().map(end_of_pool));
        Ended { ports, pools, cores, errors }
    }

    /// The workers' ends, and whether one of them died.
    fn stop_workers(&mut self, errors: &mut Vec<String>) -> (Vec<CoreEnd>, bool) {
        let (mut cores, mut died) = (Vec::new(), false);
        for (core, worker) in self.workers.drain(..) {
            let counters = worker.counters();
            let busy_share = counters.busy_turns as f64 / counters.turns.max(1) as f64;
            cores.push(CoreEnd { core, turns: counters.turns, busy_share });
            // The pollers are dropped here, and that sends their queues home.
            if let Err(error) = worker.stop() {
                died = true;
                errors.push(error.to_string());
            }
        }
        (cores, died)
    }

    /// What came home, by port and in the order of pairs.
    fn collect_queues(&self) -> Vec<Queues> {
        let mut queues: Vec<Queues> = self.ports.iter().map(|_| Queues::default()).collect();
        for returned in self.home.try_iter() {
            match returned {
                Returned::Rx(of, rx) => queues[of.port].rx.push(rx),
                Returned::Tx(of, tx) => queues[of.port].tx.push(tx),
            }
        }
        queues
    }
}

/// Operations that one receive queue's channel may have under way: some bursts.
const COPY_DEPTH: usize = 4 * BURST;

/// The queues of a port, each receive queue behind a copier when there is a pool of copies.
fn with_copies(mut queues: Queues, copies: Option<&Pool<ToDevice>>) -> (Queues, Vec<Arc<CopierCounters>>) {
    let Some(pool) = copies else { return (queues, Vec::new()) };
    let copier = |rx| Copier::new(rx, Box::new(MemcpyChannel::new(COPY_DEPTH)), pool);
    let copiers: Vec<Copier> = queues.rx.into_iter().map(copier).collect();
    let counters = copiers.iter().map(Copier::counters).collect();
    queues.rx = copiers.into_iter().map(|copier| Box::new(copier) as Box<dyn RxQueue>).collect();
    (queues, counters)
}

fn is_ill(health: &Health) -> bool {
    matches!(health, Health::Failed(_) | Health::Gone)
}

fn end_of_port(open: &mut OpenPort, before: Health) -> PortEnd {
    let PortStatistics { rx, tx, rx_dropped, rx_overruns, device, .. } = open.port.statistics();
    tracing::info!(uri = open.uri, ?rx, ?tx, ?device, "port counters");
    let after = open.port.health();
    PortEnd {
        uri: open.uri.clone(),
        rx_frames: rx.frames,
        tx_frames: tx.frames,
        rx_dropped: rx_dropped + rx.bad,
        tx_dropped: tx.rejected,
        rx_overruns,
        rx_bytes: rx.bytes,
        tx_bytes: tx.bytes,
        // A port that was stopped is open again, which says nothing of the run.
        health: if is_ill(&after) { after } else { before },
    }
}

fn end_of_pool<D: Access>(pool: &Pool<D>) -> PoolEnd {
    let census = pool.census();
    PoolEnd {
        name: pool.name().to_owned(),
        total: census.total,
        leaked: census.total.saturating_sub(census.home),
        page_bytes: pool.region().page_size().bytes(),
    }
}

/// What the forwarders are made of.
struct Assembly<'a> {
    plan: &'a Plan,
    macs: Vec<MacAddress>,
    prime_pool: Option<&'a Pool<ToDevice>>,
    primer: &'a [u8],
    home: Sender<Returned>,
}

impl Assembly<'_> {
    /// One crew for each core: a forwarder from each receive queue to the same queue of the partner, dealt out in turn.
    fn crews(&self, queues: Vec<Queues>) -> Vec<Vec<Box<dyn Poller>>> {
        let (rx, tx): (Vec<_>, Vec<_>) = queues.into_iter().map(|queues| (queues.rx, queues.tx)).unzip();
        let mut tx: Vec<_> =
            tx.into_iter().map(|list| list.into_iter().map(Some).collect::<Vec<_>>()).collect();
        let mut crews: Vec<Vec<Box<dyn Poller>>> = self.plan.cores.iter().map(|_| Vec::new()).collect();
        let mut next = (0..crews.len()).cycle();
        for (port, list) in rx.into_iter().enumerate() {
            for (pair, rx) in list.into_iter().enumerate() {
                let (from, to) = (QueueOf { port, pair }, QueueOf { port: self.plan.partner(port), pair });
                // Partners are each other's, so every transmit queue is taken once.
                let Some(tx) = tx[to.port].get_mut(pair).and_then(Option::take) else { continue };
                let forwarder = Forwarder::new(rx, tx, self.config(from, to));
                crews[next.next().unwrap_or_default()].push(Box::new(forwarder));
            }
        }
        crews
    }

    fn config(&self, from: QueueOf, to: QueueOf) -> ForwarderConfig {
        let Plan { mode, destination, burst, prime, cores, allowed_cores, simulated, .. } = self.plan;
        let source = self.macs.get(to.port).copied().unwrap_or(MacAddress([0; 6]));
        let primer = self.prime_pool.filter(|_| to.pair == 0).map(|pool| Primer {
            pool: pool.clone(),
            left: *prime,
            bytes: self.primer.to_vec(),
        });
        // The simulator polls too.
        let crowded = *simulated && cores.len() + 1 >= *allowed_cores;
        let manners = if crowded { Manners::Yield } else { Manners::Keep };
        let rewrite = Rewrite::new(*mode, source, *destination);
        ForwarderConfig { from, to, rewrite, burst: *burst, primer, manners, home: self.home.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::tests::plan;
    use super::super::simulated::{PRIMER, Rig};
    use super::*;
    use std::time::{Duration, Instant};

    fn wait(what: &str, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < Duration::from_secs(30), "{what} did not happen");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Traffic is under way.
    fn running(line: &str) -> (Rig, Engine) {
        let plan = plan(line).unwrap();
        let rig = Rig::start(&plan).unwrap();
        let setup = Setup::open(&plan, rig.devices()).unwrap();
        let mut engine = Engine::start(&plan, setup, PRIMER).unwrap();
        wait("the link", || engine.links_are_up() && engine.is_polling());
        rig.offer();
        wait("traffic", || engine.look().iter().all(|port| port.statistics.tx.frames > 1000));
        (rig, engine)
    }

    fn assert_nothing_leaked(ended: &Ended) {
        assert!(ended.pools.iter().all(|pool| pool.leaked == 0), "{:?}", ended.pools);
    }

    #[test]
    fn a_stop_in_full_traffic_loses_no_buffer() {
        for line in
            ["", "--copy memcpy", "--queues 3 --prime 7 --pages small --copy memcpy", "sim:igb,delay=50"]
        {
            let (_rig, engine) = running(line);
            assert!(!engine.is_broken());
            let ended = engine.stop();
            assert!(ended.errors.is_empty(), "{:?}", ended.errors);
            assert!(ended.ports.iter().all(|port| port.health == Health::Running), "{:?}", ended.ports);
            assert_nothing_leaked(&ended);
        }
    }

    #[test]
    fn a_worker_that_panics_ends_the_run_and_loses_no_buffer() {
        let (_rig, engine) = running("");
        engine.workers[0].1.post(Box::new(|_, _| panic!("on purpose"))).unwrap();
        wait("the end of the worker", || engine.is_broken());
        let ended = engine.stop();
        assert!(ended.errors.len() == 1 && ended.errors[0].contains("on purpose"), "{:?}", ended.errors);
        assert_nothing_leaked(&ended);
    }

    #[test]
    fn a_device_that_goes_ends_the_run_and_loses_no_buffer() {
        let (rig, mut engine) = running("");
        rig.unplug(1);
        // Reading its counters is what finds out.
        wait("the loss of the device", || {
            engine.look();
            engine.is_broken()
        });
        let ended = engine.stop();
        assert_eq!(ended.ports[1].health, Health::Gone);
        assert_nothing_leaked(&ended);
    }
}
