//! Batches that go to several shards.
//!
//! Requests of one shard go there together, in their order, and the shards are called concurrently. A request over
//! several shards is split: see [`multi_shard`]. It waits for earlier requests that share one of its keys, and later
//! ones wait for it.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt};

use super::topology::Place;
use super::{Inner, bad_reply};
use crate::store::multi_shard::{self, Part, Places};
use crate::{BatchVerdicts, Check, Checks, Error, Key, Micros, Receipt, Settled, Settlement, Verdicts};

/// Most concurrent calls of one batch.
const AT_ONCE: usize = 64;

/// Requests that are sent concurrently, by their index in the batch.
#[derive(Default)]
struct Wave {
    /// Requests of one shard.
    together: Vec<(Place, Vec<usize>)>,
    /// Requests of several shards.
    apart: Vec<(usize, Vec<Part<Place>>)>,
}

/// One call of a wave.
enum Step {
    Together(Place, Vec<usize>),
    Apart(usize, Vec<Part<Place>>),
}

impl Inner {
    pub(super) async fn admit_in_places(self: &Arc<Self>, asks: &[Checks]) -> Result<BatchVerdicts, Error> {
        // Most batches have one request.
        if let [ask] = asks {
            return match multi_shard::split(ask, |check| self.place_of(check)) {
                None => self.admit_at(self.place_of_ask(ask), asks).await,
                Some(parts) => {
                    Ok([multi_shard::admit(Arc::clone(self), ask, parts).await?].into_iter().collect())
                }
            };
        }
        let mut readings: Vec<Option<Verdicts>> = vec![None; asks.len()];
        for wave in self.waves(asks) {
            let together = wave.together.into_iter().map(|(place, asks)| Step::Together(place, asks));
            let steps = together.chain(wave.apart.into_iter().map(|(i, parts)| Step::Apart(i, parts)));
            let calls = stream::iter(steps.map(|step| self.step(asks, step)));
            let answers: Vec<_> = calls.buffer_unordered(AT_ONCE).collect().await;
            let mut failed = None;
            for answer in answers {
                match answer {
                    Ok(found) => found.into_iter().for_each(|(i, reading)| readings[i] = Some(reading)),
                    Err(error) => failed = Some(error),
                }
            }
            if let Some(error) = failed {
                self.give_back_all(asks, &readings);
                return Err(error);
            }
        }
        readings.into_iter().map(|reading| reading.ok_or_else(bad_reply)).collect()
    }

    /// Gives back permits that other shards admitted before one failed: the caller gets the error and cannot use
    /// them.
    fn give_back_all(self: &Arc<Self>, asks: &[Checks], readings: &[Option<Verdicts>]) {
        let settlements: Vec<Settlement> = asks
            .iter()
            .zip(readings)
            .filter_map(|(ask, reading)| Some(multi_shard::charged(ask, None, reading.as_ref()?)))
            .flatten()
            .collect();
        for (place, settlements) in self.by_place(settlements) {
            let inner = Arc::clone(self);
            tokio::spawn(async move { multi_shard::give_back(&*inner, &place, settlements).await });
        }
    }

    pub(super) async fn settle_in_places(&self, settlements: &[Settlement]) -> Result<Receipt, Error> {
        let mut places: Vec<(Place, Vec<usize>)> = Vec::new();
        for (i, settlement) in settlements.iter().enumerate() {
            add(&mut places, self.topology.place_of(&settlement.key, &self.names), i);
        }
        let calls = places.into_iter().map(|(place, which)| async move {
            let some: Vec<Settlement> = which.iter().map(|&i| settlements[i].clone()).collect();
            self.settle_at(place, &some).await.map(|receipt| (which, receipt))
        });
        let answers: Vec<_> = stream::iter(calls).buffer_unordered(AT_ONCE).collect().await;
        let mut receipt = Receipt { at: Micros::ZERO, settled: vec![Settled::Gone; settlements.len()] };
        for answer in answers {
            let (which, part) = answer?;
            receipt.at = receipt.at.max(part.at);
            for (i, settled) in which.into_iter().zip(part.settled) {
                receipt.settled[i] = settled;
            }
        }
        Ok(receipt)
    }

    async fn step(self: &Arc<Self>, asks: &[Checks], step: Step) -> Result<Vec<(usize, Verdicts)>, Error> {
        match step {
            Step::Apart(i, parts) => {
                Ok(vec![(i, multi_shard::admit(Arc::clone(self), &asks[i], parts).await?)])
            }
            Step::Together(place, which) => {
                let some: Vec<Checks> = which.iter().map(|&i| asks[i].clone()).collect();
                let readings = self.admit_at(place, &some).await?;
                Ok(which.into_iter().zip(readings).collect())
            }
        }
    }

    fn waves(&self, asks: &[Checks]) -> Vec<Wave> {
        let mut waves = vec![Wave::default()];
        // Keys of this wave, and the keys of its requests over several shards.
        let (mut named, mut apart): (HashSet<&Key>, HashSet<&Key>) = Default::default();
        for (i, ask) in asks.iter().enumerate() {
            let parts = multi_shard::split(ask, |check| self.place_of(check));
            let before = if parts.is_some() { &named } else { &apart };
            if ask.checks().iter().any(|check| before.contains(&check.key)) {
                waves.push(Wave::default());
                (named, apart) = Default::default();
            }
            named.extend(ask.checks().iter().map(|check| &check.key));
            let Some(wave) = waves.last_mut() else { continue };
            match parts {
                None => add(&mut wave.together, self.place_of_ask(ask), i),
                Some(parts) => {
                    apart.extend(ask.checks().iter().map(|check| &check.key));
                    wave.apart.push((i, parts));
                }
            }
        }
        waves
    }

    fn by_place(&self, settlements: Vec<Settlement>) -> Vec<(Place, Vec<Settlement>)> {
        let mut places = Vec::new();
        for settlement in settlements {
            add(&mut places, self.topology.place_of(&settlement.key, &self.names), settlement);
        }
        places
    }

    fn place_of(&self, check: &Check) -> Place {
        self.topology.place_of(&check.key, &self.names)
    }

    /// Returns the shard of a request of one shard; any shard if the request has no checks.
    fn place_of_ask(&self, ask: &Checks) -> Place {
        ask.checks().first().map_or(0, |check| self.place_of(check))
    }
}

impl Places for Inner {
    type Place = Place;

    async fn admit_part(&self, place: &Place, ask: Checks) -> Result<Verdicts, Error> {
        self.admit_at(*place, &[ask]).await?.into_iter().next().ok_or_else(bad_reply)
    }

    async fn give_back(&self, place: &Place, settlements: Vec<Settlement>) -> Result<(), Error> {
        self.settle_at(*place, &settlements).await.map(|_| ())
    }
}

fn add<T>(places: &mut Vec<(Place, Vec<T>)>, place: Place, thing: T) {
    match places.iter_mut().find(|(known, _)| *known == place) {
        Some((_, things)) => things.push(thing),
        None => places.push((place, vec![thing])),
    }
}
