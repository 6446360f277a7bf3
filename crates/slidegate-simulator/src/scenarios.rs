//! Several sets of rules over the same traffic, each by itself, and what they disagree about.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use clap::ValueEnum;
use serde::Serialize;
use slidegate::{Algorithm, Decision, Key, Micros, Mode, Quota, Request, Rules};

use crate::scenario::Scenario;
use crate::stats::{KeyHasher, Stats};

/// Keys that are known one by one: as many as a server counts.
pub(crate) const MAX_KEYS: usize = slidegate::DEFAULT_MAX_KEYS;

/// How to count, whatever the rules say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AlgorithmChoice {
    /// Exact
    SlidingWindow,
    /// Anew at every multiple of the window
    FixedWindow,
    /// The window in slices: as the rule says, or ten
    TimeSlice,
    /// A bucket: its burst as the rule says, or the limit
    TokenBucket,
}

impl AlgorithmChoice {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            AlgorithmChoice::SlidingWindow => "sliding-window",
            AlgorithmChoice::FixedWindow => "fixed-window",
            AlgorithmChoice::TimeSlice => "time-slice",
            AlgorithmChoice::TokenBucket => "token-bucket",
        }
    }

    fn algorithm(self, quota: &Quota) -> Algorithm {
        match (self, quota.algorithm()) {
            (AlgorithmChoice::SlidingWindow, _) => Algorithm::SlidingWindow,
            (AlgorithmChoice::FixedWindow, _) => Algorithm::FixedWindow,
            (AlgorithmChoice::TimeSlice, configured @ Algorithm::TimeSlice { .. }) => configured,
            (AlgorithmChoice::TimeSlice, _) => Algorithm::TimeSlice { slices: 10 },
            (AlgorithmChoice::TokenBucket, configured @ Algorithm::TokenBucket { .. }) => configured,
            (AlgorithmChoice::TokenBucket, _) => Algorithm::TokenBucket { burst: quota.limit() },
        }
    }

    /// The same rules, counted so. What is held, and not counted over time, stays as it is.
    pub(crate) fn apply(self, rules: &Rules) -> Result<Rules, String> {
        let mut converted = Vec::new();
        for rule in rules.iter().cloned() {
            let name = rule.name().to_owned();
            let replaceable = rule.is_limited() && !rule.quota().is_held();
            let rule = if replaceable { rule.counted_by(|quota| self.algorithm(quota)) } else { Ok(rule) };
            converted.push(rule.map_err(|error| format!("rule `{name}` as {}: {error}", self.as_str()))?);
        }
        let (ad_hoc, unmatched) = (*rules.ad_hoc(), rules.unmatched());
        let rules =
            Rules::new(converted).map(|converted| converted.with_ad_hoc(ad_hoc).with_unmatched(unmatched));
        rules.map_err(|error| error.to_string())
    }
}

/// Rules, what they decided, and what of it the first of them decided otherwise.
pub(crate) struct ScenarioRun {
    pub(crate) name: String,
    pub(crate) scenario: Scenario,
    pub(crate) stats: Stats,
    /// Denied here, and allowed by the first.
    pub(crate) only_denied: u64,
    /// Allowed here, and denied by the first.
    pub(crate) only_allowed: u64,
}

/// All of them. The first is the yardstick.
pub(crate) struct Scenarios {
    pub(crate) runs: Vec<ScenarioRun>,
    /// By which key of which rule requests are denied by one and allowed by the other, where there are two.
    pub(crate) changes: KeyChanges,
}

/// Keys that are treated otherwise by the second than by the first.
#[derive(Default)]
pub(crate) struct KeyChanges {
    pub(crate) keys: HashMap<Key, KeyChange, BuildHasherDefault<KeyHasher>>,
    /// Changes of keys that are too many to be known one by one.
    pub(crate) untracked: u64,
}

/// What became of one key's requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeyChange {
    pub(crate) only_denied: u64,
    pub(crate) only_allowed: u64,
}

impl Scenarios {
    /// Over traffic that begins then, or with its first request.
    pub(crate) fn new(rule_sets: impl IntoIterator<Item = (String, Rules)>, begin: Option<Micros>) -> Self {
        let runs = rule_sets.into_iter().map(|(name, rules)| ScenarioRun {
            name,
            stats: Stats::new(&rules, MAX_KEYS, begin),
            scenario: Scenario::new(rules, MAX_KEYS),
            only_denied: 0,
            only_allowed: 0,
        });
        Scenarios { runs: runs.collect(), changes: KeyChanges::default() }
    }

    /// Lets all of them decide; what the last decided is looked at.
    #[inline]
    pub(crate) fn decide(
        &mut self,
        at: Micros,
        request: &Request<'_>,
        visit: impl FnOnce(&Decision),
    ) -> Result<(), String> {
        match &mut self.runs[..] {
            [single] => single.scenario.decide(at, request, |decision| {
                single.stats.add(at, decision);
                visit(decision);
            }),
            _ => self.compare(at, request, visit),
        }
    }

    fn compare(
        &mut self,
        at: Micros,
        request: &Request<'_>,
        visit: impl FnOnce(&Decision),
    ) -> Result<(), String> {
        let decisions = self.runs.iter_mut().map(|run| run.scenario.decide(at, request, Decision::clone));
        // What is not acceptable to one is nobody's, but all have been asked.
        let decisions = decisions.collect::<Vec<_>>().into_iter().collect::<Result<Vec<_>, _>>()?;
        let [first, .., last] = &decisions[..] else { return Err("there is nothing to compare".to_owned()) };
        for (run, decision) in self.runs.iter_mut().zip(&decisions) {
            run.stats.add(at, decision);
            run.only_denied += u64::from(first.allowed() && !decision.allowed());
            run.only_allowed += u64::from(!first.allowed() && decision.allowed());
        }
        if decisions.len() == 2 {
            self.changes.add(first, last);
        }
        visit(last);
        Ok(())
    }
}

impl KeyChanges {
    fn add(&mut self, first: &Decision, second: &Decision) {
        let (denied, by) = match (first.allowed(), second.allowed()) {
            (true, false) => (true, second),
            (false, true) => (false, first),
            _ => return,
        };
        let mut limits = by.limits();
        let denying = limits.find(|limit| limit.mode() == Mode::Enforce && limit.outcome().denies());
        let Some(key) = denying.map(|limit| limit.key()) else { return };
        if !self.keys.contains_key(key) {
            if self.keys.len() >= MAX_KEYS {
                self.untracked += 1;
                return;
            }
            self.keys.insert(key.clone(), KeyChange::default());
        }
        if let Some(change) = self.keys.get_mut(key) {
            change.only_denied += u64::from(denied);
            change.only_allowed += u64::from(!denied);
        }
    }
}
