//! Helper: replays the decisions of a store with the pure algorithm, from the instants in its answers, and compares.

use std::collections::HashMap;

use slidegate::{
    Check, Checks, Correction, Count, Entry, Inspection, Key, Micros, Outcome, Precision, Quota, Settled,
    Settlement, Source, State, States, Verdict, Verdicts, evaluate,
};

/// Requests that name themselves are numbered from here on.
const NAMED: u64 = 1_000_000_000_000_000_000;

/// Expected state of one store.
#[derive(Default)]
pub(crate) struct Oracle {
    keys: HashMap<Key, Held>,
    /// Stores number admissions as they like: theirs to ours.
    numbers: HashMap<(Key, Micros, u64), Entry>,
    generation: u64,
    /// Charges that could be settled, newest last.
    pub charges: Vec<(Key, Entry)>,
    pub seen: Seen,
}

/// That a trace tried everything.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub asks: usize,
    pub charged: usize,
    pub denied: usize,
    pub repeated: usize,
    pub impossible: usize,
    pub done: usize,
    pub already: usize,
    pub gone: usize,
    pub inspected: usize,
    pub extended: usize,
    /// Judged by a limit that had not reached its full height.
    pub climbing: usize,
    /// Denied without asking the store.
    pub known: usize,
}

struct Held {
    state: State,
    quota: Quota,
}

/// The states of one ask: those that suit, or new ones, which are kept only if something was recorded.
struct Picked<'a>(Vec<&'a mut State>);

impl States for Picked<'_> {
    fn state(&mut self, i: usize) -> &mut State {
        self.0[i]
    }
}

impl Oracle {
    /// A denial that the store was not asked for: at that instant it would have denied as well, and its wait would
    /// have been no shorter. Where nothing at all fits, every number is the same.
    fn denied_again(&mut self, ask: &Checks, reading: &Verdicts) {
        let mut judged = ask.as_slice().iter().zip(&reading.verdicts);
        let (check, theirs) = judged.find(|(_, verdict)| verdict.outcome != Outcome::NotEvaluated).unwrap();
        assert!(judged.all(|(_, verdict)| verdict.outcome == Outcome::NotEvaluated));
        assert!(check.enforced && theirs.outcome.denies());
        assert!(check.quota.count() == Count::Admitted || ask.is_peek());
        let ours = self.would_be(check, reading.at);
        assert_eq!(theirs.outcome, ours.outcome, "{} at {:?}: {theirs:?}, {ours:?}", check.key, reading.at);
        assert!(theirs.retry_after <= ours.retry_after, "{theirs:?}, {ours:?}");
        assert!(theirs.reset_after <= ours.reset_after || ours.used != theirs.used, "{theirs:?}, {ours:?}");
        // Unless more was admitted meanwhile, under a higher limit, or what is held was extended.
        let same = ours.used == theirs.used && !check.quota.is_held();
        if check.cost == 1 && theirs.used == check.quota.capacity() && same {
            assert_eq!(*theirs, Verdict { entry: theirs.entry, ..ours }, "{} at {:?}", check.key, reading.at);
        }
        self.seen.known += 1;
    }

    /// Returns the expected verdict on a check at an instant.
    pub(crate) fn would_be(&self, check: &Check, at: Micros) -> Verdict {
        let known = self.keys.get(&check.key).filter(|held| held.state.suits(&check.quota));
        let mut state =
            known.map_or_else(|| State::of_generation(&check.quota, 0), |held| held.state.clone());
        let ask = Checks::one(check.clone()).unwrap().peek();
        evaluate(&ask, at, &mut Picked(vec![&mut state])).verdicts[0]
    }

    /// Replays a decision and asserts that the store gave the expected verdicts.
    pub(crate) fn admitted(&mut self, ask: &Checks, reading: &Verdicts) {
        if reading.source == Source::DenyCache {
            return self.denied_again(ask, reading);
        }
        let mut states: Vec<State> = Vec::new();
        for check in ask.as_slice() {
            let known = self.keys.get(&check.key).filter(|held| held.state.suits(&check.quota));
            states.push(match known {
                Some(held) => held.state.clone(),
                None => {
                    self.generation += 1;
                    self.charges.retain(|(key, entry)| *key != check.key || entry.seq < NAMED);
                    State::of_generation(&check.quota, self.generation)
                }
            });
        }
        let expected = evaluate(ask, reading.at, &mut Picked(states.iter_mut().collect()));
        self.seen.asks += 1;
        assert_eq!(reading.verdicts.len(), ask.as_slice().len());
        for ((check, state), (ours, theirs)) in
            ask.as_slice().iter().zip(states).zip(expected.verdicts.iter().zip(&reading.verdicts))
        {
            let mut comparable = *theirs;
            if theirs.precision == Precision::LowerBound {
                let waits = (theirs.retry_after, ours.retry_after);
                assert!(waits.0 > Micros::ZERO && waits.0 <= waits.1, "{}: {waits:?}", check.key);
                (comparable.retry_after, comparable.precision) = (ours.retry_after, Precision::Exact);
            }
            if theirs.outcome == Outcome::Charged {
                let number = (check.key.clone(), theirs.entry.at, theirs.entry.seq);
                comparable.entry.seq = ours.entry.seq;
                let known = self.numbers.insert(number, ours.entry);
                let is_new = self.keys.get(&check.key).is_none_or(|held| held.state.used() != state.used())
                    && known != Some(ours.entry);
                // After a reset a request that names itself has the same number in the same instant.
                let again = theirs.entry.seq >= NAMED;
                if let Some(known) = known.filter(|known| !again || *known == ours.entry) {
                    assert_eq!(known, ours.entry, "{}: one number for two admissions", check.key);
                    self.seen.repeated += 1;
                }
                if is_new && check.quota.count() == Count::Admitted {
                    self.charges.push((check.key.clone(), theirs.entry));
                }
            } else {
                comparable.entry = ours.entry;
            }
            assert_eq!(
                &comparable, ours,
                "{} at {:?}: the store (left) differs from the algorithm (right)\n{ask:?}",
                check.key, reading.at
            );
            if ours.limit < check.quota.capacity() {
                self.seen.climbing += 1;
            }
            match ours.outcome {
                Outcome::Charged => self.seen.charged += 1,
                Outcome::Denied => self.seen.denied += 1,
                Outcome::Impossible => self.seen.impossible += 1,
                Outcome::Fits | Outcome::NotEvaluated => {}
            }
            let kept = self.keys.get(&check.key).is_some_and(|held| held.state.suits(&check.quota));
            // A store keeps a new state only if something was recorded.
            if kept || state.used() > 0 {
                self.keys.insert(check.key.clone(), Held { state, quota: check.quota });
            }
        }
    }

    pub(crate) fn settled(&mut self, settlement: &Settlement, at: Micros, theirs: Settled) {
        let Settlement { key, entry, correction } = settlement;
        let number = (key.clone(), entry.at, entry.seq);
        let ours = match (self.keys.get_mut(key), self.numbers.get(&number)) {
            (Some(held), Some(entry)) => held.state.correct(at, *entry, *correction),
            _ => Settled::Gone,
        };
        assert_eq!(theirs, ours, "{settlement:?} at {at:?}: the store (left) differs from the algorithm");
        match ours {
            Settled::Done if *correction == Correction::Extend => self.seen.extended += 1,
            Settled::Done => self.seen.done += 1,
            Settled::Already => self.seen.already += 1,
            Settled::Gone => self.seen.gone += 1,
        }
    }

    pub(crate) fn inspected(&mut self, key: &Key, theirs: Option<&Inspection>) {
        // Nothing counted is no answer to compare: what still counted a moment ago may have left.
        let Some(theirs) = theirs else { return };
        self.seen.inspected += 1;
        let held = self.keys.get(key).unwrap_or_else(|| panic!("{key} should not be there"));
        let mut state = held.state.clone();
        let verdict = state.admit(theirs.at, &held.quota, 0);
        assert_eq!((theirs.used, theirs.reset_after), (verdict.used, verdict.reset_after), "{key}");
        let ours: Vec<_> = state
            .entries()
            .into_iter()
            .map(|(at, cost, leaves)| (at, cost, Micros::new(leaves.get() - theirs.at.get())))
            .collect();
        let listed: Vec<_> = theirs.entries.iter().map(|e| (e.at, e.cost, e.leaves_after)).collect();
        assert_eq!(listed, ours, "{key}");
    }

    /// The number of a request that names itself is made from its name, so it does not tell the slice's old
    /// count from its new one; see `lua/notes.lua`.
    fn forget_named(&mut self, key: &Key) {
        self.charges.retain(|(charged, entry)| charged != key || entry.seq < NAMED);
    }

    pub(crate) fn reset(&mut self, key: &Key) {
        self.keys.remove(key);
        self.forget_named(key);
    }
}
