//! Selection among the rules that apply: only the first rule of a group, and no rule that another one replaces.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::Rule;
use super::rule::{check_label, check_rule_name};
use crate::key::Digests;
use crate::{Check, Error, Quota};

/// Effect of a rule on the requests to which it applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The rule counts, and denies requests over its quota.
    #[default]
    Limited,
    /// The rule counts nothing and denies nothing.
    Unlimited,
    /// The rule counts nothing and denies everything.
    Blocked,
}

impl Rule {
    /// Creates a rule that counts and denies nothing: an exception, placed before the rest of its [group](Rule::group).
    ///
    /// ```
    /// use slidegate::{Quota, Rule, Rules};
    /// let rules = Rules::new([
    ///     Rule::unlimited("staff")?.when("user", ["staff-*"])?.group("per-user")?,
    ///     Rule::new("others", Quota::per_second(10)?)?.per(["user"])?.group("per-user")?,
    /// ])?;
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    pub fn unlimited(name: &str) -> Result<Self, Error> {
        check_rule_name(name)?;
        Ok(Rule::without_counter(name, Kind::Unlimited))
    }

    /// Creates a rule that counts nothing and denies everything, without a call to the store. As a
    /// [shadow](crate::Mode::Shadow) it denies nothing, like [`Rule::unlimited`].
    pub fn blocked(name: &str) -> Result<Self, Error> {
        check_rule_name(name)?;
        Ok(Rule::without_counter(name, Kind::Blocked))
    }

    pub(super) fn without_counter(name: &str, kind: Kind) -> Self {
        Rule { kind, ..Rule::named(name, Quota::PLACEHOLDER) }
    }

    /// Adds the rule to a group: only the first applicable rule of a group is evaluated.
    pub fn group(mut self, name: &str) -> Result<Self, Error> {
        check_label("a group name", name)?;
        self.group = Some(name.to_owned());
        Ok(self)
    }

    /// Applies only to requests without attributes other than those in [`Rule::when`] and [`Rule::per`].
    #[must_use]
    pub fn only(mut self) -> Self {
        self.only = true;
        self
    }

    /// Excludes these rules from each request to which this rule applies, and from all other requests of the same
    /// [`acquire_together`](crate::Limiter::acquire_together). A replaced rule still excludes the later rules of its
    /// [group](Rule::group), and the rules that it replaces stay replaced.
    pub fn replaces<'r>(mut self, rules: impl IntoIterator<Item = &'r str>) -> Result<Self, Error> {
        for rule in rules {
            ensure!(rule != self.name, "rule `{rule}` cannot replace itself");
            self.replaces.push(rule.to_owned());
        }
        Ok(self)
    }

    /// Returns true if the rule is neither unlimited nor blocked.
    pub fn is_limited(&self) -> bool {
        self.kind == Kind::Limited
    }

    /// Returns true if the rule is evaluated wherever it applies, regardless of other rules.
    pub(super) fn is_plain(&self) -> bool {
        self.is_limited() && self.group.is_none() && self.replaces.is_empty()
    }
}

/// Checks of one request.
pub(super) type CheckList = SmallVec<[Check; 1]>;

/// Indexes of rules that other rules replace.
pub(super) type Replaced = SmallVec<[u32; 4]>;

/// Groups and replacements, by rule index. A set of rules without groups and replacements has no `Selection`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selection {
    /// Group of each rule.
    pub(super) groups: Vec<Option<u32>>,
    /// The rules that each rule replaces.
    pub(super) replaces: Vec<Replaced>,
}

impl Selection {
    pub(super) fn new(rules: &[Rule]) -> Result<Option<Self>, Error> {
        if rules.iter().all(Rule::is_plain) {
            return Ok(None);
        }
        let mut numbers = HashMap::new();
        let groups = rules.iter().map(|rule| {
            let next = numbers.len() as u32;
            rule.group.as_deref().map(|group| *numbers.entry(group).or_insert(next))
        });
        let groups = groups.collect();
        let names: HashMap<&str, u32> = rules.iter().map(Rule::name).zip(0..).collect();
        let numbered = |rule: &Rule| {
            let number = |name: &String| {
                names.get(name.as_str()).copied().ok_or_else(|| no_such_rule("replaces", name))
            };
            rule.replaces.iter().map(number).collect()
        };
        let replaces = rules.iter().map(numbered).collect::<Result<_, Error>>()?;
        Ok(Some(Selection { groups, replaces }))
    }

    /// Returns the checks of every rule that is evaluated for these attributes, and true if any rule applies. The
    /// checks include those of replaced rules; the function adds their indexes to `replaced`.
    pub(super) fn checks<'v>(
        &self,
        rules: &[Rule],
        attributes: &[(&str, &'v str)],
        permits: u64,
        digests: &Digests<'v>,
        replaced: &mut Replaced,
    ) -> (CheckList, bool) {
        let mut matched = false;
        let mut ended: SmallVec<[u32; 4]> = SmallVec::new();
        let mut checks = CheckList::new();
        let numbered = rules.iter().zip(0u32..);
        for ((rule, number), (group, replaces)) in numbered.zip(self.groups.iter().zip(&self.replaces)) {
            if group.is_some_and(|group| ended.contains(&group)) || !rule.applies(attributes) {
                continue;
            }
            matched = true;
            ended.extend(*group);
            replaced.extend_from_slice(replaces);
            let check = rule.check(attributes, permits, number, digests);
            match rule.kind {
                Kind::Limited => checks.extend(check),
                Kind::Unlimited => {}
                // The check gets a cost above its limit, so that every store denies it, too.
                Kind::Blocked => checks.extend(
                    check
                        .filter(|check| check.enforced)
                        .map(|check| Check { cost: check.quota.capacity() + 1, ..check }),
                ),
            }
        }
        (checks, matched)
    }
}

pub(super) fn no_such_rule(field: &str, name: &str) -> Error {
    Error::invalid(format!("{field} names `{name}`, which is not a rule"))
}
