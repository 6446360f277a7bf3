//! An ask whose checks are counted in several places: admitted place by place, and given back if one denies.
//!
//! Never more is admitted than one place would have. For a moment less may be: what is about to be given back
//! is counted until it is.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;

use crate::{Algorithm, Check, Checks, Count, Entry, Error, Micros, Outcome, Settlement, Verdict, Verdicts};

/// How often a give-back that failed is tried again, and the wait before the first time; it doubles.
const TRIES: u32 = 6;
const PAUSE: Duration = Duration::from_millis(20);

/// Who admits the parts.
pub(crate) trait Places: Send + Sync + 'static {
    /// Names a place; checks in one are judged as one.
    type Place: Clone + PartialEq + Send + Sync + 'static;

    /// Admits checks that are all in `place`.
    fn admit_part(
        &self,
        place: &Self::Place,
        ask: Checks,
    ) -> impl Future<Output = Result<Verdicts, Error>> + Send;

    /// Settles what was charged in `place`.
    fn give_back(
        &self,
        place: &Self::Place,
        settlements: Vec<Settlement>,
    ) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Some checks of an ask, by their numbers, and where they are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part<P> {
    pub(crate) place: P,
    checks: SmallVec<[usize; 4]>,
}

/// The parts of an ask, in the order in which they are admitted; none if all of it is in one place.
///
/// With `count: attempts` they are runs of checks in order, so that what is recorded is what
/// [`evaluate`](crate::algorithm::evaluate()) records: attempts up to the first denial. Otherwise each place comes once.
pub(crate) fn split<P: PartialEq>(ask: &Checks, place_of: impl Fn(&Check) -> P) -> Option<Vec<Part<P>>> {
    let (first, others) = ask.checks().split_first()?;
    let place = place_of(first);
    if others.iter().all(|check| place_of(check) == place) {
        return None;
    }
    let in_order = ask.checks().iter().any(|check| check.quota.count() == Count::Attempts);
    let mut parts: Vec<Part<P>> = Vec::new();
    for (i, check) in ask.checks().iter().enumerate() {
        let place = place_of(check);
        let from = if in_order { parts.len().saturating_sub(1) } else { 0 };
        match parts[from..].iter_mut().find(|part| part.place == place) {
            Some(part) => part.checks.push(i),
            None => parts.push(Part { place, checks: SmallVec::from_slice(&[i]) }),
        }
    }
    Some(parts)
}

/// Admits an ask part by part. It is carried through also if the caller goes away: permits would leak.
pub(crate) async fn admit<S: Places>(
    places: Arc<S>,
    ask: &Checks,
    parts: Vec<Part<S::Place>>,
) -> Result<Verdicts, Error> {
    let sequence = Sequence { places, ask: ask.clone(), parts };
    let carried = tokio::spawn(async move { sequence.run().await }).await;
    carried.unwrap_or_else(|_| Err(Error::unavailable("the runtime stopped while an ask was judged")))
}

/// Gives back what was charged in one place; tries again where it fails, for settling twice changes nothing.
pub(crate) async fn give_back<S: Places>(places: &S, place: &S::Place, settlements: Vec<Settlement>) {
    let mut pause = PAUSE;
    for _ in 0..TRIES {
        if settlements.is_empty() || places.give_back(place, settlements.clone()).await.is_ok() {
            return;
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
}

/// What `ask` has charged anew, to be given back. What was found again under its id was charged by another and
/// stays; so does an attempt, which happened.
///
/// A slice's admissions are dated at its end, and do not tell when they were charged: with an id they count as
/// found again, which is stricter, unless `before` says that they were not there.
pub(crate) fn charged(ask: &Checks, before: Option<&Verdicts>, reading: &Verdicts) -> Vec<Settlement> {
    let anew = |i: usize, check: &Check, verdict: &Verdict| {
        let sliced = matches!(check.quota.algorithm(), Algorithm::TimeSlice { .. });
        let known = || before.and_then(|before| before.verdicts.get(i)).map(|verdict| verdict.outcome);
        let found = match ask.id() {
            None => false,
            Some(_) if sliced => known().is_none_or(|known| known == Outcome::Charged),
            Some(_) => verdict.entry.at < reading.at,
        };
        verdict.outcome == Outcome::Charged && check.quota.count() == Count::Admitted && !found
    };
    let checks = ask.checks().iter().zip(&reading.verdicts).enumerate();
    let new = checks.filter(|(i, (check, verdict))| anew(*i, check, verdict));
    new.map(|(_, (check, verdict))| Settlement::refund(check.key.clone(), verdict.entry)).collect()
}

struct Sequence<S: Places> {
    places: Arc<S>,
    ask: Checks,
    parts: Vec<Part<S::Place>>,
}

/// A part that was admitted.
struct Admitted {
    reading: Verdicts,
    charges: Vec<Settlement>,
}

impl<S: Places> Sequence<S> {
    async fn run(self) -> Result<Verdicts, Error> {
        let mut admitted: Vec<Admitted> = Vec::with_capacity(self.parts.len());
        while !self.ask.is_peek()
            && let Some(part) = self.parts.get(admitted.len())
        {
            match self.admit_part(part).await {
                Ok(next) if self.denies(part, &next.reading) => {
                    self.give_back(&admitted).await;
                    return self.denied(admitted, next).await;
                }
                Ok(next) => admitted.push(next),
                Err(error) => {
                    self.give_back(&admitted).await;
                    return Err(error);
                }
            }
        }
        let mut readings: Vec<Verdicts> = admitted.into_iter().map(|part| part.reading).collect();
        readings.extend(self.peek(&self.parts[readings.len()..]).await?);
        Ok(self.together(&readings))
    }

    async fn admit_part(&self, part: &Part<S::Place>) -> Result<Admitted, Error> {
        let ask = self.ask_of(part);
        let sliced = |check: &Check| matches!(check.quota.algorithm(), Algorithm::TimeSlice { .. });
        let before = match ask.id() {
            Some(_) if ask.checks().iter().any(sliced) => {
                Some(self.places.admit_part(&part.place, ask.clone().peek()).await?)
            }
            _ => None,
        };
        let reading = self.places.admit_part(&part.place, ask.clone()).await?;
        let charges = charged(&ask, before.as_ref(), &reading);
        Ok(Admitted { reading, charges })
    }

    /// Every check has a verdict: what was given back fits, and what was not yet asked is looked at.
    async fn denied(&self, admitted: Vec<Admitted>, denier: Admitted) -> Result<Verdicts, Error> {
        let (before, rest) = self.parts.split_at(admitted.len());
        let mut readings = Vec::with_capacity(self.parts.len());
        for (part, Admitted { mut reading, charges }) in before.iter().zip(admitted) {
            let waits = self.attempts(part, &reading).await?;
            for ((&i, verdict), wait) in part.checks.iter().zip(&mut reading.verdicts).zip(waits) {
                let check = &self.ask.checks()[i];
                let given_back = charges.iter().any(|charge| charge.key == check.key);
                if given_back {
                    verdict.used = verdict.used.saturating_sub(check.cost);
                }
                if given_back || wait.is_some() {
                    verdict.outcome = Outcome::Fits;
                    verdict.entry = Entry::default();
                    verdict.retry_after = wait.unwrap_or(Micros::ZERO);
                }
            }
            readings.push(reading);
        }
        readings.push(denier.reading);
        readings.extend(self.peek(&rest[1..]).await?);
        Ok(self.together(&readings))
    }

    /// How long each attempt that was recorded would now have to wait; none for what is not an attempt.
    async fn attempts(
        &self,
        part: &Part<S::Place>,
        reading: &Verdicts,
    ) -> Result<Vec<Option<Micros>>, Error> {
        let is_attempt = |(&i, verdict): (&usize, &Verdict)| {
            verdict.outcome == Outcome::Charged && self.ask.checks()[i].quota.count() == Count::Attempts
        };
        let attempts: Vec<bool> = part.checks.iter().zip(&reading.verdicts).map(is_attempt).collect();
        if !attempts.contains(&true) {
            return Ok(vec![None; attempts.len()]);
        }
        // Without the id, under which the attempt itself would be found.
        let checks = part.checks.iter().map(|&i| self.ask.checks()[i].clone());
        let now = self.places.admit_part(&part.place, Checks::distinct(checks).peek()).await?;
        let waits = attempts.iter().zip(&now.verdicts);
        Ok(waits.map(|(attempt, verdict)| attempt.then_some(verdict.retry_after)).collect())
    }

    /// Whoever waits for the answer does not wait for a place that does not take back what it gave.
    async fn give_back(&self, admitted: &[Admitted]) {
        let charges = self.parts.iter().zip(admitted).filter(|(_, admitted)| !admitted.charges.is_empty());
        let once = charges.map(async |(part, admitted)| {
            let (place, charges) = (part.place.clone(), admitted.charges.clone());
            if self.places.give_back(&place, charges.clone()).await.is_err() {
                let places = Arc::clone(&self.places);
                tokio::spawn(async move { give_back(&*places, &place, charges).await });
            }
        });
        join_all(once).await;
    }

    async fn peek(&self, parts: &[Part<S::Place>]) -> Result<Vec<Verdicts>, Error> {
        let peeks = parts.iter().map(|part| self.places.admit_part(&part.place, self.ask_of(part).peek()));
        join_all(peeks).await.into_iter().collect()
    }

    fn ask_of(&self, part: &Part<S::Place>) -> Checks {
        let ask = Checks::distinct(part.checks.iter().map(|&i| self.ask.checks()[i].clone()));
        match self.ask.id() {
            Some(id) => ask.with_id(id.clone()),
            None => ask,
        }
    }

    fn denies(&self, part: &Part<S::Place>, reading: &Verdicts) -> bool {
        let verdicts = part.checks.iter().zip(&reading.verdicts);
        verdicts.into_iter().any(|(&i, verdict)| self.ask.checks()[i].enforced && verdict.outcome.denies())
    }

    fn together(&self, readings: &[Verdicts]) -> Verdicts {
        let at = readings.iter().map(|reading| reading.at).max().unwrap_or_default();
        let source = readings.iter().map(|reading| reading.source).max().unwrap_or_default();
        let parts = self.parts.iter().zip(readings);
        let mut verdicts: Vec<(usize, Verdict)> = parts
            .flat_map(|(part, reading)| part.checks.iter().copied().zip(reading.verdicts.iter().copied()))
            .collect();
        verdicts.sort_unstable_by_key(|(i, _)| *i);
        Verdicts { at, source, verdicts: verdicts.into_iter().map(|(_, verdict)| verdict).collect() }
    }
}
