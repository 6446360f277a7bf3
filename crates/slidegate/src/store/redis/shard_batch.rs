//! Batches that go to several shards.
//!
//! Requests of one shard are sent together, in their order, and the shards are called concurrently. A request over
//! several shards is split: see [`multi_shard`]. Such a request waits for earlier requests that share one of its keys,
//! and later requests that share one of its keys wait for it.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt};

use super::topology::ShardId;
use super::{Inner, bad_reply};
use crate::store::multi_shard::{self, Part, ShardedStore, add_to_group};
use crate::{BatchVerdicts, Check, Checks, Error, Key, Micros, Receipt, Settled, Settlement, Verdicts};

/// Maximum number of concurrent calls of one batch.
const MAX_CONCURRENT: usize = 64;

/// Requests that are sent concurrently, by their index in the batch.
#[derive(Default)]
struct Wave {
    /// Requests of one shard.
    same_shard: Vec<(ShardId, Vec<usize>)>,
    /// Requests of several shards.
    cross_shard: Vec<(usize, Vec<Part<ShardId>>)>,
}

/// One call of a wave.
enum Step {
    SameShard(ShardId, Vec<usize>),
    CrossShard(usize, Vec<Part<ShardId>>),
}

impl Inner {
    pub(super) async fn admit_across_shards(
        self: &Arc<Self>,
        batch: &[Checks],
    ) -> Result<BatchVerdicts, Error> {
        // Most batches have one request.
        if let [checks] = batch {
            return match multi_shard::split(checks, |check| self.shard_of(check)) {
                None => self.admit_in_shard(self.shard_of_checks(checks), batch).await,
                Some(parts) => {
                    Ok([multi_shard::admit(Arc::clone(self), checks, parts).await?].into_iter().collect())
                }
            };
        }
        let mut results: Vec<Option<Verdicts>> = vec![None; batch.len()];
        for wave in self.waves(batch) {
            let same_shard =
                wave.same_shard.into_iter().map(|(shard, indexes)| Step::SameShard(shard, indexes));
            let steps =
                same_shard.chain(wave.cross_shard.into_iter().map(|(i, parts)| Step::CrossShard(i, parts)));
            let calls = stream::iter(steps.map(|step| self.step(batch, step)));
            let answers: Vec<_> = calls.buffer_unordered(MAX_CONCURRENT).collect().await;
            let mut failed = None;
            for answer in answers {
                match answer {
                    Ok(found) => found.into_iter().for_each(|(i, verdicts)| results[i] = Some(verdicts)),
                    Err(error) => failed = Some(error),
                }
            }
            if let Some(error) = failed {
                self.give_back_all(batch, &results);
                return Err(error);
            }
        }
        results.into_iter().map(|verdicts| verdicts.ok_or_else(bad_reply)).collect()
    }

    /// Gives back permits that some shards admitted before another shard failed: the caller gets the error and cannot
    /// use the permits.
    fn give_back_all(self: &Arc<Self>, batch: &[Checks], results: &[Option<Verdicts>]) {
        let settlements: Vec<Settlement> = batch
            .iter()
            .zip(results)
            .filter_map(|(checks, verdicts)| Some(multi_shard::new_charges(checks, None, verdicts.as_ref()?)))
            .flatten()
            .collect();
        for (shard, settlements) in self.by_shard(settlements) {
            let inner = Arc::clone(self);
            tokio::spawn(
                async move { multi_shard::give_back_with_retries(&*inner, &shard, settlements).await },
            );
        }
    }

    pub(super) async fn settle_across_shards(&self, settlements: &[Settlement]) -> Result<Receipt, Error> {
        let mut shards: Vec<(ShardId, Vec<usize>)> = Vec::new();
        for (i, settlement) in settlements.iter().enumerate() {
            add_to_group(&mut shards, self.topology.shard_of(&settlement.key, &self.names), i);
        }
        let calls = shards.into_iter().map(|(shard, indexes)| async move {
            let some: Vec<Settlement> = indexes.iter().map(|&i| settlements[i].clone()).collect();
            self.settle_in_shard(shard, &some).await.map(|receipt| (indexes, receipt))
        });
        let answers: Vec<_> = stream::iter(calls).buffer_unordered(MAX_CONCURRENT).collect().await;
        let mut receipt = Receipt { at: Micros::ZERO, settled: vec![Settled::Gone; settlements.len()] };
        for answer in answers {
            let (indexes, part) = answer?;
            receipt.at = receipt.at.max(part.at);
            for (i, settled) in indexes.into_iter().zip(part.settled) {
                receipt.settled[i] = settled;
            }
        }
        Ok(receipt)
    }

    async fn step(self: &Arc<Self>, batch: &[Checks], step: Step) -> Result<Vec<(usize, Verdicts)>, Error> {
        match step {
            Step::CrossShard(i, parts) => {
                Ok(vec![(i, multi_shard::admit(Arc::clone(self), &batch[i], parts).await?)])
            }
            Step::SameShard(shard, indexes) => {
                let some: Vec<Checks> = indexes.iter().map(|&i| batch[i].clone()).collect();
                let results = self.admit_in_shard(shard, &some).await?;
                Ok(indexes.into_iter().zip(results).collect())
            }
        }
    }

    fn waves(&self, batch: &[Checks]) -> Vec<Wave> {
        let mut waves = vec![Wave::default()];
        // Keys of all requests in the current wave, and keys of its requests over several shards.
        let (mut keys, mut cross_shard): (HashSet<&Key>, HashSet<&Key>) = Default::default();
        for (i, checks) in batch.iter().enumerate() {
            let parts = multi_shard::split(checks, |check| self.shard_of(check));
            let before = if parts.is_some() { &keys } else { &cross_shard };
            if checks.as_slice().iter().any(|check| before.contains(&check.key)) {
                waves.push(Wave::default());
                (keys, cross_shard) = Default::default();
            }
            keys.extend(checks.as_slice().iter().map(|check| &check.key));
            let Some(wave) = waves.last_mut() else { continue };
            match parts {
                None => add_to_group(&mut wave.same_shard, self.shard_of_checks(checks), i),
                Some(parts) => {
                    cross_shard.extend(checks.as_slice().iter().map(|check| &check.key));
                    wave.cross_shard.push((i, parts));
                }
            }
        }
        waves
    }

    fn by_shard(&self, settlements: Vec<Settlement>) -> Vec<(ShardId, Vec<Settlement>)> {
        let mut shards = Vec::new();
        for settlement in settlements {
            add_to_group(&mut shards, self.topology.shard_of(&settlement.key, &self.names), settlement);
        }
        shards
    }

    fn shard_of(&self, check: &Check) -> ShardId {
        self.topology.shard_of(&check.key, &self.names)
    }

    /// Returns the shard of a request of one shard; any shard if the request has no checks.
    fn shard_of_checks(&self, checks: &Checks) -> ShardId {
        checks.as_slice().first().map_or(0, |check| self.shard_of(check))
    }
}

impl ShardedStore for Inner {
    type Shard = ShardId;

    async fn admit_part(&self, shard: &ShardId, checks: Checks) -> Result<Verdicts, Error> {
        self.admit_in_shard(*shard, &[checks]).await?.into_iter().next().ok_or_else(bad_reply)
    }

    async fn give_back(&self, shard: &ShardId, settlements: Vec<Settlement>) -> Result<(), Error> {
        self.settle_in_shard(*shard, &settlements).await.map(|_| ())
    }
}
