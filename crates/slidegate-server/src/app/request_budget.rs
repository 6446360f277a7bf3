//! Budget for unfinished requests: the bytes of incomplete requests that all connections together may hold.
//!
//! Each protocol bounds one request. Thousands of clients that each send most of a large request would still fill the
//! memory. So the bytes beyond a fixed allowance of each connection are taken from one budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of bytes that all connections hold.
#[derive(Debug, Default)]
pub(crate) struct RequestBudget(Arc<AtomicUsize>);

impl RequestBudget {
    /// Returns the share of one connection, which is empty at first. `budget` is the bound for all connections
    /// together.
    pub(crate) fn share(&self, budget: usize) -> BudgetShare {
        BudgetShare { all: Arc::clone(&self.0), budget, bytes: AtomicUsize::new(0) }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Share of one connection. Its bytes are returned on drop.
#[derive(Debug)]
pub(crate) struct BudgetShare {
    all: Arc<AtomicUsize>,
    budget: usize,
    bytes: AtomicUsize,
}

impl BudgetShare {
    /// Changes the share to `bytes`. Returns false, and changes nothing, if the budget does not allow it.
    #[must_use]
    pub(crate) fn resize(&self, bytes: usize) -> bool {
        let before = self.bytes.load(Ordering::Relaxed);
        if bytes > before {
            let grow = |all: usize| all.checked_add(bytes - before).filter(|all| *all <= self.budget);
            if self.all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow).is_err() {
                return false;
            }
        } else if bytes < before {
            self.all.fetch_sub(before - bytes, Ordering::Relaxed);
        }
        self.bytes.store(bytes, Ordering::Relaxed);
        true
    }

    /// Returns all bytes of the share.
    pub(crate) fn release(&self) {
        let _ = self.resize(0);
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_share_one_budget() {
        let budget = RequestBudget::default();
        let [one, other] = [budget.share(100), budget.share(100)];
        assert!(one.resize(60) && other.resize(40));
        assert!(!other.resize(41));
        assert!(one.resize(20) && other.resize(80));
        assert_eq!(budget.bytes(), 100);
        drop(other);
        assert_eq!(budget.bytes(), 20);
        one.release();
        assert_eq!(budget.bytes(), 0);
    }
}
