//! A queue of fixed capacity that allocates once, when it is made.
//!
//! It carries batches of requests to a queue, which takes from the front and leaves the rest, and completions back. Its
//! owner keeps it and uses it again each turn.

use std::collections::VecDeque;

/// First in, first out, at most [`capacity`](Fifo::capacity) entries.
#[derive(Debug)]
pub struct Fifo<T> {
    entries: VecDeque<T>,
    capacity: usize,
}

impl<T> Fifo<T> {
    /// An empty queue for `capacity` entries.
    pub fn new(capacity: usize) -> Fifo<T> {
        Fifo { entries: VecDeque::with_capacity(capacity), capacity }
    }

    /// How many entries fit in all.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many more entries fit.
    pub fn room(&self) -> usize {
        self.capacity - self.entries.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds an entry at the back.
    ///
    /// # Errors
    /// The queue is full; the entry comes back.
    #[inline]
    pub fn push(&mut self, entry: T) -> Result<(), T> {
        if self.room() == 0 {
            return Err(entry);
        }
        self.entries.push_back(entry);
        Ok(())
    }

    /// Takes the entry at the front.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        self.entries.pop_front()
    }

    /// The entry at the front.
    #[inline]
    pub fn front(&self) -> Option<&T> {
        self.entries.front()
    }

    /// All entries, front first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter()
    }

    /// Takes all entries, front first.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.entries.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_gives_the_entry_back() {
        let mut fifo = Fifo::new(2);
        assert_eq!((fifo.push('a'), fifo.push('b'), fifo.push('c')), (Ok(()), Ok(()), Err('c')));
        assert_eq!((fifo.front(), fifo.room(), fifo.len(), fifo.capacity()), (Some(&'a'), 0, 2, 2));
        assert_eq!(fifo.pop(), Some('a'));
        assert_eq!(fifo.push('c'), Ok(()));
        assert_eq!(fifo.iter().collect::<String>(), "bc");
        assert_eq!(fifo.drain().collect::<String>(), "bc");
        assert!(fifo.is_empty() && fifo.pop().is_none());
    }
}
