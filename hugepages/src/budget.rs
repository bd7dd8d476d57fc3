//! What one app may use of the machine's memory, per NUMA node. A budget counts; it holds no memory. The app's control
//! thread owns it: take before a region is allocated, give back after it is dropped.

use crate::page::NumaNode;
use crate::pool::{PoolError, place};

/// Limits in bytes per node, and what was taken of each.
///
/// The entry of `None` is for memory without a node and for every node that has no entry of its own.
#[derive(Clone, Debug)]
pub struct Budget {
    lines: Vec<Line>,
}

#[derive(Clone, Debug)]
struct Line {
    node: Option<NumaNode>,
    limit_bytes: usize,
    taken_bytes: usize,
}

impl Budget {
    /// A budget of the given bytes per node. Entries for the same node add up.
    #[must_use]
    pub fn new(limits: impl IntoIterator<Item = (Option<NumaNode>, usize)>) -> Budget {
        let mut lines: Vec<Line> = Vec::new();
        for (node, bytes) in limits {
            match lines.iter_mut().find(|line| line.node == node) {
                Some(line) => line.limit_bytes = line.limit_bytes.saturating_add(bytes),
                None => lines.push(Line { node, limit_bytes: bytes, taken_bytes: 0 }),
            }
        }
        Budget { lines }
    }

    /// Takes `bytes` for memory on `node`. Nothing is taken on an error.
    ///
    /// # Errors
    /// [`PoolError::OverBudget`] with the figures; a node without an entry has a limit of 0.
    pub fn take(&mut self, node: Option<NumaNode>, bytes: usize) -> Result<(), PoolError> {
        let over = |limit_bytes, taken_bytes| PoolError::OverBudget {
            place: place(node),
            asked_bytes: bytes,
            limit_bytes,
            taken_bytes,
        };
        let line = self.line(node).ok_or_else(|| over(0, 0))?;
        if bytes > line.limit_bytes - line.taken_bytes {
            return Err(over(line.limit_bytes, line.taken_bytes));
        }
        line.taken_bytes += bytes;
        Ok(())
    }

    /// Gives back what [`Budget::take`] took for the same node.
    ///
    /// # Errors
    /// [`PoolError::NotTaken`] if less was taken; nothing changes then.
    pub fn give_back(&mut self, node: Option<NumaNode>, bytes: usize) -> Result<(), PoolError> {
        let taken_bytes = self.line(node).map_or(0, |line| line.taken_bytes);
        match self.line(node) {
            Some(line) if bytes <= line.taken_bytes => line.taken_bytes -= bytes,
            _ => return Err(PoolError::NotTaken { place: place(node), given_bytes: bytes, taken_bytes }),
        }
        Ok(())
    }

    /// The bytes that can still be taken for `node`.
    #[must_use]
    pub fn left_bytes(&self, node: Option<NumaNode>) -> usize {
        self.index(node).map_or(0, |at| self.lines[at].limit_bytes - self.lines[at].taken_bytes)
    }

    fn line(&mut self, node: Option<NumaNode>) -> Option<&mut Line> {
        let at = self.index(node)?;
        self.lines.get_mut(at)
    }

    /// The same line for the same node at any time, so that what was taken goes back to where it came from.
    fn index(&self, node: Option<NumaNode>) -> Option<usize> {
        let at = |wanted| self.lines.iter().position(|line| line.node == wanted);
        at(node).or_else(|| at(None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_node_has_its_own_limit() {
        let mut budget =
            Budget::new([(Some(NumaNode(0)), 100), (Some(NumaNode(1)), 10), (Some(NumaNode(0)), 20)]);
        budget.take(Some(NumaNode(0)), 120).unwrap();
        budget.take(Some(NumaNode(1)), 4).unwrap();
        let error = budget.take(Some(NumaNode(1)), 7).unwrap_err();
        assert!(
            matches!(error, PoolError::OverBudget { asked_bytes: 7, limit_bytes: 10, taken_bytes: 4, .. }),
            "{error:?}"
        );
        let text = error.to_string();
        assert!(
            text.contains("node 1") && text.contains('7') && text.contains("10") && text.contains('4'),
            "{text}"
        );
        budget.give_back(Some(NumaNode(1)), 4).unwrap();
        assert_eq!(budget.left_bytes(Some(NumaNode(1))), 10);
    }

    #[test]
    fn the_entry_without_a_node_serves_the_rest() {
        let mut budget = Budget::new([(None, 10), (Some(NumaNode(2)), 5)]);
        budget.take(Some(NumaNode(7)), 6).unwrap();
        assert_eq!(budget.left_bytes(None), 4);
        assert_eq!(budget.left_bytes(Some(NumaNode(2))), 5);
        budget.give_back(Some(NumaNode(7)), 6).unwrap();
        assert_eq!(budget.left_bytes(None), 10);
    }

    #[test]
    fn what_was_not_taken_is_not_given_back() {
        let mut budget = Budget::new([(Some(NumaNode(0)), 10)]);
        budget.take(Some(NumaNode(0)), 3).unwrap();
        let error = budget.give_back(Some(NumaNode(0)), 4).unwrap_err();
        assert!(matches!(error, PoolError::NotTaken { given_bytes: 4, taken_bytes: 3, .. }), "{error:?}");
        assert!(matches!(budget.take(None, 1), Err(PoolError::OverBudget { limit_bytes: 0, .. })));
        assert!(budget.give_back(None, 1).is_err());
        assert_eq!(budget.left_bytes(Some(NumaNode(0))), 7);
    }

    proptest! {
        #[test]
        fn taken_and_left_add_up(takes in proptest::collection::vec(0..1000_usize, 0..40)) {
            let mut budget = Budget::new([(None, 5000)]);
            let taken: Vec<usize> = takes.into_iter().filter(|&bytes| budget.take(None, bytes).is_ok()).collect();
            prop_assert_eq!(budget.left_bytes(None), 5000 - taken.iter().sum::<usize>());
            for bytes in taken {
                budget.give_back(None, bytes).unwrap();
            }
            prop_assert_eq!(budget.left_bytes(None), 5000);
        }
    }
}
