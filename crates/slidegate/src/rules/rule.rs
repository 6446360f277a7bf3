//! One rule: its conditions, its key and its quota.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::time::Duration;

use super::matching::Pattern;
use super::selection::Kind;
use crate::dynamic::adaptive::AdaptiveState;
use crate::error::check_between;
use crate::key::KeyTemplate;
use crate::quota::MAX_SLICES;
use crate::request::check_name;
use crate::{Adaptive, Algorithm, Count, Encoding, Error, Micros, OnError, Quota, WarmUp};

/// Largest number of attributes in the key of a rule.
pub const MAX_KEY_ATTRIBUTES: usize = 8;

/// Largest number of permits in one lease.
pub const MAX_LEASE: u32 = 10_000;

crate::words! {
    /// Enforcement of a rule.
    pub enum Mode default Enforce {
        /// The rule denies requests over its limit.
        Enforce = "enforce",
        /// The rule counts and reports, but denies nothing.
        Shadow = "shadow",
        /// The rule is not evaluated.
        Off = "off",
    }
}

/// One rule, created by [`Rule::new`] and the builder methods, or read from a file.
///
/// ```
/// use slidegate::{Count, Quota, Rule};
/// let guard = Rule::new("login-per-ip", Quota::new(3, std::time::Duration::from_secs(5))?.with_count(Count::Attempts))?
///     .when("api", ["/login"])?
///     .per(["ip"])?
///     .code(10007.try_into().unwrap());
/// # Ok::<(), slidegate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub(crate) name: String,
    pub(crate) conditions: Vec<(String, Vec<Pattern>)>,
    pub(crate) key: Vec<String>,
    /// Index in `key` of the attribute that determines the Redis slot.
    pub(crate) tag: Option<usize>,
    /// Template of the keys, built from name, key and tag.
    pub(super) key_template: KeyTemplate,
    /// A placeholder unless `kind` is [`Kind::Limited`].
    pub(crate) quota: Quota,
    pub(crate) kind: Kind,
    pub(crate) mode: Mode,
    /// Name of the rule that this rule is a shadow of.
    pub(crate) shadow_of: Option<String>,
    pub(crate) group: Option<String>,
    pub(crate) only: bool,
    /// Names of the rules that this rule replaces.
    pub(crate) replaces: Vec<String>,
    pub(crate) encoding: Encoding,
    pub(crate) on_error: Option<OnError>,
    pub(crate) lease: Option<NonZeroU32>,
    pub(crate) adapting: Option<AdaptiveState>,
    pub(crate) code: NonZeroU32,
    /// Quotas of single keys, by the values of the key attributes in their order.
    pub(crate) overrides: HashMap<Vec<String>, Quota>,
    /// Length of the longest value in an override: longer values are not looked up.
    pub(super) longest_override: usize,
    /// Additional patterns that match normalized paths, by the index of their condition. See `paths.rs`.
    pub(super) normalized_conditions: Vec<(usize, Vec<Pattern>)>,
    /// Additional overrides for normalized paths, by the values of the key attributes.
    pub(super) normalized_overrides: HashMap<Vec<String>, Quota>,
}

const LEASE_WITH_WARM_UP: &str = "`lease` cannot be combined with `warm-up`";

const LEASE_WITH_ADAPTIVE: &str = "`lease` cannot be combined with `adaptive`";

/// Default code of a denial.
pub const DEFAULT_CODE: NonZeroU32 = NonZeroU32::new(429).unwrap();

impl Rule {
    /// Creates a rule that applies to every request and counts all requests together.
    pub fn new(name: &str, quota: Quota) -> Result<Self, Error> {
        check_rule_name(name)?;
        check_held(&quota)?;
        Ok(Rule::named(name, quota))
    }

    pub(super) fn named(name: &str, quota: Quota) -> Self {
        Rule {
            name: name.to_owned(),
            conditions: Vec::new(),
            key: Vec::new(),
            tag: None,
            key_template: KeyTemplate::new(name, &[], None),
            quota,
            kind: Kind::default(),
            mode: Mode::default(),
            shadow_of: None,
            group: None,
            only: false,
            replaces: Vec::new(),
            encoding: Encoding::default(),
            on_error: None,
            lease: None,
            adapting: None,
            code: DEFAULT_CODE,
            overrides: HashMap::new(),
            longest_override: 0,
            normalized_conditions: Vec::new(),
            normalized_overrides: HashMap::new(),
        }
    }

    /// Applies only if `attribute` matches one of `patterns`; a pattern that ends in `*` matches a prefix.
    pub fn when<'p>(
        mut self,
        attribute: &str,
        patterns: impl IntoIterator<Item = &'p str>,
    ) -> Result<Self, Error> {
        check_name(attribute)?;
        let patterns: Vec<Pattern> = patterns.into_iter().map(Pattern::new).collect();
        ensure!(!patterns.is_empty(), "match `{attribute}` is an empty list, which matches nothing");
        self.conditions.push((attribute.to_owned(), patterns));
        Ok(self)
    }

    /// Counts separately for each combination of these attributes. The rule applies only if a request has all of them.
    pub fn per<'k>(mut self, attributes: impl IntoIterator<Item = &'k str>) -> Result<Self, Error> {
        ensure!(self.overrides.is_empty(), "key must be named before its overrides");
        for attribute in attributes {
            check_name(attribute)?;
            ensure!(self.key.iter().all(|known| known != attribute), "key names `{attribute}` twice");
            self.key.push(attribute.to_owned());
        }
        let n = self.key.len();
        ensure!(n <= MAX_KEY_ATTRIBUTES, "key may name at most {MAX_KEY_ATTRIBUTES} attributes, not {n}");
        Ok(self.with_key_template())
    }

    /// Stores the counts together with those of all rules that have the same tag attribute (such as a tenant) with the
    /// same value: in one slot of a cluster, or on one of several servers. Call it after [`Rule::per`], which must
    /// include the attribute.
    pub fn tag(mut self, attribute: &str) -> Result<Self, Error> {
        let Some(index) = self.key.iter().position(|known| known == attribute) else {
            let key = self.key.join(", ");
            return Err(Error::invalid(format!("tag must be one of key [{key}], not \"{attribute}\"")));
        };
        self.tag = Some(index);
        Ok(self.with_key_template())
    }

    /// Rebuilds the key template from the present name, attributes and tag.
    fn with_key_template(mut self) -> Self {
        self.key_template = KeyTemplate::new(&self.name, &self.key, self.tag);
        self
    }

    /// Uses the key attributes of another rule, and no tag.
    pub(super) fn keyed_as(mut self, other: &Rule) -> Self {
        self.key = other.key.clone();
        self.with_key_template()
    }

    /// Sets the mode: enforce, shadow, or off.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the storage format in Redis. Another encoding starts new counts.
    pub fn encoding(mut self, encoding: Encoding) -> Result<Self, Error> {
        let fits = encoding != Encoding::Packed || self.quota.algorithm().is_exact();
        ensure!(fits, "`encoding: packed` needs algorithm: sliding-window");
        self.encoding = encoding;
        Ok(self)
    }

    /// Sets the behaviour while the store cannot decide; the default is the setting of the
    /// [`Failover`](crate::Failover).
    #[must_use]
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = Some(on_error);
        self
    }

    /// Lets each node take up to `permits` in advance and keep them for at most `ttl`, which must divide the window evenly. The
    /// rule is then counted as a `time-slice` with slices of that length: never more than the limit in any window, but an
    /// admission may count for up to `ttl` longer. Only a [`Lease`](crate::Lease) store takes permits in advance.
    pub fn lease(mut self, permits: u32, ttl: Duration) -> Result<Self, Error> {
        check_between("lease.permits", permits, 2, MAX_LEASE)?;
        let admitted = self.quota.count() == Count::Admitted;
        ensure!(admitted, "`lease` cannot be combined with count: attempts");
        ensure!(self.quota.warm_up().is_none(), "{LEASE_WITH_WARM_UP}");
        ensure!(self.adapting.is_none(), "{LEASE_WITH_ADAPTIVE}");
        ensure!(self.encoding != Encoding::Packed, "`lease` cannot be combined with encoding: packed");
        let algorithm = leased_algorithm(&self.quota, ttl.into())?;
        self.quota = self.quota.with_algorithm(algorithm)?;
        for quota in self.overrides.values_mut() {
            *quota = quota.with_algorithm(leased_algorithm(quota, ttl.into())?)?;
        }
        self.lease = NonZeroU32::new(permits);
        Ok(self)
    }

    /// Adds a warm-up to the limit and to the limits of its overrides. Not with a [lease](Rule::lease).
    pub fn warm_up(mut self, warm_up: WarmUp) -> Result<Self, Error> {
        ensure!(self.lease.is_none(), "{LEASE_WITH_WARM_UP}");
        self.quota = self.quota.with_warm_up(warm_up)?;
        for quota in self.overrides.values_mut() {
            *quota = quota.with_warm_up(warm_up)?;
        }
        Ok(self)
    }

    /// Lets the limit, and the limits of its overrides, follow the load. Needs an
    /// [`AdaptiveController`](crate::AdaptiveController). Not with a [lease](Rule::lease).
    pub fn adaptive(mut self, terms: Adaptive) -> Result<Self, Error> {
        ensure!(self.lease.is_none(), "{LEASE_WITH_ADAPTIVE}");
        let (_, max) = terms.bounds();
        for quota in self.overrides.values().chain([&self.quota]) {
            quota.check_scales(max)?;
        }
        self.adapting = Some(AdaptiveState::new(terms));
        Ok(self)
    }

    /// Sets the code of a denial.
    #[must_use]
    pub fn code(mut self, code: NonZeroU32) -> Self {
        self.code = code;
        self
    }

    /// Sets another quota for one key, given by the values of the key attributes in their order. Call it after [`Rule::per`],
    /// and only once per key.
    pub fn with_override<'v>(
        mut self,
        values: impl IntoIterator<Item = &'v str>,
        quota: Quota,
    ) -> Result<Self, Error> {
        self.add_override(values.into_iter().collect(), quota)?;
        Ok(self)
    }

    pub(super) fn add_override(&mut self, values: Vec<&str>, quota: Quota) -> Result<(), Error> {
        let key = self.key.join(", ");
        ensure!(values.len() == self.key.len(), "an override must name all attributes of key [{key}]");
        let longest = values.iter().map(|value| value.len()).max().unwrap_or_default();
        let values = values.into_iter().map(str::to_owned).collect();
        let quota = match self.leased() {
            Some((_, ttl)) => quota.with_algorithm(leased_algorithm(&quota, ttl)?)?,
            None => quota,
        };
        let quota = match self.quota.warm_up() {
            Some(warm_up) => quota.with_warm_up(warm_up)?,
            None => quota,
        };
        check_held(&quota)?;
        if let Some(AdaptiveState { terms, .. }) = &self.adapting {
            quota.check_scales(terms.bounds().1)?;
        }
        ensure!(self.overrides.insert(values, quota).is_none(), "another override has the same key");
        self.longest_override = self.longest_override.max(longest);
        Ok(())
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the mode.
    pub fn in_mode(&self) -> Mode {
        self.mode
    }

    /// Returns the code of a denial.
    pub fn denial_code(&self) -> NonZeroU32 {
        self.code
    }

    /// Returns the storage format in Redis.
    pub fn stored_as(&self) -> Encoding {
        self.encoding
    }

    /// Returns the number of permits that a node may take in advance, and the time for which it keeps them.
    pub fn leased(&self) -> Option<(NonZeroU32, Micros)> {
        self.lease.map(|permits| (permits, self.quota.grain()))
    }

    /// Returns the configured quota, without overrides and adaptation.
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// Returns the quota at this moment, without overrides.
    pub fn quota_now(&self) -> Quota {
        self.adapted(self.quota)
    }

    /// Returns the settings of an adaptive rule.
    pub fn adapts_by(&self) -> Option<&Adaptive> {
        self.adapting.as_ref().map(|adapting| &adapting.terms)
    }

    /// Returns the present factor of an adaptive rule, in ten-thousandths.
    pub fn factor(&self) -> Option<u32> {
        self.adapting.as_ref().map(|adapting| adapting.cell.factor())
    }

    /// Returns the key attributes.
    pub fn key(&self) -> impl Iterator<Item = &str> {
        self.key.iter().map(String::as_str)
    }

    /// Returns the key attribute that is the tag.
    pub fn tagged_by(&self) -> Option<&str> {
        self.tag.and_then(|tag| self.key.get(tag)).map(String::as_str)
    }
}

/// Rejects `count: attempts` for `concurrency`, because a denied request holds no permits.
pub(super) fn check_held(quota: &Quota) -> Result<(), Error> {
    let fits = !quota.is_held() || quota.count() == Count::Admitted;
    ensure!(fits, "`count: attempts` cannot be combined with algorithm: concurrency");
    Ok(())
}

/// Returns the algorithm of a quota with a lease: slices, so that permits handed out during a slice can be dated at its end.
fn leased_algorithm(quota: &Quota, ttl: Micros) -> Result<Algorithm, Error> {
    let window = quota.window();
    let slices = window.get().checked_div(ttl.get()).and_then(|slices| u32::try_from(slices).ok());
    let fits = slices.is_some_and(|slices| {
        (2..=MAX_SLICES).contains(&slices) && u64::from(slices) * ttl.get() == window.get()
    });
    let Some(slices) = slices.filter(|_| fits) else {
        return Err(Error::invalid(format!(
            "the window {window} must be a multiple of lease.ttl, 2 to {MAX_SLICES} times as long, but lease.ttl is {ttl}"
        )));
    };
    let algorithm = Algorithm::TimeSlice { slices };
    match quota.algorithm() {
        configured if configured.is_exact() || configured == algorithm => Ok(algorithm),
        configured if configured.is_sliced() => Err(Error::invalid(format!(
            "lease.ttl must be the length of a slice, {}, not {ttl}",
            quota.grain()
        ))),
        _ => Err(Error::invalid("`lease` needs algorithm: sliding-window or time-slice")),
    }
}

/// Checks a rule name, which appears in headers, metrics and keys: letters, digits, `.`, `_`, `/` and `-`.
pub(crate) fn check_rule_name(name: &str) -> Result<(), Error> {
    check_label("a rule name", name)?;
    ensure!(name != super::AD_HOC, "the rule name `{name}` is reserved for ad-hoc limits");
    Ok(())
}

pub(super) fn check_label(what: &str, name: &str) -> Result<(), Error> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._/-".contains(&b);
    let starts = name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
    ensure!(
        starts && name.len() <= 64 && name.bytes().all(allowed),
        "{what} must be 1 to 64 letters, digits or any of `._/-`, and start with a letter or digit"
    );
    Ok(())
}
