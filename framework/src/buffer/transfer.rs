//! Frames from one worker to another: an SPSC ring that owns what is in it.
//!
//! The sender moves the front of a burst in, the receiver appends to a burst. Frames that are left when both ends are gone go
//! home.

use super::{Burst, Frame};
use crate::ring::spsc;
use std::sync::{Arc, Mutex, PoisonError};

/// Where frames go in. Chains do not cross: they stay in the burst.
pub struct FrameSender {
    words: spsc::Producer<u64>,
    _rest: Arc<Rest>,
}

/// Where frames come out.
pub struct FrameReceiver {
    /// Present until dropped.
    words: Option<spsc::Consumer<u64>>,
    rest: Arc<Rest>,
}

/// The receiver leaves its end here, and whichever side goes last empties it.
#[derive(Default)]
struct Rest(Mutex<Option<spsc::Consumer<u64>>>);

/// A ring for `capacity` frames, a power of two.
pub fn frame_channel(capacity: usize) -> (FrameSender, FrameReceiver) {
    let (producer, consumer) = spsc::channel(capacity);
    let rest = Arc::new(Rest::default());
    (FrameSender { words: producer, _rest: rest.clone() }, FrameReceiver { words: Some(consumer), rest })
}

impl FrameSender {
    /// Moves frames from the front of `burst`, as many as fit; gives how many. A burst with chains is not taken, and nothing is
    /// once the receiver is gone.
    #[inline]
    pub fn send(&mut self, burst: &mut Burst) -> usize {
        if !burst.is_plain() || self.words.is_closed() {
            return 0;
        }
        let sent = self.words.enqueue(burst.words());
        burst.advance(sent);
        sent
    }

    /// Whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        self.words.is_closed()
    }
}

impl FrameReceiver {
    /// Appends what is there to `burst`, as much as fits; gives how many.
    #[inline]
    pub fn receive(&mut self, burst: &mut Burst) -> usize {
        let Some(words) = &mut self.words else { return 0 };
        let received = words.dequeue(burst.slots());
        burst.filled(received);
        received
    }

    /// Whether the sender is gone and nothing is left.
    pub fn is_finished(&self) -> bool {
        self.words.as_ref().is_none_or(|words| words.is_closed() && words.is_empty())
    }
}

impl Drop for FrameReceiver {
    fn drop(&mut self) {
        *self.rest.0.lock().unwrap_or_else(PoisonError::into_inner) = self.words.take();
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        let left = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut word = [0];
        while left.as_mut().is_some_and(|words| words.dequeue(&mut word) == 1) {
            drop(Frame::from_word(word[0]));
        }
    }
}
