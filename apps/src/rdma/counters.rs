//! The transport's counters, by name, for tables and JSON.

use pollring_drivers::rdma::roce::{Counters, DropReason};
use serde::Serialize;
use std::collections::BTreeMap;

/// All counters; of drops those that are not 0.
#[derive(Serialize)]
pub(super) struct NamedCounters {
    received_packets: u64,
    sent_packets: u64,
    pub(super) retransmitted_packets: u64,
    timeouts: u64,
    sequence_naks: u64,
    rnr_naks: u64,
    congestion_marks: u64,
    congestion_notifications: u64,
    copied_in_bytes: u64,
    copied_out_bytes: u64,
    gathered_bytes: u64,
    dropped_packets: u64,
    drops: BTreeMap<&'static str, u64>,
}

impl From<&Counters> for NamedCounters {
    fn from(counters: &Counters) -> NamedCounters {
        let drops = DropReason::ALL.iter().map(|reason| (reason.name(), counters.dropped(*reason)));
        NamedCounters {
            received_packets: counters.received,
            sent_packets: counters.sent,
            retransmitted_packets: counters.retransmitted,
            timeouts: counters.timeouts,
            sequence_naks: counters.sequence_naks,
            rnr_naks: counters.rnr_naks,
            congestion_marks: counters.marked,
            congestion_notifications: counters.notifications,
            copied_in_bytes: counters.copied_in_bytes,
            copied_out_bytes: counters.copied_out_bytes,
            gathered_bytes: counters.gathered_bytes,
            dropped_packets: counters.all_dropped(),
            drops: drops.filter(|(_, count)| *count > 0).collect(),
        }
    }
}

impl NamedCounters {
    /// Name and number of each that is not 0.
    pub(super) fn rows(&self) -> Vec<(&'static str, u64)> {
        let all = [
            ("received packets", self.received_packets),
            ("sent packets", self.sent_packets),
            ("retransmitted packets", self.retransmitted_packets),
            ("timeouts", self.timeouts),
            ("sequence NAKs", self.sequence_naks),
            ("receiver-not-ready NAKs", self.rnr_naks),
            ("congestion marks", self.congestion_marks),
            ("congestion notifications", self.congestion_notifications),
            ("copied in, bytes", self.copied_in_bytes),
            ("copied out, bytes", self.copied_out_bytes),
            ("gathered, bytes", self.gathered_bytes),
            ("dropped packets", self.dropped_packets),
        ];
        let drops = self.drops.iter().map(|(name, count)| (*name, *count));
        all.into_iter().chain(drops).filter(|(_, count)| *count > 0).collect()
    }
}
