//! Queue pairs and shared receive queues: the handles through which one worker posts.
//!
//! Both are the caller's end of a queue, and the transport's end may be on the other side of a bus: a post writes to the queue,
//! [`flush`](QueuePair::flush) tells the transport, and the outcome comes by the completion queue. A queue pair may be moved to
//! the worker of its vector, never shared.

use super::{Access, Connection, CqNumber, Modify, ModifyError, PostError, Psn, QKey, QpLimits, QpType, Qpn};
use super::{ReceiveRequest, Retry, SendRequest, State, Status};
use crate::copy::Fifo;
use std::net::IpAddr;
use std::time::Duration;
use thiserror::Error;

/// Where a queue pair's receives come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receives {
    /// Its own queue.
    Own,
    /// A shared one.
    Shared(SrqNumber),
}

/// Which successes of sends complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signalling {
    /// All of them (`sq_sig_all`).
    All,
    /// Those that ask for it.
    OnRequest,
}

/// What a queue pair is made of (`ibv_qp_init_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpConfig {
    /// Its service.
    pub kind: QpType,
    /// Where sends complete.
    pub send_cq: CqNumber,
    /// Where receives complete; on the same vector.
    pub receive_cq: CqNumber,
    /// Where receives come from.
    pub receives: Receives,
    /// Its size; the queue pair may be made larger.
    pub limits: QpLimits,
    /// Which sends complete.
    pub signalling: Signalling,
}

/// What is in force now (`ibv_query_qp`(3)): durations and counts as the wire has them, not as they were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttributes {
    /// Its state.
    pub state: State,
    /// The peer of a connected queue pair, from RTR on. Its PSN is the next one expected.
    pub connection: Option<Connection>,
    /// Rights of the peer.
    pub access: Access,
    /// Which datagrams are taken; UD.
    pub q_key: Option<QKey>,
    /// The next sequence number to send.
    pub send_psn: Psn,
    /// Timers; RC from RTS on.
    pub retry: Option<Retry>,
    /// How long the peer waits when no receive is posted.
    pub min_rnr: Duration,
    /// READs and atomics outstanding at a time.
    pub initiator_depth: u8,
    /// READs and atomics served at a time.
    pub responder_resources: u8,
}

/// Which part of a transport failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// Packets and their order.
    Wire,
    /// Regions, keys, bounds.
    Memory,
    /// Queue sizes, retries, resources.
    Limits,
    /// Connection management.
    Connection,
    /// The device itself.
    Device,
}

/// Why a queue pair went to error or SQE: the first cause, not what was flushed after it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{layer:?}: queue pair {qp} to {peer:?} at PSN {psn}: {status}: {what}; {remedy}")]
pub struct Failure {
    /// Which part.
    pub layer: Layer,
    /// The queue pair.
    pub qp: Qpn,
    /// The peer of a connected one.
    pub peer: Option<(IpAddr, Qpn)>,
    /// Where in the sequence.
    pub psn: Psn,
    /// What the completion says.
    pub status: Status,
    /// What happened.
    pub what: String,
    /// What to do.
    pub remedy: &'static str,
}

/// A request that stopped a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("post request {accepted} of the batch: {reason}")]
pub struct Refused {
    /// How many before it were taken.
    pub accepted: usize,
    /// Why it was not. It is at the front of the batch now.
    pub reason: PostError,
}

/// A queue pair. Dropping it ends it: what is outstanding gives no completion, and its handles are released when the transport
/// no longer uses the memory.
pub trait QueuePair: Send {
    /// Its number.
    fn number(&self) -> Qpn;

    /// Its service.
    fn kind(&self) -> QpType;

    /// Its size, as it was made.
    fn limits(&self) -> QpLimits;

    /// Its state, as last heard of: a failure on the transport's side shows once its completions were polled.
    fn state(&self) -> State;

    /// What is in force now.
    fn attributes(&self) -> QpAttributes;

    /// Changes state and attributes. By [`Modify::check`] first, and then what only the device knows.
    ///
    /// # Errors
    /// The change is illegal or refused; nothing changed.
    fn modify(&mut self, change: Modify) -> Result<(), ModifyError>;

    /// Takes requests from the front of `batch` while they fit; gives how many. The rest stays.
    ///
    /// # Errors
    /// The request at the front can never be taken so. Those before it were.
    fn post_send(&mut self, batch: &mut Fifo<SendRequest>) -> Result<usize, Refused>;

    /// The same for receives. A queue pair with a shared receive queue has none of its own.
    ///
    /// # Errors
    /// The request at the front can never be taken so. Those before it were.
    fn post_receive(&mut self, batch: &mut Fifo<ReceiveRequest>) -> Result<usize, Refused>;

    /// Tells the transport of all that was posted, with one doorbell for each queue that moved.
    fn flush(&mut self);

    /// Why it is in error; `None` when it is not, or was moved there by its owner.
    fn failure(&self) -> Option<Failure>;
}

/// The number of a shared receive queue on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SrqNumber(pub u32);

/// What a shared receive queue is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqConfig {
    /// Receive requests outstanding.
    pub requests: u32,
    /// Pieces of a request.
    pub sges: u16,
    /// The vector of the queue pairs that it serves.
    pub vector: u16,
}

/// Receives for several queue pairs of one vector.
pub trait SharedReceiveQueue: Send {
    /// Its number.
    fn number(&self) -> SrqNumber;

    /// Its size, as it was made.
    fn config(&self) -> SrqConfig;

    /// Takes requests from the front of `batch` while they fit; gives how many. The rest stays.
    ///
    /// # Errors
    /// The request at the front can never be taken so. Those before it were.
    fn post_receive(&mut self, batch: &mut Fifo<ReceiveRequest>) -> Result<usize, Refused>;

    /// Tells the transport of all that was posted, with one doorbell.
    fn flush(&mut self);

    /// Asks for one [`AsyncEvent::SrqLimit`](super::AsyncEvent::SrqLimit) when fewer than `requests` are left; 0 disarms.
    fn arm_limit(&mut self, requests: u32);
}
