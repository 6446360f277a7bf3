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
pub(crate) enum Counting {
    /// Exact
    SlidingWindow,
    /// Anew at every multiple of the window
    FixedWindow,
    /// The window in slices: as the rule says, or ten
    TimeSlice,
    /// A bucket: its burst as the rule says, or the limit
    TokenBucket,
}

impl Counting {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Counting::SlidingWindow => "sliding-window",
            Counting::FixedWindow => "fixed-window",
            Counting::TimeSlice => "time-slice",
            Counting::TokenBucket => "token-bucket",
        }
    }

    fn algorithm(self, quota: &Quota) -> Algorithm {
        match (self, quota.algorithm()) {
            (Counting::SlidingWindow, _) => Algorithm::SlidingWindow,
            (Counting::FixedWindow, _) => Algorithm::FixedWindow,
            (Counting::TimeSlice, said @ Algorithm::TimeSlice { .. }) => said,
            (Counting::TimeSlice, _) => Algorithm::TimeSlice { slices: 10 },
            (Counting::TokenBucket, said @ Algorithm::TokenBucket { .. }) => said,
            (Counting::TokenBucket, _) => Algorithm::TokenBucket { burst: quota.limit() },
        }
    }

    /// The same rules, counted so. What is held, and not counted over time, stays as it is.
    pub(crate) fn apply(self, rules: &Rules) -> Result<Rules, String> {
        let mut counted = Vec::new();
        for rule in rules.iter().cloned() {
            let name = rule.name().to_owned();
            let other = rule.is_limited() && !rule.quota().is_held();
            let rule = if other { rule.counted_by(|quota| self.algorithm(quota)) } else { Ok(rule) };
            counted.push(rule.map_err(|error| format!("rule `{name}` as {}: {error}", self.as_str()))?);
        }
        let (ad_hoc, unmatched) = (*rules.ad_hoc(), rules.unmatched());
        let rules = Rules::new(counted).map(|counted| counted.with_ad_hoc(ad_hoc).with_unmatched(unmatched));
        rules.map_err(|error| error.to_string())
    }
}

/// Rules, what they decided, and what of it the first of them decided otherwise.
pub(crate) struct Counted {
    pub(crate) name: String,
    pub(crate) lane: Scenario,
    pub(crate) tally: Stats,
    /// Denied here, and allowed by the first.
    pub(crate) only_denied: u64,
    /// Allowed here, and denied by the first.
    pub(crate) only_allowed: u64,
}

/// All of them. The first is the yardstick.
pub(crate) struct Scenarios {
    pub(crate) all: Vec<Counted>,
    /// By which key of which rule requests are denied by one and allowed by the other, where there are two.
    pub(crate) changes: Changes,
}

/// Keys that are treated otherwise by the second than by the first.
#[derive(Default)]
pub(crate) struct Changes {
    pub(crate) keys: HashMap<Key, Change, BuildHasherDefault<KeyHasher>>,
    /// Changes of keys that are too many to be known one by one.
    pub(crate) untracked: u64,
}

/// What became of one key's requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Change {
    pub(crate) only_denied: u64,
    pub(crate) only_allowed: u64,
}

impl Scenarios {
    /// Over traffic that begins then, or with its first request.
    pub(crate) fn new(sets: impl IntoIterator<Item = (String, Rules)>, begin: Option<Micros>) -> Self {
        let all = sets.into_iter().map(|(name, rules)| Counted {
            name,
            tally: Stats::new(&rules, MAX_KEYS, begin),
            lane: Scenario::new(rules, MAX_KEYS),
            only_denied: 0,
            only_allowed: 0,
        });
        Scenarios { all: all.collect(), changes: Changes::default() }
    }

    /// Lets all of them decide; what the last decided is looked at.
    #[inline]
    pub(crate) fn decide(
        &mut self,
        at: Micros,
        request: &Request<'_>,
        look: impl FnOnce(&Decision),
    ) -> Result<(), String> {
        match &mut self.all[..] {
            [only] => only.lane.decide(at, request, |decision| {
                only.tally.add(at, decision);
                look(decision);
            }),
            _ => self.compare(at, request, look),
        }
    }

    fn compare(
        &mut self,
        at: Micros,
        request: &Request<'_>,
        look: impl FnOnce(&Decision),
    ) -> Result<(), String> {
        let decided = self.all.iter_mut().map(|each| each.lane.decide(at, request, Decision::clone));
        // What is not acceptable to one is nobody's, but all have been asked.
        let decided = decided.collect::<Vec<_>>().into_iter().collect::<Result<Vec<_>, _>>()?;
        let [first, .., last] = &decided[..] else { return Err("there is nothing to compare".to_owned()) };
        for (each, decision) in self.all.iter_mut().zip(&decided) {
            each.tally.add(at, decision);
            each.only_denied += u64::from(first.allowed() && !decision.allowed());
            each.only_allowed += u64::from(!first.allowed() && decision.allowed());
        }
        if decided.len() == 2 {
            self.changes.add(first, last);
        }
        look(last);
        Ok(())
    }
}

impl Changes {
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
            self.keys.insert(key.clone(), Change::default());
        }
        if let Some(change) = self.keys.get_mut(key) {
            change.only_denied += u64::from(denied);
            change.only_allowed += u64::from(!denied);
        }
    }
}
