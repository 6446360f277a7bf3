//! Explanations of rule matching: for each rule, the reason why it applies to a request or not. Follows [`Rules::checks_for`].

use super::matching::MismatchReason;
use super::selection::{Kind, Selection};
use super::{Rule, Rules};
use crate::key::Digests;
use crate::request::Subject;
use crate::{Check, Error, Request};

/// Result of one rule for a request.
#[derive(Clone, Debug)]
pub struct Explanation<'e> {
    /// The rule. For a request that gives its own limit: a placeholder.
    pub rule: &'e Rule,
    /// The result of matching.
    pub rule_match: RuleMatch<'e>,
}

/// Result of matching one rule with a request.
#[derive(Clone, Debug)]
pub enum RuleMatch<'e> {
    /// The rule applies, and the store evaluates this check.
    Checked(Check),
    /// The rule applies, counts nothing and denies nothing.
    Unlimited,
    /// The rule applies, counts nothing and denies everything. A shadow rule only reports it.
    Blocked,
    /// The rule does not apply. This is the first reason; there may be others.
    Missed(MismatchReason<'e>),
    /// An earlier rule of the same group applies.
    Preceded {
        /// The group.
        group: &'e str,
        /// The earlier rule.
        by: &'e str,
    },
    /// Another rule that applies replaces this rule.
    Replaced {
        /// The other rule.
        by: &'e str,
    },
}

impl Rules {
    /// Explains the result of each rule for a request, in the order of the rules. The rules that are
    /// [checked](RuleMatch::Checked), and those that are [blocked](RuleMatch::Blocked) and enforced, are the ones that
    /// [`Rules::checks_for`] includes; `checks_for` can still reject the request because of its cost.
    ///
    /// ```
    /// use slidegate::{Quota, Request, Rule, Rules};
    /// let rules = Rules::new([Rule::new("login", Quota::per_second(3)?)?.when("api", ["/login", "/v2/*"])?])?;
    /// let request = Request::new([("api", "/search")]);
    /// let explained = rules.explain(&request)?;
    /// let slidegate::RuleMatch::Missed(miss) = &explained[0].rule_match else { panic!("it applies") };
    /// assert_eq!(miss.to_string(), "`match` needs `api` to be /login or /v2/*, but it is /search");
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    pub fn explain<'e>(&'e self, request: &'e Request<'_>) -> Result<Vec<Explanation<'e>>, Error> {
        self.validate(request)?;
        let permits = request.permits;
        match &request.subject {
            Subject::Attributes(attributes) => {
                let digests = Digests::default();
                let alone = self.rules.iter().zip(0u32..).map(|(rule, number)| {
                    let rule_match = rule.rule_match(attributes, permits, number, &digests);
                    Explanation { rule, rule_match }
                });
                let mut all: Vec<Explanation<'e>> = alone.collect();
                if let Some(selection) = &self.selection {
                    selection.explain(&self.rules, &mut all);
                }
                Ok(all)
            }
            Subject::Resource { name, ad_hoc_limit } => {
                let rule_match = RuleMatch::Checked(self.ad_hoc.check(name, *ad_hoc_limit, permits)?);
                Ok(vec![Explanation { rule: &self.own_limit, rule_match }])
            }
        }
    }
}

impl Rule {
    /// Returns the result of this rule for the attributes, without regard to other rules.
    fn rule_match<'e>(
        &'e self,
        attributes: &[(&'e str, &'e str)],
        permits: u64,
        number: u32,
        digests: &Digests<'e>,
    ) -> RuleMatch<'e> {
        if let Some(miss) = self.mismatch(attributes) {
            return RuleMatch::Missed(miss);
        }
        match (self.kind, self.check(attributes, permits, number, digests)) {
            (Kind::Unlimited, _) => RuleMatch::Unlimited,
            (Kind::Blocked, _) => RuleMatch::Blocked,
            (Kind::Limited, Some(check)) => RuleMatch::Checked(check),
            // Unreachable: a rule without a mismatch always has a check.
            (Kind::Limited, None) => RuleMatch::Missed(MismatchReason::Off),
        }
    }
}

impl Selection {
    /// Revises the results of rules that a group or a replacement excludes.
    fn explain<'e>(&self, rules: &'e [Rule], all: &mut [Explanation<'e>]) {
        let mut first: Vec<(u32, &'e str)> = Vec::new();
        let mut replaced: Vec<(u32, &'e str)> = Vec::new();
        for ((explanation, group), replaces) in all.iter_mut().zip(&self.groups).zip(&self.replaces) {
            let rule = explanation.rule;
            if matches!(explanation.rule_match, RuleMatch::Missed(_)) {
                continue;
            }
            if let Some((_, by)) = first.iter().find(|(ended, _)| Some(*ended) == *group) {
                let group = rule.group.as_deref().unwrap_or_default();
                explanation.rule_match = RuleMatch::Preceded { group, by };
                continue;
            }
            first.extend(group.map(|group| (group, rule.name())));
            replaced.extend(replaces.iter().map(|number| (*number, rule.name())));
        }
        for (explanation, number) in all.iter_mut().zip(0u32..rules.len() as u32) {
            let by = replaced.iter().find(|(other, _)| *other == number);
            if let (Some((_, by)), RuleMatch::Checked(_) | RuleMatch::Blocked | RuleMatch::Unlimited) =
                (by, &explanation.rule_match)
            {
                explanation.rule_match = RuleMatch::Replaced { by };
            }
        }
    }
}
