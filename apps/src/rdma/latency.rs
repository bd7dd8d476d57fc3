//! Latencies of a run of any length, in memory of a fixed size: a sample in regular steps, and percentiles of it.
//!
//! Up to [`MOST`] values all are kept. Then every other one goes, and from there on every second value is taken, then every
//! fourth: so what is kept is spread evenly over the run, and its ends count as much as its middle.

use serde::Serialize;
use std::time::Duration;

/// Values kept at most: enough for a hundred above the 99.9th percentile.
const MOST: usize = 1 << 18;

/// The sample.
pub(super) struct Latencies {
    kept_ns: Vec<u64>,
    seen: u64,
    every: u64,
}

/// Percentiles in microseconds, and how many values they were taken from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Percentiles {
    pub(super) samples: u64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p99_9_us: f64,
    pub(super) max_us: f64,
}

impl Latencies {
    /// Nothing seen yet; all memory is taken here.
    pub(super) fn new() -> Latencies {
        Latencies { kept_ns: Vec::with_capacity(MOST), seen: 0, every: 1 }
    }

    /// Notes one value.
    pub(super) fn note(&mut self, latency: Duration) {
        if self.seen.is_multiple_of(self.every) {
            if self.kept_ns.len() == MOST {
                self.halve();
            }
            self.kept_ns.push(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
        }
        self.seen += 1;
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.kept_ns.clear();
        (self.seen, self.every) = (0, 1);
    }

    /// What the sample says; `None` without a value.
    pub(super) fn percentiles(mut self) -> Option<Percentiles> {
        self.kept_ns.sort_unstable();
        let last = self.kept_ns.len().checked_sub(1)?;
        let at = |per_mille: usize| self.kept_ns[(self.kept_ns.len() * per_mille / 1000).min(last)];
        let us = |per_mille| at(per_mille) as f64 / 1000.0;
        Some(Percentiles {
            samples: last as u64 + 1,
            p50_us: us(500),
            p99_us: us(990),
            p99_9_us: us(999),
            max_us: us(1000),
        })
    }

    /// Keeps those at even places. The next value that is taken has an even place too, since [`MOST`] is even.
    fn halve(&mut self) {
        let mut place = 0;
        self.kept_ns.retain(|_| {
            place += 1;
            place % 2 == 1
        });
        self.every *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: impl Iterator<Item = u64>) -> Option<Percentiles> {
        let mut latencies = Latencies::new();
        values.for_each(|us| latencies.note(Duration::from_micros(us)));
        latencies.percentiles()
    }

    #[test]
    fn percentiles_are_values_that_were_seen() {
        assert_eq!(of(0..0), None);
        let (one, all) = (of(7..8).unwrap(), of((0..1000).rev()).unwrap());
        assert_eq!((one.samples, one.p50_us, one.p99_9_us, one.max_us), (1, 7.0, 7.0, 7.0));
        assert_eq!((all.p50_us, all.p99_us, all.p99_9_us, all.max_us), (500.0, 990.0, 999.0, 999.0));
    }

    #[test]
    fn long_runs_are_thinned_evenly() {
        let seen = 5 * MOST as u64;
        let all = of(0..seen).unwrap();
        assert!(all.samples as usize <= MOST && all.samples as usize > MOST / 2, "{all:?}");
        for (found, share) in [(all.p50_us, 0.5), (all.p99_us, 0.99), (all.p99_9_us, 0.999)] {
            assert!((found / seen as f64 - share).abs() < 0.001, "{all:?}");
        }
    }
}
