//! Evaluation of requests on locked shards: finds or creates the counter of each check.

use smallvec::SmallVec;

use super::Inner;
use super::overflow::SharedCounterId;
use super::shard::Shard;
use crate::algorithm::CheckInput;
use crate::algorithm::evaluate::{self, Counters};
use crate::common::spin_lock::LockGuard;
use crate::{Check, Checks, Clock, Key, Micros, Outcome, Quota, State, Verdicts};

/// The locked shards of a batch.
pub(super) struct LockedShards<'a, C> {
    pub(super) inner: &'a Inner<C>,
    pub(super) shards: SmallVec<[(usize, LockGuard<'a, Shard>); 4]>,
}

/// Location of the counter of a check. It is valid during one request. `shard` is the index of a locked shard.
enum Location {
    /// The counter is in the table of the shard.
    Held { shard: usize, bucket: usize },
    /// A new counter: the key is not in the table, or its counter does not suit this quota.
    Fresh(State),
    /// The counter is shared by several keys of the shard. It is evaluated with this quota.
    Shared { shard: usize, id: SharedCounterId, quota: Quota },
    /// The shard has no room for a counter, and may have room after `wait`.
    Full { shard: usize, wait: Micros },
    /// The counter was not found, and the shard is full or has shared counters. `key_in_table` is true if the key is in
    /// the table with a counter for another quota.
    Missing { shard: usize, key_in_table: bool },
}

type Locations = SmallVec<[Location; 2]>;

struct LocatedCounters<'l, 'a, C> {
    locked: &'l mut LockedShards<'a, C>,
    locations: &'l mut Locations,
}

impl<C> Counters for LocatedCounters<'_, '_, C> {
    fn counter(&mut self, i: usize) -> Result<&mut State, Micros> {
        match &mut self.locations[i] {
            Location::Fresh(state) => Ok(state),
            Location::Held { shard, bucket } => Ok(self.locked.shards[*shard].1.at(*bucket)),
            Location::Shared { shard, id, .. } => Ok(&mut self.locked.shards[*shard].1.shared_at(*id).state),
            Location::Full { wait, .. } => Err(*wait),
            Location::Missing { .. } => Err(Micros::ZERO),
        }
    }
}

impl<C: Clock> LockedShards<'_, C> {
    /// Returns one instant at which to evaluate all locked shards. It is not before the latest instant of any of these
    /// shards.
    pub(super) fn instant(&mut self, now: Micros) -> Micros {
        let latest = self.shards.iter_mut().map(|(_, shard)| shard.instant(now)).max().unwrap_or(now);
        for (_, shard) in &mut self.shards {
            shard.instant(latest);
        }
        latest
    }

    pub(super) fn evaluate(&mut self, checks: &Checks, now: Micros) -> Verdicts {
        let mut locations: Locations = checks.as_slice().iter().map(|check| self.find(check)).collect();
        for i in 0..locations.len() {
            if let Location::Missing { shard, key_in_table } = locations[i] {
                locations[i] = self.resolve(checks, i, (shard, key_in_table), now, &locations);
            }
        }
        let effective = |(check, location): (&Check, &Location)| match location {
            Location::Shared { quota, .. } => (*quota, check.key.hash()),
            _ => (check.quota, 0),
        };
        let effective: SmallVec<[(Quota, u64); 2]> =
            checks.as_slice().iter().zip(&locations).map(effective).collect();
        let budget = Some(&self.inner.notes);
        let asked = |i: usize| {
            let (quota, scope) = &effective[i];
            CheckInput { quota, cost: checks.as_slice()[i].cost, id: checks.id(), scope: *scope, budget }
        };
        let mut counters = LocatedCounters { locked: self, locations: &mut locations };
        let verdicts = evaluate::evaluate_with(checks, now, &mut counters, asked);
        for ((check, location), verdict) in checks.as_slice().iter().zip(locations).zip(&verdicts.verdicts) {
            self.store_state(check, location, now, checks.is_peek(), verdict.outcome);
        }
        for (_, shard) in &mut self.shards {
            shard.pending = 0;
        }
        verdicts
    }

    fn find(&mut self, check: &Check) -> Location {
        let shard = self.nth(&check.key);
        let table = &mut self.shards[shard].1;
        let bucket = table.bucket(&check.key);
        match bucket {
            Some(bucket) if table.peek(bucket).is_some_and(|state| state.suits(&check.quota)) => {
                Location::Held { shard, bucket }
            }
            _ if table.is_open() => {
                if bucket.is_none() {
                    table.pending += 1;
                }
                Location::Fresh(table.fresh(&check.quota))
            }
            _ => Location::Missing { shard, key_in_table: bucket.is_some() },
        }
    }

    /// Finds a location for a check whose shard is full or has shared counters.
    #[cold]
    fn resolve(
        &mut self,
        checks: &Checks,
        i: usize,
        (shard, key_in_table): (usize, bool),
        now: Micros,
        locations: &[Location],
    ) -> Location {
        let Check { key, quota, cost, .. } = &checks.as_slice()[i];
        let notes = &self.inner.notes;
        let table = &mut *self.shards[shard].1;
        if *cost > quota.capacity() {
            // The cost exceeds the limit, so the request is denied and needs no room for a counter.
            return Location::Fresh(table.fresh(quota));
        }
        let in_use = |bucket: usize| {
            let found = |location: &Location| matches!(location, Location::Held { shard: s, bucket: b } if (*s, *b) == (shard, bucket));
            locations.iter().any(found)
        };
        let idle = match key_in_table || table.has_room() {
            true => None,
            false => table.idle_near(key.hash(), now, in_use),
        };
        let room = key_in_table || table.has_room() || idle.is_some();
        let shared = table.find_shared(key, quota, now);
        let state = match shared {
            Some(id) if room && !table.shared_at(id).may_count(key, now) => table.fresh(quota),
            Some(id) => {
                let counter = table.shared_at(id);
                let quota = counter.quota(quota);
                let (scope, budget) = (key.hash(), Some(notes));
                let asked = CheckInput { quota: &quota, cost: *cost, id: checks.id(), scope, budget };
                let stays = !room || *cost == 0 || !counter.can_be_left();
                if stays || !counter.fits(now, asked) {
                    return Location::Shared { shard, id, quota };
                }
                table.summary_of(id)
            }
            None => table.fresh(quota),
        };
        if room || *cost == 0 {
            if !checks.is_peek() && *cost > 0 && !key_in_table {
                idle.into_iter().for_each(|bucket| table.drop_idle(bucket));
                table.pending += 1;
            }
            return Location::Fresh(state);
        }
        let wait = table.wait_near(key.hash(), now);
        if !table.shares() {
            return Location::Full { shard, wait };
        }
        if checks.is_peek() {
            return match table.has_room_to_share(key, now) {
                true => Location::Fresh(state),
                false => Location::Full { shard, wait },
            };
        }
        match table.create_shared(key, quota, now) {
            Some(id) => Location::Shared { shard, id, quota: *quota },
            None => Location::Full { shard, wait },
        }
    }

    /// Inserts a new counter into its table if it now counts something, and updates the statistics.
    fn store_state(&mut self, check: &Check, location: Location, now: Micros, peek: bool, outcome: Outcome) {
        match location {
            Location::Fresh(state) if !state.is_blank() => {
                self.shard(&check.key).insert(&check.key, state, now);
            }
            Location::Shared { shard, id, .. } => {
                let shard = &mut self.shards[shard].1;
                let counter = shard.shared_at(id);
                counter.state.cool();
                if outcome == Outcome::Charged {
                    counter.admitted(&check.key, &check.quota, now);
                }
                if !peek {
                    shard.counts.shared += 1;
                }
            }
            Location::Full { shard, .. } if !peek => self.shards[shard].1.counts.denied_full += 1,
            _ => {}
        }
    }

    pub(super) fn shard(&mut self, key: &Key) -> &mut Shard {
        let nth = self.nth(key);
        &mut self.shards[nth].1
    }

    fn nth(&self, key: &Key) -> usize {
        let index = self.inner.shard_index(key);
        self.shards.partition_point(|(locked, _)| *locked < index)
    }
}
