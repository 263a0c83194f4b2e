//! How much memory all connections of a device may use for packets that wait for earlier ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that several connections share. Clones are the same budget.
#[derive(Clone, Debug)]
pub struct KeepBudget(Arc<AtomicUsize>);

impl KeepBudget {
    /// A budget of this many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(bytes)))
    }

    /// How many bytes are left.
    #[must_use]
    pub fn left(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes bytes from the budget until the result is dropped. `None` if not enough are left.
    pub(super) fn take(&self, bytes: usize) -> Option<Share> {
        let less = |left: usize| left.checked_sub(bytes);
        let taken = (self.0).fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        taken.is_ok().then(|| Share {
            budget: self.clone(),
            bytes,
        })
    }
}

/// A part of a budget.
#[derive(Debug)]
pub(super) struct Share {
    budget: KeepBudget,
    bytes: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.0.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_return_to_the_budget() {
        let budget = KeepBudget::new(10);
        let share = budget.take(6).unwrap();
        assert!(budget.take(5).is_none());
        assert_eq!(budget.left(), 4);
        drop(share);
        assert_eq!(budget.left(), 10);
    }
}
