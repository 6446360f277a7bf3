//! Matching of one rule: the check of a request, and the quota of a key.

use super::pattern::Pattern;
use super::rule::{Mode, Rule};
use crate::key::Digests;
use crate::{Check, Key, Quota};

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

    /// Returns true if the condition at this index matches a value.
    #[inline]
    pub(super) fn condition_matches(&self, index: usize, wanted: &[Pattern], value: &str) -> bool {
        let any = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(value));
        any(wanted)
            || self.normalized_conditions.iter().any(|(known, patterns)| *known == index && any(patterns))
    }

    pub(super) fn mentions(&self, attribute: &str) -> bool {
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
pub(super) fn find<'a>(attributes: &[(&str, &'a str)], name: &str) -> Option<&'a str> {
    attributes.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
}
