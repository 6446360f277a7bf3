//! Why each rule looks at a request, or does not: what [`Rules::ask`] does without a word, told.

use std::fmt;

use super::rule::{Pattern, find};
use super::selection::{Choice, Kind};
use super::{Mode, Rule, Rules};
use crate::checks::too_many_permits;
use crate::key::Digests;
use crate::quota::MAX_LIMIT;
use crate::request::{Subject, check_attributes};
use crate::{Check, Error, Request};

/// What one rule makes of a request.
#[derive(Clone, Debug)]
pub struct Explanation<'e> {
    /// Of a request that brings its own limit, one that stands for it.
    pub rule: &'e Rule,
    /// Whether it is looked at.
    pub standing: RuleMatch<'e>,
}

/// Whether a rule is looked at for a request.
#[derive(Clone, Debug)]
pub enum RuleMatch<'e> {
    /// The store is asked this.
    Checked(Check),
    /// It applies, counts nothing and denies nothing.
    Unlimited,
    /// It applies, counts nothing and denies everything; or would, as a shadow.
    Blocked,
    /// It does not apply, for this reason and perhaps others after it.
    Missed(MismatchReason<'e>),
    /// Another rule of its group that applies came first.
    Preceded {
        /// The group.
        group: &'e str,
        /// That other rule.
        by: &'e str,
    },
    /// This other rule, which applies, replaces it.
    Replaced {
        /// That other rule.
        by: &'e str,
    },
}

/// Why a rule does not apply to a request. Its text is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MismatchReason<'e> {
    /// It is off.
    Off,
    /// It is for other values of an attribute.
    Value {
        /// The attribute.
        attribute: &'e str,
        /// One of these would do.
        wanted: &'e [Pattern],
        /// What the request has; none if it has none.
        found: Option<&'e str>,
    },
    /// It counts by an attribute that the request does not have.
    Lacking(&'e str),
    /// It is for requests with no other attributes, and this is one.
    Beyond(&'e str),
}

impl Rule {
    /// Why it does not apply to these attributes; none if it does.
    #[inline]
    pub(super) fn miss<'e>(&'e self, attributes: &[(&'e str, &'e str)]) -> Option<MismatchReason<'e>> {
        if self.mode == Mode::Off {
            return Some(MismatchReason::Off);
        }
        for (place, (attribute, wanted)) in self.conditions.iter().enumerate() {
            let found = find(attributes, attribute);
            if !found.is_some_and(|value| self.holds(place, wanted, value)) {
                return Some(MismatchReason::Value { attribute, wanted, found });
            }
        }
        if let Some(lacking) = self.key.iter().find(|name| find(attributes, name).is_none()) {
            return Some(MismatchReason::Lacking(lacking));
        }
        if self.only {
            let beyond = attributes.iter().find(|(name, _)| !self.names(name));
            return beyond.map(|(name, _)| MismatchReason::Beyond(name));
        }
        None
    }
}

impl Rules {
    /// What each rule makes of a request, in their order. Those that are [checked](RuleMatch::Checked) or
    /// [blocked](RuleMatch::Blocked) and enforced are what [`Rules::ask`] asks the store; it may still say that a request
    /// costs too much.
    ///
    /// ```
    /// use slidegate::{Quota, Request, Rule, Rules};
    /// let rules = Rules::new([Rule::new("login", Quota::per_second(3)?)?.when("api", ["/login", "/v2/*"])?])?;
    /// let request = Request::new([("api", "/search")]);
    /// let explained = rules.explain(&request)?;
    /// let slidegate::RuleMatch::Missed(miss) = &explained[0].standing else { panic!("it applies") };
    /// assert_eq!(miss.to_string(), "`match` wants `api` to be /login or /v2/*, and it is /search");
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    pub fn explain<'e>(&'e self, request: &'e Request<'_>) -> Result<Vec<Explanation<'e>>, Error> {
        self.check_known()?;
        let permits = request.permits;
        if permits > MAX_LIMIT {
            return Err(too_many_permits(permits));
        }
        match &request.subject {
            Subject::Attributes(attributes) => {
                check_attributes(attributes)?;
                let digests = Digests::default();
                let alone = self.rules.iter().zip(0u32..).map(|(rule, number)| {
                    let standing = rule.standing(attributes, permits, number, &digests);
                    Explanation { rule, standing }
                });
                let mut all: Vec<Explanation<'e>> = alone.collect();
                if let Some(choice) = &self.choice {
                    choice.explain(&self.rules, &mut all);
                }
                Ok(all)
            }
            Subject::Resource { name, own } => {
                let standing = RuleMatch::Checked(self.ad_hoc.check(name, *own, permits)?);
                Ok(vec![Explanation { rule: &self.own_limit, standing }])
            }
        }
    }
}

impl Rule {
    /// What it makes of attributes if there is no other rule.
    fn standing<'e>(
        &'e self,
        attributes: &[(&'e str, &'e str)],
        permits: u64,
        number: u32,
        digests: &Digests<'e>,
    ) -> RuleMatch<'e> {
        if let Some(miss) = self.miss(attributes) {
            return RuleMatch::Missed(miss);
        }
        match (self.kind, self.check(attributes, permits, number, digests)) {
            (Kind::Unlimited, _) => RuleMatch::Unlimited,
            (Kind::Blocked, _) => RuleMatch::Blocked,
            (Kind::Limited, Some(check)) => RuleMatch::Checked(check),
            // A rule that misses nothing has a check.
            (Kind::Limited, None) => RuleMatch::Missed(MismatchReason::Off),
        }
    }
}

impl Choice {
    /// Takes back what rules make of a request because of others.
    fn explain<'e>(&self, rules: &'e [Rule], all: &mut [Explanation<'e>]) {
        let mut first: Vec<(u32, &'e str)> = Vec::new();
        let mut replaced: Vec<(u32, &'e str)> = Vec::new();
        for ((explanation, group), replaces) in all.iter_mut().zip(&self.groups).zip(&self.replaces) {
            let rule = explanation.rule;
            if matches!(explanation.standing, RuleMatch::Missed(_)) {
                continue;
            }
            if let Some((_, by)) = first.iter().find(|(ended, _)| Some(*ended) == *group) {
                let group = rule.group.as_deref().unwrap_or_default();
                explanation.standing = RuleMatch::Preceded { group, by };
                continue;
            }
            first.extend(group.map(|group| (group, rule.name())));
            replaced.extend(replaces.iter().map(|number| (*number, rule.name())));
        }
        for (explanation, number) in all.iter_mut().zip(0u32..rules.len() as u32) {
            let by = replaced.iter().find(|(other, _)| *other == number);
            if let (Some((_, by)), RuleMatch::Checked(_) | RuleMatch::Blocked | RuleMatch::Unlimited) =
                (by, &explanation.standing)
            {
                explanation.standing = RuleMatch::Replaced { by };
            }
        }
    }
}

impl fmt::Display for MismatchReason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MismatchReason::Off => f.write_str("it is off"),
            MismatchReason::Value { attribute, wanted, found } => {
                write!(f, "`match` wants `{attribute}` to be ")?;
                for (i, pattern) in wanted.iter().enumerate() {
                    let separator = if i == 0 { "" } else { " or " };
                    write!(f, "{separator}{pattern}")?;
                }
                match found {
                    Some(value) => write!(f, ", and it is {value}"),
                    None => f.write_str(", and the request has none"),
                }
            }
            MismatchReason::Lacking(attribute) => {
                write!(f, "it counts by `{attribute}`, and the request has none")
            }
            MismatchReason::Beyond(attribute) => {
                write!(f, "it is `only` for requests without `{attribute}`")
            }
        }
    }
}

/// As the rules file writes it.
impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Is(text) => f.write_str(text),
            Pattern::StartsWith(prefix) => write!(f, "{prefix}*"),
        }
    }
}
