//! Line of a plan: a key and the quota it is evaluated by.

use crate::store::redis::Expiry;
use crate::store::redis::layout::{self, KeyPart, Kind, Names};
use crate::store::redis::script::Arguments;
use crate::{Algorithm, Check, Count, Encoding, Key, Quota};

/// A key and how it is evaluated.
pub(super) type LineKey<'a> = (&'a Key, Quota, Encoding);

pub(super) fn line_key(check: &Check) -> LineKey<'_> {
    (&check.key, check.quota, check.encoding)
}

/// Adds the key that counts and the key for notes, and returns their indexes; 0 if the notes are not needed.
pub(super) fn add_keys(
    arguments: &mut Arguments,
    names: &Names,
    key: &Key,
    (counted, notes): (KeyPart, Option<KeyPart>),
) -> (u64, u64) {
    let counted = arguments.add_key(names.name(key, counted));
    (counted, notes.map_or(0, |notes| arguments.add_key(names.name(key, notes))))
}

pub(super) fn line_numbers(
    key: u64,
    notes: u64,
    kind: Kind,
    quota_tag: u64,
    quota: &Quota,
    expiry: Expiry,
) -> [u64; 13] {
    let (extra, per) = match quota.algorithm() {
        Algorithm::TimeSlice { .. } => (quota.grain().get(), 0),
        Algorithm::TokenBucket { .. } => quota.rate(),
        _ => (0, 0),
    };
    [
        key,
        notes,
        kind as u64,
        quota_tag,
        u64::from(quota.count() == Count::Attempts),
        extra,
        per,
        quota.horizon().get(),
        quota.window().get(),
        quota.capacity(),
        expiry.period(quota).get(),
        expiry.ttl(quota).get(),
        layout::modulus(quota),
    ]
}
