//! Audit of a key, which counts it again from its entries: see `lua/audit.lua`.

use crate::store::redis::codec::record::{
    AuditForm, AuditHead, AuditReply, AuditReplyHead, ForeignReply, Numbers, ReplyHead,
};
use crate::store::redis::epoch::Purpose;
use crate::store::redis::script::{AUDIT_SCRIPT, Arguments};
use crate::store::redis::server::Call;
use crate::store::redis::{Inner, RedisStore};
use crate::{Audit, Discrepancy, Error, Key, Micros};

/// Maximum number of entries of an audited key: a larger key would block Redis for too long.
pub const MAX_AUDITED: u64 = 1_000;

impl RedisStore {
    /// Counts `key` again from its entries and reports differences from the totals that decisions rely on. Returns none
    /// if nothing is stored, or more than [`MAX_AUDITED`] entries. With `repair`, the same step also repairs the
    /// differences that can be repaired, and no decision is made in between.
    ///
    /// If `limit` is given (the burst of a bucket), the audit also reports if more permits count than the limit. A rule
    /// that counts attempts keeps no more than its limit. Fixed windows and buckets have no entries, only a total,
    /// which cannot be counted again: only their expiry and their quota tag are checked. If a rule has changed its
    /// encoding and both counts are still stored, both are checked; the returned numbers are those of the encoding that
    /// counts.
    ///
    /// The audit runs a script, also if decisions use transactions, and reads the whole key: Redis is blocked for about
    /// three milliseconds per thousand entries.
    pub async fn audit(&self, key: &Key, limit: Option<u64>, repair: bool) -> Result<Option<Audit>, Error> {
        let Inner { topology, names, expiry, .. } = &*self.inner;
        let mut arguments = Arguments::for_key(key, names, *expiry);
        arguments.add(AuditHead { repair, most: MAX_AUDITED });
        let call = Call::Script(&AUDIT_SCRIPT, &arguments);
        let reply = topology.call(topology.shard_of(key, names), Purpose::Maintain, call).await?;
        let mut numbers = Numbers::new(reply)?;
        let ReplyHead { at } = numbers.take()?;
        let (count, log) = (decode_part(&mut numbers, at, limit)?, decode_part(&mut numbers, at, limit)?);
        numbers.finish()?;
        Ok(merge(count, log))
    }
}

/// Decodes the reply for the count, or for the log.
fn decode_part(numbers: &mut Numbers, at: Micros, limit: Option<u64>) -> Result<Option<Audit>, Error> {
    let AuditReplyHead { form } = numbers.take()?;
    let expires_after = |expires: Micros| Some(expires).filter(|expires| *expires > Micros::ZERO);
    let reply: AuditReply = match form {
        AuditForm::Missing => return Ok(None),
        AuditForm::Foreign => {
            let ForeignReply { expires } = numbers.take()?;
            return Ok(Some(Audit {
                at,
                counted: 0,
                stored: 0,
                expires_after: expires_after(expires),
                discrepancies: vec![Discrepancy::Unreadable],
                repaired: false,
            }));
        }
        AuditForm::Counted => numbers.take()?,
    };
    let AuditReply { counted, stored, needed, .. } = reply;
    let expires_after = expires_after(reply.expires);
    let expiry = match expires_after {
        None => Some(Discrepancy::NoExpiry),
        Some(expires_after) => {
            (expires_after < needed).then_some(Discrepancy::ShortExpiry { expires_after, needed })
        }
    };
    let differ = |stored, counted| (stored != counted).then_some((stored, counted));
    let newest = differ(reply.newest_stored, reply.newest_counted);
    let oldest = differ(reply.oldest_stored, reply.oldest_counted);
    let over = limit.filter(|limit| counted > *limit);
    let found = [
        reply.total_is_wrong.then_some(Discrepancy::Total { stored, counted }),
        newest.map(|(stored, counted)| Discrepancy::Newest { stored, counted }),
        oldest.map(|(stored, counted)| Discrepancy::Oldest { stored, counted }),
        reply.costs_are_wrong.then_some(Discrepancy::Costs),
        expiry,
        over.map(|limit| Discrepancy::OverLimit { counted, limit }),
    ];
    let discrepancies = found.into_iter().flatten().collect();
    Ok(Some(Audit { at: reply.at, counted, stored, expires_after, discrepancies, repaired: reply.repaired }))
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
