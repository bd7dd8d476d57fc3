//! `pollring forward`: frames in at one port, out at its partner.
//!
//! The main thread opens and starts everything, then looks on: statistics, the table, the stop flag. Workers do the data path
//! ([`poller`]), one more thread is all simulated devices with their wires' outer ends ([`simulated`]). Read in this order: `options`
//! (what is asked), `setup` (ports and memory), `engine` (workers), `poller` (the path of a frame), `simulated`, `table`, `summary`.
//! At the end the generators stop first and what is under way arrives, then workers, ports and devices stop.

mod engine;
mod faults;
mod options;
mod poller;
mod setup;
pub(crate) mod signals;
mod simulated;
mod summary;
mod table;
mod vhost_user;

pub(crate) use options::Arguments;

use crate::error::AppError;
use crate::output::{self, Format, Screen};
use engine::{Engine, Look};
use options::Plan;
use pollring::port::{Duplex, Link};
use setup::Setup;
use signals::StopFlag;
use simulated::Rig;
use std::thread;
use std::time::{Duration, Instant};
use summary::{StoppedBy, Summary};
use table::{LiveTable, Row, Style};

/// How often the main thread looks at the stop flag.
const TICK: Duration = Duration::from_millis(20);
/// How often it shows the counters.
const SECOND: Duration = Duration::from_secs(1);
/// How long links may take to come up before traffic starts without them.
const LINK_LIMIT: Duration = Duration::from_secs(5);
/// How long frames that are under way may take to arrive.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// Runs the forwarder.
pub(crate) fn run(arguments: &Arguments) -> Result<(), AppError> {
    let plan = Plan::new(arguments)?;
    let stop = StopFlag::install()?;
    let mut screen = Screen::new(plan.format);
    let rig = if plan.simulated { Some(Rig::start(&plan)?) } else { None };
    rig.iter().for_each(|_| screen.line(GREETING));
    let setup = Setup::open(&plan, rig.as_ref().map(Rig::devices).unwrap_or_default())?;
    setup.notes.iter().for_each(|note| screen.line(note));
    let engine = Engine::start(&plan, setup, simulated::PRIMER)?;
    let mut run = Run { plan: &plan, engine, rig, stop, screen };
    run.await_links();
    run.begin();
    let (stopped_by, elapsed) = run.watch();
    run.drain();
    run.finish(stopped_by, elapsed)
}

/// The first line: what this is, and how to get the real thing.
const GREETING: &str = "simulated: these ports are software devices, no frame leaves this process; name real ones as \
    `pollring forward pci:0000:01:00.0 pci:0000:02:00.0` (`pollring devices` lists them)";

/// Everything that runs.
struct Run<'a> {
    plan: &'a Plan,
    engine: Engine,
    /// Of simulated ports.
    rig: Option<Rig>,
    stop: StopFlag,
    screen: Screen,
}

impl Run<'_> {
    /// Waits until links are up and every worker filled its receive rings.
    fn await_links(&mut self) {
        let start = Instant::now();
        while !(self.stop.is_set() || self.engine.links_are_up() && self.engine.is_polling()) {
            if start.elapsed() > LINK_LIMIT {
                self.screen.line("note: not every link is up; starting all the same");
                return;
            }
            thread::sleep(TICK / 20);
        }
    }

    /// Lets traffic in: frames of real ports come anyway, and who waits for that may wait for this line.
    fn begin(&mut self) {
        match &self.rig {
            Some(rig) => rig.offer(),
            None => self.screen.line("forwarding; end it with SIGINT (Ctrl-C) or SIGTERM"),
        }
    }

    /// Shows the counters until something ends the run.
    fn watch(&mut self) -> (StoppedBy, Duration) {
        let style = if self.screen.is_terminal() { Style::Redraw } else { Style::Append };
        let (mut table, start) = (LiveTable::new(style), Instant::now());
        let mut last = (start, self.engine.look());
        loop {
            let (now, elapsed) = (Instant::now(), start.elapsed());
            let ended = self.reason_to_end(elapsed);
            // Also at the end, unless a second's rows were just shown.
            if now - last.0 >= SECOND || ended.is_some() && now - last.0 >= SECOND / 2 {
                let looks = self.engine.look();
                let rows = self.rows(&looks, &last.1, now - last.0);
                self.screen.print(&table.draw(elapsed, &rows));
                self.engine.faults().iter().for_each(|fault| self.screen.line(fault));
                last = (now, looks);
            }
            if let Some(reason) = ended {
                return (reason, elapsed);
            }
            let left = self.plan.duration.map_or(TICK, |duration| duration.saturating_sub(elapsed));
            thread::sleep(TICK.min(left));
        }
    }

    fn reason_to_end(&self, elapsed: Duration) -> Option<StoppedBy> {
        if self.stop.is_set() {
            Some(StoppedBy::Signal)
        } else if self.engine.is_broken() || self.rig.as_ref().is_some_and(|rig| !rig.is_running()) {
            Some(StoppedBy::Failure)
        } else if self.screen.is_lost() && self.plan.format == Format::People {
            Some(StoppedBy::Reader)
        } else if self.plan.duration.is_some_and(|duration| elapsed >= duration) {
            Some(StoppedBy::Duration)
        } else {
            None
        }
    }

    fn rows(&self, looks: &[Look], before: &[Look], passed: Duration) -> Vec<Row> {
        let ports = self.plan.ports.iter().zip(looks.iter().zip(before)).enumerate();
        ports
            .map(|(position, (port, (now, then)))| {
                row(&format!("{position} {}", port.uri), now, then, passed)
            })
            .collect()
    }

    /// Ends the generators and lets the frames arrive that are under way.
    fn drain(&self) {
        let Some(rig) = &self.rig else { return };
        rig.end_offer();
        let start = Instant::now();
        while rig.outstanding_frames() > 0 && start.elapsed() < DRAIN_LIMIT && !self.engine.is_broken() {
            thread::sleep(TICK / 20);
        }
    }

    fn finish(self, stopped_by: StoppedBy, elapsed: Duration) -> Result<(), AppError> {
        let Run { plan, engine, rig, mut screen, .. } = self;
        let mut ended = engine.stop();
        let simulated = rig.is_some();
        let (tally, errors) = rig.map(Rig::stop).unwrap_or_default();
        ended.errors.extend(errors);
        let summary = Summary {
            duration_s: elapsed.as_secs_f64(),
            simulated,
            mode: plan.mode,
            seed: plan.seed,
            stopped_by,
            tally,
            ports: ended.ports,
            pools: ended.pools,
            cores: ended.cores,
            errors: ended.errors,
        };
        screen.print(&summary.to_text());
        if plan.format == Format::Json {
            output::write_json(&summary)?;
        }
        let failures = summary.failures();
        if failures.is_empty() { screen.close() } else { Err(AppError::Failed(failures)) }
    }
}

fn row(port: &str, now: &Look, then: &Look, passed: Duration) -> Row {
    let mpps = |now: u64, then: u64| now.saturating_sub(then) as f64 / passed.as_secs_f64() / 1e6;
    let (rx, tx) = (now.statistics.rx, now.statistics.tx);
    Row {
        port: port.to_owned(),
        rx_frames: rx.frames,
        tx_frames: tx.frames,
        rx_dropped: now.statistics.rx_dropped + rx.bad,
        tx_dropped: tx.rejected,
        rx_mpps: mpps(rx.frames, then.statistics.rx.frames),
        tx_mpps: mpps(tx.frames, then.statistics.tx.frames),
        pool_in_use: now.pool_in_use,
        pool_total: now.pool_total,
        link: match now.link {
            Link::Down => "down".to_owned(),
            Link::Up { speed_mbps, duplex: Duplex::Full } => format!("{speed_mbps} full"),
            Link::Up { speed_mbps, duplex: Duplex::Half } => format!("{speed_mbps} half"),
        },
    }
}
