//! What a store is asked: keys, quotas and costs, with nothing left to look up.

use std::collections::HashSet;
use std::fmt;
use std::num::NonZeroU32;

use compact_str::CompactString;
use smallvec::SmallVec;

use crate::quota::MAX_LIMIT;
use crate::{Error, Key, Micros, Quota};

/// One question: do all these checks fit? Judged and charged as one.
#[derive(Clone, Debug)]
pub struct Checks {
    checks: SmallVec<[Check; 1]>,
    id: Option<RequestId>,
    peek: bool,
    /// Whether no rule matches the request.
    unmatched: bool,
    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    waited: Micros,
}

/// One key, what it may use, and what this request would use of it.
#[derive(Clone, Debug)]
pub struct Check {
    /// What the count belongs to.
    pub key: Key,
    /// What the key may use.
    pub quota: Quota,
    /// What this request uses of it; 0 only looks.
    pub cost: u64,
    /// Whether a denial denies the ask. A shadow rule is judged and counted, but denies nothing.
    pub enforced: bool,
    /// How Redis stores it; other stores do not look at it.
    pub encoding: Encoding,
    /// What to answer if the store cannot decide; only a guard looks at it, and has an answer for none.
    pub on_error: Option<OnError>,
    /// How many permits a node may take in advance, for itself, until the slice ends; none takes none. Only for
    /// `time-slice`: see [`Lease`](crate::Lease).
    pub lease: Option<NonZeroU32>,
    /// The rule's place among the rules that made this ask; stores do not look at it.
    pub rule: u32,
}

/// How an exact window is stored in Redis. The decisions are the same, bit for bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// A sorted set, which people can read.
    #[default]
    Zset,
    /// A packed log in a string: ten bytes an event or fewer. Only for `sliding-window`.
    Packed,
}

/// What to answer while a store cannot decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnError {
    /// Decide in this process, by this node's share of the limit and what it has admitted itself.
    #[default]
    Local,
    /// Allow.
    Open,
    /// Deny.
    Closed,
}

impl Check {
    /// An enforced check.
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
    /// The checks in the order in which they are to be judged; no two may name the same key.
    pub fn new(checks: impl IntoIterator<Item = Check>) -> Result<Self, Error> {
        let ask = Checks::distinct(checks.into_iter());
        let mut keys = HashSet::new();
        for check in &ask.checks {
            if check.cost > MAX_LIMIT {
                return Err(too_many_permits(check.cost));
            }
            if !keys.insert(&check.key) {
                return Err(Error::invalid(format!("two checks of one ask name the key `{}`", check.key)));
            }
        }
        Ok(ask)
    }

    /// A single check.
    #[inline]
    pub fn one(check: Check) -> Result<Self, Error> {
        if check.cost > MAX_LIMIT {
            return Err(too_many_permits(check.cost));
        }
        Ok(Checks {
            checks: SmallVec::from_buf([check]),
            id: None,
            peek: false,
            unmatched: false,
            waited: Micros::ZERO,
        })
    }

    /// Nothing yet.
    #[inline]
    pub(crate) fn empty() -> Self {
        Checks { checks: SmallVec::new(), id: None, peek: false, unmatched: false, waited: Micros::ZERO }
    }

    /// Checks that are known to name different keys and to cost no more than they may.
    pub(crate) fn distinct(checks: impl Iterator<Item = Check>) -> Self {
        Checks { checks: checks.collect(), ..Checks::empty() }
    }

    /// One more check, of a key that no other one names, and no costlier than any may be.
    #[inline(always)]
    pub(crate) fn add(&mut self, check: Check) {
        self.checks.push(check);
    }

    /// The same question of other checks, which name different keys.
    #[cfg(feature = "redis")]
    pub(crate) fn with_checks(&self, checks: impl Iterator<Item = Check>) -> Self {
        let checks = checks.collect();
        Checks { checks, id: self.id.clone(), peek: self.peek, unmatched: false, waited: self.waited }
    }

    /// With a request id: asking again under it is not charged again.
    #[must_use]
    pub fn with_id(mut self, id: RequestId) -> Self {
        self.set_id(id);
        self
    }

    pub(crate) fn set_id(&mut self, id: RequestId) {
        self.id = Some(id);
    }

    /// Judged as it stands, but nothing is recorded.
    #[must_use]
    pub fn peek(mut self) -> Self {
        self.peek = true;
        self
    }

    /// The checks, in the order in which they are judged.
    #[inline]
    pub fn checks(&self) -> &[Check] {
        &self.checks
    }

    /// The request id, if it has one.
    #[inline]
    pub fn id(&self) -> Option<&RequestId> {
        self.id.as_ref()
    }

    /// Whether nothing is to be recorded.
    #[inline]
    pub fn is_peek(&self) -> bool {
        self.peek
    }

    #[inline]
    pub(crate) fn set_unmatched(&mut self, unmatched: bool) {
        self.unmatched = unmatched;
    }

    /// Whether no rule matches the request.
    #[inline]
    pub(crate) fn is_unmatched(&self) -> bool {
        self.unmatched
    }

    /// How much of the time that a guard gives it is gone already.
    #[cfg(feature = "redis")]
    pub(crate) fn waited(&self) -> Micros {
        self.waited
    }

    #[cfg(feature = "redis")]
    pub(crate) fn set_waited(&mut self, waited: Micros) {
        self.waited = waited;
    }
}

#[cold]
pub(crate) fn too_many_permits(permits: u64) -> Error {
    Error::invalid(format!("permits must be at most {MAX_LIMIT}, not {permits}"))
}

/// The longest request id, in bytes.
pub const MAX_ID: usize = 64;

/// Names one request, so that a retry after an unknown outcome is not charged twice.
///
/// Letters, digits and `._:-`, up to 64 of them; a UUID is a good one. Each key remembers the id of what it
/// admitted for as long as that counts there; the same id for another cost is another request, and a request
/// that was denied is judged again. Whoever chooses the id decides what counts as the same request, so never
/// take it from an end user.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(CompactString);

impl RequestId {
    /// Checks and takes an id.
    pub fn new(id: &str) -> Result<Self, Error> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._:-".contains(&b);
        if id.is_empty() || id.len() > MAX_ID || !id.bytes().all(allowed) {
            return Err(Error::invalid(format!("id must be 1 to {MAX_ID} letters, digits or any of `._:-`")));
        }
        Ok(RequestId(id.into()))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
