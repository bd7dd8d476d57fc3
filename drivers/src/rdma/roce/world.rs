//! What queue pairs share: completion queues, shared receive queues, keys, counters, events, and the time of this turn.

use super::counters::Counters;
use super::memory::Keys;
use super::wire::Headers;
use super::{memory::Gather, wire::network::Path};
use pollring::os::EventFd;
use pollring::rdma::{Armed, AsyncEvent, Completion, Completions, CqNumber, GidEntry, Notify};
use pollring::rdma::{ProtectionDomain, ReceiveRequest, SrqNumber, Status};
use std::collections::VecDeque;
use std::sync::Arc;

/// The most events that wait to be asked for; later ones are lost.
const EVENTS: usize = 4096;

/// Whether a packet can go to a path now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// Yes.
    Ready,
    /// The port takes nothing now.
    Full,
    /// The neighbour was asked for its address.
    Resolving,
    /// The neighbour did not answer.
    Unreachable,
}

/// Where packets go out.
pub(crate) trait Output {
    /// Whether [`send`](Output::send) may be called for this path.
    fn readiness(&mut self, path: &Path) -> Readiness;
    /// Sends a packet. Its headers say how much padding the payload needs.
    fn send(&mut self, path: &Path, headers: &Headers, payload: Gather<'_>, counters: &mut Counters);
}

/// A completion queue.
pub(crate) struct Cq {
    entries: VecDeque<Completion>,
    capacity: usize,
    channel: Option<Arc<EventFd>>,
    armed: Option<Notify>,
    overrun: bool,
}

impl Cq {
    pub(crate) fn new(capacity: usize, channel: Option<Arc<EventFd>>) -> Cq {
        Cq { entries: VecDeque::new(), capacity, channel, armed: None, overrun: false }
    }

    pub(crate) fn poll(&mut self, completions: &mut Completions) -> usize {
        let count = self.entries.len().min(completions.room());
        for completion in self.entries.drain(..count) {
            let pushed = completions.push(completion);
            debug_assert!(pushed.is_ok(), "bounded by the room");
        }
        count
    }

    pub(crate) fn arm(&mut self, notify: Notify) -> Armed {
        if !self.entries.is_empty() {
            return Armed::NotEmpty;
        }
        self.armed = Some(notify);
        Armed::Waiting
    }

    /// False when the queue is full, for the first time.
    fn push(&mut self, completion: Completion, solicited: bool) -> bool {
        if self.entries.len() == self.capacity {
            return std::mem::replace(&mut self.overrun, true);
        }
        let wakes = match self.armed {
            Some(Notify::Next) => true,
            Some(Notify::NextSolicited) => solicited || completion.status != Status::Success,
            None => false,
        };
        self.entries.push_back(completion);
        if wakes {
            self.armed = None;
            // A channel that cannot be signalled is a bug of ours or a closed descriptor; the completion is there all the same.
            let _ = self.channel.as_ref().map(|channel| channel.signal());
        }
        true
    }
}

/// A shared receive queue.
pub(crate) struct Srq {
    pub(crate) pd: ProtectionDomain,
    pub(crate) queue: VecDeque<ReceiveRequest>,
    pub(crate) limit: u32,
}

/// See the file's head.
pub(crate) struct World {
    pub(crate) now_ns: u64,
    pub(crate) cqs: Vec<Option<Cq>>,
    pub(crate) srqs: Vec<Option<Srq>>,
    pub(crate) keys: Arc<Keys>,
    pub(crate) gids: Vec<GidEntry>,
    pub(crate) counters: Counters,
    pub(crate) events: VecDeque<AsyncEvent>,
    pub(crate) event_fd: Option<Arc<EventFd>>,
    /// Completion queues that just overran.
    pub(crate) overrun: Vec<CqNumber>,
}

impl World {
    /// Adds a completion. One too many ends the queue pairs of its queue.
    pub(crate) fn complete(&mut self, cq: CqNumber, completion: Completion, solicited: bool) {
        let Some(Some(queue)) = self.cqs.get_mut(cq.0 as usize) else { return };
        if !queue.push(completion, solicited) {
            self.overrun.push(cq);
            self.event(AsyncEvent::CqOverrun(cq));
        }
    }

    pub(crate) fn event(&mut self, event: AsyncEvent) {
        if self.events.len() < EVENTS {
            self.events.push_back(event);
            // As for completions: the event is there even if nobody can be woken.
            let _ = self.event_fd.as_ref().map(|fd| fd.signal());
        }
    }

    /// The next receive of a shared queue.
    pub(crate) fn take_shared(&mut self, number: SrqNumber) -> Option<ReceiveRequest> {
        let srq = self.srqs.get_mut(number.0 as usize)?.as_mut()?;
        let taken = srq.queue.pop_front()?;
        if srq.queue.len() < srq.limit as usize {
            srq.limit = 0;
            self.event(AsyncEvent::SrqLimit(number));
        }
        Some(taken)
    }
}
