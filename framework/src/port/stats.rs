//! Counters. A queue counts in plain words on a line of its own and publishes them relaxed once a burst; anyone may read them
//! at any time, and reading stops nobody. A port adds its device's registers.

use crossbeam_utils::CachePadded;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct $name { $($(#[$field_doc])* pub $field: u64,)* }

        impl $name {
            /// The sum of two.
            pub fn plus(self, other: $name) -> $name {
                $name { $($field: self.$field + other.$field,)* }
            }

            /// Names and values in order.
            pub fn entries(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field)),*]
            }

            const FIELDS: usize = [$(stringify!($field)),*].len();

            #[inline]
            fn to_words(self) -> [u64; Self::FIELDS] { [$(self.$field),*] }

            fn from_words(words: [u64; Self::FIELDS]) -> $name {
                let [$($field),*] = words;
                $name { $($field),* }
            }
        }

        impl Counted for $name {
            type Words = [AtomicU64; $name::FIELDS];
            fn zeros() -> Self::Words { [const { AtomicU64::new(0) }; $name::FIELDS] }
            #[inline]
            fn store(self, words: &Self::Words) {
                for (word, value) in words.iter().zip(self.to_words()) {
                    word.store(value, Ordering::Relaxed);
                }
            }
            fn load(words: &Self::Words) -> $name {
                $name::from_words(words.each_ref().map(|word| word.load(Ordering::Relaxed)))
            }
        }
    };
}

/// A group of counters that can be published.
pub trait Counted: Copy + Default {
    /// Where they are published.
    type Words: Send + Sync;
    /// Words of zero.
    fn zeros() -> Self::Words;
    /// Publishes.
    fn store(self, words: &Self::Words);
    /// Reads what was published last.
    fn load(words: &Self::Words) -> Self;
}

counters! {
    /// What a receive queue counted.
    RxCounters {
        /// Good frames.
        frames,
        /// Their bytes, CRC not counted.
        bytes,
        /// Frames with an error bit, without an end, or longer than their buffer.
        bad,
        /// Refills that found the pool empty.
        pool_empty,
        /// Tail writes.
        doorbells,
    }
}

counters! {
    /// What a transmit queue counted.
    TxCounters {
        /// Frames given to the device.
        frames,
        /// Their bytes, CRC not counted.
        bytes,
        /// Frames that the device cannot send: too short, too long, too many segments.
        rejected,
        /// Sends that the ring took in part or not at all.
        ring_full,
        /// Tail writes.
        doorbells,
    }
}

/// The counters of one queue: its owner counts in `now` and publishes; readers have clones of the published line.
pub struct QueueCounters<C: Counted> {
    /// The owner's own words.
    pub now: C,
    published: Arc<CachePadded<C::Words>>,
}

/// A reader of one queue's counters.
pub struct CounterReader<C: Counted>(Arc<CachePadded<C::Words>>);

impl<C: Counted> Default for QueueCounters<C> {
    fn default() -> QueueCounters<C> {
        QueueCounters { now: C::default(), published: Arc::new(CachePadded::new(C::zeros())) }
    }
}

impl<C: Counted> QueueCounters<C> {
    /// Makes the counts readable. The counters of one group may be of two bursts; each is exact when the owner rests.
    #[inline]
    pub fn publish(&self) {
        self.now.store(&self.published);
    }

    /// A reader, for the port.
    pub fn reader(&self) -> CounterReader<C> {
        CounterReader(self.published.clone())
    }
}

impl<C: Counted> CounterReader<C> {
    /// What was published last.
    pub fn read(&self) -> C {
        C::load(&self.0)
    }
}

/// A port's counters since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PortStatistics {
    /// Sum of the receive queues.
    pub rx: RxCounters,
    /// Sum of the transmit queues.
    pub tx: TxCounters,
    /// Frames that the device dropped before a queue saw them: no buffer, overrun.
    pub rx_dropped: u64,
    /// Looks at which the device had met a full receive ring since the look before: each stands for one lost frame or more. Some
    /// devices count those frames in `rx_dropped` too, others only say that it happened.
    pub rx_overruns: u64,
    /// Frames that the device found damaged: CRC, length, alignment.
    pub rx_damaged: u64,
    /// The device's own registers, by their datasheet names.
    pub device: Vec<(String, u64)>,
}
