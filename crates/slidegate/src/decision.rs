//! Decisions: allowed or denied, by which rule, and the wait until a retry succeeds.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::reservation::ChargeRef;
use crate::rules::{DEFAULT_CODE, Mode, Rules, Unmatched};
use crate::{
    Check, Checks, Count, Entry, Key, Micros, Outcome, Precision, Quota, RequestId, Reservation, Source,
    Verdict, Verdicts,
};

/// The decision about one request.
#[derive(Clone, Debug)]
pub struct Decision {
    pub(crate) rules: Arc<Rules>,
    pub(crate) checks: Checks,
    pub(crate) verdicts: Verdicts,
}

impl Decision {
    #[inline(always)]
    pub(crate) fn new(rules: Arc<Rules>, checks: Checks, verdicts: Verdicts) -> Self {
        Decision { rules, checks, verdicts }
    }

    /// Creates a decision without verdicts. A `Decision` is large, so it is filled in place instead of moved.
    #[inline(always)]
    pub(crate) fn without_verdicts(rules: Arc<Rules>, checks: Checks) -> Self {
        let verdicts = Verdicts { at: Micros::ZERO, source: Source::NoRule, verdicts: SmallVec::new() };
        Decision { rules, checks, verdicts }
    }

    /// Returns the id of the request, if it has one.
    pub fn request_id(&self) -> Option<&RequestId> {
        self.checks.id()
    }

    /// Returns true if the request may proceed.
    pub fn allowed(&self) -> bool {
        self.denial().is_none() && !self.denied_as_unmatched()
    }

    /// Returns the policy for requests that no rule matches, if this is such a request; `None` if a rule matches.
    pub fn unmatched(&self) -> Option<Unmatched> {
        self.checks.unmatched.then(|| self.rules.unmatched())
    }

    #[inline]
    fn denied_as_unmatched(&self) -> bool {
        self.checks.unmatched && self.rules.unmatched() == Unmatched::Deny
    }

    /// Returns the first rule that denied, in the order of the rules. Also `None` if the request was denied because no rule
    /// matches it: see [`Decision::unmatched`].
    pub fn denied_by(&self) -> Option<&str> {
        self.denial().map(|limit| limit.rule())
    }

    /// Returns the code of the denying rule; 0 if the request was allowed, [`DEFAULT_CODE`] if it was denied because no rule
    /// matches it.
    pub fn code(&self) -> u32 {
        match self.denial() {
            Some(limit) => self.rules.rule(limit.check.rule).code.get(),
            None if self.denied_as_unmatched() => DEFAULT_CODE.get(),
            None => 0,
        }
    }

    /// Returns the shortest wait after which this request would be allowed if no other request arrives; zero if it was allowed.
    /// It is a lower bound unless [`Decision::retry_after_is_exact`] returns true.
    ///
    /// The result is a wait and not an instant, because the clocks of the caller and the store may differ.
    pub fn retry_after(&self) -> Micros {
        if self.allowed() {
            return Micros::ZERO;
        }
        if self.denied_as_unmatched() {
            // Waiting does not help. Return the same wait as for a rule that blocks.
            return Quota::PLACEHOLDER.horizon();
        }
        let enforced = self.limits().filter(|limit| limit.check.enforced);
        enforced.map(|limit| limit.retry_after()).max().unwrap_or_default()
    }

    /// Returns true if [`Decision::retry_after`] is exact. Otherwise it is a lower bound: the request may still be denied after
    /// that wait.
    pub fn retry_after_is_exact(&self) -> bool {
        self.allowed()
            || self.limits().filter(|limit| limit.check.enforced).all(|limit| limit.retry_after_is_exact())
    }

    /// Returns every limit that was evaluated, in the order of the rules. A denial without a call to the store
    /// (see [`Source::DenyCache`] and [`Source::Blocked`]) lists only the limit that denied.
    pub fn limits(&self) -> impl Iterator<Item = Limit<'_>> {
        let pairs = self.checks.as_slice().iter().zip(&self.verdicts.verdicts);
        let evaluated = pairs.filter(|(_, verdict)| verdict.outcome != Outcome::NotEvaluated);
        evaluated.map(|(check, verdict)| Limit { rules: &self.rules, check, verdict })
    }

    /// Reports how long the request took to serve and if it succeeded. Adaptive rules use this.
    pub fn report(&self, latency: Duration, ok: bool) {
        self.rules.report(&self.checks, latency, ok);
    }

    /// Returns the input for [`Limiter::settle`](crate::Limiter::settle), which refunds or corrects this admission; `None` if
    /// nothing was charged. Charges of rules that count attempts are left out: they cannot be settled.
    pub fn reservation(&self) -> Option<Reservation> {
        Reservation::new(self.charges().map(|charge| charge.to_charge()).collect())
    }

    /// Returns the charges that can be settled.
    pub(crate) fn charges(&self) -> impl Iterator<Item = ChargeRef<'_>> {
        let limits = self.allowed().then(|| self.limits()).into_iter().flatten();
        let charged = limits.filter(|limit| {
            limit.verdict.outcome == Outcome::Charged && limit.check.quota.count() == Count::Admitted
        });
        charged.map(|limit| ChargeRef {
            key: &limit.check.key,
            entry: limit.verdict.entry,
            held: limit.check.quota.is_held(),
        })
    }

    /// Returns true if the request now holds permits that should be released when they are no longer needed: see
    /// [`Limiter::release`](crate::Limiter::release).
    pub fn holds(&self) -> bool {
        self.allowed()
            && self
                .limits()
                .any(|limit| limit.verdict.outcome == Outcome::Charged && limit.check.quota.is_held())
    }

    /// Returns the rules that were applied.
    pub fn rules(&self) -> &Arc<Rules> {
        &self.rules
    }

    /// Returns the component that decided.
    pub fn source(&self) -> Source {
        self.verdicts.source
    }

    /// Returns the instant of the decision by the store's clock; zero if the store was not called.
    pub fn at(&self) -> Micros {
        self.verdicts.at
    }

    fn denial(&self) -> Option<Limit<'_>> {
        self.limits().find(|limit| limit.check.enforced && limit.verdict.outcome.denies())
    }
}

/// One limit that applied to a request, with its verdict.
#[derive(Clone, Copy, Debug)]
pub struct Limit<'d> {
    rules: &'d Rules,
    check: &'d Check,
    verdict: &'d Verdict,
}

impl<'d> Limit<'d> {
    /// Returns the name of the rule.
    pub fn rule(&self) -> &'d str {
        self.rules.rule(self.check.rule).name()
    }

    /// Returns the index of the rule in [`Decision::rules`], from 0, so that per-rule statistics need no lookup by name. A limit
    /// that the request gave itself belongs to no rule; its index is `u32::MAX`, which no rule has.
    pub fn index(&self) -> usize {
        self.check.rule as usize
    }

    /// Returns the permits that the request uses if it is charged.
    pub fn cost(&self) -> u64 {
        self.check.cost
    }

    /// Returns [`Mode::Shadow`] if the rule only observes, otherwise [`Mode::Enforce`].
    pub fn mode(&self) -> Mode {
        if self.check.enforced { Mode::Enforce } else { Mode::Shadow }
    }

    /// Returns the rule that this limit's rule is a [shadow of](crate::Rule::shadow_of).
    pub fn shadow_of(&self) -> Option<&'d str> {
        self.rules.rule(self.check.rule).shadowed()
    }

    /// Returns the name of the counter.
    pub fn key(&self) -> &'d Key {
        &self.check.key
    }

    /// Returns the quota that was applied, overrides included.
    pub fn quota(&self) -> Quota {
        self.check.quota
    }

    /// Returns the outcome. For a shadow rule: the outcome if it were enforced.
    pub fn outcome(&self) -> Outcome {
        self.verdict.outcome
    }

    /// Returns the maximum number of permits that may be in use.
    pub fn limit(&self) -> u64 {
        self.verdict.limit
    }

    /// Returns the permits in use, including this request if it was charged.
    pub fn used(&self) -> u64 {
        self.verdict.used
    }

    /// Returns the recorded entry, if the request was charged. A retry under the same id returns the same entry.
    pub fn entry(&self) -> Option<Entry> {
        (self.outcome() == Outcome::Charged).then_some(self.verdict.entry)
    }

    /// Returns the permits left.
    pub fn remaining(&self) -> u64 {
        self.verdict.remaining()
    }

    /// Returns the shortest wait after which this request fits here if no other request arrives.
    pub fn retry_after(&self) -> Micros {
        self.verdict.retry_after
    }

    /// Returns true if [`Limit::retry_after`] is exact. Otherwise it is a lower bound.
    pub fn retry_after_is_exact(&self) -> bool {
        self.verdict.precision == Precision::Exact
    }

    /// Returns the wait after which nothing is in use here if no request arrives.
    pub fn reset_after(&self) -> Micros {
        self.verdict.reset_after
    }
}
