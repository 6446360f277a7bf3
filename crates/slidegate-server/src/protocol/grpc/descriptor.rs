//! Converts Envoy's descriptors to requests. A descriptor becomes one request, whose attributes are the
//! domain and the entries.

use std::fmt::Write;
use std::time::Duration;

use slidegate::{Request, bounds::MAX_ATTRIBUTES};
use tonic::Status;

use super::messages::{RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitUnit, Unit};
use crate::envoy::DOMAIN;

/// Maximum number of descriptors in one request.
const MAX_DESCRIPTORS: usize = 64;

/// Maximum number of entries in one descriptor: the domain takes one of the attributes.
const MAX_ENTRIES: usize = MAX_ATTRIBUTES - 1;

/// Units of Envoy's limits and their lengths in seconds. [`RateLimitUnit`] has the same numbers, but no `Week`.
pub(super) const UNITS: [(Unit, u64); 7] = [
    (Unit::Second, 1),
    (Unit::Minute, 60),
    (Unit::Hour, 3600),
    (Unit::Day, 24 * 3600),
    (Unit::Week, 7 * 24 * 3600),
    (Unit::Month, 30 * 24 * 3600),
    (Unit::Year, 365 * 24 * 3600),
];

/// Validated descriptors of one request.
pub(super) struct Descriptors {
    domain: String,
    descriptors: Vec<Descriptor>,
}

/// Entry of a descriptor, as text.
struct Entry {
    key: String,
    value: String,
}

/// Replaces bytes that are not UTF-8 by U+FFFD: see [`messages`].
fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

pub(super) struct Descriptor {
    /// Entries whose keys are names of attributes: repeated keys were renamed.
    entries: Vec<Entry>,
    permits: u64,
    limit_override: Option<LimitOverride>,
}

/// Limit that a descriptor contains.
pub(super) struct LimitOverride {
    resource: String,
    pub(super) limit: u32,
    pub(super) unit: Unit,
    window: Duration,
}

impl Descriptors {
    pub(super) fn check(request: RateLimitRequest) -> Result<Self, Status> {
        let RateLimitRequest { domain, descriptors, hits_addend } = request;
        let domain = lossy(domain);
        if domain.is_empty() {
            return Err(Status::invalid_argument("domain must not be empty"));
        }
        if descriptors.is_empty() || descriptors.len() > MAX_DESCRIPTORS {
            let n = descriptors.len();
            let message = format!("a request must have 1 to {MAX_DESCRIPTORS} descriptors, not {n}");
            return Err(Status::invalid_argument(message));
        }
        let permits = u64::from(hits_addend).max(1);
        let descriptors = descriptors.into_iter().enumerate().map(|(n, descriptor)| {
            let invalid = |problem: String| Status::invalid_argument(format!("descriptors[{n}]{problem}"));
            Descriptor::check(descriptor, &domain, permits).map_err(invalid)
        });
        Ok(Descriptors { descriptors: descriptors.collect::<Result<_, _>>()?, domain })
    }

    /// Returns one request for each descriptor. If a descriptor contains a limit of 0, returns this limit
    /// instead, because a request cannot have a limit of 0.
    pub(super) fn requests(&self) -> impl ExactSizeIterator<Item = Result<Request<'_>, &LimitOverride>> {
        self.descriptors.iter().map(|descriptor| descriptor.request(&self.domain))
    }
}

impl Descriptor {
    fn check(descriptor: RateLimitDescriptor, domain: &str, permits: u64) -> Result<Self, String> {
        let RateLimitDescriptor { entries, limit, hits_addend, is_negative_hits } = descriptor;
        if is_negative_hits {
            return Err(".is_negative_hits is not supported: refund with `settle` over HTTP".to_owned());
        }
        if entries.len() > MAX_ENTRIES {
            return Err(format!(" has {} entries; at most {MAX_ENTRIES} are accepted", entries.len()));
        }
        let entries = entries.into_iter();
        let mut entries: Vec<Entry> =
            entries.map(|entry| Entry { key: lossy(entry.key), value: lossy(entry.value) }).collect();
        let limit_override = limit.map(|limit| LimitOverride::check(limit, domain, &entries)).transpose()?;
        number_repeated_keys(&mut entries);
        // A descriptor whose own cost is 0 only reads the state.
        let permits = hits_addend.unwrap_or(permits);
        Ok(Descriptor { entries, permits, limit_override })
    }

    fn request<'d>(&'d self, domain: &'d str) -> Result<Request<'d>, &'d LimitOverride> {
        let request = match &self.limit_override {
            Some(limit_override) if limit_override.limit == 0 => return Err(limit_override),
            Some(limit_override) => Request::resource(&limit_override.resource)
                .limit(limit_override.limit.into())
                .window(limit_override.window),
            None => {
                let non_empty = self.entries.iter().filter(|entry| !entry.value.is_empty());
                let attributes = non_empty.map(|entry| (entry.key.as_str(), entry.value.as_str()));
                Request::new(std::iter::once((DOMAIN, domain)).chain(attributes))
            }
        };
        Ok(request.permits(self.permits))
    }
}

impl LimitOverride {
    fn check(limit: RateLimitOverride, domain: &str, entries: &[Entry]) -> Result<Self, String> {
        let unit = UNITS.iter().find(|(unit, _)| *unit as i32 == limit.unit);
        let (unit, seconds) = unit.filter(|_| RateLimitUnit::is_valid(limit.unit)).ok_or_else(|| {
            format!(".limit.unit must be SECOND, MINUTE, HOUR, DAY, MONTH or YEAR, not {}", limit.unit)
        })?;
        Ok(LimitOverride {
            resource: resource(domain, entries),
            limit: limit.requests_per_unit,
            unit: *unit,
            window: Duration::from_secs(*seconds),
        })
    }
}

/// Renames repeated keys: the second entry with the key `key` becomes `key.2`, the third `key.3`. The domain
/// counts as the first `domain`, so the first entry with the key `domain` becomes `domain.2`.
fn number_repeated_keys(entries: &mut [Entry]) {
    // Starts from the last entry, so that the entries before it still have their original keys.
    for i in (0..entries.len()).rev() {
        let (before, rest) = entries.split_at_mut(i);
        let Some(Entry { key, .. }) = rest.first_mut() else { continue };
        let earlier = before.iter().filter(|other| other.key == *key).count() + usize::from(key == DOMAIN);
        if earlier > 0 {
            let _ = write!(key, ".{}", earlier + 1);
        }
    }
}

/// Returns a resource name that is unique for a domain and its entries: separators in either are escaped.
fn resource(domain: &str, entries: &[Entry]) -> String {
    let mut text = String::with_capacity(64);
    escape(&mut text, domain);
    for Entry { key, value } in entries {
        text.push('|');
        escape(&mut text, key);
        text.push('=');
        escape(&mut text, value);
    }
    text
}

fn escape(text: &mut String, part: &str) {
    for c in part.chars() {
        if matches!(c, '|' | '=' | '\\') {
            text.push('\\');
        }
        text.push(c);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(pairs: &[(&str, &str)]) -> Vec<Entry> {
        let entry =
            |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
        pairs.iter().map(entry).collect()
    }

    #[test]
    fn numbers_repeated_keys() {
        let mut entries = entries(&[("a", "1"), ("b", "2"), ("a", ""), ("domain", "3"), ("a", "4")]);
        number_repeated_keys(&mut entries);
        let keys: Vec<_> = entries.iter().map(|entry| entry.key.as_str()).collect();
        assert_eq!(keys, ["a", "b", "a.2", "domain.2", "a.3"]);
        // `crate::envoy` converts the configuration of envoyproxy/ratelimit. It must number keys in the same
        // way.
        let envoy_attributes =
            crate::envoy::attributes("d", [("a", "1"), ("b", "2"), ("a", ""), ("domain", "3"), ("a", "4")]);
        assert!(envoy_attributes.iter().skip(1).map(|(name, _)| name.as_ref()).eq(keys));
    }

    #[test]
    fn escapes_separators_in_resources() {
        let texts = [
            resource("d", &entries(&[("a", "1"), ("b", "2")])),
            resource("d", &entries(&[("a", "1|b=2")])),
            resource("d", &entries(&[("a", "1\\"), ("b", "2")])),
            resource("d|a=1", &entries(&[("b", "2")])),
            resource("d", &entries(&[("a=1|b", "2")])),
        ];
        assert_eq!(texts[0], "d|a=1|b=2");
        assert_eq!(texts[1], r"d|a=1\|b\=2");
        for (i, text) in texts.iter().enumerate() {
            assert!(!texts[..i].contains(text), "{text}");
        }
    }
}
