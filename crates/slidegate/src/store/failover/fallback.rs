//! Deciding without the store: by this node's share, and by what it has admitted itself.
//!
//! With `n` nodes alive each may use the n-th part of a limit. That alone is not enough: what the others admitted
//! before the store went away counts for one window more, and nobody here knows of it. So in that first window
//! a key that was at its limit lately may use no more than what this node itself had in use: the nodes together
//! had no more than the limit, so they go on with no more. Any other key gets its part of what was left when the
//! store last spoke of it.

use super::admission_log::Noted;
use super::journal::{Journal, Record};
use crate::algorithm::evaluate::{States, evaluate};
use crate::{
    Algorithm, Check, Checks, Correction, Count, Entry, Key, Micros, Outcome, Quota, Settled, Source, State,
    Verdict, Verdicts,
};

/// Set in the sequence number of an admission made without the store. No number of the store's is as large: its
/// largest have 19 digits, and those of what was written back are below.
pub(super) const MADE_HERE: u64 = 0xF << 60;

/// Whether an admission was made without the store.
pub(super) fn is_made_here(entry: Entry) -> bool {
    entry.seq >= MADE_HERE
}

/// What decides a key without the store.
pub(super) struct Local {
    /// Which outage it is for.
    outage: u64,
    state: State,
    /// What may be in use here until the first window has passed, and when that is.
    cap: u64,
    until: Micros,
}

impl Local {
    pub(super) fn is_idle(&self, now: Micros) -> bool {
        self.until <= now && self.state.idle_at() <= now
    }

    pub(super) fn bytes(&self) -> usize {
        size_of::<Local>() + self.state.heap_bytes()
    }
}

/// A time without the store, as one node sees it. Instants are those of the server's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outage {
    pub(super) number: u64,
    pub(super) since: Micros,
    pub(super) now: Micros,
    /// How far the server's clock may be behind `now`.
    pub(super) spread: Micros,
    /// How many nodes share a limit, and which of them this is.
    pub(super) nodes: u64,
    pub(super) rank: u64,
}

impl Outage {
    fn share(&self, whole: u64) -> u64 {
        whole / self.nodes + u64::from(self.rank < whole % self.nodes)
    }
}

/// What is used of a quota here: by its `capacity` permits. None if that is none, or cannot be counted.
fn part_of(quota: &Quota, capacity: u64, outage: &Outage) -> Option<Quota> {
    let part = match quota.algorithm() {
        Algorithm::TokenBucket { .. } => {
            // A bucket is shared by filling it more slowly.
            let window = quota.window().get().checked_mul(outage.nodes)?;
            let burst = Algorithm::TokenBucket { burst: capacity };
            Quota::new(quota.limit(), Micros::new(window).into()).and_then(|part| part.with_algorithm(burst))
        }
        algorithm => {
            Quota::new(capacity, quota.window().into()).and_then(|part| part.with_algorithm(algorithm))
        }
    };
    Some(part.ok()?.with_count(quota.count()))
}

impl Record {
    /// Makes what decides for this outage, from what was admitted here.
    fn prime(&mut self, outage: &Outage) {
        if self.local.as_ref().is_some_and(|local| local.outage == outage.number) {
            return;
        }
        let (whole, horizon) = (self.quota.capacity(), self.quota.horizon());
        let own = self.used_at(outage.since, outage.nodes);
        let left = if self.full.plus(horizon) > outage.since {
            0
        } else if self.seen.plus(horizon) <= outage.since {
            whole
        } else {
            whole.saturating_sub(self.used)
        };
        let cap = own.saturating_add(outage.share(left)).min(outage.share(whole));
        let mut state = State::new(&self.quota);
        // What is in a bucket stays in it when it becomes smaller, so it is as small from the start.
        let room = if self.is_bucket() { cap } else { outage.share(whole) };
        if let Some(part) = part_of(&self.quota, room.max(1), outage) {
            // Counted as attempts: more may have been admitted than this node's share.
            let part = part.with_count(Count::Attempts);
            state = State::new(&part);
            for noted in self.taken(outage.since, outage.nodes) {
                let (at, cost) = (noted.at.plus(outage.spread), noted.cost.min(part.capacity()));
                state.admit(at, &part, cost);
                if self.is_bucket() && cost < noted.cost {
                    // It lacks more than it may hold from now on, and refills that first. Debt is capped as in the store.
                    state.count_again(at, noted.cost.min(whole.saturating_mul(2)) - cost);
                }
            }
        }
        // A clock that was set back has what was admitted before ahead of it.
        let until = left_by(&self.quota, outage.since.max(self.seen));
        self.local = Some(Box::new(Local { outage: outage.number, state, cap, until }));
    }
}

impl Record {
    /// What this node itself has in use at `now`.
    fn used_at(&self, now: Micros, nodes: u64) -> u64 {
        if self.is_bucket() {
            return self.level.at(now, &self.quota, nodes).ceil() as u64;
        }
        let quota = self.quota.without_warm_up();
        let mut state = State::new(&quota);
        for noted in self.log.iter().filter(|noted| noted.at <= now.plus(quota.grain())) {
            state.admit(noted.at.min(now), &quota, noted.cost);
        }
        state.inspect(now)
    }
}

/// When everything that was admitted up to `now`, by anybody, has left.
fn left_by(quota: &Quota, now: Micros) -> Micros {
    match quota.algorithm() {
        Algorithm::FixedWindow => {
            let window = quota.window().get();
            Micros::new((now.get() / window + 1) * window)
        }
        _ => now.plus(quota.horizon()),
    }
}

/// One check, and what decides it here.
struct Place {
    check: Check,
    state: State,
    /// What may be in use of it here; 0 admits nothing.
    capacity: u64,
    /// Whether the state is the record's, and goes back there.
    taken: bool,
}

struct Places(Vec<Place>);

impl States for Places {
    fn state(&mut self, i: usize) -> &mut State {
        &mut self.0[i].state
    }
}

/// Judges `ask` without the store. What it admits is remembered as not yet written, unless the store is `asked`
/// too.
pub(super) fn decide(mirror: &Journal, ask: &Checks, outage: &Outage, asked: bool) -> Verdicts {
    let mut locked = mirror.lock(ask.checks().iter().map(|check| &check.key));
    let mut places = Vec::with_capacity(ask.checks().len());
    for check in ask.checks() {
        let record = locked.records(&check.key).and_then(|records| mirror.record(records, check));
        let place = match record {
            Some(record) if asked || !mirror.is_full() => take(record, check, outage),
            // No room to remember it: what cannot be counted is not admitted.
            _ => place(check, State::new(&check.quota), 0, outage, false),
        };
        places.push(place);
    }
    let here = Checks::distinct(places.iter().map(|place| place.check.clone()));
    let here = match ask.id() {
        Some(id) => here.with_id(id.clone()),
        None => here,
    };
    let here = if ask.is_peek() { here.peek() } else { here };
    let mut places = Places(places);
    let mut reading = evaluate(&here, outage.now, &mut places);
    reading.source = Source::Local;
    for ((check, place), verdict) in ask.checks().iter().zip(places.0).zip(&mut reading.verdicts) {
        let Place { state, capacity, taken, .. } = place;
        let repeated = verdict.entry.at < outage.now;
        translate(verdict, check, capacity);
        let records = locked.records(&check.key);
        let Some(record) = records.and_then(|records| records.get_mut(&check.key)) else { continue };
        if taken && let Some(local) = &mut record.local {
            local.state = state;
        }
        if verdict.outcome == Outcome::Charged && !asked && !repeated {
            let noted = Noted { at: verdict.entry.at, cost: check.cost, written: false };
            mirror.add(&check.key, record, noted, outage.now);
        }
    }
    reading
}

/// Undoes what `decide` recorded for an ask that the store did not admit.
pub(super) fn undo(mirror: &Journal, ask: &Checks, reading: &Verdicts, now: Micros) {
    for (check, verdict) in ask.checks().iter().zip(&reading.verdicts) {
        if verdict.outcome == Outcome::Charged && check.quota.count() == Count::Admitted {
            settle(mirror, &check.key, verdict.entry, Correction::Cost(0), now);
        }
    }
}

/// Counts what `decide` recorded for `outage` in an exact window from `at` on, when the store admitted it, instead of from when
/// it was decided here. Other windows round instants up already.
pub(super) fn postpone(mirror: &Journal, ask: &Checks, reading: &Verdicts, outage: &Outage, at: Micros) {
    for (check, verdict) in ask.checks().iter().zip(&reading.verdicts) {
        let exact = check.quota.algorithm() == Algorithm::SlidingWindow;
        if !exact || verdict.outcome != Outcome::Charged || verdict.entry.at >= at {
            continue;
        }
        let mut locked = mirror.lock(std::iter::once(&check.key));
        let record = locked.records(&check.key).and_then(|records| records.get_mut(&check.key));
        let Some(local) = record.and_then(|record| record.local.as_mut()) else { continue };
        // The state of another outage does not have it, and starts from what the store answered.
        if local.outage == outage.number {
            local.state.postpone(at, verdict.entry);
        }
    }
}

/// Corrects an admission in what decides here, and says since when it has counted; none if nothing does now.
pub(super) fn settle(
    mirror: &Journal,
    key: &Key,
    entry: Entry,
    correction: Correction,
    now: Micros,
) -> Option<(Settled, Micros)> {
    let mut locked = mirror.lock(std::iter::once(key));
    let record = locked.records(key).and_then(|records| records.get_mut(key))?;
    let local = record.local.as_mut()?;
    let entry = Entry { seq: entry.seq & !MADE_HERE, ..entry };
    let since = local.state.counted_from(entry);
    Some((local.state.correct(now, entry, correction), since))
}

fn take(record: &mut Record, check: &Check, outage: &Outage) -> Place {
    record.prime(outage);
    let whole = check.quota.capacity();
    let mut capacity = outage.share(whole);
    let mut state = State::new(&check.quota);
    if let Some(local) = &mut record.local {
        if outage.now < local.until {
            capacity = capacity.min(local.cap);
        }
        std::mem::swap(&mut state, &mut local.state);
    }
    place(check, state, capacity, outage, true)
}

fn place(check: &Check, mut state: State, capacity: u64, outage: &Outage, taken: bool) -> Place {
    let part = part_of(&check.quota, capacity.max(1), outage);
    let capacity = if part.is_some() { capacity } else { 0 };
    let quota = part.unwrap_or(check.quota);
    if !state.suits(&quota) {
        state = State::new(&quota);
    }
    // A quota allows one permit at least; where none is allowed, what is asked for is made not to fit.
    let cost = if capacity == 0 && check.cost > 0 { quota.capacity() + 1 } else { check.cost };
    Place { check: Check { quota, cost, ..check.clone() }, state, capacity, taken }
}

/// In terms of the check as it was asked.
fn translate(verdict: &mut Verdict, check: &Check, capacity: u64) {
    verdict.limit = capacity;
    verdict.entry.seq |= MADE_HERE;
    // It does not fit here, but it may when the store is back.
    if verdict.outcome == Outcome::Impossible && check.cost <= check.quota.capacity() {
        verdict.outcome = Outcome::Denied;
        verdict.retry_after = check.quota.horizon();
    }
}
