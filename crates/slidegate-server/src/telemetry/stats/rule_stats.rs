//! A row a rule: what it said, how long that took, and of which keys.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use slidegate::{AD_HOC, Limit, Mode, Rule, Rules, ShadowChange, Source};

use super::counters::{RuleCells, Said};
use super::heavy_hitters::Top;
use super::shadow_diff::{self, TracedDecision};

/// The rules whose keys are remembered apart; the keys of those after them are remembered together.
const APART: usize = 256;

/// Seconds of which it is remembered what a rule said in each.
pub(super) const MINUTE: usize = 60;

/// Seconds over which the highest usage is told.
const PEAKS: usize = 10;

/// The rules in force, and a row for each.
pub(super) struct Table {
    pub(super) rules: Arc<Rules>,
    /// In the order of the rules; the last is of those that requests bring themselves.
    pub(super) rows: Vec<Arc<Row>>,
    /// What rows that only watch had counted when these rules came into force, by their places.
    pub(super) before: Vec<(usize, TracedDecision)>,
}

/// What is counted of one rule.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(super) cells: Box<[CachePadded<RuleCells>]>,
    pub(crate) top: Arc<Mutex<Top>>,
    lately: Mutex<Lately>,
}

/// What a rule said in the last minute.
#[derive(Default)]
struct Lately {
    before: Totals,
    /// A second each, the newest last.
    seconds: VecDeque<Totals>,
    peaks: VecDeque<u64>,
    /// The highest limit in the last second that it decided in; 0 before that.
    limit: u64,
}

/// How often a rule said what, and how long that took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) would_deny: u64,
    /// In microseconds.
    pub(crate) took: u64,
}

/// What is shown of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Shown {
    /// In the last second.
    pub(crate) second: Totals,
    /// In the last minute.
    pub(crate) minute: Totals,
    /// The highest share of its limit that a key had in use in the last ten seconds; none if it decided nothing.
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

    /// The row of a limit; of a decision by earlier rules, that of its name, if there still is one.
    #[inline]
    pub(super) fn row(&self, current: bool, limit: &Limit<'_>) -> Option<&Row> {
        if current { self.rows.get(limit.index()).or(self.rows.last()) } else { self.named(limit.rule()) }
            .map(|row| &**row)
    }

    /// The top keys of all rules, each once.
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

    pub(crate) fn changes(&self, change: ShadowChange) -> u64 {
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

    /// Called once a second.
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

    /// What `rule`, whose row this is, allows now. Of one that climbs it is known from what it decided last.
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

/// Adds to the end, and lets go what is more than `most`.
pub(super) fn push<T>(queue: &mut VecDeque<T>, most: usize, value: T) {
    queue.push_back(value);
    if queue.len() > most {
        queue.pop_front();
    }
}

impl Totals {
    /// Decisions it took part in.
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

/// What the rule of a limit said.
pub(super) fn said(limit: &Limit<'_>) -> Said {
    match (limit.outcome().denies(), limit.mode()) {
        (false, _) => Said::Allowed,
        (true, Mode::Enforce) => Said::Denied,
        (true, _) => Said::WouldDeny,
    }
}
