//! A driver's own record of what an engine was given, in order of submission; the engine cannot write to it.
//!
//! A driver calls [`push`](Outstanding::push) with how many descriptors an operation took, [`advance`](Outstanding::advance)
//! as descriptors are done, and [`drain_into`](Outstanding::drain_into) in each poll. After a halt
//! [`fail_first`](Outstanding::fail_first) names the culprit and [`abort`](Outstanding::abort) ends the others. So whatever an
//! engine claims, each operation ends once and in order.

use super::{Completed, Completion, Operation, Status};
use std::collections::VecDeque;

/// Operations from their submission until they are handed back.
#[derive(Debug)]
pub struct Outstanding {
    queue: VecDeque<Entry>,
    /// How many at the front ended.
    ended: usize,
    /// Descriptors done of the first that has not ended.
    partial: u32,
}

#[derive(Debug)]
struct Entry {
    operation: Operation,
    descriptors: u32,
    status: Status,
}

impl Outstanding {
    /// An empty record that allocates nothing for up to `depth` operations.
    pub fn new(depth: usize) -> Outstanding {
        Outstanding { queue: VecDeque::with_capacity(depth), ended: 0, partial: 0 }
    }

    /// How many were not handed back.
    #[inline]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether all were handed back.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes an operation of `descriptors`, at least one.
    #[inline]
    pub fn push(&mut self, operation: Operation, descriptors: u32) {
        assert!(descriptors > 0, "an operation without descriptors never ends");
        self.queue.push_back(Entry { operation, descriptors, status: Status::Aborted });
    }

    /// That many more descriptors are done. An operation ends with its last one.
    #[inline]
    pub fn advance(&mut self, descriptors: u32) {
        self.partial += descriptors;
        while let Some(entry) = self.queue.get_mut(self.ended)
            && self.partial >= entry.descriptors
        {
            self.partial -= entry.descriptors;
            entry.status = Status::Done;
            self.ended += 1;
        }
    }

    /// The first that has not ended ends with `status`.
    pub fn fail_first(&mut self, status: Status) {
        if let Some(entry) = self.queue.get_mut(self.ended) {
            entry.status = status;
            self.ended += 1;
            self.partial = 0;
        }
    }

    /// All that have not ended are aborted.
    pub fn abort(&mut self) {
        self.ended = self.queue.len();
        self.partial = 0;
    }

    /// Hands back those that ended, as many as there is room for; gives how many.
    #[inline]
    pub fn drain_into(&mut self, completed: &mut Completed) -> usize {
        let ready = self.ended.min(completed.room());
        for Entry { operation, status, .. } in self.queue.drain(..ready) {
            let pushed = completed.push(Completion { status, operation });
            assert!(pushed.is_ok(), "more completions than there was room for");
        }
        self.ended -= ready;
        ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Shared;
    use pollring_hugepages::{Pages, Region, RegionConfig};
    use std::sync::Arc;

    fn record(descriptors: &[u32]) -> Outstanding {
        let pages = Pages::Small4K { reason: "a unit test".into() };
        let config = RegionConfig { name: "outstanding".into(), bytes: 4096, pages, node: None };
        let memory = Shared::local(Arc::new(Region::allocate(&config).unwrap()));
        let mut outstanding = Outstanding::new(descriptors.len());
        for (cookie, count) in descriptors.iter().enumerate() {
            outstanding.push(Operation::fill(memory.clone(), 0, cookie as u64), *count);
        }
        outstanding
    }

    fn drain(outstanding: &mut Outstanding, room: usize) -> Vec<(u64, Status)> {
        let mut completed = Completed::new(room);
        assert_eq!(outstanding.drain_into(&mut completed), completed.len());
        completed.drain().map(|completion| (completion.cookie(), completion.status)).collect()
    }

    #[test]
    fn an_operation_ends_with_its_last_descriptor() {
        let mut outstanding = record(&[1, 3, 2]);
        outstanding.advance(3);
        assert_eq!(drain(&mut outstanding, 8), [(0, Status::Done)]);
        outstanding.advance(3);
        assert_eq!(drain(&mut outstanding, 1), [(1, Status::Done)]);
        assert_eq!(drain(&mut outstanding, 8), [(2, Status::Done)]);
        assert!(outstanding.is_empty());
    }

    #[test]
    fn a_fault_has_one_culprit_and_the_others_are_aborted() {
        let mut outstanding = record(&[1, 2, 1, 1]);
        outstanding.advance(2);
        outstanding.fail_first(Status::ReadFault);
        outstanding.abort();
        outstanding.advance(7);
        let ends = drain(&mut outstanding, 8);
        let aborted = Status::Aborted;
        assert_eq!(ends, [(0, Status::Done), (1, Status::ReadFault), (2, aborted), (3, aborted)]);
    }
}
