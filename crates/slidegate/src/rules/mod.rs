//! Rules: which limits a request meets. Pure: a request goes in, an [`Ask`] comes out.

mod ad_hoc;
#[cfg(feature = "yaml")]
mod parse;
mod rule;
#[cfg(feature = "schema")]
mod schema;

use std::collections::HashSet;

pub use self::ad_hoc::{AdHoc, Bounds};
#[cfg(feature = "yaml")]
pub use self::parse::{FILE_FIELDS, read_on_error};
pub use self::rule::{DEFAULT_CODE, MAX_KEY_ATTRIBUTES, Mode, Pattern, Rule};
#[cfg(feature = "schema")]
pub use self::schema::{AdHocFile, BoundsFile, OnErrorFile, OverrideFile, RuleFile};
use crate::ask::too_many_permits;
use crate::quota::MAX_LIMIT;
use crate::request::{Subject, check_attributes};
use crate::{Ask, Error, Request};

/// The name under which requests that bring their own limit are counted and reported.
pub const AD_HOC: &str = "ad-hoc";

/// The most rules one set may have.
pub const MAX_RULES: usize = 10_000;

/// A set of rules, in the order in which they are judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    rules: Vec<Rule>,
    ad_hoc: AdHoc,
    /// Stands in for a rule in the answers to requests that bring their own limit.
    own_limit: Rule,
}

impl Rules {
    /// These rules, in this order. No two may have the same name.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Result<Self, Error> {
        let ad_hoc = AdHoc::default();
        let own_limit = Rule::named(AD_HOC, ad_hoc.quota(None, None)?);
        let rules: Vec<Rule> = rules.into_iter().collect();
        if rules.len() > MAX_RULES {
            return Err(Error::invalid(format!("there may be {MAX_RULES} rules, not {}", rules.len())));
        }
        let mut names = HashSet::new();
        if let Some(rule) = rules.iter().find(|rule| !names.insert(rule.name.as_str())) {
            return Err(Error::invalid(format!("two rules are named `{}`", rule.name)));
        }
        Ok(Rules { rules, ad_hoc, own_limit })
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

    /// The bounds for requests that bring their own limit.
    pub fn ad_hoc(&self) -> &AdHoc {
        &self.ad_hoc
    }

    /// What to ask the store for this request.
    ///
    /// Fails if the request is not acceptable, or asks for more than an enforced rule will ever allow.
    pub fn ask(&self, request: &Request<'_>) -> Result<Ask, Error> {
        let permits = request.permits;
        if permits > MAX_LIMIT {
            return Err(too_many_permits(permits));
        }
        let mut ask = match &request.subject {
            Subject::Attributes(attributes) => {
                check_attributes(attributes)?;
                let numbered = self.rules.iter().zip(0u32..);
                // Rules have different names, so their keys differ.
                Ask::distinct(numbered.filter_map(|(rule, i)| rule.check(attributes, permits, i)))
            }
            Subject::Resource { name, limit, window } => {
                Ask::one(self.ad_hoc.check(name, *limit, *window, permits)?)?
            }
        };
        for check in ask.checks() {
            if check.enforced && check.cost > check.quota.capacity() {
                let rule = self.rule(check.rule).name();
                return Err(Error::too_costly(rule, permits, check.quota.capacity()));
            }
        }
        if let Some(id) = &request.id {
            ask = ask.with_id(id.clone());
        }
        Ok(ask)
    }

    /// The rule that a check of an [`Ask`] made here came from.
    pub(crate) fn rule(&self, number: u32) -> &Rule {
        self.rules.get(number as usize).unwrap_or(&self.own_limit)
    }
}
