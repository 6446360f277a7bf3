//! Request counts of each second, for the history on the dashboard.

use std::collections::VecDeque;

use super::counters::Durations;
use super::heavy_hitters::GENERATION_SECONDS;
use super::rule_stats::push;
use super::{DecisionStats, Requests, SAMPLED_KEYS};

/// Number of seconds in the history: one hour. A second takes 16 bytes, so the history takes 64 KiB at most.
pub(crate) const HISTORY_SECONDS: usize = 3_600;

/// Counts of the last seconds, and the totals from which the next second is computed.
#[derive(Default)]
pub(crate) struct PerSecond {
    seconds: VecDeque<Requests>,
    requests: Requests,
    durations: Durations,
    /// Durations of the last second.
    last_durations: Durations,
    /// Number of decisions of each core at the last tick.
    decisions: Vec<u64>,
    ticks: u64,
}

/// History that a dashboard shows when it opens.
pub(crate) struct History {
    /// Counts of each second, the oldest first.
    pub(crate) seconds: Vec<Requests>,
}

impl PerSecond {
    pub(super) fn new(shards: usize) -> Self {
        PerSecond { decisions: vec![0; shards], ..PerSecond::default() }
    }
}

impl DecisionStats {
    /// Ends a second. Must be called once per second.
    pub(crate) fn tick(&self) {
        let (requests, durations) = self.totals();
        let mut per_second = self.per_second.lock();
        let per_second = &mut *per_second;
        let before = std::mem::replace(&mut per_second.requests, requests);
        let second = Requests {
            allowed: requests.allowed.saturating_sub(before.allowed),
            denied: requests.denied.saturating_sub(before.denied),
        };
        push(&mut per_second.seconds, HISTORY_SECONDS, second);
        per_second.last_durations = durations.since(&per_second.durations);
        per_second.durations = durations;
        for (counters, before) in self.shards.iter().zip(&mut per_second.decisions) {
            counters.adapt(before, SAMPLED_KEYS);
        }
        per_second.ticks += 1;
        let table = self.table.load();
        for row in &table.rows {
            row.tick();
        }
        if per_second.ticks.is_multiple_of(GENERATION_SECONDS) {
            for top in table.tops() {
                top.lock().rotate();
            }
        }
    }

    /// Returns the counts and the durations of the last second.
    pub(crate) fn last_second(&self) -> (Requests, Durations) {
        let per_second = self.per_second.lock();
        (per_second.seconds.back().copied().unwrap_or_default(), per_second.last_durations.clone())
    }

    /// Returns the counts of the last minute.
    pub(crate) fn last_minute(&self) -> Requests {
        let per_second = self.per_second.lock();
        let seconds = per_second.seconds.iter().rev().take(60);
        seconds.fold(Requests::default(), |all, second| all.plus(second))
    }

    pub(crate) fn history(&self) -> History {
        History { seconds: self.per_second.lock().seconds.iter().copied().collect() }
    }
}
