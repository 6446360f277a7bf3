//! The smallest limits that would have denied no more than somebody will bear.
//!
//! Whether a client is ever denied can be told from its busiest window: it is if more was asked there than the limit. How many
//! requests are denied cannot, because what is denied does not count; so limits are tried, several in one reading of the
//! traffic, each as a shadow rule that counts for itself. With permits of one, more limit never denies more: the first that is
//! low enough is the smallest. With larger ones a single request may be in the way of many; then it is a limit that is low
//! enough while one permit less is not.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::Serialize;
use slidegate::{Decision, Key, MAX_LIMIT, Micros, Quota, Rule, Rules};

use crate::plan::{DenialBudget, SuggestionGoal};
use crate::progress::Progress;
use crate::scenario::{Scenario, VirtualTime};
use crate::scenarios::MAX_KEYS;
use crate::traffic::{ParseErrors, ReadSummary, Traffic};

/// Limits that are tried at once.
const LIMITS_PER_PASS: u64 = 8;

/// Rules times windows.
const MAX_CANDIDATES: usize = 64;

/// What was found.
#[derive(Debug, Serialize)]
pub(crate) struct Suggestions {
    pub(crate) traffic: String,
    /// What may be denied.
    pub(crate) wish: String,
    pub(crate) requests: u64,
    pub(crate) suggestions: Vec<Suggestion>,
    pub(crate) bad_lines: ParseErrors,
    pub(crate) interrupted: bool,
    pub(crate) notes: Vec<String>,
}

/// One limit.
#[derive(Debug, Serialize)]
pub(crate) struct Suggestion {
    pub(crate) rule: String,
    pub(crate) key: Vec<String>,
    pub(crate) window: String,
    /// None if no request is counted by the rule.
    pub(crate) limit: Option<u64>,
    pub(crate) requests: u64,
    pub(crate) clients: u64,
    /// The most that any client asked for in a window.
    pub(crate) peak: u64,
    pub(crate) denied: u64,
    pub(crate) denied_clients: u64,
    /// What one permit less would have done; none if there is no less.
    pub(crate) one_less: Option<Denials>,
}

/// What a limit denies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Denials {
    pub(crate) denied: u64,
    pub(crate) denied_clients: u64,
}

/// A rule and a window to find a limit for.
struct Candidate {
    rule: Rule,
    window: Micros,
    requests: u64,
    peaks: HashMap<Key, u64>,
    /// Limits that were tried, and what they denied.
    tried: BTreeMap<u64, u64>,
}

impl Candidate {
    fn peak(&self) -> u64 {
        self.peaks.values().copied().max().unwrap_or_default()
    }

    /// Adds a request after which so much was asked for in the window; false if there is no more room for its client.
    fn add(&mut self, key: &Key, asked: u64) -> bool {
        self.requests += 1;
        if let Some(peak) = self.peaks.get_mut(key) {
            *peak = asked.max(*peak);
        } else if self.peaks.len() < MAX_KEYS {
            self.peaks.insert(key.clone(), asked);
        } else {
            return false;
        }
        true
    }

    /// The smallest limit that denies no more than `most`; none if nothing was asked.
    fn smallest_limit(&self, budget: DenialBudget) -> Option<u64> {
        if self.requests == 0 {
            return None;
        }
        match budget {
            DenialBudget::Requests(share) => Some(self.bounds(share.of(self.requests)).1),
            DenialBudget::Clients(share) => {
                let mut peaks: Vec<u64> = self.peaks.values().copied().collect();
                peaks.sort_unstable_by(|a, b| b.cmp(a));
                // So many may be denied; the next one may not.
                let denied = usize::try_from(share.of(peaks.len() as u64)).unwrap_or(usize::MAX);
                Some(peaks.get(denied).copied().unwrap_or(1).max(1))
            }
        }
    }

    /// A limit that denies too much, or none at all, and the smallest known that does not.
    fn bounds(&self, most: u64) -> (u64, u64) {
        let low = self.tried.iter().rev().find(|(_, denied)| **denied > most).map_or(0, |(limit, _)| *limit);
        let enough = self.tried.range(low + 1..).find(|(_, denied)| **denied <= most);
        (low, enough.map_or(self.peak().max(1), |(limit, _)| *limit))
    }

    /// Limits to try next; none if the smallest is known.
    fn next_limits(&self, most: u64) -> Vec<u64> {
        let (low, high) = self.bounds(most);
        let between = high - low - 1;
        let n = between.min(LIMITS_PER_PASS);
        let mut limits: Vec<u64> =
            (1..=n).map(|i| low + (between * i).div_ceil(n + 1).clamp(1, between)).collect();
        limits.dedup();
        limits
    }
}

/// Finds the limits that `wish` asks for.
pub(crate) fn suggest(
    traffic: &Traffic,
    goal: SuggestionGoal,
    stop: &Arc<AtomicBool>,
) -> Result<Suggestions, String> {
    let mut candidates = candidates(goal.candidates)?;
    // Out of reach: what is used is what was asked.
    let unlimited: Vec<Trial> =
        (0..candidates.len()).map(|candidate| Trial { candidate, limit: MAX_LIMIT }).collect();
    let rules = trial_rules(&candidates, &unlimited)?;
    let (mut requests, mut untracked) = (0, 0);
    let mut summary = decide_all(traffic, rules, stop, |decision| {
        requests += 1;
        for limit in decision.limits() {
            untracked += u64::from(!candidates[limit.index()].add(limit.key(), limit.used()));
        }
    })?;
    if let DenialBudget::Requests(share) = goal.budget {
        loop {
            let next_trials = |(candidate, candidate_stats): (usize, &Candidate)| {
                candidate_stats
                    .next_limits(share.of(candidate_stats.requests))
                    .into_iter()
                    .map(move |limit| Trial { candidate, limit })
            };
            let trials: Vec<Trial> = candidates.iter().enumerate().flat_map(next_trials).collect();
            if trials.is_empty() || summary.interrupted {
                break;
            }
            let denials = denials(traffic, &candidates, &trials, stop, &mut summary)?;
            for (Trial { candidate, limit }, Denials { denied, .. }) in trials.iter().zip(denials) {
                candidates[*candidate].tried.insert(*limit, denied);
            }
        }
    }
    let limits: Vec<Option<u64>> =
        candidates.iter().map(|candidate| candidate.smallest_limit(goal.budget)).collect();
    let suggestions = if summary.interrupted {
        Vec::new()
    } else {
        confirm(traffic, &candidates, &limits, stop, &mut summary)?
    };
    let mut notes = std::mem::take(&mut summary.notes);
    if untracked > 0 {
        notes.push(format!(
            "there are more than {MAX_KEYS} clients: only so many are watched, and the limits are theirs"
        ));
    }
    if summary.interrupted {
        notes.push(
            "interrupted: a limit that was not tried on all of the traffic is none to suggest".to_owned(),
        );
    }
    Ok(Suggestions {
        traffic: traffic.name(),
        wish: goal.budget.to_string(),
        requests,
        suggestions,
        bad_lines: std::mem::take(&mut summary.parse_errors),
        interrupted: summary.interrupted,
        notes,
    })
}

fn candidates(wanted: Vec<(Rule, Vec<Micros>)>) -> Result<Vec<Candidate>, String> {
    let mut candidates: Vec<Candidate> = Vec::new();
    for (rule, windows) in wanted {
        candidates.extend(windows.into_iter().map(|window| Candidate {
            rule: rule.clone(),
            window,
            requests: 0,
            peaks: HashMap::new(),
            tried: BTreeMap::new(),
        }));
    }
    let n = candidates.len();
    if n > MAX_CANDIDATES {
        return Err(format!("{n} rules and windows are too many at once: {MAX_CANDIDATES} at most"));
    }
    Ok(candidates)
}

/// A limit that is tried.
#[derive(Clone, Copy, Debug)]
struct Trial {
    candidate: usize,
    limit: u64,
}

/// A shadow rule for each trial, in their order.
fn trial_rules(candidates: &[Candidate], trials: &[Trial]) -> Result<Rules, String> {
    let shadows = trials.iter().enumerate().map(|(n, trial)| {
        let Candidate { rule, window, .. } = &candidates[trial.candidate];
        rule.shadow(&format!("t{n}"), Quota::new(trial.limit, (*window).into())?)
    });
    shadows.collect::<Result<Vec<_>, _>>().and_then(Rules::new).map_err(|error| error.to_string())
}

/// Reads the traffic once more.
fn decide_all(
    traffic: &Traffic,
    rules: Rules,
    stop: &Arc<AtomicBool>,
    mut visit: impl FnMut(&Decision),
) -> Result<ReadSummary, String> {
    // Every trial has its own counts.
    let max_keys = MAX_KEYS * usize::try_from(LIMITS_PER_PASS).unwrap_or(1);
    let (mut scenario, mut time) = (Scenario::new(rules, max_keys), VirtualTime::default());
    let mut progress = Progress::new(traffic.length(), stop);
    let mut summary = traffic.for_each(&mut progress, |event| {
        scenario.decide(time.advance(event.at), event.request, &mut visit)
    })?;
    let shared = scenario.store_stats().shared;
    if shared > 0 {
        summary.notes.push(format!("{shared} decisions were made by counters that several keys share"));
    }
    Ok(summary)
}

/// What each trial denies.
fn denials(
    traffic: &Traffic,
    candidates: &[Candidate],
    trials: &[Trial],
    stop: &Arc<AtomicBool>,
    summary: &mut ReadSummary,
) -> Result<Vec<Denials>, String> {
    let rules = trial_rules(candidates, trials)?;
    let mut denials = vec![Denials::default(); trials.len()];
    let mut clients: Vec<HashSet<Key>> = vec![HashSet::new(); trials.len()];
    let pass = decide_all(traffic, rules, stop, |decision| {
        for limit in decision.limits().filter(|limit| limit.outcome().denies()) {
            denials[limit.index()].denied += 1;
            let clients = &mut clients[limit.index()];
            if clients.len() < MAX_KEYS && !clients.contains(limit.key()) {
                clients.insert(limit.key().clone());
            }
        }
    })?;
    summary.interrupted |= pass.interrupted;
    for note in pass.notes {
        if !summary.notes.contains(&note) {
            summary.notes.push(note);
        }
    }
    for (denials, clients) in denials.iter_mut().zip(clients) {
        denials.denied_clients = clients.len() as u64;
    }
    Ok(denials)
}

/// Tries each limit and one permit less, and says what they do.
fn confirm(
    traffic: &Traffic,
    candidates: &[Candidate],
    limits: &[Option<u64>],
    stop: &Arc<AtomicBool>,
    summary: &mut ReadSummary,
) -> Result<Vec<Suggestion>, String> {
    let trials_of = |(candidate, limit): (usize, &Option<u64>)| {
        let limits = limit.iter().flat_map(|&limit| [limit, limit - 1]).filter(|&limit| limit > 0);
        limits.map(move |limit| Trial { candidate, limit }).collect::<Vec<_>>()
    };
    let trials: Vec<Trial> = limits.iter().enumerate().flat_map(trials_of).collect();
    let denials = denials(traffic, candidates, &trials, stop, summary)?;
    let denials_of = |candidate: usize, limit: Option<u64>| {
        let index =
            trials.iter().position(|trial| trial.candidate == candidate && Some(trial.limit) == limit)?;
        denials.get(index).copied()
    };
    let suggestions = candidates.iter().zip(limits).enumerate().map(|(i, (candidate, limit))| {
        let denials = denials_of(i, *limit).unwrap_or_default();
        Suggestion {
            rule: candidate.rule.name().to_owned(),
            key: candidate.rule.key().map(str::to_owned).collect(),
            window: candidate.window.to_string(),
            limit: *limit,
            requests: candidate.requests,
            clients: candidate.peaks.len() as u64,
            peak: candidate.peak(),
            denied: denials.denied,
            denied_clients: denials.denied_clients,
            one_less: limit.and_then(|limit| denials_of(i, limit.checked_sub(1))),
        }
    });
    Ok(suggestions.collect())
}
