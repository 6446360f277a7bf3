//! Helper: replays the decisions of a store with the pure algorithm, from the instants in its answers, and compares.

use std::collections::HashMap;

use slidegate::{
    Count, Key, Micros, Quota, Settled, Source,
    algorithm::{State, States, evaluate},
    store::{
        Check, Checks, Correction, Entry, Inspection, Outcome, Precision, Settlement, Verdict, Verdicts,
    },
};

/// First number of requests with an id.
const NAMED: u64 = 1_000_000_000_000_000_000;

/// Expected state of one store.
#[derive(Default)]
pub(crate) struct Oracle {
    keys: HashMap<Key, KeyState>,
    /// Entries of the oracle by key and by the number that the store gave to the admission.
    numbers: HashMap<(Key, Micros, u64), Entry>,
    generation: u64,
    /// Charges that could be settled, newest last.
    pub charges: Vec<(Key, Entry)>,
    pub seen: Seen,
}

/// Counts of the outcomes of a trace, which show that the trace covers every case.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub requests: usize,
    pub charged: usize,
    pub denied: usize,
    pub repeated: usize,
    pub impossible: usize,
    pub done: usize,
    pub already: usize,
    pub gone: usize,
    pub inspected: usize,
    pub extended: usize,
    /// Checks whose limit was still below its full height.
    pub warming_up: usize,
    /// Denials that did not reach the store.
    pub cached: usize,
}

struct KeyState {
    state: State,
    quota: Quota,
}

/// States of the checks of one request: existing states, or new ones that are stored only if something was recorded.
struct Picked<'a>(Vec<&'a mut State>);

impl States for Picked<'_> {
    fn state(&mut self, i: usize) -> &mut State {
        self.0[i]
    }
}

impl Oracle {
    /// Asserts that the store would have denied at the same instant as the cache, with a wait that is no shorter. If no
    /// cost fits, all numbers are equal.
    fn assert_cached_denial(&mut self, checks: &Checks, verdicts: &Verdicts) {
        let mut checked = checks.as_slice().iter().zip(&verdicts.verdicts);
        let (check, actual) = checked.find(|(_, verdict)| verdict.outcome != Outcome::NotEvaluated).unwrap();
        assert!(checked.all(|(_, verdict)| verdict.outcome == Outcome::NotEvaluated));
        assert!(check.enforced && actual.outcome.denies());
        assert!(check.quota.count() == Count::Admitted || checks.is_peek());
        let expected = self.would_be(check, verdicts.at);
        assert_eq!(
            actual.outcome, expected.outcome,
            "{} at {:?}: {actual:?}, {expected:?}",
            check.key, verdicts.at
        );
        assert!(actual.retry_after <= expected.retry_after, "{actual:?}, {expected:?}");
        assert!(
            actual.reset_after <= expected.reset_after || expected.used != actual.used,
            "{actual:?}, {expected:?}"
        );
        // Not if more was admitted meanwhile under a higher limit, or if held permits were extended.
        let same = expected.used == actual.used && !check.quota.is_held();
        if check.cost == 1 && actual.used == check.quota.capacity() && same {
            assert_eq!(
                *actual,
                Verdict { entry: actual.entry, ..expected },
                "{} at {:?}",
                check.key,
                verdicts.at
            );
        }
        self.seen.cached += 1;
    }

    /// Returns the expected verdict on a check at an instant.
    pub(crate) fn would_be(&self, check: &Check, at: Micros) -> Verdict {
        let existing = self.keys.get(&check.key).filter(|key_state| key_state.state.suits(&check.quota));
        let mut state = existing
            .map_or_else(|| State::of_generation(&check.quota, 0), |key_state| key_state.state.clone());
        let checks = Checks::one(check.clone()).unwrap().peek();
        evaluate(&checks, at, &mut Picked(vec![&mut state])).verdicts[0]
    }

    /// Replays a decision and asserts that the store gave the expected verdicts.
    pub(crate) fn admitted(&mut self, checks: &Checks, verdicts: &Verdicts) {
        if verdicts.source == Source::DenyCache {
            return self.assert_cached_denial(checks, verdicts);
        }
        let mut states: Vec<State> = Vec::new();
        for check in checks.as_slice() {
            let existing = self.keys.get(&check.key).filter(|key_state| key_state.state.suits(&check.quota));
            states.push(match existing {
                Some(key_state) => key_state.state.clone(),
                None => {
                    self.generation += 1;
                    self.charges.retain(|(key, entry)| *key != check.key || entry.seq < NAMED);
                    State::of_generation(&check.quota, self.generation)
                }
            });
        }
        let expected_verdicts = evaluate(checks, verdicts.at, &mut Picked(states.iter_mut().collect()));
        self.seen.requests += 1;
        assert_eq!(verdicts.verdicts.len(), checks.as_slice().len());
        for ((check, state), (expected, actual)) in checks
            .as_slice()
            .iter()
            .zip(states)
            .zip(expected_verdicts.verdicts.iter().zip(&verdicts.verdicts))
        {
            let mut comparable = *actual;
            if actual.precision == Precision::LowerBound {
                let waits = (actual.retry_after, expected.retry_after);
                assert!(waits.0 > Micros::ZERO && waits.0 <= waits.1, "{}: {waits:?}", check.key);
                (comparable.retry_after, comparable.precision) = (expected.retry_after, Precision::Exact);
            }
            if actual.outcome == Outcome::Charged {
                let number = (check.key.clone(), actual.entry.at, actual.entry.seq);
                comparable.entry.seq = expected.entry.seq;
                let previous = self.numbers.insert(number, expected.entry);
                let is_new =
                    self.keys.get(&check.key).is_none_or(|key_state| key_state.state.used() != state.used())
                        && previous != Some(expected.entry);
                // After a reset a request with an id has the same number in the same instant.
                let again = actual.entry.seq >= NAMED;
                if let Some(previous) = previous.filter(|previous| !again || *previous == expected.entry) {
                    assert_eq!(previous, expected.entry, "{}: one number for two admissions", check.key);
                    self.seen.repeated += 1;
                }
                if is_new && check.quota.count() == Count::Admitted {
                    self.charges.push((check.key.clone(), actual.entry));
                }
            } else {
                comparable.entry = expected.entry;
            }
            assert_eq!(
                &comparable, expected,
                "{} at {:?}: the store (left) differs from the algorithm (right)\n{checks:?}",
                check.key, verdicts.at
            );
            if expected.limit < check.quota.capacity() {
                self.seen.warming_up += 1;
            }
            match expected.outcome {
                Outcome::Charged => self.seen.charged += 1,
                Outcome::Denied => self.seen.denied += 1,
                Outcome::Impossible => self.seen.impossible += 1,
                Outcome::Fits | Outcome::NotEvaluated => {}
            }
            let exists =
                self.keys.get(&check.key).is_some_and(|key_state| key_state.state.suits(&check.quota));
            // A store keeps a new state only if something was recorded.
            if exists || state.used() > 0 {
                self.keys.insert(check.key.clone(), KeyState { state, quota: check.quota });
            }
        }
    }

    pub(crate) fn settled(&mut self, settlement: &Settlement, at: Micros, actual: Settled) {
        let Settlement { key, entry, correction } = settlement;
        let number = (key.clone(), entry.at, entry.seq);
        let expected = match (self.keys.get_mut(key), self.numbers.get(&number)) {
            (Some(key_state), Some(entry)) => key_state.state.correct(at, *entry, *correction),
            _ => Settled::Gone,
        };
        assert_eq!(actual, expected, "{settlement:?} at {at:?}: the store (left) differs from the algorithm");
        match expected {
            Settled::Done if *correction == Correction::Extend => self.seen.extended += 1,
            Settled::Done => self.seen.done += 1,
            Settled::Already => self.seen.already += 1,
            Settled::Gone => self.seen.gone += 1,
        }
    }

    pub(crate) fn inspected(&mut self, key: &Key, actual: Option<&Inspection>) {
        // The last entry may have expired a moment ago, so a missing key is not compared.
        let Some(actual) = actual else { return };
        self.seen.inspected += 1;
        let key_state = self.keys.get(key).unwrap_or_else(|| panic!("{key} should not exist"));
        let mut state = key_state.state.clone();
        let verdict = state.admit(actual.at, &key_state.quota, 0);
        assert_eq!((actual.used, actual.reset_after), (verdict.used, verdict.reset_after), "{key}");
        let expected: Vec<_> = state
            .entries()
            .into_iter()
            .map(|(at, cost, leaves)| (at, cost, Micros::new(leaves.get() - actual.at.get())))
            .collect();
        let listed: Vec<_> = actual.entries.iter().map(|e| (e.at, e.cost, e.leaves_after)).collect();
        assert_eq!(listed, expected, "{key}");
    }

    /// Removes charges of requests with an id. Their number is derived from the id, so it does not distinguish the old
    /// count of a slice from the new one; see `lua/notes.lua`.
    fn forget_named(&mut self, key: &Key) {
        self.charges.retain(|(charged, entry)| charged != key || entry.seq < NAMED);
    }

    pub(crate) fn reset(&mut self, key: &Key) {
        self.keys.remove(key);
        self.forget_named(key);
    }
}
