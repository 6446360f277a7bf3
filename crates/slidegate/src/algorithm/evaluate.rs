//! Evaluation of several checks: in order, all or nothing. Pure, like the algorithms.

use std::sync::Arc;

use smallvec::SmallVec;

use super::note_budget::NoteBudget;
use super::{Asked, Evaluation, Recording};
use crate::{Checks, Entry, Micros, Outcome, Precision, Source, State, Verdict, Verdicts};

/// Source of the states for checks: the shards of the memory store, or the map of a test oracle.
pub trait States {
    /// Returns the state of the `i`-th check under evaluation; a blank state if its key was never used. The state must
    /// [suit](State::suits) the quota of the check.
    fn state(&mut self, i: usize) -> &mut State;
}

/// Evaluates the checks of one request at `now`.
///
/// Checks are evaluated in order. Without an enforced denial, every check that fits is recorded. With one, nothing is
/// recorded, except that rules with `count: attempts` count the checks up to and including the first denial. The checks
/// after it are only reported.
pub fn evaluate(ask: &Checks, now: Micros, states: &mut impl States) -> Verdicts {
    judge_by(ask, now, &mut AllHeld(states), |i| asked(ask, i, None))
}

/// Counters for the checks of one request. A store may have no room for some of them.
pub(crate) trait Counters {
    /// Returns the counter of the `i`-th check, or, if the store cannot hold it, the time until there may be room.
    fn counter(&mut self, i: usize) -> Result<&mut State, Micros>;
}

struct AllHeld<'a, S>(&'a mut S);

impl<S: States> Counters for AllHeld<'_, S> {
    fn counter(&mut self, i: usize) -> Result<&mut State, Micros> {
        Ok(self.0.state(i))
    }
}

/// Does the same as [`evaluate`] with the inputs that `asked` returns. A check without a counter is denied.
pub(crate) fn judge_by<'a>(
    ask: &Checks,
    now: Micros,
    counters: &mut impl Counters,
    asked: impl Fn(usize) -> Asked<'a>,
) -> Verdicts {
    let mut opinions: SmallVec<[(Micros, Evaluation); 4]> = SmallVec::new();
    let mut denied_by = None;
    for (i, check) in ask.checks().iter().enumerate() {
        let asked = asked(i);
        let (now, opinion) = match counters.counter(i) {
            Ok(state) => {
                let now = state.roll(now, asked.quota);
                (now, state.consider(now, asked))
            }
            Err(_) => (now, Evaluation::Denied),
        };
        if check.enforced && opinion.denies() && denied_by.is_none() {
            denied_by = Some(i);
        }
        opinions.push((now, opinion));
    }
    let verdicts = opinions.into_iter().enumerate().map(|(i, (now, opinion))| {
        let recording = match denied_by {
            _ if ask.is_peek() => Recording::Nothing,
            None => Recording::All,
            Some(denier) if i <= denier => Recording::Attempts,
            Some(_) => Recording::Nothing,
        };
        match counters.counter(i) {
            Ok(state) => state.conclude(now, asked(i), opinion, recording),
            Err(wait) => no_room(asked(i), wait),
        }
    });
    Verdicts { at: now, source: Source::Store, verdicts: verdicts.collect() }
}

/// Evaluates a single check, the common case, and records it if it fits.
#[inline(always)]
pub(crate) fn judge_one(
    ask: &Checks,
    now: Micros,
    state: &mut State,
    budget: Option<&Arc<NoteBudget>>,
) -> Verdicts {
    let asked = asked(ask, 0, budget);
    let (at, verdict) = state.admit_alone(now, asked);
    Verdicts { at, source: Source::Store, verdicts: SmallVec::from_buf([verdict]) }
}

#[inline]
fn asked<'a>(ask: &'a Checks, i: usize, budget: Option<&'a Arc<NoteBudget>>) -> Asked<'a> {
    let check = &ask.checks()[i];
    Asked { quota: &check.quota, cost: check.cost, id: ask.id(), scope: 0, budget }
}

/// Verdict of a store that has no room for a key: the limit counts as used up.
fn no_room(asked: Asked<'_>, wait: Micros) -> Verdict {
    let limit = asked.quota.capacity();
    Verdict {
        outcome: Outcome::Denied,
        limit,
        used: limit,
        retry_after: wait,
        precision: Precision::LowerBound,
        reset_after: wait,
        entry: Entry::default(),
    }
}
