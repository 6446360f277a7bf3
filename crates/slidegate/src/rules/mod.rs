//! Rules: which limits a request meets. Pure: a request goes in, an [`Checks`] comes out.

mod ad_hoc;
mod combined_checks;
mod explain;
#[cfg(feature = "yaml")]
mod parse;
#[cfg(feature = "yaml")]
mod parse_adaptive;
#[cfg(feature = "yaml")]
mod parse_warm_up;
#[cfg(feature = "http")]
mod paths;
mod rule;
#[cfg(feature = "schema")]
mod schema;
#[cfg(feature = "schema")]
mod schema_adaptive;
mod selection;
mod shadow;
mod unmatched;
mod variants;

use std::collections::HashSet;
use std::time::Duration;

pub use self::ad_hoc::{AdHoc, Bounds};
pub use self::combined_checks::MAX_TOGETHER;
pub(crate) use self::combined_checks::{Part, Together};
pub use self::explain::{Explanation, MismatchReason, RuleMatch};
#[cfg(feature = "yaml")]
pub use self::parse::{FILE_FIELDS, read_on_error};
pub use self::rule::{DEFAULT_CODE, MAX_KEY_ATTRIBUTES, MAX_LEASE, Mode, Pattern, Rule};
#[cfg(feature = "schema")]
pub use self::schema::{
    AdHocFile, AdaptiveFile, BandsFile, BoundsFile, LatencyFile, LeaseFile, OnErrorFile, OverrideFile,
    RuleFile, UnmatchedFile, WarmUpFile,
};
use self::selection::{Choice, Kind, Replaced};
pub use self::unmatched::Unmatched;
use crate::checks::too_many_permits;
use crate::key::Digests;
use crate::quota::MAX_LIMIT;
use crate::request::{AdHocLimit, Subject, check_attributes};
use crate::{Check, Checks, Error, Key, Quota, Request, RequestId};

/// The name under which requests that bring their own limit are counted and reported.
pub const AD_HOC: &str = "ad-hoc";

/// The most rules of one set that may follow the load: what is seen of them is told every second.
pub const MAX_ADAPTIVE: usize = 256;

/// The most rules one set may have.
pub const MAX_RULES: usize = 10_000;

/// A set of rules, in the order in which they are judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    rules: Vec<Rule>,
    choice: Option<Choice>,
    ad_hoc: AdHoc,
    /// None if it was not given.
    unmatched: Option<Unmatched>,
    /// Stands in for a rule in the answers to requests that bring their own limit.
    own_limit: Rule,
    /// Whether any of them is a shadow of another.
    siblings: bool,
    /// Whether these are the rules, or stand for some that are not known yet.
    known: bool,
}

impl Rules {
    /// These rules, in this order. No two may have the same name, and what one replaces or is a shadow of
    /// must be among them.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Result<Self, Error> {
        let ad_hoc = AdHoc::default();
        let own_limit = Rule::named(AD_HOC, ad_hoc.quota(AdHocLimit::default())?);
        let rules: Vec<Rule> = rules.into_iter().collect();
        if rules.len() > MAX_RULES {
            return Err(Error::invalid(format!("there may be {MAX_RULES} rules, not {}", rules.len())));
        }
        let mut names = HashSet::new();
        if let Some(rule) = rules.iter().find(|rule| !names.insert(rule.name.as_str())) {
            return Err(Error::invalid(format!("two rules are named `{}`", rule.name)));
        }
        let adaptive = rules.iter().filter(|rule| rule.adapting().is_some()).count();
        if adaptive > MAX_ADAPTIVE {
            return Err(Error::invalid(format!("{MAX_ADAPTIVE} rules may be adaptive, not {adaptive}")));
        }
        let choice = Choice::new(&rules)?;
        shadow::check(&rules, &names)?;
        let siblings = rules.iter().any(|rule| rule.mode == Mode::Shadow && rule.shadow_of.is_some());
        Ok(Rules { rules, choice, ad_hoc, unmatched: None, own_limit, siblings, known: true })
    }

    /// Stands for rules that are not known yet: whatever is asked, it cannot be decided.
    pub fn unknown() -> Result<Self, Error> {
        Ok(Rules { known: false, ..Rules::new([])? })
    }

    /// Whether these are the rules.
    pub fn is_known(&self) -> bool {
        self.known
    }

    pub(super) fn check_known(&self) -> Result<(), Error> {
        if self.known { Ok(()) } else { Err(not_known()) }
    }

    /// The same rules, and these after them.
    pub fn and(self, more: impl IntoIterator<Item = Rule>) -> Result<Self, Error> {
        let rules = Rules::new(self.rules.into_iter().chain(more))?.with_ad_hoc(self.ad_hoc);
        Ok(Rules { unmatched: self.unmatched, ..rules })
    }

    /// The same rules with other bounds for requests that bring their own limit.
    #[must_use]
    pub fn with_ad_hoc(mut self, ad_hoc: AdHoc) -> Self {
        self.ad_hoc = ad_hoc;
        self
    }

    /// The rules, in the order in which they are judged.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter()
    }

    /// The rule that counts under `key`, and what it allows there; none if no rule does. Looks at all of them.
    pub fn find(&self, key: &Key) -> Option<(&Rule, Quota)> {
        let rule = self.rules.iter().find(|rule| rule.name() == key.rule())?;
        Some((rule, rule.quota_under(key)))
    }

    /// The bounds for requests that bring their own limit.
    pub fn ad_hoc(&self) -> &AdHoc {
        &self.ad_hoc
    }

    /// What to ask the store for this request.
    ///
    /// Fails if the request is not acceptable, or asks for more than an enforced rule will ever allow.
    pub fn ask(&self, request: &Request<'_>) -> Result<Checks, Error> {
        let mut ask = Checks::empty();
        self.ask_in(&mut ask, request)?;
        Ok(ask)
    }

    /// The same in an empty ask, where that is to stay: it is large, and moving it is a good part of a decision in memory.
    #[inline]
    pub(crate) fn ask_in(&self, ask: &mut Checks, request: &Request<'_>) -> Result<(), Error> {
        debug_assert!(ask.checks().is_empty());
        self.check_known()?;
        let permits = request.permits;
        if permits > MAX_LIMIT {
            return Err(too_many_permits(permits));
        }
        match &request.subject {
            Subject::Attributes(attributes) => {
                check_attributes(attributes)?;
                let digests = Digests::default();
                // Rules have different names, so their keys differ.
                match &self.choice {
                    None => {
                        for (rule, number) in self.rules.iter().zip(0u32..) {
                            if let Some(check) = rule.check(attributes, permits, number, &digests) {
                                ask.add(check);
                            }
                        }
                        ask.set_unmatched(ask.checks().is_empty());
                    }
                    Some(choice) => {
                        let mut replaced = Replaced::new();
                        let (checks, matched) =
                            choice.checks(&self.rules, attributes, permits, &digests, &mut replaced);
                        ask.set_unmatched(!matched);
                        checks
                            .into_iter()
                            .filter(|check| !replaced.contains(&check.rule))
                            .for_each(|check| ask.add(check));
                    }
                }
            }
            Subject::Resource { name, own } => ask.add(self.ad_hoc.check(name, *own, permits)?),
        }
        for check in ask.checks() {
            if check.enforced && check.cost > check.quota.capacity() && !self.blocks(ask) {
                let rule = self.rule(check.rule);
                let most = rule.most_under(check);
                if check.cost > most {
                    return Err(Error::too_costly(rule.name(), permits, most));
                }
            }
        }
        if let Some(id) = &request.id {
            ask.set_id(RequestId::clone(id));
        }
        Ok(())
    }

    /// Whether any of these asks is also about a rule that is tried out beside another.
    #[inline]
    pub(crate) fn have_siblings(&self, asks: &[Checks]) -> bool {
        self.siblings && asks.iter().flat_map(Checks::checks).any(|check| self.is_sibling(check))
    }

    pub(crate) fn is_sibling(&self, check: &Check) -> bool {
        !check.enforced && self.rule(check.rule).shadow_of.is_some()
    }

    /// Whether a rule denies this ask whatever the store says.
    pub(crate) fn blocks(&self, ask: &Checks) -> bool {
        self.choice.is_some() && ask.checks().iter().any(|check| self.blocks_check(check))
    }

    pub(crate) fn blocks_check(&self, check: &Check) -> bool {
        self.rule(check.rule).kind == Kind::Blocked
    }

    /// Takes on how far those of the same name had adapted.
    pub(crate) fn adapt_as(&self, before: &Rules) {
        for (rule, adapting) in self.rules.iter().filter_map(|rule| Some((rule, rule.adapting()?))) {
            let same = before.rules.iter().find(|known| known.name == rule.name);
            if let Some(factor) = same.and_then(Rule::factor) {
                let (min, max) = adapting.terms.bounds();
                adapting.gauge.set_factor(factor.clamp(min, max));
            }
        }
    }

    /// What was asked for took so long, and went well or not: tells the rules that follow the load; how many those are.
    pub(crate) fn report(&self, ask: &Checks, latency: Duration, ok: bool) -> usize {
        let adapting = ask.checks().iter().filter_map(|check| self.rule(check.rule).adapting());
        adapting.map(|adapting| adapting.gauge.report(latency, ok)).count()
    }

    /// The rule that a check of an [`Checks`] made here came from.
    pub(crate) fn rule(&self, number: u32) -> &Rule {
        self.rules.get(number as usize).unwrap_or(&self.own_limit)
    }
}

#[cold]
fn not_known() -> Error {
    Error::unavailable("the rules are not known yet")
}
