//! Input of a store: keys, quotas and costs of one request. A store needs no rules.

use std::collections::HashSet;
use std::fmt;
use std::num::NonZeroU32;

use compact_str::CompactString;
use smallvec::SmallVec;

use crate::quota::MAX_LIMIT;
use crate::{Error, Key, Micros, Quota};

/// The checks of one request. A store evaluates and charges them atomically: all enforced checks fit, or none is charged.
#[derive(Clone, Debug)]
pub struct Checks {
    checks: SmallVec<[Check; 1]>,
    pub(crate) id: Option<RequestId>,
    peek: bool,
    /// True if no rule matches the request.
    pub(crate) unmatched: bool,
    /// Time that the request has already waited for another call. The deadline of the request includes this time.
    pub(crate) waited: Micros,
}

/// One key, its quota, and the cost of this request.
#[derive(Clone, Debug)]
pub struct Check {
    /// Name of the counter.
    pub key: Key,
    /// Quota of the key.
    pub quota: Quota,
    /// Permits that this request uses; 0 reads the key without a charge.
    pub cost: u64,
    /// If true, a denial of this check denies the request. A shadow rule is evaluated and counted, but denies nothing.
    pub enforced: bool,
    /// Storage format in Redis; other stores ignore it.
    pub encoding: Encoding,
    /// Behaviour if the store cannot decide. Only [`Failover`](crate::Failover) reads it; for `None` it uses its own default.
    pub on_error: Option<OnError>,
    /// Number of permits that a node may take in advance, for itself, until the slice ends; `None` takes none. Only for
    /// `time-slice`: see [`Lease`](crate::Lease).
    pub lease: Option<NonZeroU32>,
    /// Index of the rule among the rules that produced the check; stores ignore it.
    pub rule: u32,
}

crate::words! {
    /// Storage format of a sliding window in Redis. The decisions are the same, bit for bit.
    pub enum Encoding default Zset {
        /// A sorted set, which people can read with `redis-cli`.
        Zset = "zset",
        /// A packed log in a string, with at most ten bytes per event in a large key. Only for `sliding-window`.
        Packed = "packed",
    }
}

crate::words! {
    /// Behaviour while a store cannot decide.
    pub enum OnError default Local {
        /// The node decides on its own: it counts its own admissions and uses its share of the limit.
        Local = "local",
        /// The request is allowed.
        Open = "open",
        /// The request is denied.
        Closed = "closed",
    }
}

impl Check {
    /// Creates an enforced check.
    #[inline]
    pub fn new(key: Key, quota: Quota, cost: u64) -> Self {
        Check {
            key,
            quota,
            cost,
            enforced: true,
            encoding: Encoding::default(),
            on_error: None,
            lease: None,
            rule: 0,
        }
    }
}

impl Checks {
    /// Creates the checks of one request, evaluated in this order; no two may have the same key.
    pub fn new(checks: impl IntoIterator<Item = Check>) -> Result<Self, Error> {
        let new_checks = Checks::distinct(checks.into_iter());
        let mut keys = HashSet::new();
        for check in &new_checks.checks {
            if check.cost > MAX_LIMIT {
                return Err(too_many_permits(check.cost));
            }
            ensure!(keys.insert(&check.key), "two checks of one request have the key `{}`", check.key);
        }
        Ok(new_checks)
    }

    /// Creates the checks of a request with a single check.
    #[inline]
    pub fn one(check: Check) -> Result<Self, Error> {
        if check.cost > MAX_LIMIT {
            return Err(too_many_permits(check.cost));
        }
        Ok(Checks { checks: SmallVec::from_buf([check]), ..Checks::empty() })
    }

    /// Creates an empty list of checks.
    #[inline]
    pub(crate) fn empty() -> Self {
        Checks { checks: SmallVec::new(), id: None, peek: false, unmatched: false, waited: Micros::ZERO }
    }

    /// Creates a list of checks whose keys are known to differ and whose costs are known to be within [`MAX_LIMIT`].
    pub(crate) fn distinct(checks: impl Iterator<Item = Check>) -> Self {
        Checks { checks: checks.collect(), ..Checks::empty() }
    }

    /// Adds a check. The caller guarantees that its key is new and its cost is within [`MAX_LIMIT`].
    #[inline(always)]
    pub(crate) fn add(&mut self, check: Check) {
        self.checks.push(check);
    }

    /// Removes the checks for which `keep` returns false.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Check) -> bool) {
        self.checks.retain(|check| keep(check));
    }

    /// Returns the same request with other checks. The caller guarantees that their keys differ.
    pub(crate) fn with_checks(&self, checks: impl Iterator<Item = Check>) -> Self {
        let checks = checks.collect();
        Checks { checks, id: self.id.clone(), peek: self.peek, unmatched: false, waited: self.waited }
    }

    /// Sets the request id: a retry with the same id is not charged again.
    #[must_use]
    pub fn with_id(mut self, id: RequestId) -> Self {
        self.id = Some(id);
        self
    }

    /// Makes this a peek: the store evaluates the checks and records nothing.
    #[must_use]
    pub fn peek(mut self) -> Self {
        self.peek = true;
        self
    }

    /// Returns the checks, in the order of evaluation.
    #[inline]
    pub fn as_slice(&self) -> &[Check] {
        &self.checks
    }

    /// Returns the request id, if there is one.
    #[inline]
    pub fn id(&self) -> Option<&RequestId> {
        self.id.as_ref()
    }

    /// Returns true if the store must record nothing.
    #[inline]
    pub fn is_peek(&self) -> bool {
        self.peek
    }
}

#[cold]
pub(crate) fn too_many_permits(permits: u64) -> Error {
    Error::invalid(format!("permits must be at most {MAX_LIMIT}, not {permits}"))
}

/// The longest request id, in bytes.
pub const MAX_ID: usize = 64;

/// Identifies one request, so that a retry after an unknown outcome is not charged twice.
///
/// An id has 1 to 64 letters, digits and `._:-`; a UUID is a good choice. Each key remembers the ids of its admissions as long
/// as these count. The same id with another cost is another request. A denied request is evaluated again. The sender of
/// the id decides which requests count as the same, so never take an id from an end user.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(CompactString);

impl RequestId {
    /// Validates an id.
    pub fn new(id: &str) -> Result<Self, Error> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._:-".contains(&b);
        let valid = (1..=MAX_ID).contains(&id.len()) && id.bytes().all(allowed);
        ensure!(valid, "id must be 1 to {MAX_ID} letters, digits or any of `._:-`");
        Ok(RequestId(id.into()))
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
