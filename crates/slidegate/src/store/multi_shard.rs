//! Admission of a request whose keys are on several shards: shard by shard, with a refund if one of the shards denies.
//!
//! It never admits more than a single shard would. For a moment it may admit less, because a charge on an earlier shard
//! counts until it is given back.

use std::future::Future;
use std::sync::Arc;

use futures_util::future::join_all;
use smallvec::SmallVec;

use crate::common::retry::until_ok;
use crate::{Check, Checks, Count, Entry, Error, Micros, Outcome, Settlement, Verdict, Verdicts};

/// A store that admits the parts of a request on separate shards.
pub(crate) trait ShardedStore: Send + Sync + 'static {
    /// Identifies a shard. The checks of one shard are evaluated atomically.
    type Shard: Clone + PartialEq + Send + Sync + 'static;

    /// Admits checks that are all on `shard`.
    fn admit_part(
        &self,
        shard: &Self::Shard,
        checks: Checks,
    ) -> impl Future<Output = Result<Verdicts, Error>> + Send;

    /// Settles charges on `shard`.
    fn give_back(
        &self,
        shard: &Self::Shard,
        settlements: Vec<Settlement>,
    ) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Checks of a request that are on one shard, by their index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part<T> {
    pub(crate) shard: T,
    indices: SmallVec<[usize; 4]>,
}

/// Splits a request into parts, in the order of their admission; `None` if all keys are on one shard.
///
/// With `count: attempts` each part is a run of consecutive checks, so that the attempts up to the first denial are
/// recorded, as [`evaluate`](crate::algorithm::evaluate()) does. Otherwise each shard has one part.
pub(crate) fn split<T: PartialEq>(checks: &Checks, shard_of: impl Fn(&Check) -> T) -> Option<Vec<Part<T>>> {
    let (first, others) = checks.as_slice().split_first()?;
    let shard = shard_of(first);
    if others.iter().all(|check| shard_of(check) == shard) {
        return None;
    }
    let in_order = checks.as_slice().iter().any(|check| check.quota.count() == Count::Attempts);
    let mut parts: Vec<Part<T>> = Vec::new();
    for (i, check) in checks.as_slice().iter().enumerate() {
        let shard = shard_of(check);
        let from = if in_order { parts.len().saturating_sub(1) } else { 0 };
        match parts[from..].iter_mut().find(|part| part.shard == shard) {
            Some(part) => part.indices.push(i),
            None => parts.push(Part { shard, indices: SmallVec::from_slice(&[i]) }),
        }
    }
    Some(parts)
}

/// Adds an item to the group of its shard. A new group goes to the end. There are few groups, so a linear search is
/// cheaper than a hash table.
pub(crate) fn add_to_group<S: PartialEq, T>(groups: &mut Vec<(S, Vec<T>)>, shard: S, item: T) {
    match groups.iter_mut().find(|(known, _)| *known == shard) {
        Some((_, items)) => items.push(item),
        None => groups.push((shard, vec![item])),
    }
}

/// Admits a request part by part, in its own task. The task continues if the caller goes away: otherwise charges of
/// earlier parts would not be given back after a denial.
pub(crate) async fn admit<S: ShardedStore>(
    store: Arc<S>,
    checks: &Checks,
    parts: Vec<Part<S::Shard>>,
) -> Result<Verdicts, Error> {
    let sequence = Sequence { store, checks: checks.clone(), parts };
    let finished = tokio::spawn(async move { sequence.run().await }).await;
    finished.unwrap_or_else(|_| Err(Error::unavailable("the runtime stopped while a request was evaluated")))
}

/// Gives charges back on one shard, with retries. Settling twice has no effect.
pub(crate) async fn give_back_with_retries<S: ShardedStore>(
    store: &S,
    shard: &S::Shard,
    settlements: Vec<Settlement>,
) {
    if !settlements.is_empty() {
        until_ok(|| store.give_back(shard, settlements.clone()), tokio::time::sleep).await;
    }
}

/// Returns the new charges of a request, as refunds. Two kinds of charges are never refunded: attempts, and charges
/// that an earlier call with the same request id made.
///
/// An admission in a time slice has the timestamp of the slice's end, so the timestamp does not show which call made
/// it. If the request has an id, such an admission is not refunded unless `before`, a peek made before the call, shows
/// that it did not exist then. To refund too little is the stricter error.
pub(crate) fn new_charges(
    checks: &Checks,
    before: Option<&Verdicts>,
    verdicts: &Verdicts,
) -> Vec<Settlement> {
    let is_new_charge = |i: usize, check: &Check, verdict: &Verdict| {
        let is_sliced = check.quota.algorithm().is_sliced();
        let outcome_before =
            || before.and_then(|before| before.verdicts.get(i)).map(|verdict| verdict.outcome);
        let charged_before = match checks.id() {
            None => false,
            Some(_) if is_sliced => {
                outcome_before().is_none_or(|outcome_before| outcome_before == Outcome::Charged)
            }
            Some(_) => verdict.entry.at < verdicts.at,
        };
        verdict.outcome == Outcome::Charged && check.quota.count() == Count::Admitted && !charged_before
    };
    let checks = checks.as_slice().iter().zip(&verdicts.verdicts).enumerate();
    let new = checks.filter(|(i, (check, verdict))| is_new_charge(*i, check, verdict));
    new.map(|(_, (check, verdict))| Settlement::refund(check.key.clone(), verdict.entry)).collect()
}

/// Admission of one request, part after part.
struct Sequence<S: ShardedStore> {
    store: Arc<S>,
    checks: Checks,
    parts: Vec<Part<S::Shard>>,
}

/// Verdicts and charges of an admitted part.
struct Admitted {
    verdicts: Verdicts,
    charges: Vec<Settlement>,
}

impl<S: ShardedStore> Sequence<S> {
    async fn run(self) -> Result<Verdicts, Error> {
        let mut admitted: Vec<Admitted> = Vec::with_capacity(self.parts.len());
        while !self.checks.is_peek()
            && let Some(part) = self.parts.get(admitted.len())
        {
            match self.admit_part(part).await {
                Ok(next) if self.denies(part, &next.verdicts) => {
                    self.give_back(&admitted).await;
                    return self.denied_verdicts(admitted, next).await;
                }
                Ok(next) => admitted.push(next),
                Err(error) => {
                    self.give_back(&admitted).await;
                    return Err(error);
                }
            }
        }
        let mut batch_verdicts: Vec<Verdicts> = admitted.into_iter().map(|part| part.verdicts).collect();
        batch_verdicts.extend(self.peek(&self.parts[batch_verdicts.len()..]).await?);
        Ok(self.combine(&batch_verdicts))
    }

    async fn admit_part(&self, part: &Part<S::Shard>) -> Result<Admitted, Error> {
        let checks = self.checks_of(part);
        let is_sliced = |check: &Check| check.quota.algorithm().is_sliced();
        let before = match checks.id() {
            Some(_) if checks.as_slice().iter().any(is_sliced) => {
                Some(self.store.admit_part(&part.shard, checks.clone().peek()).await?)
            }
            _ => None,
        };
        let verdicts = self.store.admit_part(&part.shard, checks.clone()).await?;
        let charges = new_charges(&checks, before.as_ref(), &verdicts);
        Ok(Admitted { verdicts, charges })
    }

    /// Returns a verdict for every check of a denied request. Checks whose charges were given back fit. Checks of parts
    /// after the denied one are evaluated by a peek.
    async fn denied_verdicts(&self, admitted: Vec<Admitted>, denier: Admitted) -> Result<Verdicts, Error> {
        let (before, rest) = self.parts.split_at(admitted.len());
        let mut batch_verdicts = Vec::with_capacity(self.parts.len());
        for (part, Admitted { mut verdicts, charges }) in before.iter().zip(admitted) {
            let waits = self.attempt_waits(part, &verdicts).await?;
            for ((&i, verdict), wait) in part.indices.iter().zip(&mut verdicts.verdicts).zip(waits) {
                let check = &self.checks.as_slice()[i];
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
            batch_verdicts.push(verdicts);
        }
        batch_verdicts.push(denier.verdicts);
        batch_verdicts.extend(self.peek(&rest[1..]).await?);
        Ok(self.combine(&batch_verdicts))
    }

    /// Returns, for each check of the part, the wait that its recorded attempt would get now; `None` for a check
    /// without a recorded attempt.
    async fn attempt_waits(
        &self,
        part: &Part<S::Shard>,
        verdicts: &Verdicts,
    ) -> Result<Vec<Option<Micros>>, Error> {
        let is_attempt = |(&i, verdict): (&usize, &Verdict)| {
            verdict.outcome == Outcome::Charged && self.checks.as_slice()[i].quota.count() == Count::Attempts
        };
        let attempts: Vec<bool> = part.indices.iter().zip(&verdicts.verdicts).map(is_attempt).collect();
        if !attempts.contains(&true) {
            return Ok(vec![None; attempts.len()]);
        }
        // The peek has no request id: by the id, the store would find the recorded attempt and return its old verdict.
        let checks = part.indices.iter().map(|&i| self.checks.as_slice()[i].clone());
        let now = self.store.admit_part(&part.shard, Checks::distinct(checks).peek()).await?;
        let waits = attempts.iter().zip(&now.verdicts);
        Ok(waits.map(|(attempt, verdict)| attempt.then_some(verdict.retry_after)).collect())
    }

    /// Gives the charges back. The caller waits for the first try only; retries run in the background.
    async fn give_back(&self, admitted: &[Admitted]) {
        let charges = self.parts.iter().zip(admitted).filter(|(_, admitted)| !admitted.charges.is_empty());
        let first_try = charges.map(async |(part, admitted)| {
            let (shard, charges) = (part.shard.clone(), admitted.charges.clone());
            if self.store.give_back(&shard, charges.clone()).await.is_err() {
                let store = Arc::clone(&self.store);
                tokio::spawn(async move { give_back_with_retries(&*store, &shard, charges).await });
            }
        });
        join_all(first_try).await;
    }

    async fn peek(&self, parts: &[Part<S::Shard>]) -> Result<Vec<Verdicts>, Error> {
        let peeks = parts.iter().map(|part| self.store.admit_part(&part.shard, self.checks_of(part).peek()));
        join_all(peeks).await.into_iter().collect()
    }

    fn checks_of(&self, part: &Part<S::Shard>) -> Checks {
        self.checks.with_checks(part.indices.iter().map(|&i| self.checks.as_slice()[i].clone()))
    }

    fn denies(&self, part: &Part<S::Shard>, verdicts: &Verdicts) -> bool {
        let verdicts = part.indices.iter().zip(&verdicts.verdicts);
        verdicts
            .into_iter()
            .any(|(&i, verdict)| self.checks.as_slice()[i].enforced && verdict.outcome.denies())
    }

    fn combine(&self, batch_verdicts: &[Verdicts]) -> Verdicts {
        let at = batch_verdicts.iter().map(|verdicts| verdicts.at).max().unwrap_or_default();
        let source = batch_verdicts.iter().map(|verdicts| verdicts.source).max().unwrap_or_default();
        let parts = self.parts.iter().zip(batch_verdicts);
        let mut verdicts: Vec<(usize, Verdict)> = parts
            .flat_map(|(part, verdicts)| part.indices.iter().copied().zip(verdicts.verdicts.iter().copied()))
            .collect();
        verdicts.sort_unstable_by_key(|(i, _)| *i);
        Verdicts { at, source, verdicts: verdicts.into_iter().map(|(_, verdict)| verdict).collect() }
    }
}
