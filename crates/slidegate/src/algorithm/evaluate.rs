//! Evaluation of several checks: in order, all or nothing. Pure, like the algorithms.

use std::sync::Arc;

use smallvec::SmallVec;

use super::note_budget::NoteBudget;
use super::{CheckInput, Evaluation, Recording};
use crate::{Checks, Micros, Outcome, Precision, Source, State, Verdict, Verdicts};

/// Source of the states for checks: the shards of the memory store, or the map of a test oracle.
pub trait States {
    /// Returns the state of the `i`-th check under evaluation; a blank state if its key was never used. The state must
    /// [suit](State::suits) the quota of the check.
    fn state(&mut self, i: usize) -> &mut State;
}

/// Evaluates the checks of one request at `now`.
///
/// Checks are evaluated in order. If no enforced check is denied, every check that fits is recorded. Otherwise nothing
/// is recorded, except that rules with `count: attempts` count the checks up to and including the first enforced
/// denial. The checks after this denial are only reported.
pub fn evaluate(checks: &Checks, now: Micros, states: &mut impl States) -> Verdicts {
    evaluate_with(checks, now, &mut AllPresent(states), |i| input(checks, i, None))
}

/// Counters for the checks of one request. A store may have no room for some of them.
pub(crate) trait Counters {
    /// Returns the counter of the `i`-th check, or, if the store cannot hold it, the time until there may be room.
    fn counter(&mut self, i: usize) -> Result<&mut State, Micros>;
}

struct AllPresent<'a, S>(&'a mut S);

impl<S: States> Counters for AllPresent<'_, S> {
    fn counter(&mut self, i: usize) -> Result<&mut State, Micros> {
        Ok(self.0.state(i))
    }
}

/// Does the same as [`evaluate`] with the inputs that `input` returns. A check without a counter is denied.
pub(crate) fn evaluate_with<'a>(
    checks: &Checks,
    now: Micros,
    counters: &mut impl Counters,
    input: impl Fn(usize) -> CheckInput<'a>,
) -> Verdicts {
    let mut evaluations: SmallVec<[(Micros, Evaluation); 4]> = SmallVec::new();
    let mut denied_by = None;
    for (i, check) in checks.as_slice().iter().enumerate() {
        let input = input(i);
        let (now, evaluation) = match counters.counter(i) {
            Ok(state) => {
                let now = state.roll(now, input.quota);
                (now, state.consider(now, input))
            }
            Err(_) => (now, Evaluation::Denied),
        };
        if check.enforced && evaluation.denies() && denied_by.is_none() {
            denied_by = Some(i);
        }
        evaluations.push((now, evaluation));
    }
    let verdicts = evaluations.into_iter().enumerate().map(|(i, (now, evaluation))| {
        let recording = match denied_by {
            _ if checks.is_peek() => Recording::Nothing,
            None => Recording::All,
            Some(denier) if i <= denier => Recording::Attempts,
            Some(_) => Recording::Nothing,
        };
        match counters.counter(i) {
            Ok(state) => state.conclude(now, input(i), evaluation, recording),
            Err(wait) => no_room(input(i), wait),
        }
    });
    Verdicts { at: now, source: Source::Store, verdicts: verdicts.collect() }
}

/// Evaluates a single check, the common case, and records it if it fits.
#[inline(always)]
pub(crate) fn evaluate_one(
    checks: &Checks,
    now: Micros,
    state: &mut State,
    budget: Option<&Arc<NoteBudget>>,
) -> Verdicts {
    let input = input(checks, 0, budget);
    let (at, verdict) = state.admit_alone(now, input);
    Verdicts { at, source: Source::Store, verdicts: SmallVec::from_buf([verdict]) }
}

#[inline]
fn input<'a>(checks: &'a Checks, i: usize, budget: Option<&'a Arc<NoteBudget>>) -> CheckInput<'a> {
    let check = &checks.as_slice()[i];
    CheckInput { quota: &check.quota, cost: check.cost, id: checks.id(), scope: 0, budget }
}

/// Verdict of a store that has no room for a key: the limit counts as used up.
fn no_room(input: CheckInput<'_>, wait: Micros) -> Verdict {
    let limit = input.quota.capacity();
    let (outcome, precision) = (Outcome::Denied, Precision::LowerBound);
    let denied = Verdict { outcome, precision, used: limit, ..Verdict::not_evaluated(limit) };
    Verdict { retry_after: wait, reset_after: wait, ..denied }
}
