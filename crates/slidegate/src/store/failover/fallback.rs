//! Decisions without the store, by this node's share of each limit and its own admissions.
//!
//! With `n` live nodes, each node may use an n-th of a limit. That alone is not enough: the admissions of the other
//! nodes before the outage count for one more window, and this node does not know them. So during that first window:
//!
//! - A key that was recently at its limit may use no more than this node itself had in use. Together the nodes had at
//!   most the limit in use, so they continue with at most the limit.
//! - Any other key gets this node's share of what was free at the last answer of the store.

use super::admission_log::Admission;
use super::journal::{Journal, Record};
use crate::algorithm::evaluate::{States, evaluate};
use crate::{
    Check, Checks, Correction, Count, Entry, Key, Micros, Outcome, Quota, Settled, Source, State, Verdict,
    Verdicts,
};

/// Bits that mark the sequence number of an admission made without the store. All sequence numbers of the store are
/// smaller: the store assigns at most 19 digits, and admissions that were written back have numbers below this one.
pub(super) const LOCAL_SEQ: u64 = 0xF << 60;

/// Returns whether an admission was made without the store.
pub(super) fn is_local(entry: Entry) -> bool {
    entry.seq >= LOCAL_SEQ
}

/// Counter of one key during one outage.
pub(super) struct LocalState {
    /// Number of the outage.
    outage: u64,
    state: State,
    /// Maximum usage on this node until `until`, the end of the first window of the outage.
    cap: u64,
    until: Micros,
}

impl LocalState {
    pub(super) fn is_idle(&self, now: Micros) -> bool {
        self.until <= now && self.state.idle_at() <= now
    }

    pub(super) fn bytes(&self) -> usize {
        size_of::<LocalState>() + self.state.heap_bytes()
    }
}

/// An outage as one node sees it. Instants are those of the server's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outage {
    pub(super) number: u64,
    pub(super) since: Micros,
    pub(super) now: Micros,
    /// Maximum time by which the server's clock may be behind `now`.
    pub(super) clock_uncertainty: Micros,
    /// Number of nodes that share a limit.
    pub(super) nodes: u64,
    /// Position of this node among them, from 0.
    pub(super) rank: u64,
}

impl Outage {
    /// Returns this node's share of `capacity`. The shares of all nodes add up to `capacity`.
    fn share(&self, capacity: u64) -> u64 {
        capacity / self.nodes + u64::from(self.rank < capacity % self.nodes)
    }
}

/// Returns the quota to evaluate on this node, with `capacity` permits; `None` if such a quota would be invalid.
fn local_quota(quota: &Quota, capacity: u64, outage: &Outage) -> Option<Quota> {
    let algorithm = quota.algorithm().with_burst(capacity);
    let (limit, window) = match algorithm.refills() {
        // Each node's share of a bucket refills at its share of the rate, so its window is longer.
        true => (quota.limit(), quota.window().get().checked_mul(outage.nodes)?),
        false => (capacity, quota.window().get()),
    };
    let part = Quota::new(limit, Micros::new(window).into()).and_then(|part| part.with_algorithm(algorithm));
    Some(part.ok()?.with_count(quota.count()))
}

impl Record {
    /// Creates the counter for this outage from this node's admissions, unless there is one.
    fn prepare_local(&mut self, outage: &Outage) {
        if self.local.as_ref().is_some_and(|local| local.outage == outage.number) {
            return;
        }
        let (capacity, horizon) = (self.quota.capacity(), self.quota.horizon());
        let own_usage = self.own_usage_at(outage.since, outage.nodes);
        let free = if self.last_full.plus(horizon) > outage.since {
            0
        } else if self.last_answer.plus(horizon) <= outage.since {
            capacity
        } else {
            capacity.saturating_sub(self.last_used)
        };
        let cap = own_usage.saturating_add(outage.share(free)).min(outage.share(capacity));
        let mut state = State::new(&self.quota);
        // The bucket has its smallest size from the start, because a bucket that becomes smaller later keeps its
        // content.
        let room = if self.is_bucket() { cap } else { outage.share(capacity) };
        if let Some(part) = local_quota(&self.quota, room.max(1), outage) {
            // This node may have admitted more than its share. A counter of attempts accepts all these admissions.
            let part = part.with_count(Count::Attempts);
            state = State::new(&part);
            for admission in self.own_admissions(outage.since, outage.nodes) {
                let (at, cost) =
                    (admission.at.plus(outage.clock_uncertainty), admission.cost.min(part.capacity()));
                state.admit(at, &part, cost);
                if self.is_bucket() && cost < admission.cost {
                    // More permits are missing than this smaller bucket can hold. The excess is a debt, which is
                    // refilled first and has the same bound as in the store.
                    state.count_again(at, admission.cost.min(capacity.saturating_mul(2)) - cost);
                }
            }
        }
        // If the server's clock was set back, earlier admissions lie in its future, so the window starts at the last
        // answer.
        let until = self.quota.expired_by(outage.since.max(self.last_answer));
        self.local = Some(Box::new(LocalState { outage: outage.number, state, cap, until }));
    }

    /// Returns the permits in use at `now` that this node itself admitted.
    fn own_usage_at(&self, now: Micros, nodes: u64) -> u64 {
        if self.is_bucket() {
            return self.bucket.missing_at(now, &self.quota, nodes).ceil() as u64;
        }
        let quota = self.quota.without_warm_up();
        let mut state = State::new(&quota);
        for admission in self.log.iter().filter(|admission| admission.at <= now.plus(quota.grain())) {
            state.admit(admission.at.min(now), &quota, admission.cost);
        }
        state.inspect(now)
    }
}

/// One check with its local quota and counter.
struct LocalCheck {
    check: Check,
    state: State,
    /// Maximum usage on this node; 0 admits nothing.
    capacity: u64,
    /// True if the state was taken from the record and must be put back.
    from_record: bool,
}

struct LocalChecks(Vec<LocalCheck>);

impl States for LocalChecks {
    fn state(&mut self, i: usize) -> &mut State {
        &mut self.0[i].state
    }
}

/// Decides `checks` without the store. Admissions are recorded as unwritten, unless the decision is `joint`: then the
/// store decides too and counts them.
pub(super) fn decide(journal: &Journal, checks: &Checks, outage: &Outage, joint: bool) -> Verdicts {
    let mut locked = journal.lock(checks.as_slice().iter().map(|check| &check.key));
    let mut local_checks = Vec::with_capacity(checks.as_slice().len());
    for check in checks.as_slice() {
        let record = locked.records(&check.key).and_then(|records| journal.get_or_create(records, check));
        let local_check = match record {
            Some(record) if joint || !journal.is_full() => local_check_from(record, check, outage),
            // The journal has no room to record an admission, so nothing is admitted.
            _ => local_check(check, State::new(&check.quota), 0, outage, false),
        };
        local_checks.push(local_check);
    }
    let local_request = checks.with_checks(local_checks.iter().map(|local_check| local_check.check.clone()));
    let mut local_checks = LocalChecks(local_checks);
    let mut verdicts = evaluate(&local_request, outage.now, &mut local_checks);
    verdicts.source = Source::Local;
    for ((check, local_check), verdict) in
        checks.as_slice().iter().zip(local_checks.0).zip(&mut verdicts.verdicts)
    {
        let LocalCheck { state, capacity, from_record, .. } = local_check;
        let repeated = verdict.entry.at < outage.now;
        translate(verdict, check, capacity);
        let records = locked.records(&check.key);
        let Some(record) = records.and_then(|records| records.get_mut(&check.key)) else { continue };
        if from_record && let Some(local) = &mut record.local {
            local.state = state;
        }
        if verdict.outcome == Outcome::Charged && !joint && !repeated {
            let admission = Admission { at: verdict.entry.at, cost: check.cost, written: false };
            // By the server's clock, older admissions may still count. They stay in the journal for the write-back.
            journal.add(&check.key, record, admission, outage.now.since(outage.clock_uncertainty));
        }
    }
    verdicts
}

/// Reverts what [`decide`] recorded for a joint decision that the store did not admit.
pub(super) fn undo(journal: &Journal, checks: &Checks, verdicts: &Verdicts, now: Micros) {
    for (check, verdict) in checks.as_slice().iter().zip(&verdicts.verdicts) {
        if verdict.outcome == Outcome::Charged && check.quota.count() == Count::Admitted {
            settle(journal, &check.key, verdict.entry, Correction::Cost(0), now);
        }
    }
}

/// Moves the admissions of a joint decision in an exact window to `at`, the instant at which the store admitted them.
/// Other windows round instants up, so their admissions need not be moved.
pub(super) fn postpone(journal: &Journal, checks: &Checks, verdicts: &Verdicts, outage: &Outage, at: Micros) {
    for (check, verdict) in checks.as_slice().iter().zip(&verdicts.verdicts) {
        let exact = check.quota.algorithm().is_exact();
        if !exact || verdict.outcome != Outcome::Charged || verdict.entry.at >= at {
            continue;
        }
        let mut locked = journal.lock(std::iter::once(&check.key));
        let record = locked.records(&check.key).and_then(|records| records.get_mut(&check.key));
        let Some(local) = record.and_then(|record| record.local.as_mut()) else { continue };
        // The counter of another outage does not contain the admission; it starts from the answers of the store.
        if local.outage == outage.number {
            local.state.postpone(at, verdict.entry);
        }
    }
}

/// Corrects an admission in the local counter. Returns the result and the instant from which the admission counted;
/// `None` if there is no local counter.
pub(super) fn settle(
    journal: &Journal,
    key: &Key,
    entry: Entry,
    correction: Correction,
    now: Micros,
) -> Option<(Settled, Micros)> {
    let mut locked = journal.lock(std::iter::once(key));
    let record = locked.records(key).and_then(|records| records.get_mut(key))?;
    let local = record.local.as_mut()?;
    let entry = Entry { seq: entry.seq & !LOCAL_SEQ, ..entry };
    let since = local.state.counted_from(entry);
    Some((local.state.correct(now, entry, correction), since))
}

fn local_check_from(record: &mut Record, check: &Check, outage: &Outage) -> LocalCheck {
    record.prepare_local(outage);
    let mut capacity = outage.share(check.quota.capacity());
    let mut state = State::new(&check.quota);
    if let Some(local) = &mut record.local {
        if outage.now < local.until {
            capacity = capacity.min(local.cap);
        }
        std::mem::swap(&mut state, &mut local.state);
    }
    local_check(check, state, capacity, outage, true)
}

fn local_check(
    check: &Check,
    mut state: State,
    capacity: u64,
    outage: &Outage,
    from_record: bool,
) -> LocalCheck {
    let part = local_quota(&check.quota, capacity.max(1), outage);
    let capacity = if part.is_some() { capacity } else { 0 };
    let quota = part.unwrap_or(check.quota);
    if !state.suits(&quota) {
        state = State::new(&quota);
    }
    // A quota has at least one permit. If this node's share has none, the cost is raised so that it does not fit.
    let cost = if capacity == 0 && check.cost > 0 { quota.capacity() + 1 } else { check.cost };
    LocalCheck { check: Check { quota, cost, ..check.clone() }, state, capacity, from_record }
}

/// Converts the verdict on a local quota to the quota of the original check.
fn translate(verdict: &mut Verdict, check: &Check, capacity: u64) {
    verdict.limit = capacity;
    verdict.entry.seq |= LOCAL_SEQ;
    // The cost exceeds this node's share, but may fit when the store is back.
    if verdict.outcome == Outcome::Impossible && check.cost <= check.quota.capacity() {
        verdict.outcome = Outcome::Denied;
        verdict.retry_after = check.quota.horizon();
    }
}
