//! Statistics of each rule: verdicts, durations, and most frequent keys.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use slidegate::{AD_HOC, Limit, Mode, Rule, Rules, Source};

use super::counters::{Change, RuleCells, Said};
use super::heavy_hitters::Top;
use super::shadow_diff::{self, TracedDecision};

/// Number of rules with their own list of frequent keys. All rules after them share one list.
const APART: usize = 256;

/// Number of seconds for which the verdicts of a rule are stored.
pub(super) const MINUTE: usize = 60;

/// Number of seconds over which the highest usage is reported.
const PEAKS: usize = 10;

/// Rules in force, and the statistics of each.
pub(super) struct Table {
    pub(super) rules: Arc<Rules>,
    /// Statistics in the order of the rules. The last item is for ad-hoc limits.
    pub(super) rows: Vec<Arc<Row>>,
    /// Counts of the shadow rules when these rules came into force, each with the index of the rule.
    pub(super) before: Vec<(usize, TracedDecision)>,
}

/// Statistics of one rule.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(super) cells: Box<[CachePadded<RuleCells>]>,
    pub(crate) top: Arc<Mutex<Top>>,
    lately: Mutex<Lately>,
}

/// Verdicts of a rule in the last minute.
#[derive(Default)]
struct Lately {
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
pub(crate) struct Shown {
    /// In the last second.
    pub(crate) second: Totals,
    /// In the last minute.
    pub(crate) minute: Totals,
    /// Highest share of its limit that a key had in use in the last ten seconds. None if the rule decided nothing.
    pub(crate) usage: Option<f64>,
}

impl Table {
    pub(super) fn new(rules: Arc<Rules>, shards: usize, before: &[Arc<Row>]) -> Self {
        let known: HashMap<&str, &Arc<Row>> = before.iter().map(|row| (row.name.as_str(), row)).collect();
        let together: Arc<Mutex<Top>> = Arc::default();
        let names = rules.iter().map(|rule| rule.name()).chain([AD_HOC]);
        let rows = names.enumerate().map(|(place, name)| match known.get(name) {
            Some(row) => Arc::clone(row),
            None => {
                let top = if place < APART { Arc::default() } else { Arc::clone(&together) };
                Arc::new(Row::new(name, shards, top))
            }
        });
        let rows: Vec<Arc<Row>> = rows.collect();
        let before = shadow_diff::before(&rules, &rows);
        Table { rules, rows, before }
    }

    /// Returns the statistics of the rule of `limit`. `current` is false if the decision was made by earlier rules;
    /// then the rule is found by its name, if it still exists.
    #[inline]
    pub(super) fn row(&self, current: bool, limit: &Limit<'_>) -> Option<&Row> {
        if current { self.rows.get(limit.index()).or(self.rows.last()) } else { self.named(limit.rule()) }
            .map(|row| &**row)
    }

    /// Returns the frequent-key lists of all rules, each list once.
    pub(super) fn tops(&self) -> Vec<&Mutex<Top>> {
        let mut known = HashSet::new();
        let tops = self.rows.iter().map(|row| &row.top);
        tops.filter(|top| known.insert(Arc::as_ptr(top))).map(|top| &**top).collect()
    }

    #[cold]
    fn named(&self, name: &str) -> Option<&Arc<Row>> {
        self.rows.iter().find(|row| row.name == name)
    }
}

impl Row {
    fn new(name: &str, shards: usize, top: Arc<Mutex<Top>>) -> Self {
        let cells = (0..shards).map(|_| CachePadded::default()).collect();
        Row { name: name.to_owned(), cells, top, lately: Mutex::default() }
    }

    pub(crate) fn said(&self, said: Said, source: Source) -> u64 {
        self.cells.iter().map(|cells| cells.said(said, source)).sum()
    }

    pub(crate) fn changes(&self, change: Change) -> u64 {
        self.cells.iter().map(|cells| cells.changes(change)).sum()
    }

    pub(crate) fn totals(&self) -> Totals {
        let said = |said| Source::ALL.iter().map(|source| self.said(said, *source)).sum();
        Totals {
            allowed: said(Said::Allowed),
            denied: said(Said::Denied),
            would_deny: said(Said::WouldDeny),
            took: self.cells.iter().map(|cells| cells.took()).sum(),
        }
    }

    /// Ends a second. Must be called once per second.
    pub(super) fn beat(&self) {
        let totals = self.totals();
        let peak = self.cells.iter().map(|cells| cells.take_peak()).max().unwrap_or_default();
        let limit = self.cells.iter().map(|cells| cells.take_limit()).max().unwrap_or_default();
        let mut lately = self.lately.lock();
        if limit > 0 {
            lately.limit = limit;
        }
        let before = std::mem::replace(&mut lately.before, totals);
        push(&mut lately.seconds, MINUTE, totals.since(&before));
        push(&mut lately.peaks, PEAKS, peak);
    }

    /// Returns the current limit of `rule`, whose statistics these are. During a warm-up it is the limit of the last
    /// decision.
    pub(crate) fn effective_limit(&self, rule: &Rule) -> u64 {
        let limit = rule.quota_now().limit();
        match self.lately.lock().limit {
            said @ 1.. if rule.quota().warm_up().is_some() => said.min(limit),
            _ => limit,
        }
    }

    pub(crate) fn shown(&self) -> Shown {
        let lately = self.lately.lock();
        let minute = lately.seconds.iter().fold(Totals::default(), |all, second| all.plus(second));
        let peak = lately.peaks.iter().max().copied().filter(|peak| *peak > 0);
        Shown {
            second: lately.seconds.back().copied().unwrap_or_default(),
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
pub(super) fn said(limit: &Limit<'_>) -> Said {
    match (limit.outcome().denies(), limit.mode()) {
        (false, _) => Said::Allowed,
        (true, Mode::Enforce) => Said::Denied,
        (true, _) => Said::WouldDeny,
    }
}
