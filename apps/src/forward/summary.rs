//! What a run came to: the totals, what is wrong with them, and both ways to print them.
//!
//! A [`Summary`] is made once everything has stopped. [`Summary::failures`] decides the exit status; the text and the JSON object show
//! the same numbers.

use super::options::Mode;
use crate::output::{table, thousands};
use pollring::bus::Health;
use serde::Serialize;
use std::fmt::Write;

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StoppedBy {
    /// Its time was over.
    Duration,
    /// SIGINT or SIGTERM.
    Signal,
    /// Nobody reads its output any more.
    Reader,
    /// A worker or a port died.
    Failure,
}

/// What the outer ends of simulated wires found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Tally {
    /// Frames that arrived as they had to be, byte for byte.
    #[serde(rename = "verified_frames")]
    pub(crate) verified: u64,
    /// Frames that arrived changed.
    #[serde(rename = "corrupt_frames")]
    pub(crate) corrupt: u64,
    /// Frames that never arrived.
    #[serde(rename = "missing_frames")]
    pub(crate) missing: u64,
    /// Frames that arrived behind a later one, or twice.
    #[serde(rename = "out_of_order_frames")]
    pub(crate) out_of_order: u64,
    /// Frames of --prime that arrived.
    #[serde(rename = "primed_frames")]
    pub(crate) primed: u64,
}

impl Tally {
    /// The sum of two.
    pub(crate) fn add(self, other: Tally) -> Tally {
        Tally {
            verified: self.verified + other.verified,
            corrupt: self.corrupt + other.corrupt,
            missing: self.missing + other.missing,
            out_of_order: self.out_of_order + other.out_of_order,
            primed: self.primed + other.primed,
        }
    }
}

/// The end of one port.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PortEnd {
    pub(crate) uri: String,
    pub(crate) rx_frames: u64,
    pub(crate) tx_frames: u64,
    pub(crate) rx_dropped: u64,
    pub(crate) tx_dropped: u64,
    /// Times that a receive ring was found full; frames were lost then.
    pub(crate) rx_overruns: u64,
    pub(crate) rx_bytes: u64,
    pub(crate) tx_bytes: u64,
    #[serde(serialize_with = "as_text")]
    pub(crate) health: Health,
}

/// The end of one pool.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PoolEnd {
    pub(crate) name: String,
    pub(crate) total: usize,
    /// Frames that are not home although nothing runs any more.
    pub(crate) leaked: usize,
    /// Size of its pages in bytes.
    pub(crate) page_bytes: usize,
}

/// What a worker did.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CoreEnd {
    pub(crate) core: usize,
    pub(crate) turns: u64,
    /// Share of turns in which it found work, 0 to 1.
    pub(crate) busy_share: f64,
}

/// What a run came to.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Summary {
    pub(crate) duration_s: f64,
    pub(crate) simulated: bool,
    #[serde(serialize_with = "as_word")]
    pub(crate) mode: Mode,
    pub(crate) seed: u64,
    pub(crate) stopped_by: StoppedBy,
    #[serde(flatten)]
    pub(crate) tally: Tally,
    pub(crate) ports: Vec<PortEnd>,
    pub(crate) pools: Vec<PoolEnd>,
    pub(crate) cores: Vec<CoreEnd>,
    /// What went wrong while it ran or stopped.
    pub(crate) errors: Vec<String>,
}

fn as_text<S: serde::Serializer>(health: &Health, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(health)
}

fn as_word<S: serde::Serializer>(mode: &Mode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(mode.as_str())
}

impl Summary {
    /// Why the exit status is 1; empty when it is 0.
    pub(crate) fn failures(&self) -> Vec<String> {
        let Tally { verified, corrupt, missing, out_of_order, .. } = self.tally;
        let mut failures = self.errors.clone();
        for (frames, what) in [
            (corrupt, "frames arrived corrupt"),
            (missing, "frames are missing"),
            (out_of_order, "frames arrived out of order"),
        ] {
            if frames > 0 {
                failures.push(format!(
                    "{} {what}; run it again with --seed {} -v",
                    thousands(frames),
                    self.seed
                ));
            }
        }
        if self.simulated && verified == 0 && self.stopped_by == StoppedBy::Duration {
            failures.push(
                "no frame arrived within the duration; give it longer, or look at the links above".to_owned(),
            );
        }
        let ill = self.ports.iter().filter(|port| matches!(port.health, Health::Failed(_) | Health::Gone));
        failures.extend(ill.map(|port| format!("port `{}` is {}; see the log (-v)", port.uri, port.health)));
        let leaky = self.pools.iter().filter(|pool| pool.leaked > 0);
        failures.extend(leaky.map(|pool| {
            format!(
                "pool `{}`: {} of {} frames did not come home: a bug, please report it",
                pool.name, pool.leaked, pool.total
            )
        }));
        failures
    }

    /// For people.
    pub(crate) fn to_text(&self) -> String {
        let mut text =
            format!("\n{:.1} s, mode {}, seed {}\n", self.duration_s, self.mode.as_str(), self.seed);
        let header =
            ["port", "rx frames", "tx frames", "rx dropped", "tx dropped", "rx bytes", "tx bytes", "health"];
        text += &table(
            &header,
            &[1, 2, 3, 4, 5, 6],
            self.ports.iter().enumerate().map(|(at, port)| port.row(at)),
        );
        text += "\n";
        if self.simulated {
            let Tally { verified, corrupt, missing, out_of_order, primed } = self.tally;
            let [verified, corrupt, missing, out_of_order, primed] =
                [verified, corrupt, missing, out_of_order, primed].map(thousands);
            text +=
                &format!("frames verified byte for byte: {verified}; corrupt {corrupt}, missing {missing}, ");
            text += &format!("out of order {out_of_order}, primed {primed}\n");
        }
        for port in self.ports.iter().filter(|port| port.rx_overruns > 0) {
            let _ = writeln!(
                text,
                "port {}: its receive ring was full {} times or more and frames were lost; forward faster, or offer less",
                port.uri,
                thousands(port.rx_overruns)
            );
        }
        for PoolEnd { name, total, leaked, page_bytes } in &self.pools {
            let (total, pages) = (thousands(*total as u64), crate::output::bytes(*page_bytes as u64));
            let end = if *leaked == 0 { "all home".to_owned() } else { format!("{leaked} LEAKED") };
            // Writing to a String does not fail.
            let _ = writeln!(text, "pool {name}: {total} frames on {pages} pages, {end}");
        }
        for CoreEnd { core, turns, busy_share } in &self.cores {
            let _ = writeln!(
                text,
                "core {core}: busy in {:.0} % of {} turns",
                busy_share * 100.0,
                thousands(*turns)
            );
        }
        text
    }
}

impl PortEnd {
    fn row(&self, position: usize) -> Vec<String> {
        let numbers =
            [self.rx_frames, self.tx_frames, self.rx_dropped, self.tx_dropped, self.rx_bytes, self.tx_bytes];
        let name = std::iter::once(format!("{position} {}", self.uri));
        name.chain(numbers.map(thousands)).chain([self.health.to_string()]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Summary {
        let health = Health::Running;
        let port = PortEnd {
            uri: "sim:igb".into(),
            rx_frames: 1000,
            tx_frames: 1000,
            rx_dropped: 0,
            tx_dropped: 0,
            rx_overruns: 0,
            rx_bytes: 64000,
            tx_bytes: 64000,
            health,
        };
        Summary {
            duration_s: 1.0,
            simulated: true,
            mode: Mode::MacSwap,
            seed: 1,
            stopped_by: StoppedBy::Duration,
            tally: Tally { verified: 2000, ..Tally::default() },
            ports: vec![port.clone(), port],
            pools: vec![PoolEnd { name: "port 0".into(), total: 2048, leaked: 0, page_bytes: 4096 }],
            cores: vec![CoreEnd { core: 1, turns: 12345, busy_share: 0.5 }],
            errors: Vec::new(),
        }
    }

    #[test]
    fn a_good_run_has_no_failure_and_each_fault_is_one() {
        assert!(good().failures().is_empty());
        type Fault = fn(&mut Summary);
        let faults: [(Fault, &str); 8] = [
            (|run| run.tally.corrupt = 1, "corrupt"),
            (|run| run.tally.missing = 2, "missing"),
            (|run| run.tally.out_of_order = 3, "out of order"),
            (|run| run.tally.verified = 0, "no frame"),
            (|run| run.ports[0].health = Health::Gone, "gone"),
            (|run| run.ports[1].health = Health::Failed("hung".into()), "failed: hung"),
            (|run| run.pools[0].leaked = 4, "4 of 2048 frames"),
            (|run| run.errors.push("worker died".into()), "worker died"),
        ];
        for (fault, word) in faults {
            let mut run = good();
            fault(&mut run);
            let failures = run.failures();
            assert!(failures.len() == 1 && failures[0].contains(word), "{word}: {failures:?}");
        }
    }

    #[test]
    fn a_signal_before_the_first_frame_is_no_failure() {
        let mut run = good();
        (run.tally.verified, run.stopped_by) = (0, StoppedBy::Signal);
        assert!(run.failures().is_empty());
    }

    #[test]
    fn the_object_has_the_keys_that_others_rely_on() {
        let object = serde_json::to_value(good()).unwrap();
        for key in [
            "duration_s",
            "simulated",
            "mode",
            "verified_frames",
            "corrupt_frames",
            "missing_frames",
            "pools",
            "cores",
        ] {
            assert!(object.get(key).is_some(), "{key}: {object}");
        }
        let port = &object["ports"][0];
        for key in
            ["uri", "rx_frames", "tx_frames", "rx_dropped", "tx_dropped", "rx_bytes", "tx_bytes", "health"]
        {
            assert!(port.get(key).is_some(), "{key}: {port}");
        }
        assert_eq!((object["mode"].as_str(), port["health"].as_str()), (Some("mac-swap"), Some("running")));
    }

    #[test]
    fn the_text_has_the_same_numbers() {
        let text = good().to_text();
        for part in [
            "1.0 s, mode mac-swap",
            "2,000",
            "64,000",
            "all home",
            "on 4 KiB pages",
            "busy in 50 % of 12,345 turns",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
