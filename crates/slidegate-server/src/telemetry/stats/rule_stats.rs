//! Statistics of each rule: verdicts, durations, and most frequent keys.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use slidegate::{Limit, Mode, Rule, Rules, ShadowChange, Source, rules::AD_HOC};

use super::counters::{RuleCounters, RuleVerdict};
use super::heavy_hitters::TopKeys;
use super::shadow_diff::{self, ShadowCounts};

/// Number of rules with their own list of frequent keys. All rules after them share one list.
const SEPARATE_RULES: usize = 256;

/// Number of seconds for which the verdicts of a rule are stored.
pub(super) const HISTORY_SECONDS: usize = 60;

/// Number of seconds over which the highest usage is reported.
const PEAK_SECONDS: usize = 10;

/// Rules in force, and the statistics of each.
pub(super) struct RuleTable {
    pub(super) rules: Arc<Rules>,
    /// Statistics in the order of the rules. The last item is for ad-hoc limits.
    pub(super) rows: Vec<Arc<RuleRow>>,
    /// Counts of the shadow rules when these rules came into force, each with the index of the rule.
    pub(super) baselines: Vec<(usize, ShadowCounts)>,
}

/// Statistics of one rule.
pub(crate) struct RuleRow {
    pub(crate) name: String,
    pub(super) counters: Box<[CachePadded<RuleCounters>]>,
    pub(crate) top: Arc<Mutex<TopKeys>>,
    recent: Mutex<RecentVerdicts>,
}

/// Verdicts of a rule in the last minute.
#[derive(Default)]
struct RecentVerdicts {
    before: Totals,
    /// Verdicts of each second, the newest last.
    seconds: VecDeque<Totals>,
    peaks: VecDeque<u64>,
    /// Highest limit in the last second with a decision; 0 before the first decision.
    limit: u64,
}

/// Number of verdicts of a rule, and their total duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) would_deny: u64,
    /// Total duration in microseconds.
    pub(crate) took: u64,
}

/// Summary of a rule for the dashboard.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct RuleSummary {
    /// In the last second.
    pub(crate) second: Totals,
    /// In the last minute.
    pub(crate) minute: Totals,
    /// Highest share of its limit that a key had in use in the last ten seconds. None if the rule decided nothing.
    pub(crate) usage: Option<f64>,
}

impl RuleTable {
    pub(super) fn new(rules: Arc<Rules>, shards: usize, before: &[Arc<RuleRow>]) -> Self {
        let known: HashMap<&str, &Arc<RuleRow>> = before.iter().map(|row| (row.name.as_str(), row)).collect();
        let shared_top: Arc<Mutex<TopKeys>> = Arc::default();
        let names = rules.iter().map(|rule| rule.name()).chain([AD_HOC]);
        let rows = names.enumerate().map(|(index, name)| match known.get(name) {
            Some(row) => Arc::clone(row),
            None => {
                let top = if index < SEPARATE_RULES { Arc::default() } else { Arc::clone(&shared_top) };
                Arc::new(RuleRow::new(name, shards, top))
            }
        });
        let rows: Vec<Arc<RuleRow>> = rows.collect();
        let baselines = shadow_diff::baselines(&rules, &rows);
        RuleTable { rules, rows, baselines }
    }

    /// Returns the statistics of the rule of `limit`. `current` is false if the decision was made by earlier rules;
    /// then the rule is found by its name, if it still exists.
    #[inline]
    pub(super) fn row(&self, current: bool, limit: &Limit<'_>) -> Option<&RuleRow> {
        if current { self.rows.get(limit.index()).or(self.rows.last()) } else { self.named(limit.rule()) }
            .map(|row| &**row)
    }

    /// Returns the frequent-key lists of all rules, each list once.
    pub(super) fn tops(&self) -> Vec<&Mutex<TopKeys>> {
        let mut known = HashSet::new();
        let tops = self.rows.iter().map(|row| &row.top);
        tops.filter(|top| known.insert(Arc::as_ptr(top))).map(|top| &**top).collect()
    }

    #[cold]
    fn named(&self, name: &str) -> Option<&Arc<RuleRow>> {
        self.rows.iter().find(|row| row.name == name)
    }
}

impl RuleRow {
    fn new(name: &str, shards: usize, top: Arc<Mutex<TopKeys>>) -> Self {
        let counters = (0..shards).map(|_| CachePadded::default()).collect();
        RuleRow { name: name.to_owned(), counters, top, recent: Mutex::default() }
    }

    pub(crate) fn verdicts(&self, verdict: RuleVerdict, source: Source) -> u64 {
        self.counters.iter().map(|counters| counters.verdicts(verdict, source)).sum()
    }

    pub(crate) fn changes(&self, change: ShadowChange) -> u64 {
        self.counters.iter().map(|counters| counters.changes(change)).sum()
    }

    pub(crate) fn totals(&self) -> Totals {
        let total = |verdict| Source::ALL.iter().map(|source| self.verdicts(verdict, *source)).sum();
        Totals {
            allowed: total(RuleVerdict::Allowed),
            denied: total(RuleVerdict::Denied),
            would_deny: total(RuleVerdict::WouldDeny),
            took: self.counters.iter().map(|counters| counters.took()).sum(),
        }
    }

    /// Ends a second. Must be called once per second.
    pub(super) fn tick(&self) {
        let totals = self.totals();
        let peak = self.counters.iter().map(|counters| counters.take_peak()).max().unwrap_or_default();
        let limit = self.counters.iter().map(|counters| counters.take_limit()).max().unwrap_or_default();
        let mut recent = self.recent.lock();
        if limit > 0 {
            recent.limit = limit;
        }
        let before = std::mem::replace(&mut recent.before, totals);
        push(&mut recent.seconds, HISTORY_SECONDS, totals.since(&before));
        push(&mut recent.peaks, PEAK_SECONDS, peak);
    }

    /// Returns the current limit of `rule`, whose statistics these are. During a warm-up it is the limit of the last
    /// decision.
    pub(crate) fn effective_limit(&self, rule: &Rule) -> u64 {
        let limit = rule.quota_now().limit();
        match self.recent.lock().limit {
            recent @ 1.. if rule.quota().warm_up().is_some() => recent.min(limit),
            _ => limit,
        }
    }

    pub(crate) fn summary(&self) -> RuleSummary {
        let recent = self.recent.lock();
        let minute = recent.seconds.iter().fold(Totals::default(), |all, second| all.plus(second));
        let peak = recent.peaks.iter().max().copied().filter(|peak| *peak > 0);
        RuleSummary {
            second: recent.seconds.back().copied().unwrap_or_default(),
            minute,
            usage: peak.map(|peak| (peak - 1) as f64 / 1_000.0),
        }
    }
}

/// Adds a value to the end, and removes the oldest value if there are more than `most`.
pub(super) fn push<T>(queue: &mut VecDeque<T>, most: usize, value: T) {
    queue.push_back(value);
    if queue.len() > most {
        queue.pop_front();
    }
}

impl Totals {
    /// Returns the number of decisions in which the rule took part.
    pub(crate) fn decisions(&self) -> u64 {
        self.allowed + self.denied + self.would_deny
    }

    fn since(&self, before: &Totals) -> Totals {
        Totals {
            allowed: self.allowed.saturating_sub(before.allowed),
            denied: self.denied.saturating_sub(before.denied),
            would_deny: self.would_deny.saturating_sub(before.would_deny),
            took: self.took.saturating_sub(before.took),
        }
    }

    fn plus(&self, other: &Totals) -> Totals {
        Totals {
            allowed: self.allowed + other.allowed,
            denied: self.denied + other.denied,
            would_deny: self.would_deny + other.would_deny,
            took: self.took + other.took,
        }
    }
}

/// Returns the verdict of the rule of `limit`.
pub(super) fn rule_verdict(limit: &Limit<'_>) -> RuleVerdict {
    match (limit.outcome().denies(), limit.mode()) {
        (false, _) => RuleVerdict::Allowed,
        (true, Mode::Enforce) => RuleVerdict::Denied,
        (true, _) => RuleVerdict::WouldDeny,
    }
}
