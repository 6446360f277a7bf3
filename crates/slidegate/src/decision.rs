//! The answer: allowed or not, by which rule, and when it will be.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::reservation::ChargeRef;
use crate::rules::{DEFAULT_CODE, Mode, Rules, Unmatched};
use crate::{
    Check, Checks, Count, Entry, Error, Key, Micros, Outcome, Precision, Quota, Request, RequestId,
    Reservation, Source, Verdict, Verdicts,
};

/// The answer to one request.
#[derive(Clone, Debug)]
pub struct Decision {
    rules: Arc<Rules>,
    pub(crate) ask: Checks,
    pub(crate) reading: Verdicts,
}

impl Decision {
    #[inline(always)]
    pub(crate) fn new(rules: Arc<Rules>, ask: Checks, reading: Verdicts) -> Self {
        Decision { rules, ask, reading }
    }

    /// One that is yet to be made. It is large, so it is filled where it stays.
    #[inline(always)]
    pub(crate) fn unmade(rules: Arc<Rules>, ask: Checks) -> Self {
        let reading = Verdicts { at: Micros::ZERO, source: Source::NoRule, verdicts: SmallVec::new() };
        Decision { rules, ask, reading }
    }

    /// Asks what `request` does by its rules. Nothing was asked yet.
    #[inline(always)]
    pub(crate) fn fill_ask(&mut self, request: &Request<'_>) -> Result<(), Error> {
        self.rules.ask_in(&mut self.ask, request)
    }

    /// Id of the request, if it has one.
    pub fn request_id(&self) -> Option<&RequestId> {
        self.ask.id()
    }

    /// Whether the request may go on.
    pub fn allowed(&self) -> bool {
        self.denial().is_none() && !self.denied_as_unmatched()
    }

    /// The policy for requests that no rule matches, if this is one of them; none if a rule matches.
    pub fn unmatched(&self) -> Option<Unmatched> {
        self.ask.is_unmatched().then(|| self.rules.unmatched())
    }

    #[inline]
    fn denied_as_unmatched(&self) -> bool {
        self.ask.is_unmatched() && self.rules.unmatched() == Unmatched::Deny
    }

    /// The rule that denied: the first that did, in the order of the rules. None also if the request was denied because
    /// no rule matches it: see [`Decision::unmatched`].
    pub fn denied_by(&self) -> Option<&str> {
        self.denial().map(|limit| limit.rule())
    }

    /// The denying rule's code; 0 if the request was allowed, [`DEFAULT_CODE`] if it was denied because no rule matches
    /// it.
    pub fn code(&self) -> u32 {
        match self.denial() {
            Some(limit) => self.rules.rule(limit.check.rule).code.get(),
            None if self.denied_as_unmatched() => DEFAULT_CODE.get(),
            None => 0,
        }
    }

    /// The smallest wait after which this request would be allowed, if nobody else asks; zero if it was. A lower bound if
    /// [`Decision::retry_after_is_exact`] says so.
    ///
    /// Wait, not when: clocks differ.
    pub fn retry_after(&self) -> Micros {
        if self.allowed() {
            return Micros::ZERO;
        }
        if self.denied_as_unmatched() {
            // Waiting does not help: as long as for a rule that blocks.
            return Quota::STAND_IN.horizon();
        }
        let enforced = self.limits().filter(|limit| limit.check.enforced);
        enforced.map(|limit| limit.retry_after()).max().unwrap_or_default()
    }

    /// Whether [`Decision::retry_after`] is exact. If not, it is a lower bound: the request may still be denied after that wait.
    pub fn retry_after_is_exact(&self) -> bool {
        self.allowed()
            || self.limits().filter(|limit| limit.check.enforced).all(|limit| limit.retry_after_is_exact())
    }

    /// Every limit that applies and was looked at, in the order of the rules. A denial that was known already
    /// (see [`Source::DenyCache`] and [`Source::Blocked`]) lists only the limit that it is by.
    pub fn limits(&self) -> impl Iterator<Item = Limit<'_>> {
        let pairs = self.ask.checks().iter().zip(&self.reading.verdicts);
        let judged = pairs.filter(|(_, verdict)| verdict.outcome != Outcome::Unjudged);
        judged.map(|(check, verdict)| Limit { rules: &self.rules, check, verdict })
    }

    /// Says how long it took to serve the request, and whether that went well: rules that follow the load go by it.
    pub fn report(&self, latency: Duration, ok: bool) {
        self.rules.report(&self.ask, latency, ok);
    }

    /// What [`Limiter::settle`](crate::Limiter::settle) needs to refund or correct this admission; none if
    /// nothing was charged. An attempt stays an attempt: rules that count attempts are not settled.
    pub fn reservation(&self) -> Option<Reservation> {
        Reservation::new(self.charges().map(|charge| charge.to_charge()).collect())
    }

    /// What can be settled of it.
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

    /// Whether permits are held from now on, to be given back when they are not needed any more: see
    /// [`Limiter::release`](crate::Limiter::release).
    pub fn holds(&self) -> bool {
        self.allowed()
            && self
                .limits()
                .any(|limit| limit.verdict.outcome == Outcome::Charged && limit.check.quota.is_held())
    }

    /// The rules it was made by.
    pub fn rules(&self) -> &Arc<Rules> {
        &self.rules
    }

    /// Who decided.
    pub fn source(&self) -> Source {
        self.reading.source
    }

    /// The instant, by the store's clock, at which it was decided; zero if it was not asked.
    pub fn at(&self) -> Micros {
        self.reading.at
    }

    fn denial(&self) -> Option<Limit<'_>> {
        self.limits().find(|limit| limit.check.enforced && limit.verdict.outcome.denies())
    }
}

/// One limit that applied to a request, after the decision.
#[derive(Clone, Copy, Debug)]
pub struct Limit<'d> {
    rules: &'d Rules,
    check: &'d Check,
    verdict: &'d Verdict,
}

impl<'d> Limit<'d> {
    /// The rule's name.
    pub fn rule(&self) -> &'d str {
        self.rules.rule(self.check.rule).name()
    }

    /// The rule's place among [`Decision::rules`], from 0, so that whoever counts by rule need not look for its name. Of
    /// a limit that the request brought itself, which is no rule's, one that is past them all: `u32::MAX`.
    pub fn index(&self) -> usize {
        self.check.rule as usize
    }

    /// What the request uses of it, if it is charged.
    pub fn cost(&self) -> u64 {
        self.check.cost
    }

    /// Whether the rule only watches.
    pub fn mode(&self) -> Mode {
        if self.check.enforced { Mode::Enforce } else { Mode::Shadow }
    }

    /// The rule that its own is a [shadow of](crate::Rule::shadow_of).
    pub fn shadow_of(&self) -> Option<&'d str> {
        self.rules.rule(self.check.rule).shadowed()
    }

    /// What the count belongs to.
    pub fn key(&self) -> &'d Key {
        &self.check.key
    }

    /// The quota it was judged by, overrides included.
    pub fn quota(&self) -> Quota {
        self.check.quota
    }

    /// What became of it. Of a shadow rule, what would have.
    pub fn outcome(&self) -> Outcome {
        self.verdict.outcome
    }

    /// The most that can be in use.
    pub fn limit(&self) -> u64 {
        self.verdict.limit
    }

    /// Permits in use, this request included if it was charged.
    pub fn used(&self) -> u64 {
        self.verdict.used
    }

    /// As what it was recorded, if it was charged. Once more the same for a request that was charged before, under its id.
    pub fn entry(&self) -> Option<Entry> {
        (self.outcome() == Outcome::Charged).then_some(self.verdict.entry)
    }

    /// Permits left.
    pub fn remaining(&self) -> u64 {
        self.verdict.remaining()
    }

    /// The smallest wait after which this request fits here, if nobody else asks.
    pub fn retry_after(&self) -> Micros {
        self.verdict.retry_after
    }

    /// Whether [`Limit::retry_after`] is exact. If not, it is a lower bound.
    pub fn retry_after_is_exact(&self) -> bool {
        self.verdict.precision == Precision::Exact
    }

    /// The wait after which nothing is in use here, if nobody asks.
    pub fn reset_after(&self) -> Micros {
        self.verdict.reset_after
    }
}
