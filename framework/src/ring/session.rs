//! One run of a port, from start to stop: who may still cause DMA, and what waits for its end.
//!
//! [`Session`] belongs to the port, a [`Lease`] to each of its queues. A queue checks its lease once an operation; after the session was
//! revoked it does nothing. A queue that dies while DMA is on puts its frames into the session's quarantine, since the device
//! may still write to them; [`Session::end`] sends them home once the port has made sure that DMA is over. A port starts again only
//! when no lease of the last session is alive.

use crate::buffer::{Frame, Span};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
struct Shared {
    revoked: AtomicBool,
    live: AtomicUsize,
    quarantine: Mutex<Quarantine>,
}

#[derive(Default)]
struct Quarantine {
    dma_over: bool,
    frames: Vec<Frame>,
    spans: Vec<Span>,
}

/// The port's end.
#[derive(Clone, Default)]
pub struct Session(Arc<Shared>);

impl Session {
    /// A session without queues.
    pub fn new() -> Session {
        Session::default()
    }

    /// The right to use the rings, for one more queue.
    pub fn lease(&self) -> Lease {
        self.0.live.fetch_add(1, Ordering::SeqCst);
        Lease(self.0.clone())
    }

    /// How many queues are alive.
    pub fn live(&self) -> usize {
        self.0.live.load(Ordering::SeqCst)
    }

    /// From their next operation on, the queues do nothing.
    pub fn revoke(&self) {
        self.0.revoked.store(true, Ordering::SeqCst);
    }

    /// DMA is over: what waits in quarantine goes home, and what dies later goes home at once.
    pub fn end(&self) {
        self.revoke();
        let (frames, spans) = {
            let mut quarantine = lock(&self.0);
            quarantine.dma_over = true;
            (std::mem::take(&mut quarantine.frames), std::mem::take(&mut quarantine.spans))
        };
        drop((frames, spans));
    }

    /// Frames in quarantine.
    pub fn quarantined(&self) -> usize {
        lock(&self.0).frames.len()
    }
}

/// A queue's end.
pub struct Lease(Arc<Shared>);

impl Lease {
    /// Whether the queue must not touch its ring or doorbell any more.
    #[inline]
    pub fn is_revoked(&self) -> bool {
        self.0.revoked.load(Ordering::Relaxed)
    }

    /// Takes over what the device may still touch when a queue goes: home if DMA is over, into quarantine otherwise.
    pub(super) fn surrender(&self, frames: impl Iterator<Item = Frame>, spans: impl Iterator<Item = Span>) {
        let mut quarantine = lock(&self.0);
        if quarantine.dma_over {
            drop(quarantine);
            frames.for_each(drop);
            spans.for_each(drop);
        } else {
            quarantine.frames.extend(frames);
            quarantine.spans.extend(spans);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, Ordering::SeqCst);
    }
}

fn lock(shared: &Shared) -> MutexGuard<'_, Quarantine> {
    shared.quarantine.lock().unwrap_or_else(PoisonError::into_inner)
}
