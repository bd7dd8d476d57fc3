//! Completions, and the queue that they come through.
//!
//! A completion queue belongs to the worker of its vector. That worker polls it, or arms it, polls once more, and sleeps on the
//! eventfd. The memory behind it may be written by a device: a transport checks each entry against its own record of what was
//! posted, and an entry that matches nothing fails the device.

use super::{Qpn, RKey};
use crate::copy::Fifo;
use crate::os::EventFd;
use bitflags::bitflags;
use std::fmt;
use std::sync::Arc;

macro_rules! statuses {
    ($($name:ident = $words:literal),* $(,)?) => {
        /// How a request ended, numbered as `ibv_wc_status` (ibv_poll_cq(3)). Those that speak of RD and EE contexts are for
        /// hardware and peers that have them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Status {
            $(#[doc = $words] $name,)*
        }

        impl Status {
            /// All, in the order of their codes.
            pub const ALL: &[Status] = &[$(Status::$name),*];

            /// What it says, in words.
            pub const fn words(self) -> &'static str {
                match self {
                    $(Status::$name => $words,)*
                }
            }
        }
    };
}

statuses! {
    Success = "success",
    LocalLength = "local length error: buffers and message differ in length",
    LocalQpOperation = "local queue pair operation error",
    LocalEecOperation = "local EE context operation error",
    LocalProtection = "local protection error: a buffer's region, domain or right does not allow it",
    WorkRequestFlushed = "work request flushed: the queue pair went to error first",
    MemoryWindowBind = "memory window bind error",
    BadResponse = "bad response: the peer's answer makes no sense",
    LocalAccess = "local access error",
    RemoteInvalidRequest = "remote invalid request: the peer found it malformed",
    RemoteAccess = "remote access error: the peer denied key, right or bounds",
    RemoteOperation = "remote operation error: the peer could not complete it",
    RetryExceeded = "transport retries exceeded: no answer",
    RnrRetryExceeded = "receiver-not-ready retries exceeded: the peer had no receive posted",
    LocalRddViolation = "local RD domain violation",
    RemoteInvalidRdRequest = "remote invalid RD request",
    RemoteAborted = "remote aborted",
    InvalidEecNumber = "invalid EE context number",
    InvalidEecState = "invalid EE context state",
    Fatal = "fatal error: the device failed",
    ResponseTimeout = "response timeout",
    General = "general error",
}

impl Status {
    /// The number in `ibv_wc_status`.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

/// What completed (`ibv_wc_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// A SEND of this side.
    Send,
    /// A WRITE of this side.
    Write,
    /// A READ of this side.
    Read,
    /// A compare-and-swap of this side.
    CompareAndSwap,
    /// A fetch-and-add of this side.
    FetchAndAdd,
    /// A receive, filled by a SEND.
    Receive,
    /// A receive, used up by a WRITE with immediate. The data is where the peer put it.
    ReceiveWrite,
}

/// What a SEND or a WRITE carries beside its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attached {
    /// Nothing.
    #[default]
    Nothing,
    /// 32 bits for the peer, most significant byte first on the wire.
    Immediate(u32),
    /// A key of the peer's, which its side invalidates before it completes the receive.
    Invalidate(RKey),
}

bitflags! {
    /// More about a completion (`ibv_wc_flags`). Immediate and invalidated key are in [`Completion::attached`].
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct CompletionFlags: u8 {
        /// The first 40 bytes of the buffer are the datagram's network header: IPv6, or 20 undefined bytes and IPv4.
        const NETWORK_HEADER = 1;
    }
}

/// A request that ended. After an error only `id`, `status`, `qp` and `vendor_error` mean something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The caller's own word (`wr_id`).
    pub id: u64,
    /// How it ended.
    pub status: Status,
    /// What it was.
    pub opcode: Opcode,
    /// Bytes received, or read into memory of this side.
    pub bytes: u32,
    /// What came with it.
    pub attached: Attached,
    /// The local queue pair.
    pub qp: Qpn,
    /// The sender of a datagram.
    pub source: Option<Qpn>,
    /// More about it.
    pub flags: CompletionFlags,
    /// The transport's own code.
    pub vendor_error: u32,
}

/// Completions in order; its room bounds what one poll gives.
pub type Completions = Fifo<Completion>;

/// The number of a completion queue on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqNumber(pub u32);

/// What a completion queue is made of.
#[derive(Clone, Debug)]
pub struct CqConfig {
    /// How many completions it must hold: those of all requests that its queue pairs may have outstanding.
    pub entries: u32,
    /// Its vector, from 0: which interrupt or worker fills it.
    pub vector: u16,
    /// The event channel; several queues may share one. `None`: it is only polled.
    pub channel: Option<Arc<EventFd>>,
}

/// For which completion an event is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// Any.
    Next,
    /// One of a request that was sent as solicited, or one with an error.
    NextSolicited,
}

/// Whether to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a queue that is not empty must be polled before sleeping"]
pub enum Armed {
    /// The channel will be signalled by the next completion.
    Waiting,
    /// Completions are there already, and no signal may come for them: poll, then arm again.
    NotEmpty,
}

/// A completion queue. Dropping it before its queue pairs moves those to error.
pub trait CompletionQueue: Send {
    /// Its number.
    fn number(&self) -> CqNumber;

    /// How many completions it holds; at least what was asked.
    fn capacity(&self) -> usize;

    /// Adds completions, as many as there are and as fit; gives how many.
    fn poll(&mut self, completions: &mut Completions) -> usize;

    /// Asks for one signal on the channel. Without a channel it only tells whether the queue is empty.
    fn arm(&mut self, notify: Notify) -> Armed;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_numbered_as_the_verbs_number_them() {
        assert!(Status::ALL.iter().enumerate().all(|(code, status)| usize::from(status.code()) == code));
        let known =
            [(5, Status::WorkRequestFlushed), (10, Status::RemoteAccess), (12, Status::RetryExceeded)];
        assert!(known.iter().all(|(code, status)| status.code() == *code));
        assert_eq!((Status::RnrRetryExceeded.code(), Status::General.code()), (13, 21));
    }
}
