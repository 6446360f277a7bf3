//! Line of a plan: a key and the quota it is evaluated by.

use super::record::Line;
use crate::store::redis::Expiry;
use crate::store::redis::layout::{self, KeyPart, Kind, Names};
use crate::store::redis::script::Arguments;
use crate::{Check, Count, Encoding, Key, Micros, Quota};

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

pub(super) fn line_of(
    (key, notes): (u64, u64),
    kind: Kind,
    quota_tag: u64,
    quota: &Quota,
    expiry: Expiry,
) -> Line {
    let (slice, (rate, per)) = match quota.algorithm() {
        algorithm if algorithm.is_sliced() => (quota.grain(), (0, 0)),
        algorithm if algorithm.refills() => (Micros::ZERO, quota.rate()),
        _ => (Micros::ZERO, (0, 0)),
    };
    Line {
        key,
        notes,
        kind: kind.number(),
        quota_tag,
        attempts: quota.count() == Count::Attempts,
        slice,
        rate,
        per,
        horizon: quota.horizon(),
        window: quota.window(),
        capacity: quota.capacity(),
        period: expiry.period(quota),
        ttl: expiry.ttl(quota),
        modulus: layout::modulus(quota),
    }
}
