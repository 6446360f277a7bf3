//! Statistics of decisions: counted while deciding, read by `/metrics` and the dashboard.
//!
//! A decision increments a few counters of the core that makes it; readers add up the counters of all cores. Hot keys
//! are tracked for all decisions at low rates, and for a sample at high rates, so that the cost stays bounded. The
//! hot keys are the only statistics with names that callers choose, and the number of hot keys is bounded.

mod counters;
mod follow_up;
mod heavy_hitters;
mod instrumented;
mod per_second;
mod recent_keys;
mod rule_stats;
mod shadow_diff;
mod traced;
mod unmatched;

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use slidegate::{Clock, Key, Limiter, Micros, Rules, Source, SystemClock};

use self::counters::CoreCounters;
pub(crate) use self::counters::{BOUNDS, Durations, Failure, RuleVerdict};
pub(crate) use self::follow_up::{FollowUp, FollowUpOutcome, ReservationChange};
pub(crate) use self::heavy_hitters::Period;
pub(crate) use self::instrumented::Instrumented;
pub(crate) use self::per_second::PerSecond;
pub(crate) use self::recent_keys::RecentKeys;
use self::rule_stats::RuleTable;
pub(crate) use self::rule_stats::{RuleRow, RuleSummary, STEP_SECONDS, Totals};
pub(crate) use self::shadow_diff::Shadow;
use self::unmatched::UnmatchedLog;
use super::capture::Recorder;
use crate::common::protocol::Protocol;
use crate::store::AnyStore;

/// Approximate number of keys that each core samples per second.
const SAMPLED_KEYS: u64 = 2_000;

/// Upper bound on sets of counters. If there are more cores, several cores share a set.
const MAX_SHARDS: usize = 16;

/// Statistics of all decisions and connections.
pub(crate) struct DecisionStats {
    /// False if decisions are not counted.
    pub(crate) enabled: bool,
    clock: SystemClock,
    shards: Box<[CachePadded<CoreCounters>]>,
    table: ArcSwap<RuleTable>,
    pub(crate) recent: RecentKeys,
    /// Recorder of the requests themselves.
    pub(crate) recorder: Arc<Recorder>,
    unmatched: UnmatchedLog,
    per_second: Mutex<PerSecond>,
    connections: [AtomicUsize; Protocol::ALL.len()],
    shed: [[AtomicU64; Shed::ALL.len()]; Protocol::ALL.len()],
}

slidegate::words! {
    /// Reason why the server closed a connection to save resources, although its client made no mistake.
    pub(crate) enum Shed {
        /// The client address has as many connections as one address may have.
        PerAddress = "per-address",
        /// The client sent nothing.
        Silent = "silent",
        /// The server needed the slot for another connection.
        Room = "room",
    }
}

/// Counts one connection until it is dropped.
pub(crate) struct ConnectionGuard<'r>(&'r AtomicUsize);

impl Drop for ConnectionGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Numbers of allowed and denied requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Requests {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
}

impl Requests {
    /// Adds two counts. The sum saturates, because another node may send any number.
    pub(crate) fn plus(&self, other: &Requests) -> Requests {
        Requests {
            allowed: self.allowed.saturating_add(other.allowed),
            denied: self.denied.saturating_add(other.denied),
        }
    }
}

impl DecisionStats {
    pub(crate) fn new(rules: Arc<Rules>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let shards = cores.next_power_of_two().min(MAX_SHARDS);
        let clock = SystemClock::new();
        DecisionStats {
            enabled: true,
            recent: RecentKeys::new(clock.now().get()),
            recorder: Arc::default(),
            unmatched: UnmatchedLog::default(),
            clock,
            shards: (0..shards).map(|_| CachePadded::default()).collect(),
            table: ArcSwap::from_pointee(RuleTable::new(rules, shards, &[])),
            per_second: Mutex::new(PerSecond::new(shards)),
            connections: Default::default(),
            shed: Default::default(),
        }
    }

    /// Counts by the limiter's current rules from now on. Rules that are still in force keep their counts.
    pub(crate) fn update_rules(&self, limiter: &Limiter<AnyStore>) {
        // Only one thread updates at a time, so that older rules never replace newer rules.
        let _lock = self.per_second.lock();
        let rules = limiter.rules();
        let before = self.table.load();
        self.table.store(Arc::new(RuleTable::new(rules, self.shards.len(), &before.rows)));
    }

    /// Counts a connection until the returned guard is dropped.
    pub(crate) fn count_connection(&self, protocol: Protocol) -> ConnectionGuard<'_> {
        let count = &self.connections[protocol as usize];
        count.fetch_add(1, Ordering::Relaxed);
        ConnectionGuard(count)
    }

    pub(crate) fn connections(&self, protocol: Protocol) -> usize {
        self.connections[protocol as usize].load(Ordering::Relaxed)
    }

    /// Counts connections that the server closed.
    pub(crate) fn count_shed(&self, protocol: Protocol, reason: Shed, connections: usize) {
        self.shed[protocol as usize][reason as usize].fetch_add(connections as u64, Ordering::Relaxed);
    }

    pub(crate) fn shed_count(&self, protocol: Protocol, reason: Shed) -> u64 {
        self.shed[protocol as usize][reason as usize].load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn now(&self) -> Micros {
        self.clock.now()
    }

    /// Returns the rules in force and the statistics of each. The last item is for ad-hoc limits.
    pub(crate) fn rows(&self) -> (Arc<Rules>, Vec<Arc<RuleRow>>) {
        let table = self.table.load();
        (Arc::clone(&table.rules), table.rows.clone())
    }

    /// Returns the number and the durations of the requests of `protocol` with this result and source.
    pub(crate) fn durations(&self, protocol: Protocol, allowed: bool, source: Source) -> Durations {
        let mut all = Durations::default();
        for counters in &self.shards {
            counters.decisions[protocol as usize][usize::from(allowed)][source as usize].add_to(&mut all);
        }
        all
    }

    pub(crate) fn failures(&self, protocol: Protocol, failure: Failure) -> u64 {
        let failures =
            self.shards.iter().map(|counters| &counters.failures[protocol as usize][failure as usize]);
        failures.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Returns the number of requests of `protocol` that no rule matched.
    pub(crate) fn unmatched(&self, protocol: Protocol) -> u64 {
        let unmatched = self.shards.iter().map(|counters| &counters.unmatched[protocol as usize]);
        unmatched.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Returns the numbers and durations of all requests.
    fn totals(&self) -> (Requests, Durations) {
        let (mut requests, mut durations) = (Requests::default(), Durations::default());
        for protocol in Protocol::ALL {
            for source in Source::ALL {
                for (allowed, count) in [(true, &mut requests.allowed), (false, &mut requests.denied)] {
                    let some = self.durations(protocol, allowed, source);
                    *count += some.count();
                    durations.add(&some);
                }
            }
        }
        (requests, durations)
    }

    /// Returns the most requested keys and the most denied keys of one rule or of all rules, at most `most` of
    /// each.
    pub(crate) fn top_keys(&self, period: Period, rule: Option<&str>, most: usize) -> [Vec<(Key, u64)>; 2] {
        let table = self.table.load();
        let (mut requested, mut denied) = (HashMap::new(), HashMap::new());
        let tops = match rule {
            Some(rule) => table.rows.iter().filter(|row| row.name == rule).map(|row| &*row.top).collect(),
            None => table.tops(),
        };
        for top in tops {
            top.lock().read(period, &mut requested, &mut denied);
        }
        [requested, denied].map(|counts| {
            let keys = counts.into_iter().filter(|(key, _)| rule.is_none_or(|rule| key.rule() == rule));
            let mut keys: Vec<(Key, u64)> = keys.collect();
            keys.sort_unstable_by(|(a, n), (b, m)| m.cmp(n).then_with(|| a.as_str().cmp(b.as_str())));
            keys.truncate(most);
            keys
        })
    }

    /// Returns the index of the counters of this thread. A runtime has about as many threads as there are cores.
    #[inline]
    fn shard(&self) -> usize {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static SHARD: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        SHARD.get() & (self.shards.len() - 1)
    }
}
