//! Audit of a key, which counts it again from its entries: see `lua/audit.lua`.

use crate::store::redis::codec::reply::Numbers;
use crate::store::redis::epoch::Purpose;
use crate::store::redis::script::Arguments;
use crate::store::redis::server::Call;
use crate::store::redis::{Inner, RedisStore, bad_reply};
use crate::{Audit, Discrepancy, Error, Key, Micros};

/// Most entries of a key that is audited: a larger key would block Redis for too long.
pub const MAX_AUDITED: u64 = 1_000;

impl RedisStore {
    /// Counts `key` again from its entries and reports what does not agree with the totals that decisions rely on;
    /// none if nothing is stored, or more than [`MAX_AUDITED`] entries. With `repair`, repairs what it can in the
    /// same step: nothing is decided in between.
    ///
    /// With a `limit`, which is a bucket's burst, it also reports if more counts than that. A rule that counts
    /// attempts keeps no more than its limit. Fixed windows and buckets have no entries, only a total, which cannot
    /// be counted again: only their expiry and their quota tag are checked. If a rule has changed its encoding and
    /// both counts are still stored, both are checked; the numbers are those of the one that counts.
    ///
    /// The audit takes a script, also where decisions are made by transactions, and reads the whole key: Redis is
    /// blocked for about three milliseconds per thousand entries.
    pub async fn audit(&self, key: &Key, limit: Option<u64>, repair: bool) -> Result<Option<Audit>, Error> {
        let Inner { topology, names, expiry, scripts, .. } = &*self.inner;
        let mut arguments = Arguments::for_key(key, names, *expiry);
        arguments.add_numbers(&[u64::from(repair), MAX_AUDITED]);
        let call = Call::Script(scripts.audit(), &arguments);
        let reply = topology.call(topology.shard_of(key, names), Purpose::Maintain, call).await?;
        let mut numbers = Numbers::new(reply)?;
        let at = Micros::new(numbers.next()?);
        let (count, log) = (decode_part(&mut numbers, at, limit)?, decode_part(&mut numbers, at, limit)?);
        numbers.finish()?;
        Ok(merge(count, log))
    }
}

/// Decodes the reply for the count, or for the log.
fn decode_part(numbers: &mut Numbers, at: Micros, limit: Option<u64>) -> Result<Option<Audit>, Error> {
    let readable = match numbers.next()? {
        0 => return Ok(None),
        1 => true,
        2 => false,
        _ => return Err(bad_reply()),
    };
    let expires_after = Some(numbers.next()?).filter(|left| *left > 0).map(Micros::new);
    if !readable {
        let discrepancies = vec![Discrepancy::Unreadable];
        return Ok(Some(Audit { at, counted: 0, stored: 0, expires_after, discrepancies, repaired: false }));
    }
    let [at, counted, stored, total, costs] = numbers.take()?;
    let [newest, oldest] = [numbers.take()?, numbers.take()?].map(|[stored, counted]: [u64; 2]| {
        let instants = (Micros::new(stored), Micros::new(counted));
        (stored != counted).then_some(instants)
    });
    let [needed, repaired] = numbers.take()?;
    let needed = Micros::new(needed);
    let expiry = match expires_after {
        None => Some(Discrepancy::NoExpiry),
        Some(expires_after) => {
            (expires_after < needed).then_some(Discrepancy::ShortExpiry { expires_after, needed })
        }
    };
    let over = limit.filter(|limit| counted > *limit);
    let found = [
        (total == 1).then_some(Discrepancy::Total { stored, counted }),
        newest.map(|(stored, counted)| Discrepancy::Newest { stored, counted }),
        oldest.map(|(stored, counted)| Discrepancy::Oldest { stored, counted }),
        (costs == 1).then_some(Discrepancy::Costs),
        expiry,
        over.map(|limit| Discrepancy::OverLimit { counted, limit }),
    ];
    let discrepancies = found.into_iter().flatten().collect();
    Ok(Some(Audit {
        at: Micros::new(at),
        counted,
        stored,
        expires_after,
        discrepancies,
        repaired: repaired == 1,
    }))
}

/// Merges the results for both encodings: if a rule changed its encoding, both may be stored.
fn merge(count: Option<Audit>, log: Option<Audit>) -> Option<Audit> {
    let (count, log) = match (count, log) {
        (Some(count), Some(log)) => (count, log),
        (one, other) => return one.or(other),
    };
    let log_counts = count.counted == 0 && log.counted > 0;
    let (mut result, other) = if log_counts { (log, count) } else { (count, log) };
    result.discrepancies.extend(other.discrepancies);
    result.repaired |= other.repaired;
    Some(result)
}
