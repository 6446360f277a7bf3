//! Request counts of each second, for the history on the dashboard.

use std::collections::VecDeque;

use super::counters::Durations;
use super::heavy_hitters::GENERATION;
use super::rule_stats::push;
use super::{DecisionStats, Requests, SAMPLED};

/// Number of seconds in the history.
pub(crate) const HISTORY: usize = 1_800;

/// Counts of the last seconds, and the totals from which the next second is computed.
pub(crate) struct Pulse {
    seconds: VecDeque<Requests>,
    requests: Requests,
    durations: Durations,
    /// Durations of the last second.
    second: Durations,
    /// Number of decisions of each core at the last tick.
    turns: Vec<u64>,
    beats: u64,
}

/// History that a dashboard shows first.
pub(crate) struct History {
    /// Counts of each second, the oldest first.
    pub(crate) seconds: Vec<Requests>,
}

impl Pulse {
    pub(super) fn new(shards: usize) -> Self {
        Pulse {
            seconds: VecDeque::new(),
            requests: Requests::default(),
            durations: Durations::default(),
            second: Durations::default(),
            turns: vec![0; shards],
            beats: 0,
        }
    }
}

impl DecisionStats {
    /// Ends a second. Must be called once per second.
    pub(crate) fn beat(&self) {
        let (requests, durations) = self.totals();
        let mut pulse = self.pulse.lock();
        let pulse = &mut *pulse;
        let before = std::mem::replace(&mut pulse.requests, requests);
        let second = Requests {
            allowed: requests.allowed.saturating_sub(before.allowed),
            denied: requests.denied.saturating_sub(before.denied),
        };
        push(&mut pulse.seconds, HISTORY, second);
        pulse.second = durations.since(&pulse.durations);
        pulse.durations = durations;
        for (cells, before) in self.shards.iter().zip(&mut pulse.turns) {
            cells.adapt(before, SAMPLED);
        }
        pulse.beats += 1;
        let table = self.table.load();
        for row in &table.rows {
            row.beat();
        }
        if pulse.beats.is_multiple_of(GENERATION) {
            for top in table.tops() {
                top.lock().turn();
            }
        }
    }

    /// Returns the counts and the durations of the last second.
    pub(crate) fn second(&self) -> (Requests, Durations) {
        let pulse = self.pulse.lock();
        (pulse.seconds.back().copied().unwrap_or_default(), pulse.second.clone())
    }

    pub(crate) fn history(&self) -> History {
        History { seconds: self.pulse.lock().seconds.iter().copied().collect() }
    }
}
