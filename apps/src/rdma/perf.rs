//! `pollring rdma perf`: operations between two ports of this process, their speed, and whether memory is as it must be.
//!
//! Each operation and size is a run of its own, on a machine of its own: ports, wire, queue pairs. The load and both endpoints share one
//! worker, and the software NICs have another thread. So the figures are those of the whole software path, and no network's.

use super::connect;
use super::load::{Control, Load, Outcome, Shape};
use super::machine::Machine;
pub(crate) use super::options::Arguments;
use super::summary::{Run, Summary};
use crate::error::AppError;
use crate::forward::signals::StopFlag;
use crate::output::{self, Format, Screen};
use crate::ports::SimulatedIgb;
use pollring::os::allowed_cores;
use pollring::worker::{IdlePolicy, Worker, WorkerConfig};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How often the main thread looks at the run.
const LOOK: Duration = Duration::from_millis(100);

/// Runs them all, up to the first that fails.
pub(crate) fn run(arguments: &Arguments) -> Result<(), AppError> {
    let names = arguments.check()?;
    let stop = StopFlag::install()?;
    let format = Format::from_switch(arguments.json);
    let mut screen = Screen::new(format);
    let mut runs: Vec<Run> = Vec::new();
    for shape in arguments.shapes() {
        runs.push(measure(arguments, names, &shape, &stop)?);
        if stop.is_set() || runs.iter().any(|run| !run.failures.is_empty()) {
            break;
        }
    }
    let summary = Summary::new(&arguments.ports, arguments.qps, runs);
    screen.print(&summary.to_text());
    if format == Format::Json {
        output::write_json(&summary)?;
    }
    let reasons = summary.reasons();
    if reasons.is_empty() { screen.close() } else { Err(AppError::Failed(reasons)) }
}

/// One run, from opening its ports to closing them.
fn measure(
    arguments: &Arguments,
    names: [SimulatedIgb; 2],
    shape: &Shape,
    stop: &StopFlag,
) -> Result<Run, AppError> {
    let (mut machine, mut pollers) = Machine::open([&arguments.ports[0], &arguments.ports[1]], names)?;
    let (control, home) = control();
    let (done, asked) = (control.done.clone(), control.stop.clone());
    pollers.push(Box::new(load(arguments.qps, &mut machine, shape, control)?));
    let core = allowed_cores()?.as_slice().last().copied();
    let worker = Worker::start(WorkerConfig { name: "rdma".into(), core, idle: IdlePolicy::Pause }, pollers)?;
    let outcome = wait(&home, &worker, stop, &asked, |elapsed| {
        // Nobody may be there to read it.
        let count = done.load(Ordering::Relaxed);
        progress(&format!(
            "{} of {} bytes: {elapsed} s, {count} operations",
            shape.operation.name(),
            shape.size
        ));
    });
    // A worker that panicked says so here.
    let ended = worker.stop().map(drop);
    let counters = machine.sides.each_ref().map(|side| side.device.counters());
    let errors = machine.close();
    ended?;
    let outcome = outcome.ok_or_else(|| AppError::Failed(vec!["the load ended without a word".into()]))?;
    Ok(Run::new(shape, outcome, &counters, errors))
}

fn control() -> (Control, Receiver<Outcome>) {
    let (home, outcome) = mpsc::channel();
    (Control { done: Arc::new(AtomicU64::new(0)), stop: Arc::new(AtomicBool::new(false)), home }, outcome)
}

fn load(qps: usize, machine: &mut Machine, shape: &Shape, control: Control) -> Result<Load, AppError> {
    let bytes = qps * shape.depth * shape.stride();
    let memory = [machine.sides[0].memory(bytes)?, machine.sides[1].memory(bytes)?];
    let (cqs, lanes) = connect::lanes(machine, shape, qps)?;
    Ok(Load::new(*shape, lanes, cqs, memory, control))
}

/// Waits for the load, which ends by itself; `None` when its worker died. Calls `tell` once a second.
fn wait(
    home: &Receiver<Outcome>,
    worker: &Worker,
    stop: &StopFlag,
    asked: &AtomicBool,
    tell: impl Fn(u64),
) -> Option<Outcome> {
    let (start, mut told) = (Instant::now(), 0);
    loop {
        match home.recv_timeout(LOOK) {
            Ok(outcome) => return Some(outcome),
            Err(RecvTimeoutError::Timeout) if worker.is_alive() => {}
            Err(_) => return home.try_recv().ok(),
        }
        if stop.is_set() {
            asked.store(true, Ordering::Relaxed);
        }
        if start.elapsed().as_secs() > told {
            told = start.elapsed().as_secs();
            tell(told);
        }
    }
}

/// A line on standard error, where it disturbs neither table nor JSON.
fn progress(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{text}");
}
