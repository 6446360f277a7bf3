//! How an ask of several checks is judged: in order, all or nothing. Pure, like the algorithms under it.

use smallvec::SmallVec;

use crate::algorithm::{Asked, Opinion, Recording};
use crate::{Ask, Micros, Reading, Source, State};

/// Where an ask finds the state of its checks: the memory store's shards, or an oracle's map.
pub trait States {
    /// The state of the `i`-th check of the ask under judgement, blank if its key was never used. It must
    /// [suit](State::suits) the check's quota.
    fn state(&mut self, i: usize) -> &mut State;
}

/// Judges `ask` at `now`.
///
/// Checks are judged in order, and the first enforced refusal ends the judging. If there was none, every
/// check that fits is recorded. If there was one, nothing is, except that `count: attempts` counts what was
/// judged; the checks after it are only reported.
pub fn judge(ask: &Ask, now: Micros, states: &mut impl States) -> Reading {
    let mut opinions: SmallVec<[(Micros, Opinion); 4]> = SmallVec::new();
    let mut refused_by = None;
    for (i, check) in ask.checks().iter().enumerate() {
        let asked = asked(ask, i);
        let state = states.state(i);
        let now = state.roll(now, asked.quota);
        let opinion = state.consider(now, asked);
        if check.enforced && opinion.refuses() && refused_by.is_none() {
            refused_by = Some(i);
        }
        opinions.push((now, opinion));
    }
    let verdicts = opinions.into_iter().enumerate().map(|(i, (now, opinion))| {
        let recording = match refused_by {
            _ if ask.is_peek() => Recording::Nothing,
            None => Recording::All,
            Some(refuser) if i <= refuser => Recording::Attempts,
            Some(_) => Recording::Nothing,
        };
        states.state(i).conclude(now, asked(ask, i), opinion, recording)
    });
    Reading { at: now, source: Source::Store, verdicts: verdicts.collect() }
}

/// The common case: one check, recorded if it fits.
#[inline(always)]
pub(crate) fn judge_one(ask: &Ask, now: Micros, state: &mut State) -> Reading {
    let asked = asked(ask, 0);
    let (at, verdict) = state.admit_alone(now, asked);
    Reading { at, source: Source::Store, verdicts: SmallVec::from_buf([verdict]) }
}

#[inline]
fn asked(ask: &Ask, i: usize) -> Asked<'_> {
    let check = &ask.checks()[i];
    Asked { quota: &check.quota, cost: check.cost, id: ask.id() }
}
