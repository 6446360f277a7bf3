//! Simulates several sets of rules with the same traffic, independently, and compares their decisions.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::LazyLock;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use serde::Serialize;
use slidegate::{Algorithm, Decision, Key, Micros, Mode, Quota, Request, Rules};

use crate::scenario::Scenario;
use crate::stats::{KeyHasher, Stats};

/// Maximum number of keys with their own counts: as many as a server counts.
pub(crate) const MAX_KEYS: usize = slidegate::bounds::DEFAULT_MAX_KEYS;

/// Algorithm that replaces the algorithms of the rules, by its name. Its parameter (burst or slices) is taken from the
/// rule, or is the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct AlgorithmChoice(&'static str);

impl Default for AlgorithmChoice {
    /// The exact algorithm, which is the reference of comparisons.
    fn default() -> Self {
        AlgorithmChoice(Algorithm::default().as_str())
    }
}

impl ValueEnum for AlgorithmChoice {
    fn value_variants<'a>() -> &'a [Self] {
        static CHOICES: LazyLock<Vec<AlgorithmChoice>> =
            LazyLock::new(|| over_time(1).map(|algorithm| AlgorithmChoice(algorithm.as_str())).collect());
        &CHOICES
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let algorithm = over_time(1).find(|algorithm| algorithm.as_str() == self.0)?;
        Some(PossibleValue::new(self.0).help(algorithm.summary()))
    }
}

/// Algorithms that count over time: all except `concurrency`.
fn over_time(limit: u64) -> impl Iterator<Item = Algorithm> {
    Algorithm::all(limit).into_iter().filter(|algorithm| !algorithm.is_held())
}

impl AlgorithmChoice {
    pub(crate) fn as_str(self) -> &'static str {
        self.0
    }

    fn algorithm(self, quota: &Quota) -> Algorithm {
        let configured = std::iter::once(quota.algorithm());
        let mut algorithms = configured.chain(over_time(quota.limit()));
        algorithms.find(|algorithm| algorithm.as_str() == self.0).unwrap_or_default()
    }

    /// Returns the rules with this algorithm. Rules for held permits, which do not count over time, stay as they are.
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

/// One scenario, its statistics, and its differences to the first scenario.
pub(crate) struct ScenarioRun {
    pub(crate) name: String,
    pub(crate) scenario: Scenario,
    pub(crate) stats: Stats,
    /// Requests that this scenario denied and the first one allowed.
    pub(crate) only_denied: u64,
    /// Requests that this scenario allowed and the first one denied.
    pub(crate) only_allowed: u64,
}

/// Scenarios with the same traffic. The first is the reference.
pub(crate) struct Scenarios {
    pub(crate) runs: Vec<ScenarioRun>,
    /// Differences by the key that was denied. Counted only if there are exactly two scenarios.
    pub(crate) changes: KeyChanges,
}

/// Keys with requests that the second scenario decides differently from the first.
#[derive(Default)]
pub(crate) struct KeyChanges {
    pub(crate) keys: HashMap<Key, KeyChange, BuildHasherDefault<KeyHasher>>,
    /// Number of changes beyond [`MAX_KEYS`] keys.
    pub(crate) untracked: u64,
}

/// Requests of one key that only one of two scenarios denied.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeyChange {
    pub(crate) only_denied: u64,
    pub(crate) only_allowed: u64,
}

impl Scenarios {
    /// Creates a scenario per set of rules. `begin` is the start of the traffic; if it is not known, the first request is.
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

    /// Decides a request in every scenario. `visit` gets the decision of the last one.
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
        // A request that one scenario rejects as invalid counts for none of them. All scenarios have decided it, so
        // their counters stay comparable.
        let decisions = decisions.collect::<Vec<_>>().into_iter().collect::<Result<Vec<_>, _>>()?;
        let [first, .., last] = &decisions[..] else { return Err("no algorithm to compare".to_owned()) };
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
