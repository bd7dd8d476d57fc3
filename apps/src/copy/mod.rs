//! `pollring copy`: an engine at work, its speed, and whether its copies are true.
//!
//! One thread: it keeps `--depth` operations outstanding, each with a source and a destination of its own, until the time is over or a signal
//! comes; then what is outstanding ends. With `--verify` each source is new and each result is compared, byte for byte. An
//! engine that falls silent is halted and reported.

mod engine;
mod work;

pub(crate) use engine::ENGINE_FORMS;

use crate::error::AppError;
use crate::output::{self, Format, Screen};
use clap::ValueEnum;
use engine::{BarName, EngineName, Wanted};
use pollring::copy::Capabilities;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use work::Work;

/// Memory for sources and destinations, at most.
const MOST_BYTES: usize = 4 << 30;

/// Arguments of `pollring copy`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// memcpy, sim:ioat, pci:ADDRESS or vfio-user:PATH
    engine: String,
    /// Bytes of an operation
    #[arg(long, value_name = "BYTES", default_value = "4096", allow_hyphen_values = true)]
    size: usize,
    /// Operations that are outstanding at a time
    #[arg(long, value_name = "N", default_value = "32", allow_hyphen_values = true)]
    depth: usize,
    /// What to do, in turns
    #[arg(long, value_enum, value_delimiter = ',', default_value = "copy")]
    ops: Vec<Op>,
    /// Write the results into the memory behind a BAR of another device: pci:ADDRESS,bar=N
    #[arg(long, value_name = "BAR")]
    into: Option<String>,
    /// Compare every result with what it must be
    #[arg(long)]
    verify: bool,
    /// How long to run, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "5", allow_hyphen_values = true)]
    duration: f64,
    /// Print one JSON object at the end; people's text goes to standard error
    #[arg(long)]
    json: bool,
}

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Op {
    /// Copy memory
    Copy,
    /// Repeat a pattern of 8 bytes
    Fill,
}

/// What was seen.
#[derive(Serialize)]
struct Summary {
    engine: String,
    size_bytes: usize,
    depth: usize,
    duration_s: f64,
    operations: u64,
    bytes: u64,
    operations_per_s: f64,
    bytes_per_s: f64,
    verified: u64,
    corrupt: u64,
    /// Operations that ended otherwise than done, by status.
    failed: Vec<(String, u64)>,
    health: String,
}

/// Runs an engine.
pub(crate) fn run(arguments: &Arguments) -> Result<(), AppError> {
    let name = check(arguments)?;
    let stop = watch_signals()?;
    let format = Format::from_switch(arguments.json);
    let mut screen = Screen::new(format);
    let Arguments { size, depth, .. } = *arguments;
    let into = arguments.into.as_deref().map(parse_target).transpose()?;
    let opened = engine::open(&arguments.engine, &name, &Wanted { depth, bytes: size * depth, into })?;
    fits(arguments, opened.channel.limits().capabilities, opened.channel.limits().max_bytes)?;
    let mut work = Work::new(opened, size, depth, &arguments.ops, arguments.verify);
    let duration = Duration::from_secs_f64(arguments.duration);
    let (start, mut shown) = (Instant::now(), 0);
    while start.elapsed() < duration && !stop.load(Ordering::Relaxed) && !screen.is_lost() && work.goes_on() {
        work.turn();
        if start.elapsed().as_secs() > shown {
            shown = start.elapsed().as_secs();
            let (operations, corrupt) = (work.done, work.corrupt);
            screen.line(&format!("{shown:>5} s  {operations:>12} operations  {corrupt} corrupt"));
        }
    }
    let elapsed = start.elapsed();
    work.finish();
    let summary = summary(arguments, &work, elapsed);
    screen.print(&summary.to_text());
    if format == Format::Json {
        output::write_json(&summary)?;
    }
    let reasons = summary.reasons();
    if reasons.is_empty() { screen.close() } else { Err(AppError::Failed(reasons)) }
}

fn parse_target(text: &str) -> Result<BarName, AppError> {
    text.parse().map_err(|error| AppError::Usage(format!("--into {text}: {error}")))
}

fn check(arguments: &Arguments) -> Result<EngineName, AppError> {
    let usage = |text: String| Err(AppError::Usage(text));
    let Arguments { engine, size, depth, duration, .. } = arguments;
    let name = match engine.parse() {
        Ok(name) => name,
        Err(error) => return usage(format!("engine `{engine}`: {error}")),
    };
    if *size == 0 || *depth == 0 || *depth >= 1 << 15 {
        return usage(format!("--size {size} --depth {depth}: size is above 0, depth 1 to 32767"));
    }
    if size.checked_mul(2 * depth).is_none_or(|bytes| bytes > MOST_BYTES) {
        return usage(format!("--size {size} --depth {depth}: more than 4 GiB in all; make one smaller"));
    }
    if !(*duration > 0.0 && *duration < 1e9) {
        return usage(format!("--duration {duration}: a number of seconds above 0"));
    }
    Ok(name)
}

fn fits(arguments: &Arguments, capabilities: Capabilities, max_bytes: usize) -> Result<(), AppError> {
    if arguments.size > max_bytes {
        return Err(AppError::Usage(format!(
            "--size {}: the engine takes {max_bytes} bytes at a time",
            arguments.size
        )));
    }
    if arguments.ops.contains(&Op::Fill) && !capabilities.contains(Capabilities::FILL) {
        return Err(AppError::Usage("--ops fill: the engine has no fill; use --ops copy".into()));
    }
    Ok(())
}

/// The flag that the first signal sets; a second one kills.
fn watch_signals() -> Result<Arc<AtomicBool>, AppError> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_default(signal, asked.clone())
            .and_then(|_| flag::register(signal, asked.clone()))
            .map_err(|error| AppError::System { step: "watch for SIGINT and SIGTERM: sigaction", error })?;
    }
    Ok(asked)
}

fn summary(arguments: &Arguments, work: &Work, elapsed: Duration) -> Summary {
    let (seconds, bytes) = (elapsed.as_secs_f64(), work.done * arguments.size as u64);
    Summary {
        engine: arguments.engine.clone(),
        size_bytes: arguments.size,
        depth: arguments.depth,
        duration_s: seconds,
        operations: work.done,
        bytes,
        operations_per_s: work.done as f64 / seconds,
        bytes_per_s: bytes as f64 / seconds,
        verified: work.verified,
        corrupt: work.corrupt,
        failed: work.failed.iter().map(|(status, count)| (status.clone(), *count)).collect(),
        health: work.health(),
    }
}

impl Summary {
    fn to_text(&self) -> String {
        let header =
            ["engine", "bytes", "depth", "operations", "per second", "MB/s", "verified", "corrupt", "health"];
        let row = vec![
            self.engine.clone(),
            self.size_bytes.to_string(),
            self.depth.to_string(),
            self.operations.to_string(),
            format!("{:.0}", self.operations_per_s),
            format!("{:.1}", self.bytes_per_s / 1e6),
            self.verified.to_string(),
            self.corrupt.to_string(),
            self.health.clone(),
        ];
        format!("{}\n", output::table(&header, &[1, 2, 3, 4, 5, 6, 7], [row]))
    }

    fn reasons(&self) -> Vec<String> {
        let corrupt = (self.corrupt > 0).then(|| format!("{} results are wrong", self.corrupt));
        let none = (self.operations == 0).then(|| "no operation was done".to_owned());
        let failed = self.failed.iter().map(|(status, count)| format!("{count} operations {status}"));
        failed.chain(corrupt).chain(none).collect()
    }
}
