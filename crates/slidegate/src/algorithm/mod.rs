//! The algorithms as pure state machines: `(state, now, quota, cost) -> verdict`.
//!
//! A [`State`] is the memory of one key. It has no clock and no lock, so the same code decides in the memory store, in
//! simulations, and in the test oracle that replays the decisions of Redis. All algorithms implement `Counter`: *roll* to
//! the present, return the permits *used*, *record* an admission, and compute the *wait*.
pub(crate) mod audit;
pub(crate) mod evaluate;

mod counter;
mod event_log;
pub(crate) mod extensions;
mod fixed_window;
mod idempotency;
pub(crate) mod ids;
pub(crate) mod note_budget;
mod ranges;
mod ring_buffer;
mod sliding_counter;
mod sliding_window;
mod state;
mod token_bucket;

use std::sync::Arc;

pub use self::audit::{Audit, Discrepancy};
pub use self::evaluate::{States, evaluate};
use self::note_budget::NoteBudget;
pub use self::state::State;
use crate::Micros;
use crate::{Entry, Quota, RequestId};

/// Input of one check for the state of its key.
#[derive(Clone, Copy)]
pub(crate) struct CheckInput<'a> {
    pub(crate) quota: &'a Quota,
    pub(crate) cost: u64,
    pub(crate) id: Option<&'a RequestId>,
    /// Distinguishes the keys of a shared counter; 0 for a key with its own counter.
    pub(crate) scope: u64,
    /// Note budget of the store, if there is one.
    pub(crate) budget: Option<&'a Arc<NoteBudget>>,
}

/// Evaluation of one check by the state of its key, before anything is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evaluation {
    /// The cost fits.
    Fits,
    /// The cost does not fit now.
    Denied,
    /// The cost never fits.
    Impossible,
    /// This request was admitted before: it is not charged again.
    Repeated(Entry),
}

/// Stored form of a state.
#[derive(Clone, Debug)]
pub(crate) struct StateSnapshot {
    pub(crate) last: Micros,
    pub(crate) counted: SnapshotCounts,
}

/// Counts in a [`StateSnapshot`].
#[derive(Clone, Debug)]
pub(crate) enum SnapshotCounts {
    /// Entries of a log, oldest first, one per instant.
    Entries(Vec<(Micros, u64)>),
    /// Numbers of a counter.
    Numbers(CounterNumbers),
}

/// Stored numbers of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CounterNumbers {
    /// Permits in use; for a bucket, missing units.
    pub(crate) used: u64,
    /// Second number of the algorithm, if it has one; for a bucket, the instant up to which admissions no longer affect
    /// decisions.
    pub(crate) second: u64,
}

/// Permission to record a check in its key. It depends on all checks of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recording {
    /// The request is admitted.
    All,
    /// The request is denied, and this check was evaluated: its attempt counts.
    Attempts,
    /// The request is a peek, or an earlier check denied the request.
    Nothing,
}

impl Evaluation {
    pub(crate) fn denies(self) -> bool {
        matches!(self, Evaluation::Denied | Evaluation::Impossible)
    }
}
