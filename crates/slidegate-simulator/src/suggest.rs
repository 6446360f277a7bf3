//! Finds the smallest limits that would have denied at most a given share of requests or clients.
//!
//! A client is denied at some time if and only if its busiest window has more requested permits than the limit. One pass over
//! the traffic finds these windows.
//!
//! The number of denied requests cannot be computed from the windows, because denied requests do not count. So limits are
//! tried: several in one pass, each as a shadow rule with its own counts. If every request costs one permit, a larger limit
//! never denies more requests, so the search finds the smallest limit. If requests cost more, one admitted request may displace
//! many others. Then the result is a limit that meets the goal, while the limit with one permit less does not.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::Serialize;
use slidegate::{Decision, Key, Micros, Quota, Rule, Rules, bounds::MAX_LIMIT};

use crate::plan::{DenialBudget, SuggestionGoal};
use crate::progress::Progress;
use crate::scenario::{Scenario, VirtualTime};
use crate::scenarios::MAX_KEYS;
use crate::traffic::{MappedAttribute, ParseErrors, ReadSummary, Traffic};

/// Maximum number of limits per candidate to try in one pass.
const LIMITS_PER_PASS: u64 = 8;

/// Maximum number of pairs of a rule and a window.
const MAX_CANDIDATES: usize = 64;

/// Result of the search.
#[derive(Debug, Serialize)]
pub(crate) struct Suggestions {
    pub(crate) traffic: String,
    /// Goal of the search, as text.
    pub(crate) wish: String,
    pub(crate) requests: u64,
    /// Attributes that use a field of another name, because the trace has no field of their name.
    pub(crate) mapped: Vec<MappedAttribute>,
    pub(crate) suggestions: Vec<Suggestion>,
    pub(crate) bad_lines: ParseErrors,
    pub(crate) interrupted: bool,
    pub(crate) notes: Vec<String>,
    /// Rules of the candidates, in the order of the suggestions.
    #[serde(skip)]
    candidates: Vec<(Rule, Micros)>,
}

impl Suggestions {
    /// Returns a shadow rule per suggested limit, to simulate all of them independently.
    pub(crate) fn rules(&self) -> Result<Rules, String> {
        let is_only_window = |rule: &Rule| {
            self.candidates.iter().filter(|(other, _)| other.name() == rule.name()).count() == 1
        };
        let mut rules = Vec::new();
        for (n, ((rule, window), suggestion)) in self.candidates.iter().zip(&self.suggestions).enumerate() {
            let Some(limit) = suggestion.limit else { continue };
            let quota = Quota::new(limit, (*window).into()).map_err(|error| error.to_string())?;
            let name = match is_only_window(rule) {
                true => rule.name().to_owned(),
                false => format!("{}-{}", rule.name(), window.to_string().replace(' ', "")),
            };
            // The name of the rule and the window may be too long together.
            let shadow =
                rule.shadow(&name, quota).or_else(|_| rule.shadow(&format!("suggestion-{n}"), quota));
            rules.push(shadow.map_err(|error| error.to_string())?);
        }
        Rules::new(rules).map_err(|error| error.to_string())
    }
}

/// Suggested limit for one rule and window.
#[derive(Debug, Serialize)]
pub(crate) struct Suggestion {
    pub(crate) rule: String,
    pub(crate) key: Vec<String>,
    pub(crate) window: String,
    /// None if the rule applies to no request.
    pub(crate) limit: Option<u64>,
    pub(crate) requests: u64,
    pub(crate) clients: u64,
    /// Highest number of permits that one client requested in one window.
    pub(crate) peak: u64,
    pub(crate) denied: u64,
    pub(crate) denied_clients: u64,
    /// Denials with one permit less; none if the limit is the smallest possible.
    pub(crate) one_less: Option<Denials>,
}

impl Suggestion {
    /// Returns the denials by the suggested limit.
    pub(crate) fn denials(&self) -> Denials {
        Denials { denied: self.denied, denied_clients: self.denied_clients }
    }
}

/// Denials by one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Denials {
    pub(crate) denied: u64,
    pub(crate) denied_clients: u64,
}

/// Rule and window to find a limit for.
struct Candidate {
    rule: Rule,
    window: Micros,
    requests: u64,
    peaks: HashMap<Key, u64>,
    /// Limits that were tried, with the number of requests that each denied.
    tried: BTreeMap<u64, u64>,
}

impl Candidate {
    fn peak(&self) -> u64 {
        self.peaks.values().copied().max().unwrap_or_default()
    }

    /// Adds a request. `asked` is the number of permits requested in its window so far. Returns false if there are too many
    /// clients to add one more.
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

    /// Returns the smallest limit that stays within `budget`; none if there were no requests.
    fn smallest_limit(&self, budget: DenialBudget) -> Option<u64> {
        if self.requests == 0 {
            return None;
        }
        match budget {
            DenialBudget::Requests(share) => Some(self.bounds(share.of(self.requests)).1),
            DenialBudget::Clients(share) => {
                let mut peaks: Vec<u64> = self.peaks.values().copied().collect();
                peaks.sort_unstable_by(|a, b| b.cmp(a));
                // The clients with the highest peaks may be denied. The limit is the peak of the next client.
                let denied = usize::try_from(share.of(peaks.len() as u64)).unwrap_or(usize::MAX);
                Some(peaks.get(denied).copied().unwrap_or(1).max(1))
            }
        }
    }

    /// Returns the largest known limit that denies more than `most` requests, or 0, and the smallest known limit above it that
    /// does not.
    fn bounds(&self, most: u64) -> (u64, u64) {
        let low = self.tried.iter().rev().find(|(_, denied)| **denied > most).map_or(0, |(limit, _)| *limit);
        let enough = self.tried.range(low + 1..).find(|(_, denied)| **denied <= most);
        (low, enough.map_or(self.peak().max(1), |(limit, _)| *limit))
    }

    /// Returns the limits to try next; none if the smallest is known.
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

/// Finds the smallest limits that meet the goal.
pub(crate) fn suggest(
    traffic: &Traffic,
    goal: SuggestionGoal,
    stop: &Arc<AtomicBool>,
) -> Result<Suggestions, String> {
    let mut candidates = candidates(goal.candidates)?;
    // This limit is never reached, so the permits in use are all requested permits.
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
            "there are more than {MAX_KEYS} clients: the limits are computed from the first {MAX_KEYS}"
        ));
    }
    if summary.interrupted {
        notes.push(
            "interrupted: a limit cannot be suggested before it was tried on the whole trace".to_owned(),
        );
    }
    Ok(Suggestions {
        traffic: traffic.name(),
        wish: goal.budget.to_string(),
        requests,
        mapped: std::mem::take(&mut summary.mapped),
        suggestions,
        bad_lines: std::mem::take(&mut summary.parse_errors),
        interrupted: summary.interrupted,
        notes,
        candidates: candidates.into_iter().map(|candidate| (candidate.rule, candidate.window)).collect(),
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
        return Err(format!("{n} combinations of rules and windows are too many: at most {MAX_CANDIDATES}"));
    }
    Ok(candidates)
}

/// Limit to try for a candidate.
#[derive(Clone, Copy, Debug)]
struct Trial {
    candidate: usize,
    limit: u64,
}

/// Returns a shadow rule per trial, in the order of the trials.
fn trial_rules(candidates: &[Candidate], trials: &[Trial]) -> Result<Rules, String> {
    let shadows = trials.iter().enumerate().map(|(n, trial)| {
        let Candidate { rule, window, .. } = &candidates[trial.candidate];
        rule.shadow(&format!("t{n}"), Quota::new(trial.limit, (*window).into())?)
    });
    shadows.collect::<Result<Vec<_>, _>>().and_then(Rules::new).map_err(|error| error.to_string())
}

/// Decides all traffic once by `rules`, and gives every decision to `visit`.
fn decide_all(
    traffic: &Traffic,
    rules: Rules,
    stop: &Arc<AtomicBool>,
    mut visit: impl FnMut(&Decision),
) -> Result<ReadSummary, String> {
    // Every trial has counters of its own.
    let max_keys = MAX_KEYS * usize::try_from(LIMITS_PER_PASS).unwrap_or(1);
    let (mut scenario, mut time) = (Scenario::new(rules, max_keys), VirtualTime::default());
    let mut progress = Progress::new(traffic.length(), stop);
    let mut summary = traffic.for_each(&mut progress, |event| {
        scenario.decide(time.advance(event.at), event.request, &mut visit)
    })?;
    let shared = scenario.store_stats().shared;
    if shared > 0 {
        summary.notes.push(format!("{shared} decisions used counters that several keys share"));
    }
    Ok(summary)
}

/// Returns the denials of each trial.
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

/// Tries each limit, and the same limit with one permit less, and returns the suggestions with the denials of both.
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
