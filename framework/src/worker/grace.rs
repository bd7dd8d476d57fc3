//! Waiting until every worker has passed a turn, so that what they used before can be freed.
//!
//! A new read-only table is published by posting a job to each worker that swaps it in. [`Grace::begin`] after that posts
//! a token behind those jobs; a worker gives its token back between two turns, when it has run them and no poller is in
//! the middle of anything. When all tokens are back, the grace period is over: the publisher drops the old table on its
//! own thread. A worker that ended gives its token back too, after its pollers are gone.

use super::Worker;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

/// A grace period that has begun.
#[derive(Debug)]
pub struct Grace {
    // Nothing is ever sent: each token is a sender, and the channel is disconnected when the last one is dropped.
    tokens: Receiver<()>,
}

impl Grace {
    /// Begins a period that covers `workers`; sleeping ones are woken.
    pub fn begin<'a>(workers: impl IntoIterator<Item = &'a Worker>) -> Grace {
        let (token, tokens) = mpsc::channel();
        for worker in workers {
            let token = token.clone();
            // An ended worker gives the job back, and the token in it is dropped here.
            let _ = worker.post(Box::new(move |_, _| drop(token)));
        }
        Grace { tokens }
    }

    /// Whether every worker has passed a turn since.
    pub fn is_over(&self) -> bool {
        self.tokens.try_recv() == Err(TryRecvError::Disconnected)
    }

    /// Waits for that, but no longer than `at_most`; returns whether it is over. Do not wait on a worker's own thread.
    pub fn wait(&self, at_most: Duration) -> bool {
        self.tokens.recv_timeout(at_most) == Err(RecvTimeoutError::Disconnected)
    }
}
