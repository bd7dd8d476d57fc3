//! A port: control on one side, queues on the other.
//!
//! [`Port`] is cold and stays on the control thread. [`Port::start`] checks a [`PortConfig`] before it touches a register and
//! hands out [`Queues`]; each [`RxQueue`] and [`TxQueue`] goes to one worker, which calls four operations on it: refill, receive, send,
//! reclaim. [`Port::stop`] takes the queues back and ends DMA; [`Port::abort`] ends it without them. Either way every frame
//! comes home and nothing of the port's own stays mapped.

mod config;
pub mod lifecycle;
mod stats;
pub mod wrap;

pub use config::{Capabilities, MacAddress, PortConfig, Promiscuous};
pub use stats::{Counted, CounterReader, PortStatistics, QueueCounters, RxCounters, TxCounters};

use crate::buffer::{Burst, Caches};
use crate::bus::{BusError, Health};
use crate::inspect::Node;
use crate::ring::RingMemoryError;
use thiserror::Error;

/// The receiving half of a queue pair. `Send`, used by one worker, no locks; one call per burst. Nothing here fails: a bad
/// frame is a counter, and a dead device gives 0 and shows in [`RxQueue::health`].
pub trait RxQueue: Send {
    /// Gives the device empty buffers, 32 and more at a time, with one doorbell; gives how many. An empty pool gives fewer.
    fn refill(&mut self, caches: &mut Caches) -> usize;
    /// Appends received frames to `burst`, as many as fit; gives how many.
    fn receive(&mut self, burst: &mut Burst) -> usize;
    /// How the device is.
    fn health(&self) -> Health;
}

/// The sending half of a queue pair; see [`RxQueue`].
pub trait TxQueue: Send {
    /// Takes frames from the front of `burst`, as many as fit, with one doorbell; gives how many. What the device cannot send is
    /// taken, counted and goes back to its pool. Reclaims by itself when the ring runs full.
    fn send(&mut self, burst: &mut Burst, caches: &mut Caches) -> usize;
    /// Sends home the frames that the device is done with; gives how many.
    fn reclaim(&mut self, caches: &mut Caches) -> usize;
    /// How the device is.
    fn health(&self) -> Health;
}

/// What a started port hands out: queue `n` of each list belongs to one pair.
#[derive(Default)]
pub struct Queues {
    /// Receiving halves.
    pub rx: Vec<Box<dyn RxQueue>>,
    /// Sending halves.
    pub tx: Vec<Box<dyn TxQueue>>,
}

/// The state of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// No carrier, or negotiation under way.
    Down,
    /// Frames pass, at this many Mbit/s, one way or both at a time.
    Up {
        /// Mbit/s.
        speed_mbps: u32,
        /// Whether both directions pass at once.
        duplex: Duplex,
    },
}

/// Directions at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duplex {
    /// One.
    Half,
    /// Both.
    Full,
}

/// Control of one port.
pub trait Port: Send {
    /// Its URI, as the user named it.
    fn uri(&self) -> &str;
    /// What it can do.
    fn capabilities(&self) -> &Capabilities;
    /// Its address.
    fn mac(&self) -> MacAddress;
    /// Starts it. Does not wait for the link. A port that was stopped or aborted starts again, with the configuration given.
    ///
    /// # Errors
    /// A configuration that it cannot do, queues of the last run that are alive, no memory, a device that does not answer. DMA is off
    /// and nothing is mapped then.
    fn start(&mut self, config: &PortConfig) -> Result<Queues, PortError>;
    /// Ends DMA and takes the queues, wherever they were. All frames go home.
    ///
    /// # Errors
    /// Some queues are missing ([`PortError::QueuesAlive`]): DMA is off all the same, and their frames come home when they are dropped.
    fn stop(&mut self, queues: Queues) -> Result<(), PortError>;
    /// Ends DMA without the queues, which do nothing from then on. What died queues left comes home.
    ///
    /// # Errors
    /// The device did not answer; bus mastering is off all the same.
    fn abort(&mut self) -> Result<(), PortError>;
    /// The link now; each call moves its state machine on and none waits.
    fn link(&mut self) -> Link;
    /// Whether frames for other addresses are received; holds over restarts.
    ///
    /// # Errors
    /// The device is gone.
    fn set_promiscuous(&mut self, promiscuous: Promiscuous) -> Result<(), PortError>;
    /// Counters since the port was opened.
    fn statistics(&mut self) -> PortStatistics;
    /// How the device is.
    fn health(&self) -> Health;
    /// Its state as a tree, registers included.
    fn inspect(&mut self) -> Node;
}

/// Why a port could not do something.
#[derive(Debug, Error)]
pub enum PortError {
    /// The configuration asks for what the port cannot do.
    #[error("start `{port}`: {what}")]
    Config {
        /// The port.
        port: String,
        /// Which number, and what it may be.
        what: String,
    },
    /// Queues of an earlier run are alive.
    #[error(
        "`{port}`: {alive} queues of its last run are still alive; stop the workers that hold them and drop the queues"
    )]
    QueuesAlive {
        /// The port.
        port: String,
        /// How many.
        alive: usize,
    },
    /// Started already, or not started.
    #[error("{step} `{port}`: the port is {state}")]
    State {
        /// What was tried.
        step: &'static str,
        /// The port.
        port: String,
        /// How it is.
        state: &'static str,
    },
    /// The device did not do what its datasheet promises.
    #[error(
        "{step} on `{port}`: the device did not answer within {waited_ms} ms; reset it (unbind and bind) or look at it \
         with `pollring devices`"
    )]
    Timeout {
        /// The bring-up step.
        step: &'static str,
        /// The port.
        port: String,
        /// How long it was given.
        waited_ms: u64,
    },
    /// The bus.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// Memory for rings.
    #[error(transparent)]
    Rings(#[from] RingMemoryError),
}
