//! Matching of one rule: its conditions, the check of a request, and the quota of a key.

use std::fmt;

use super::rule::{Mode, Rule};
use crate::key::Digests;
use crate::{Check, Key, Quota};

/// Condition on the value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Exactly this value.
    Is(String),
    /// Any value with this prefix; written `prefix*`.
    StartsWith(String),
}

impl Pattern {
    /// Parses a pattern of the rules file.
    pub fn new(text: &str) -> Self {
        match text.strip_suffix('*') {
            Some(prefix) => Pattern::StartsWith(prefix.to_owned()),
            None => Pattern::Is(text.to_owned()),
        }
    }

    /// Returns a warning about a text that looks like a pattern of another program and is compared literally.
    #[cfg(feature = "yaml")]
    pub(super) fn warning(text: &str) -> Option<&'static str> {
        if text.starts_with(['~', '^']) {
            return Some("regular expressions are not supported, so this is compared character by character");
        }
        let before = text.strip_suffix('*').unwrap_or(text);
        before.contains('*').then_some(
            "`*` stands for any text only at the end of a pattern; elsewhere it is compared as it is",
        )
    }

    fn matches(&self, value: &str) -> bool {
        match self {
            Pattern::Is(text) => value == text,
            Pattern::StartsWith(prefix) => value.starts_with(prefix.as_str()),
        }
    }
}

/// Writes the pattern as in the rules file.
impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Is(text) => f.write_str(text),
            Pattern::StartsWith(prefix) => write!(f, "{prefix}*"),
        }
    }
}

/// Reason why a rule does not apply to a request. The `Display` text is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MismatchReason<'e> {
    /// The rule is off.
    Off,
    /// The rule requires other values of an attribute.
    Value {
        /// The attribute.
        attribute: &'e str,
        /// Patterns, one of which must match.
        wanted: &'e [Pattern],
        /// Value in the request; `None` if the attribute is missing.
        found: Option<&'e str>,
    },
    /// The rule counts by an attribute that the request does not have.
    Lacking(&'e str),
    /// The rule is for requests without other attributes, and the request has this one.
    Beyond(&'e str),
}

impl fmt::Display for MismatchReason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MismatchReason::Off => f.write_str("it is off"),
            MismatchReason::Value { attribute, wanted, found } => {
                let wanted: Vec<String> = wanted.iter().map(Pattern::to_string).collect();
                write!(f, "`match` needs `{attribute}` to be {}", wanted.join(" or "))?;
                match found {
                    Some(value) => write!(f, ", but it is {value}"),
                    None => f.write_str(", but the request has none"),
                }
            }
            MismatchReason::Lacking(attribute) => {
                write!(f, "the key needs `{attribute}`, but the request has none")
            }
            MismatchReason::Beyond(attribute) => {
                write!(f, "`only` excludes requests with `{attribute}`")
            }
        }
    }
}

impl Rule {
    /// Applies the present factor to a quota.
    #[inline]
    pub(super) fn adapted(&self, quota: Quota) -> Quota {
        self.factor().map_or(quota, |factor| quota.scaled(factor))
    }

    #[inline]
    pub(super) fn applies(&self, attributes: &[(&str, &str)]) -> bool {
        self.mismatch(attributes).is_none()
    }

    /// Returns the reason why the rule does not apply to these attributes; `None` if it applies.
    #[inline]
    pub(super) fn mismatch<'e>(&'e self, attributes: &[(&'e str, &'e str)]) -> Option<MismatchReason<'e>> {
        if self.mode == Mode::Off {
            return Some(MismatchReason::Off);
        }
        for (index, (attribute, wanted)) in self.conditions.iter().enumerate() {
            let found = find(attributes, attribute);
            if !found.is_some_and(|value| self.condition_matches(index, wanted, value)) {
                return Some(MismatchReason::Value { attribute, wanted, found });
            }
        }
        if let Some(lacking) = self.key.iter().find(|name| find(attributes, name).is_none()) {
            return Some(MismatchReason::Lacking(lacking));
        }
        if self.only {
            let beyond = attributes.iter().find(|(name, _)| !self.mentions(name));
            return beyond.map(|(name, _)| MismatchReason::Beyond(name));
        }
        None
    }

    /// Returns true if the condition at this index matches a value.
    #[inline]
    fn condition_matches(&self, index: usize, wanted: &[Pattern], value: &str) -> bool {
        let any = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(value));
        any(wanted)
            || self.normalized_conditions.iter().any(|(known, patterns)| *known == index && any(patterns))
    }

    fn mentions(&self, attribute: &str) -> bool {
        let mut named = self.conditions.iter().map(|(name, _)| name).chain(&self.key);
        named.any(|name| name == attribute)
    }

    #[inline(always)]
    pub(super) fn check<'v>(
        &self,
        attributes: &[(&str, &'v str)],
        permits: u64,
        rule: u32,
        digests: &Digests<'v>,
    ) -> Option<Check> {
        if !self.applies(attributes) {
            return None;
        }
        let key = self.key_template.key(digests, |index| find(attributes, &self.key[index]))?;
        let quota = if self.overrides.is_empty() { self.quota } else { self.quota_for(attributes) };
        let enforced = self.mode == Mode::Enforce;
        Some(Check {
            key,
            quota: self.adapted(quota),
            cost: permits,
            enforced,
            encoding: self.encoding,
            on_error: self.on_error,
            lease: self.lease,
            rule,
        })
    }

    /// Returns the quota for a request with these attributes, without adaptation.
    fn quota_for(&self, attributes: &[(&str, &str)]) -> Quota {
        let values = || self.key.iter().filter_map(|name| find(attributes, name));
        if values().any(|value| value.len() > self.longest_override) {
            return self.quota;
        }
        let values: Vec<String> = values().map(str::to_owned).collect();
        let override_quota = self.overrides.get(&values).or_else(|| self.normalized_overrides.get(&values));
        override_quota.copied().unwrap_or(self.quota)
    }

    /// Returns the most permits that a check of this rule can ever have in use, under any load.
    pub(super) fn max_capacity_under(&self, check: &Check) -> u64 {
        match self.adapts_by() {
            Some(terms) => self.configured_quota_under(&check.key).scaled(terms.bounds().1).capacity(),
            None => check.quota.capacity(),
        }
    }

    /// Returns the quota for one key of this rule.
    pub(super) fn quota_under(&self, key: &Key) -> Quota {
        self.adapted(self.configured_quota_under(key))
    }

    /// Returns the quota for one key of this rule, without adaptation.
    fn configured_quota_under(&self, key: &Key) -> Quota {
        let is = |values: &[String]| {
            self.key_template.key(&Digests::default(), |index| values.get(index).map(String::as_str))
        };
        let override_quota = self
            .overrides
            .iter()
            .chain(&self.normalized_overrides)
            .find(|(values, _)| is(values).as_ref() == Some(key));
        override_quota.map_or(self.quota, |(_, quota)| *quota)
    }
}

#[inline]
fn find<'a>(attributes: &[(&str, &'a str)], name: &str) -> Option<&'a str> {
    attributes.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
}
