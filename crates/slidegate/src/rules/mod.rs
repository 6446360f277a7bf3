//! Rules: select the limits for a request. Pure: a request goes in, [`Checks`] come out.

mod ad_hoc;
mod combined_checks;
mod explain;
mod matching;
#[cfg(feature = "http")]
mod paths;
mod rule;
mod selection;
mod shadow;
#[cfg(feature = "yaml")]
mod spec;
mod unmatched;
mod variants;

use std::collections::HashSet;
use std::time::Duration;

pub use self::ad_hoc::{AdHoc, Bounds};
pub use self::combined_checks::MAX_TOGETHER;
pub(crate) use self::combined_checks::{CombinedChecks, RequestPart};
pub use self::explain::{Explanation, RuleMatch};
pub use self::matching::{MismatchReason, Pattern};
pub use self::rule::{DEFAULT_CODE, MAX_KEY_ATTRIBUTES, MAX_LEASE, Mode, Rule};
use self::selection::{Kind, Replaced, Selection};
#[cfg(feature = "yaml")]
pub use self::spec::{AdHocFile, RuleFile, RulesFile};
pub use self::unmatched::Unmatched;
use crate::checks::too_many_permits;
use crate::key::Digests;
use crate::quota::MAX_LIMIT;
pub use crate::request::PLAIN_ATTRIBUTE;
use crate::request::{AdHocLimit, Subject, check_attributes};
use crate::{Check, Checks, Error, Key, OnError, Quota, Request, RequestId};

/// Name under which requests that give their own limit are counted and reported.
pub const AD_HOC: &str = "ad-hoc";

/// Largest number of adaptive rules in one set: nodes exchange the load of each of them every second.
pub const MAX_ADAPTIVE: usize = 256;

/// Largest number of rules in one set.
pub const MAX_RULES: usize = 10_000;

/// A set of rules, in the order of evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    rules: Vec<Rule>,
    selection: Option<Selection>,
    ad_hoc: AdHoc,
    /// `None` if no policy was given.
    unmatched: Option<Unmatched>,
    /// Placeholder for a rule in decisions about requests that give their own limit.
    own_limit: Rule,
    /// True if some rule is a shadow of another rule.
    any_paired_shadow: bool,
    /// False if this is a placeholder for rules that are not yet known.
    known: bool,
}

impl Rules {
    /// Creates a set of rules in this order. No two may have the same name, and a rule that another one replaces or shadows must
    /// be in the set.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Result<Self, Error> {
        let ad_hoc = AdHoc::default();
        let own_limit = Rule::named(AD_HOC, ad_hoc.quota(AdHocLimit::default())?);
        let rules: Vec<Rule> = rules.into_iter().collect();
        let n = rules.len();
        ensure!(n <= MAX_RULES, "there may be at most {MAX_RULES} rules, not {n}");
        let mut names = HashSet::new();
        for Rule { name, .. } in &rules {
            ensure!(names.insert(name.as_str()), "two rules are named `{name}`");
        }
        let adaptive = rules.iter().filter(|rule| rule.adapting.is_some()).count();
        ensure!(adaptive <= MAX_ADAPTIVE, "at most {MAX_ADAPTIVE} rules may be adaptive, not {adaptive}");
        let selection = Selection::new(&rules)?;
        shadow::check(&rules, &names)?;
        let any_paired_shadow =
            rules.iter().any(|rule| rule.mode == Mode::Shadow && rule.shadow_of.is_some());
        Ok(Rules { rules, selection, ad_hoc, unmatched: None, own_limit, any_paired_shadow, known: true })
    }

    /// Creates a placeholder for rules that are not yet known: every request fails with an error.
    pub fn unknown() -> Result<Self, Error> {
        Ok(Rules { known: false, ..Rules::new([])? })
    }

    /// Returns false for the placeholder of [`Rules::unknown`].
    pub fn is_known(&self) -> bool {
        self.known
    }

    pub(super) fn check_known(&self) -> Result<(), Error> {
        if self.known { Ok(()) } else { Err(not_known()) }
    }

    /// Appends rules to this set.
    pub fn and(self, more: impl IntoIterator<Item = Rule>) -> Result<Self, Error> {
        let rules = Rules::new(self.rules.into_iter().chain(more))?.with_ad_hoc(self.ad_hoc);
        Ok(Rules { unmatched: self.unmatched, ..rules })
    }

    /// Sets the bounds for requests that give their own limit.
    #[must_use]
    pub fn with_ad_hoc(mut self, ad_hoc: AdHoc) -> Self {
        self.ad_hoc = ad_hoc;
        self
    }

    /// Returns the rules, in the order of evaluation.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter()
    }

    /// Returns the rule that counts under `key`, and its quota for that key; `None` if there is none. Takes time linear in the
    /// number of rules.
    pub fn find(&self, key: &Key) -> Option<(&Rule, Quota)> {
        let rule = self.rules.iter().find(|rule| rule.name() == key.rule())?;
        Some((rule, rule.quota_under(key)))
    }

    /// Returns the rules that deny requests while a store cannot decide: they are limited and enforced, and their policy is
    /// [`OnError::Closed`]. `default` is the policy of a rule that has none.
    pub fn closed_on_error(&self, default: OnError) -> impl Iterator<Item = &Rule> {
        self.rules.iter().filter(move |rule| {
            let policy = rule.on_error.unwrap_or(default);
            rule.kind == Kind::Limited && rule.mode == Mode::Enforce && policy == OnError::Closed
        })
    }

    /// Returns the bounds for requests that give their own limit.
    pub fn ad_hoc(&self) -> &AdHoc {
        &self.ad_hoc
    }

    /// Returns the checks of a request, the input for a store.
    ///
    /// Fails if the request is invalid, or if it needs more permits than an enforced rule will ever allow.
    pub fn checks_for(&self, request: &Request<'_>) -> Result<Checks, Error> {
        let mut checks = Checks::empty();
        self.fill_checks(&mut checks, request)?;
        Ok(checks)
    }

    /// Fills empty checks in place: `Checks` is large, and moving it takes a large part of the time of a decision in memory.
    #[inline]
    pub(crate) fn fill_checks(&self, checks: &mut Checks, request: &Request<'_>) -> Result<(), Error> {
        debug_assert!(checks.as_slice().is_empty());
        let mut replaced = Replaced::new();
        // Each key contains the name of its rule, and these names are unique, so the keys differ.
        let matched = self.visit_checks(request, &mut replaced, |check| checks.add(check))?;
        checks.unmatched = !matched;
        if !replaced.is_empty() {
            checks.retain(|check| !replaced.contains(&check.rule));
        }
        let permits = request.permits;
        for check in checks.as_slice() {
            if check.enforced && check.cost > check.quota.capacity() && !self.blocks(checks) {
                let rule = self.rule(check.rule);
                let most = rule.max_capacity_under(check);
                if check.cost > most {
                    return Err(Error::too_costly(rule.name(), permits, most));
                }
            }
        }
        if let Some(id) = &request.id {
            checks.id = Some(RequestId::clone(id));
        }
        Ok(())
    }

    /// Passes the check of each applicable rule to `visit`, and adds the indexes of replaced rules to `replaced`.
    /// Returns true if any rule matches the request.
    #[inline]
    fn visit_checks(
        &self,
        request: &Request<'_>,
        replaced: &mut Replaced,
        mut visit: impl FnMut(Check),
    ) -> Result<bool, Error> {
        self.validate(request)?;
        let permits = request.permits;
        match &request.subject {
            Subject::Attributes(attributes) => {
                let digests = Digests::default();
                match &self.selection {
                    None => {
                        let mut matched = false;
                        for (rule, number) in self.rules.iter().zip(0u32..) {
                            if let Some(check) = rule.check(attributes, permits, number, &digests) {
                                matched = true;
                                visit(check);
                            }
                        }
                        Ok(matched)
                    }
                    Some(selection) => {
                        let (selected, matched) =
                            selection.checks(&self.rules, attributes, permits, &digests, replaced);
                        selected.into_iter().for_each(visit);
                        Ok(matched)
                    }
                }
            }
            Subject::Resource { name, ad_hoc_limit } => {
                visit(self.ad_hoc.check(name, *ad_hoc_limit, permits)?);
                Ok(true)
            }
        }
    }

    /// Checks that the rules are known, and that the permits and attributes of a request are within their bounds.
    #[inline]
    fn validate(&self, request: &Request<'_>) -> Result<(), Error> {
        self.check_known()?;
        if request.permits > MAX_LIMIT {
            return Err(too_many_permits(request.permits));
        }
        match &request.subject {
            Subject::Attributes(attributes) => check_attributes(attributes),
            Subject::Resource { .. } => Ok(()),
        }
    }

    /// Returns true if the batch contains a check of a rule that is a shadow of another rule.
    #[inline]
    pub(crate) fn has_paired_shadow(&self, batch: &[Checks]) -> bool {
        self.any_paired_shadow
            && batch.iter().flat_map(Checks::as_slice).any(|check| self.is_paired_shadow(check))
    }

    pub(crate) fn is_paired_shadow(&self, check: &Check) -> bool {
        !check.enforced && self.rule(check.rule).shadow_of.is_some()
    }

    /// Returns true if a rule denies the request regardless of the store.
    pub(crate) fn blocks(&self, checks: &Checks) -> bool {
        self.selection.is_some() && checks.as_slice().iter().any(|check| self.blocks_check(check))
    }

    pub(crate) fn blocks_check(&self, check: &Check) -> bool {
        self.rule(check.rule).kind == Kind::Blocked
    }

    /// Sets the factor of each adaptive rule to the factor of the rule with the same name in `before`.
    pub(crate) fn adapt_as(&self, before: &Rules) {
        for (rule, adapting) in self.rules.iter().filter_map(|rule| Some((rule, rule.adapting.as_ref()?))) {
            let same = before.rules.iter().find(|known| known.name == rule.name);
            if let Some(factor) = same.and_then(Rule::factor) {
                let (min, max) = adapting.terms.bounds();
                adapting.cell.set_factor(factor.clamp(min, max));
            }
        }
    }

    /// Reports the latency and the success of a request to its adaptive rules. Returns the number of those rules.
    pub(crate) fn report(&self, checks: &Checks, latency: Duration, ok: bool) -> usize {
        let adapting = checks.as_slice().iter().filter_map(|check| self.rule(check.rule).adapting.as_ref());
        adapting.map(|adapting| adapting.cell.report(latency, ok)).count()
    }

    /// Returns the rule that produced a check of these rules.
    pub(crate) fn rule(&self, number: u32) -> &Rule {
        self.rules.get(number as usize).unwrap_or(&self.own_limit)
    }
}

#[cold]
fn not_known() -> Error {
    Error::unavailable("the rules are not known yet")
}
