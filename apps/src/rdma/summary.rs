//! What `rdma perf` says at the end, to people and as JSON.

use super::counters::NamedCounters;
use super::latency::Percentiles;
use super::load::{Outcome, Shape};
use super::options::Operation;
use crate::output::{self, bytes, thousands};
use pollring_drivers::rdma::roce::Counters;
use serde::Serialize;

/// All runs.
#[derive(Serialize)]
pub(super) struct Summary {
    transport: &'static str,
    simulated: bool,
    ports: Vec<String>,
    qps: usize,
    verified: u64,
    corrupt: u64,
    runs: Vec<Run>,
}

/// One operation at one size. Of the first window of operations nothing but `verified` and `corrupt` counts.
#[derive(Serialize)]
pub(super) struct Run {
    operation: Operation,
    size_bytes: usize,
    /// Of each queue pair.
    depth: usize,
    duration_s: f64,
    operations: u64,
    operations_per_s: f64,
    bytes_per_s: f64,
    latency: Option<Percentiles>,
    verified: u64,
    corrupt: u64,
    /// Of the side that asks and the side that answers.
    counters: [NamedCounters; 2],
    pub(super) failures: Vec<String>,
}

impl Run {
    /// What came of a run.
    pub(super) fn new(shape: &Shape, outcome: Outcome, counters: &[Counters; 2], errors: Vec<String>) -> Run {
        let (seconds, operations) = (outcome.elapsed.as_secs_f64(), outcome.operations);
        let per_s = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        let none = (operations == 0).then(|| "no operation was done after the warm-up".to_owned());
        let wrong = outcome.corrupt;
        let corrupt =
            (wrong > 0).then(|| format!("{wrong} operations left the wrong bytes; please report it"));
        // A failure explains why nothing was done.
        let reason = outcome.failure.or(none);
        let named = |text: String| format!("{} of {} bytes: {text}", shape.operation.name(), shape.size);
        Run {
            operation: shape.operation,
            size_bytes: shape.size,
            depth: shape.depth,
            duration_s: seconds,
            operations,
            operations_per_s: per_s(operations as f64),
            bytes_per_s: per_s(operations as f64 * shape.size as f64),
            latency: outcome.latencies.percentiles(),
            verified: outcome.verified,
            corrupt: outcome.corrupt,
            counters: counters.each_ref().map(NamedCounters::from),
            failures: reason.into_iter().chain(corrupt).chain(errors).map(named).collect(),
        }
    }

    fn cells(&self) -> Vec<String> {
        let latency = |of: fn(&Percentiles) -> f64| {
            self.latency.as_ref().map_or("-".to_owned(), |latency| format!("{:.1}", of(latency)))
        };
        vec![
            self.operation.name().to_owned(),
            bytes(self.size_bytes as u64),
            self.depth.to_string(),
            thousands(self.operations),
            thousands(self.operations_per_s as u64),
            format!("{:.2}", self.bytes_per_s / 1e6),
            latency(|latency| latency.p50_us),
            latency(|latency| latency.p99_us),
            latency(|latency| latency.p99_9_us),
            thousands(self.counters[0].retransmitted_packets + self.counters[1].retransmitted_packets),
            thousands(self.verified),
            thousands(self.corrupt),
        ]
    }
}

impl Summary {
    /// Of runs between two ports.
    pub(super) fn new(ports: &[String], qps: usize, runs: Vec<Run>) -> Summary {
        Summary {
            transport: "rocev2-software",
            simulated: true,
            ports: ports.to_vec(),
            qps,
            verified: runs.iter().map(|run| run.verified).sum(),
            corrupt: runs.iter().map(|run| run.corrupt).sum(),
            runs,
        }
    }

    /// A row a run.
    pub(super) fn to_text(&self) -> String {
        let header = [
            "operation",
            "size",
            "depth",
            "operations",
            "per second",
            "MB/s",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "resent",
            "verified",
            "corrupt",
        ];
        let table =
            output::table(&header, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], self.runs.iter().map(Run::cells));
        let (ports, qps) = (self.ports.join(" and "), self.qps);
        let pairs = if qps == 1 { "1 pair".to_owned() } else { format!("{qps} pairs") };
        format!("RoCEv2 in software between {ports}, {pairs} of queue pairs\n{table}\n")
    }

    /// Why the command failed; empty when it did not.
    pub(super) fn reasons(&self) -> Vec<String> {
        self.runs.iter().flat_map(|run| run.failures.clone()).collect()
    }
}
