//! The command line of `rdma perf`, and what of it cannot be.

use super::load::Shape;
use super::simulated;
use crate::error::AppError;
use crate::ports::SimulatedIgb;
use clap::ValueEnum;
use serde::Serialize;
use std::time::Duration;

/// Bytes of an atomic.
const WORD_BYTES: usize = 8;

/// The longest message of a run.
const MOST_SIZE: usize = 8 << 20;

/// Registered memory of each side: what a deep queue may take, and what is the most.
const USUAL_BYTES: usize = 64 << 20;
const MOST_BYTES: usize = 1 << 30;

/// Queue pairs and requests of each, at most.
const MOST_QPS: usize = 1024;
const MOST_DEPTH: usize = 4096;

/// Arguments of `pollring rdma perf`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The two ports: the first asks, the second answers
    #[arg(num_args = 0..=2, default_values = ["sim:igb", "sim:igb"])]
    pub(super) ports: Vec<String>,
    /// What to do; a run for each
    #[arg(long, value_enum, value_delimiter = ',', default_value = "write")]
    pub(super) op: Vec<Operation>,
    /// Bytes of an operation, 1 to 8M, written as 64, 4K or 1M; a run for each. Atomics have 8, whatever is said here
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "64,4K,64K,1M", value_parser = parse_size)]
    pub(super) size: Vec<usize>,
    /// Connected pairs of queue pairs
    #[arg(long, value_name = "N", default_value = "1", allow_hyphen_values = true)]
    pub(super) qps: usize,
    /// Operations that each has outstanding, fewer when they would take more than 64 MiB; 1 shows the latency of an idle path
    #[arg(long, value_name = "N", default_value = "16", allow_hyphen_values = true)]
    pub(super) depth: usize,
    /// How long each run counts, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "2", allow_hyphen_values = true)]
    pub(super) duration: f64,
    /// Give every operation bytes of its own, and compare them where they must arrive
    #[arg(long)]
    pub(super) verify: bool,
    /// Print one JSON object at the end; people's text goes to standard error
    #[arg(long)]
    pub(super) json: bool,
}

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Operation {
    /// RDMA WRITE
    Write,
    /// RDMA READ
    Read,
    /// SEND to a posted receive
    Send,
    /// Fetch-and-add and compare-and-swap, in turns
    Atomic,
}

impl Operation {
    /// Its name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Operation::Write => "write",
            Operation::Read => "read",
            Operation::Send => "send",
            Operation::Atomic => "atomic",
        }
    }
}

impl Arguments {
    /// The two ports.
    ///
    /// # Errors
    /// The first argument that does not fit.
    pub(super) fn check(&self) -> Result<[SimulatedIgb; 2], AppError> {
        let Arguments { qps, depth, duration, .. } = self;
        let [near, far] = self.ports.as_slice() else {
            return usage(
                "`rdma perf` runs between two ports; name both, or none for two of `sim:igb`".into(),
            );
        };
        let ports = [simulated(near)?, simulated(far)?];
        if !(1..=MOST_QPS).contains(qps) {
            return usage(format!("--qps {qps}: 1 to {MOST_QPS}"));
        }
        if !(1..=MOST_DEPTH).contains(depth) {
            return usage(format!("--depth {depth}: 1 to {MOST_DEPTH}"));
        }
        if !(*duration > 0.0 && *duration < 1e9) {
            return usage(format!("--duration {duration}: a number of seconds above 0"));
        }
        let largest = self.shapes().into_iter().max_by_key(Shape::stride);
        match largest.filter(|shape| shape.stride() * qps > MOST_BYTES) {
            Some(Shape { size, .. }) => usage(format!(
                "--qps {qps} with {size} bytes: more than 1 GiB for each side; make one smaller"
            )),
            None => Ok(ports),
        }
    }

    /// The runs, in the order in which they were named; atomics have one size and so one run.
    pub(super) fn shapes(&self) -> Vec<Shape> {
        let sizes = |operation| match operation {
            Operation::Atomic => vec![WORD_BYTES],
            _ => self.size.clone(),
        };
        let of = |operation: &Operation| -> Vec<Shape> {
            sizes(*operation).into_iter().map(|size| self.shape(*operation, size)).collect()
        };
        self.op.iter().flat_map(of).collect()
    }

    fn shape(&self, operation: Operation, size: usize) -> Shape {
        let duration = Duration::from_secs_f64(self.duration.clamp(0.0, 1e9));
        let shape = Shape { operation, size, depth: self.depth, verify: self.verify, duration };
        let fits = USUAL_BYTES / (shape.stride() * self.qps.max(1));
        Shape { depth: self.depth.min(fits).max(1), ..shape }
    }
}

fn usage<T>(text: String) -> Result<T, AppError> {
    Err(AppError::Usage(text))
}

/// A number of bytes, with K or M for the binary units.
fn parse_size(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 1 << 10),
        None => text.strip_suffix(['M', 'm']).map_or((text, 1), |digits| (digits, 1 << 20)),
    };
    let bytes = digits.parse().ok().and_then(|number: usize| number.checked_mul(unit));
    let fits = bytes.filter(|bytes| (1..=MOST_SIZE).contains(bytes));
    fits.ok_or_else(|| "1 to 8M bytes, written as 64, 4K or 1M".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn line(words: &[&str]) -> Arguments {
        Line::try_parse_from([&["perf"], words].concat())
            .map(|line| line.arguments)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn sizes_have_binary_units() {
        let good = [("1", 1), ("2", 2), ("4K", 4096), ("4k", 4096), ("1M", 1 << 20), ("8M", 8 << 20)];
        for (text, bytes) in good {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for bad in ["", "0", "K", "-1", "9M", "8388609", "1.5K", "1G", "99999999999999999999M"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_run_for_each_operation_and_size_and_one_for_atomics() {
        let shapes = line(&["--op", "read,atomic", "--size", "2,1M", "--qps", "8"]).shapes();
        let found: Vec<_> = shapes.iter().map(|shape| (shape.operation, shape.size, shape.depth)).collect();
        let expected = [(Operation::Read, 2, 16), (Operation::Read, 1 << 20, 8), (Operation::Atomic, 8, 16)];
        assert_eq!(found, expected, "8 of 1 MiB for 8 queue pairs are 64 MiB");
    }

    #[test]
    fn what_does_not_fit_is_named() {
        assert!(line(&[]).check().is_ok());
        assert!(line(&["sim:igb,delay=2", "sim:igb"]).check().is_ok());
        let cases: [(&[&str], &str); 7] = [
            (&["sim:igb"], "two ports"),
            (&["--qps", "0"], "--qps 0"),
            (&["--qps", "1025"], "--qps 1025"),
            (&["--depth", "0"], "--depth 0"),
            (&["--duration", "-1"], "--duration -1"),
            (&["--size", "8M", "--qps", "129"], "more than 1 GiB"),
            (&["sim:igb", "pci:01:00.0"], "simulated ports"),
        ];
        for (words, part) in cases {
            let text = line(words).check().unwrap_err().to_string();
            assert!(text.contains(part), "{words:?}: {text}");
        }
    }
}
