//! Statistics of each rule: verdicts, durations, and most frequent keys.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use slidegate::{Limit, Rule, Rules, ShadowChange, Source, rules::AD_HOC};

use super::counters::{RuleCounters, RuleVerdict};
use super::heavy_hitters::TopKeys;
use super::shadow_diff::{self, ShadowCounts};

/// Number of rules with a list of frequent keys and a history of their own. The rules after them share one list and have
/// no history.
const SEPARATE_RULES: usize = 256;

/// Length of one step of the history of a rule, in seconds.
pub(crate) const STEP_SECONDS: u64 = 10;

/// Number of steps in the history of a rule: one hour.
///
/// A step has 40 bytes. A queue has room for 512 steps at most, so the histories of all rules take less than 6 MB.
const HISTORY_STEPS: usize = 360;

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
    /// Verdicts of each step of the last hour, the newest last. None if the rule has no history.
    steps: Option<VecDeque<Totals>>,
    /// Totals at the start of the current step.
    step_start: Totals,
    /// Seconds of the current step that are over.
    step_seconds: u64,
}

/// Number of verdicts of a rule, and their total duration. Other nodes get them as a list, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "[u64; 5]", into = "[u64; 5]")]
pub(crate) struct Totals {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) would_deny: u64,
    /// Requests among `allowed` that were not charged, because another rule denied them.
    pub(crate) not_charged: u64,
    /// Total duration in microseconds.
    pub(crate) took: u64,
}

/// Summary of a rule for the dashboard.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct RuleSummary {
    /// Verdicts in the last second.
    pub(crate) second: Totals,
    /// Verdicts in the last minute.
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
            Some(row) => {
                row.keep_history(index < SEPARATE_RULES);
                Arc::clone(row)
            }
            None => {
                let separate = index < SEPARATE_RULES;
                let top = if separate { Arc::default() } else { Arc::clone(&shared_top) };
                Arc::new(RuleRow::new(name, shards, top, separate))
            }
        });
        let rows: Vec<Arc<RuleRow>> = rows.collect();
        let baselines = shadow_diff::baselines(&rules, &rows);
        RuleTable { rules, rows, baselines }
    }

    /// Returns the statistics of the rule of `limit`. `current` is false if the decision was made by an earlier
    /// edition of the rules; then the rule is found by its name, if it still exists.
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
    fn new(name: &str, shards: usize, top: Arc<Mutex<TopKeys>>, has_history: bool) -> Self {
        let counters = (0..shards).map(|_| CachePadded::default()).collect();
        let recent = RecentVerdicts { steps: has_history.then(VecDeque::new), ..RecentVerdicts::default() };
        RuleRow { name: name.to_owned(), counters, top, recent: Mutex::new(recent) }
    }

    fn sum(&self, counter: impl Fn(&RuleCounters) -> &AtomicU64) -> u64 {
        self.counters.iter().map(|counters| counter(counters).load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn verdicts(&self, verdict: RuleVerdict, source: Source) -> u64 {
        self.sum(|counters| &counters.verdicts[verdict as usize][source as usize])
    }

    pub(crate) fn changes(&self, change: ShadowChange) -> u64 {
        self.sum(|counters| &counters.changes[change as usize])
    }

    pub(crate) fn totals(&self) -> Totals {
        let total = |verdict| Source::ALL.iter().map(|source| self.verdicts(verdict, *source)).sum();
        Totals {
            allowed: total(RuleVerdict::Allowed),
            denied: total(RuleVerdict::Denied),
            would_deny: total(RuleVerdict::WouldDeny),
            not_charged: self.sum(|counters| &counters.not_charged),
            took: self.sum(|counters| &counters.took),
        }
    }

    /// Ends a second. Must be called once per second.
    pub(super) fn tick(&self) {
        let totals = self.totals();
        let peaks = self.counters.iter().map(|counters| counters.peak.swap(0, Ordering::Relaxed));
        let limits = self.counters.iter().map(|counters| counters.limit.swap(0, Ordering::Relaxed));
        let (peak, limit) = (peaks.max().unwrap_or_default(), limits.max().unwrap_or_default());
        let mut recent = self.recent.lock();
        if limit > 0 {
            recent.limit = limit;
        }
        let before = std::mem::replace(&mut recent.before, totals);
        push(&mut recent.seconds, HISTORY_SECONDS, totals.since(&before));
        push(&mut recent.peaks, PEAK_SECONDS, peak);
        recent.step_seconds += 1;
        if recent.step_seconds == STEP_SECONDS {
            recent.step_seconds = 0;
            let step = totals.since(&std::mem::replace(&mut recent.step_start, totals));
            if let Some(steps) = &mut recent.steps {
                push(steps, HISTORY_STEPS, step);
            }
        }
    }

    /// Starts or removes the history of the rule, so that only the first rules have one.
    fn keep_history(&self, keep: bool) {
        let mut recent = self.recent.lock();
        if keep {
            recent.steps.get_or_insert_default();
        } else {
            recent.steps = None;
        }
    }

    /// Returns the verdicts of each step of [`STEP_SECONDS`] in the last hour, the oldest first, and the seconds since the end
    /// of the last step. There are no steps if the rule has no history.
    pub(crate) fn history(&self) -> (Vec<Totals>, u64) {
        let recent = self.recent.lock();
        (recent.steps.iter().flatten().copied().collect(), recent.step_seconds)
    }

    /// Returns the verdicts of each second of the last minute, the oldest first.
    pub(crate) fn last_minute(&self) -> Vec<Totals> {
        self.recent.lock().seconds.iter().copied().collect()
    }

    /// Returns the current limit of `rule`, which these statistics belong to. During a warm-up it is the limit of the
    /// last decision.
    pub(crate) fn effective_limit(&self, rule: &Rule) -> u64 {
        let limit = rule.quota_now().limit();
        match self.recent.lock().limit {
            recent @ 1.. if rule.quota().warm_up().is_some() => recent.min(limit),
            _ => limit,
        }
    }

    pub(crate) fn summary(&self) -> RuleSummary {
        let recent = self.recent.lock();
        let seconds = recent.seconds.iter();
        let minute = seconds.fold(Totals::default(), |all, second| all.plus(second));
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
        self.allowed.saturating_add(self.denied).saturating_add(self.would_deny)
    }

    /// Returns the number of requests that the rule allowed and charged.
    pub(crate) fn charged(&self) -> u64 {
        self.allowed.saturating_sub(self.not_charged)
    }

    /// Returns the mean duration of the decisions in microseconds. None without decisions.
    pub(crate) fn mean_us(&self) -> Option<f64> {
        (self.decisions() > 0).then(|| self.took as f64 / self.decisions() as f64)
    }

    fn since(&self, before: &Totals) -> Totals {
        self.combine(before, u64::saturating_sub)
    }

    /// Adds two totals. The sum saturates, because another node may send any number.
    pub(crate) fn plus(&self, other: &Totals) -> Totals {
        self.combine(other, u64::saturating_add)
    }

    fn combine(&self, other: &Totals, combine: fn(u64, u64) -> u64) -> Totals {
        Totals {
            allowed: combine(self.allowed, other.allowed),
            denied: combine(self.denied, other.denied),
            would_deny: combine(self.would_deny, other.would_deny),
            not_charged: combine(self.not_charged, other.not_charged),
            took: combine(self.took, other.took),
        }
    }
}

impl From<[u64; 5]> for Totals {
    fn from([allowed, denied, would_deny, not_charged, took]: [u64; 5]) -> Self {
        Totals { allowed, denied, would_deny, not_charged, took }
    }
}

impl From<Totals> for [u64; 5] {
    fn from(Totals { allowed, denied, would_deny, not_charged, took }: Totals) -> Self {
        [allowed, denied, would_deny, not_charged, took]
    }
}

#[cfg(test)]
mod tests {
    use slidegate::Micros;

    use super::*;

    #[test]
    fn history_of_a_rule_is_bounded() {
        assert_eq!(size_of::<Totals>(), 40, "the bound in the documentation");
        let rules = Arc::new(Rules::from_yaml("rules: [{ name: a, limit: 1, window: 1s }]").unwrap());
        let table = RuleTable::new(rules, 1, &[]);
        let row = &table.rows[0];
        for second in 0..(HISTORY_STEPS as u64 + 5) * STEP_SECONDS + 3 {
            let verdict = if second % 2 == 0 { RuleVerdict::Allowed } else { RuleVerdict::Denied };
            row.counters[0].count((verdict, Source::Store), 2, Micros::new(5), 1, 1);
            if verdict == RuleVerdict::Allowed {
                row.counters[0].not_charged.fetch_add(1, Ordering::Relaxed);
            }
            row.tick();
        }
        let (steps, seconds_since) = row.history();
        assert_eq!((steps.len(), seconds_since), (HISTORY_STEPS, 3));
        for step in steps {
            assert_eq!((step.allowed, step.charged(), step.denied), (10, 5, 10));
            assert_eq!(step.mean_us(), Some(5.0));
        }
        assert_eq!(row.last_minute().len(), HISTORY_SECONDS);
    }
}
