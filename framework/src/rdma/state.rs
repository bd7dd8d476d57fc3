//! The states of a queue pair, and what each change of state needs.
//!
//! RESET, INIT, RTR (receives), RTS (sends too), SQD (stops sending), SQE (a send failed, receiving goes on; UC and UD only),
//! ERR (everything is flushed). The owner moves along by [`Modify`]; a failure moves by itself ([`State::after_failure`]).
//! [`transition`] is the whole table (IBTA 10.3.1; the kernel's `qp_state_table` in drivers/infiniband/core/verbs.c), and
//! [`Modify::check`] adds the attributes. Both are pure: a transport calls `check` and then acts.

use super::{Access, AddressVector, Mtu, Psn, QKey, Qpn};
use std::time::Duration;
use thiserror::Error;

/// The service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// Where a queue pair is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// New; nothing may be posted.
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive: answers its peer.
    Rtr,
    /// Ready to send.
    Rts,
    /// Send queue drain: finishes what it began and begins nothing.
    Sqd,
    /// Send queue error: sends are flushed.
    Sqe,
    /// Error: everything is flushed.
    Err,
}

/// One of the two queues of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkQueue {
    /// Sends, WRITEs, READs, atomics.
    Send,
    /// Receives, and what peers do.
    Receive,
}

impl State {
    /// All of them.
    pub const ALL: [State; 7] =
        [State::Reset, State::Init, State::Rtr, State::Rts, State::Sqd, State::Sqe, State::Err];

    /// Whether requests may be posted to `queue`: sends from RTS on, receives from INIT on. In SQD sends wait; in SQE sends
    /// and in ERR both complete as flushed.
    pub fn accepts(self, queue: WorkQueue) -> bool {
        match queue {
            WorkQueue::Send => matches!(self, State::Rts | State::Sqd | State::Sqe | State::Err),
            WorkQueue::Receive => self != State::Reset,
        }
    }

    /// Where a failed request of `queue` leaves a queue pair (IBTA 10.3.1.6).
    #[must_use]
    pub fn after_failure(self, kind: QpType, queue: WorkQueue) -> State {
        match (self, kind, queue) {
            (State::Reset, ..) => State::Reset,
            (State::Rts | State::Sqd | State::Sqe, QpType::Uc | QpType::Ud, WorkQueue::Send) => State::Sqe,
            _ => State::Err,
        }
    }
}

/// A change of state that is not in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "a {kind:?} queue pair cannot go from {from:?} to {to:?}; the way is RESET, INIT, RTR, RTS, and from any state RESET"
)]
pub struct IllegalTransition {
    /// Its service.
    pub kind: QpType,
    /// Where it is.
    pub from: State,
    /// Where it was to go.
    pub to: State,
}

/// Whether the owner of a queue pair may move it so.
///
/// # Errors
/// The change is not in the table.
pub fn transition(from: State, to: State, kind: QpType) -> Result<(), IllegalTransition> {
    use State::*;
    let legal = match from {
        Reset => matches!(to, Reset | Init),
        Init => matches!(to, Reset | Init | Rtr | Err),
        Rtr => matches!(to, Reset | Rts | Err),
        Rts => matches!(to, Reset | Rts | Sqd | Err),
        Sqd => matches!(to, Reset | Rts | Sqd | Err),
        Sqe => matches!(to, Reset | Rts | Err) && kind != QpType::Rc,
        Err => matches!(to, Reset | Err),
    };
    if legal { Ok(()) } else { Result::Err(IllegalTransition { kind, from, to }) }
}

/// RESET or INIT to INIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Init {
    /// RC and UC.
    Connected {
        /// Partition, as an index of [`PortAttributes::pkeys`](super::PortAttributes::pkeys).
        pkey_index: u16,
        /// What the peer may do through this queue pair, at most.
        access: Access,
    },
    /// UD.
    Datagram {
        /// Partition.
        pkey_index: u16,
        /// Which datagrams it takes.
        q_key: QKey,
    },
}

/// The peer of a connected queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Its queue pair.
    pub destination: Qpn,
    /// The way to it.
    pub address: AddressVector,
    /// Payload of a full packet, the same on both sides.
    pub mtu: Mtu,
    /// The first sequence number that it sends.
    pub receive_psn: Psn,
}

/// INIT to RTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadyToReceive {
    /// RC.
    Reliable {
        /// The peer.
        connection: Connection,
        /// READs and atomics of the peer that are served at a time.
        responder_resources: u8,
        /// How long the peer waits when no receive is posted. A transport takes the next duration that the wire can say and
        /// reports it; its wire code 0 means 655 ms, never "none".
        min_rnr: Duration,
    },
    /// UC.
    Unreliable {
        /// The peer.
        connection: Connection,
    },
    /// UD.
    Datagram,
}

/// How often to try again without progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempts {
    /// So often: 0 to 7 after silence, 0 to 6 after "receiver not ready".
    Times(u8),
    /// Until [`Retry::dead_after`].
    UntilDead,
}

impl Attempts {
    /// The count that is bounded by the wire; 0 when only time bounds them.
    fn times(self) -> u8 {
        if let Attempts::Times(times) = self { times } else { 0 }
    }
}

/// When to send again, and when to give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// How long to wait for an acknowledgement, before the first retry.
    pub ack_timeout: Duration,
    /// Retries after silence.
    pub retries: Attempts,
    /// Retries after "receiver not ready".
    pub rnr_retries: Attempts,
    /// Without any progress for so long, the peer is dead, whatever the counts say.
    pub dead_after: Duration,
}

/// RTR to RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadyToSend {
    /// RC.
    Reliable {
        /// The first sequence number to send.
        send_psn: Psn,
        /// READs and atomics outstanding at a time; at most the peer's responder resources.
        initiator_depth: u8,
        /// Timers.
        retry: Retry,
    },
    /// UC.
    Unreliable {
        /// The first sequence number to send.
        send_psn: Psn,
    },
    /// UD.
    Datagram {
        /// The first sequence number to send.
        send_psn: Psn,
    },
}

/// Whether the end of a drain is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// By [`AsyncEvent::SendQueueDrained`](super::AsyncEvent::SendQueueDrained).
    Notify,
    /// Not.
    Silent,
}

/// A change of state with the attributes that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modify {
    /// To RESET: everything outstanding is forgotten without a completion, and its handles are released.
    Reset,
    /// To INIT.
    Init(Init),
    /// To RTR.
    ReadyToReceive(ReadyToReceive),
    /// From RTR to RTS.
    ReadyToSend(ReadyToSend),
    /// From SQD or SQE to RTS.
    Resume,
    /// From RTS to SQD.
    Drain(Drain),
    /// To ERR: everything outstanding completes as flushed.
    Error,
}

impl Modify {
    /// Whether it may be done to a queue pair, and the state that it leads to.
    ///
    /// # Errors
    /// A change that is not in the table, or attributes of another service.
    pub fn check(&self, from: State, kind: QpType) -> Result<State, ModifyError> {
        let (to, services) = self.target();
        transition(from, to, kind)?;
        let starts_there = match self {
            Modify::ReadyToSend(_) => from == State::Rtr,
            Modify::Resume => matches!(from, State::Sqd | State::Sqe),
            Modify::Drain(_) => from == State::Rts,
            _ => true,
        };
        if !starts_there {
            return Err(IllegalTransition { kind, from, to }.into());
        }
        if !services.contains(&kind) {
            return Err(ModifyError::Service { kind, to });
        }
        match self {
            Modify::ReadyToSend(ReadyToSend::Reliable { retry, .. }) => retry.check().map(|()| to),
            _ => Ok(to),
        }
    }

    /// The state that it leads to, and the services that have these attributes.
    fn target(&self) -> (State, &'static [QpType]) {
        use QpType::{Rc, Uc, Ud};
        match self {
            Modify::Reset => (State::Reset, &[Rc, Uc, Ud]),
            Modify::Init(Init::Connected { .. }) => (State::Init, &[Rc, Uc]),
            Modify::Init(Init::Datagram { .. }) => (State::Init, &[Ud]),
            Modify::ReadyToReceive(ReadyToReceive::Reliable { .. }) => (State::Rtr, &[Rc]),
            Modify::ReadyToReceive(ReadyToReceive::Unreliable { .. }) => (State::Rtr, &[Uc]),
            Modify::ReadyToReceive(ReadyToReceive::Datagram) => (State::Rtr, &[Ud]),
            Modify::ReadyToSend(ReadyToSend::Reliable { .. }) => (State::Rts, &[Rc]),
            Modify::ReadyToSend(ReadyToSend::Unreliable { .. }) => (State::Rts, &[Uc]),
            Modify::ReadyToSend(ReadyToSend::Datagram { .. }) => (State::Rts, &[Ud]),
            Modify::Resume => (State::Rts, &[Rc, Uc, Ud]),
            Modify::Drain(_) => (State::Sqd, &[Rc, Uc, Ud]),
            Modify::Error => (State::Err, &[Rc, Uc, Ud]),
        }
    }
}

impl Retry {
    fn check(&self) -> Result<(), ModifyError> {
        let (retries, rnr_retries) = (self.retries.times(), self.rnr_retries.times());
        if retries > 7 || rnr_retries > 6 {
            return Err(ModifyError::Retries { retries, rnr_retries });
        }
        Ok(())
    }
}

/// Why a change was refused. The queue pair stays as it was.
#[derive(Debug, Error)]
pub enum ModifyError {
    /// Not in the table.
    #[error(transparent)]
    Transition(#[from] IllegalTransition),
    /// Attributes of another service.
    #[error(
        "modify a {kind:?} queue pair to {to:?}: these attributes are another service's; give those of {kind:?}"
    )]
    Service {
        /// Its service.
        kind: QpType,
        /// Where it was to go.
        to: State,
    },
    /// Counts that the wire cannot say.
    #[error(
        "{retries} retries and {rnr_retries} receiver-not-ready retries; use at most 7 and 6, and `dead_after`"
    )]
    Retries {
        /// Asked.
        retries: u8,
        /// Asked.
        rnr_retries: u8,
    },
    /// An attribute that the device cannot do.
    #[error("modify a queue pair: {what} is {asked}, the device allows {limit}; ask for less")]
    Limit {
        /// Which.
        what: &'static str,
        /// Asked.
        asked: u64,
        /// Allowed.
        limit: u64,
    },
    /// An address that is not the port's own, or not in its tables.
    #[error(
        "modify a queue pair: {0} is not in the port's table; read the port's attributes again and choose by address"
    )]
    NotOfPort(&'static str),
    /// The device refused.
    #[error("modify a queue pair: {0}")]
    Refused(std::io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::Gid;

    const KINDS: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::Ud];

    #[test]
    fn the_table_is_complete() {
        // Rows: from; columns: to; both in the order of State::ALL. U is legal but for RC, which has no SQE.
        let table = [
            "XX.....", // RESET
            "XXX...X", // INIT
            "X..X..X", // RTR
            "X..XX.X", // RTS
            "X..XX.X", // SQD
            "U..U..U", // SQE
            "X.....X", // ERR
        ];
        for kind in KINDS {
            for (row, from) in table.iter().zip(State::ALL) {
                for (cell, to) in row.chars().zip(State::ALL) {
                    let expected = cell == 'X' || cell == 'U' && kind != QpType::Rc;
                    let got = transition(from, to, kind);
                    assert_eq!(got.is_ok(), expected, "{kind:?} {from:?} to {to:?}");
                    if let Err(error) = got {
                        assert_eq!(error, IllegalTransition { kind, from, to });
                    }
                }
            }
        }
    }

    #[test]
    fn failures_move_to_sqe_or_err() {
        for (state, kind) in State::ALL.into_iter().flat_map(|state| KINDS.map(|kind| (state, kind))) {
            let fixed = state == State::Reset;
            let sends = matches!(state, State::Rts | State::Sqd | State::Sqe);
            let send = if fixed {
                state
            } else if sends && kind != QpType::Rc {
                State::Sqe
            } else {
                State::Err
            };
            assert_eq!(state.after_failure(kind, WorkQueue::Send), send);
            let receive = if fixed { state } else { State::Err };
            assert_eq!(state.after_failure(kind, WorkQueue::Receive), receive);
        }
    }

    #[test]
    fn posting_needs_a_state() {
        let accepting = |queue| State::ALL.into_iter().filter(move |state| state.accepts(queue)).count();
        assert_eq!((accepting(WorkQueue::Send), accepting(WorkQueue::Receive)), (4, 6));
        assert!(!State::Rtr.accepts(WorkQueue::Send) && State::Init.accepts(WorkQueue::Receive));
    }

    fn connection() -> Connection {
        let gid = Gid([0; 16]);
        let address = AddressVector {
            destination: gid,
            source: gid,
            flow_label: 0,
            hop_limit: 64,
            traffic_class: 0,
            service_level: 0,
        };
        Connection { destination: Qpn::new(7), address, mtu: Mtu::Bytes1024, receive_psn: Psn::new(0) }
    }

    fn life(kind: QpType, retries: u8) -> [Modify; 3] {
        let (connection, send_psn, pkey_index) = (connection(), Psn::new(0), 0);
        let (min_rnr, ack_timeout) = (Duration::from_micros(10), Duration::from_millis(67));
        let dead_after = Duration::from_secs(1);
        let retries = Attempts::Times(retries);
        let retry = Retry { ack_timeout, retries, rnr_retries: Attempts::UntilDead, dead_after };
        let receive = match kind {
            QpType::Rc => ReadyToReceive::Reliable { connection, responder_resources: 16, min_rnr },
            QpType::Uc => ReadyToReceive::Unreliable { connection },
            QpType::Ud => ReadyToReceive::Datagram,
        };
        let send = match kind {
            QpType::Rc => ReadyToSend::Reliable { send_psn, initiator_depth: 16, retry },
            QpType::Uc => ReadyToSend::Unreliable { send_psn },
            QpType::Ud => ReadyToSend::Datagram { send_psn },
        };
        let init = match kind {
            QpType::Ud => Init::Datagram { pkey_index, q_key: QKey(1) },
            _ => Init::Connected { pkey_index, access: Access::all() },
        };
        [Modify::Init(init), Modify::ReadyToReceive(receive), Modify::ReadyToSend(send)]
    }

    #[test]
    fn a_life_with_the_attributes_of_its_service_is_legal() {
        for kind in KINDS {
            let [init, receive, send] = life(kind, 7);
            let tail = [Modify::Drain(Drain::Notify), Modify::Resume, Modify::Error, Modify::Reset];
            let steps = [init, init, receive, send].into_iter().chain(tail);
            let end = steps.fold(State::Reset, |state, step| step.check(state, kind).unwrap());
            assert_eq!(end, State::Reset);
        }
    }

    #[test]
    fn other_attributes_places_and_counts_are_refused() {
        let states = [State::Reset, State::Init, State::Rtr];
        for (kind, other) in KINDS.into_iter().flat_map(|kind| KINDS.map(|other| (kind, other))) {
            for (step, from) in life(other, 7).into_iter().zip(states) {
                let shared = matches!(step, Modify::Init(_)) && kind != QpType::Ud && other != QpType::Ud;
                let got = step.check(from, kind);
                assert_eq!(got.is_ok(), kind == other || shared, "{step:?} on {kind:?}");
                assert!(got.is_ok() || matches!(got, Err(ModifyError::Service { .. })));
            }
        }
        let [_, _, send] = life(QpType::Rc, 7);
        for (step, from) in [(send, State::Sqd), (Modify::Resume, State::Rtr), (Modify::Resume, State::Rts)] {
            let got = step.check(from, QpType::Rc);
            assert!(matches!(got, Err(ModifyError::Transition(_))), "{step:?} in {from:?}");
        }
        let [_, _, send] = life(QpType::Rc, 8);
        assert!(matches!(send.check(State::Rtr, QpType::Rc), Err(ModifyError::Retries { retries: 8, .. })));
    }
}
