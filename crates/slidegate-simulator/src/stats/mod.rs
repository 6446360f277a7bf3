//! What became of requests, rule by rule, in bounded memory.

mod keys;
mod timeline;
mod trailing_window;

use slidegate::{
    Algorithm, Count, Decision, Key, Limit, Micros, Mode, Quota, RequestId, Rules, ShadowChange,
};

pub(crate) use self::keys::{DenialDistribution, DeniedKey, KeyHasher, KeyTable, RuleKeys};
pub(crate) use self::timeline::{Bucket, Timeline};
use self::trailing_window::TrailingWindows;

/// Counts what a lane decides.
pub(crate) struct Stats {
    pub(crate) requests: u64,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// Requests that no counting rule applies to; `unmatched: deny` denies those that no rule matches.
    pub(crate) unruled: u64,
    /// One a rule, in their order, and one for requests that bring their own limit.
    pub(crate) rules: Vec<RuleStats>,
    pub(crate) keys: KeyTable,
    trailing: TrailingWindows,
}

/// What became of the requests that one rule applied to.
#[derive(Debug)]
pub(crate) struct RuleStats {
    pub(crate) rule: String,
    pub(crate) mode: Mode,
    /// Of the rule, overrides aside; none for requests that bring their own limit, or where there is none.
    pub(crate) quota: Option<Quota>,
    pub(crate) asked: u64,
    /// Of those, the ones that were allowed by all rules.
    pub(crate) allowed: u64,
    /// The ones that this rule denied; of a shadow, would have.
    pub(crate) denied: u64,
    /// Of a shadow, what would be otherwise if it were enforced.
    pub(crate) newly_denied: u64,
    pub(crate) newly_allowed: u64,
    pub(crate) timeline: Timeline,
    pub(crate) worst: Option<WorstWindow>,
}

/// The most that was admitted to one key in any window, compared with its limit.
#[derive(Clone, Debug)]
pub(crate) struct WorstWindow {
    pub(crate) key: Key,
    pub(crate) admitted: u64,
    pub(crate) limit: u64,
    /// When the window ended.
    pub(crate) at: Micros,
}

impl WorstWindow {
    /// So much more than the limit.
    pub(crate) fn over(&self) -> u64 {
        self.admitted.saturating_sub(self.limit)
    }

    fn is_below(&self, admitted: u64, limit: u64) -> bool {
        u128::from(self.admitted) * u128::from(limit) < u128::from(admitted) * u128::from(self.limit)
    }
}

impl Stats {
    /// Remembers up to `max_keys` keys one by one. Traffic begins then, or with the first request.
    pub(crate) fn new(rule_set: &Rules, max_keys: usize, begin: Option<Micros>) -> Self {
        let rules = rule_set.iter().map(|rule| {
            RuleStats::new(rule.name(), rule.in_mode(), rule.is_limited().then(|| rule.quota()), begin)
        });
        let ad_hoc = RuleStats::new(slidegate::AD_HOC, Mode::Enforce, None, begin);
        Stats {
            requests: 0,
            allowed: 0,
            denied: 0,
            unruled: 0,
            rules: rules.chain([ad_hoc]).collect(),
            keys: KeyTable::new(max_keys),
            trailing: TrailingWindows::new(max_keys),
        }
    }

    /// Adds what was decided at `at`.
    pub(crate) fn add(&mut self, at: Micros, decision: &Decision) {
        let allowed = decision.allowed();
        self.requests += 1;
        *(if allowed { &mut self.allowed } else { &mut self.denied }) += 1;
        let mut matched = false;
        let mut denied = false;
        let ad_hoc = self.rules.len() - 1;
        for limit in decision.limits() {
            matched = true;
            let index = limit.index().min(ad_hoc);
            let denies = limit.outcome().denies();
            let is_shadow = limit.mode() == Mode::Shadow;
            // The first that denies ends it; what comes after is only reported. One that watches says what it would do.
            let denied_here = denies && (is_shadow || !denied);
            denied |= denies && !is_shadow;
            let admitted = admitted_in_window(&mut self.trailing, at, &limit, allowed, decision.request_id());
            let rule_stats = &mut self.rules[index];
            rule_stats.add(at, &limit, allowed, denied_here, admitted);
            if is_shadow {
                rule_stats.add_shadow_change(decision.shadow_change(&limit));
            }
            self.keys.add(limit.key(), index, at, allowed, denied_here);
        }
        self.unruled += u64::from(!matched);
    }

    /// Whether some keys were too many to be watched one by one.
    pub(crate) fn is_truncated(&self) -> bool {
        self.keys.untracked > 0 || self.trailing.is_truncated()
    }
}

/// What was admitted to the key in the window that ends now; none if that is not known.
fn admitted_in_window(
    trailing: &mut TrailingWindows,
    at: Micros,
    limit: &Limit<'_>,
    allowed: bool,
    id: Option<&RequestId>,
) -> Option<u64> {
    let quota = limit.quota();
    // What the exact window has in use is what it admitted.
    if quota.algorithm() == Algorithm::SlidingWindow && quota.count() == Count::Admitted {
        return Some(limit.used());
    }
    trailing.add(limit.key(), quota.window(), at, limit.entry().filter(|_| allowed), id)
}

impl RuleStats {
    fn new(rule: &str, mode: Mode, quota: Option<Quota>, begin: Option<Micros>) -> Self {
        RuleStats {
            rule: rule.to_owned(),
            mode,
            quota,
            asked: 0,
            allowed: 0,
            denied: 0,
            newly_denied: 0,
            newly_allowed: 0,
            timeline: Timeline::starting_at(begin),
            worst: None,
        }
    }

    #[cold]
    fn add_shadow_change(&mut self, change: Option<ShadowChange>) {
        match change {
            Some(ShadowChange::NewlyDenied) => self.newly_denied += 1,
            Some(ShadowChange::NewlyAllowed) => self.newly_allowed += 1,
            None => {}
        }
    }

    fn add(
        &mut self,
        at: Micros,
        limit: &Limit<'_>,
        allowed: bool,
        denied_here: bool,
        admitted_in_window: Option<u64>,
    ) {
        self.asked += 1;
        self.allowed += u64::from(allowed && !denied_here);
        self.denied += u64::from(denied_here);
        // A climbing limit is what it is at the moment; that of a bucket is its rate, whatever its burst.
        let limit_now = match limit.quota().algorithm() {
            Algorithm::TokenBucket { .. } => limit.quota().limit(),
            _ => limit.limit(),
        };
        self.timeline.add(
            at,
            allowed && !denied_here,
            denied_here,
            admitted_in_window.unwrap_or_default(),
            limit_now,
        );
        if let Some(admitted) = admitted_in_window
            && admitted > 0
            && self.worst.as_ref().is_none_or(|worst| worst.is_below(admitted, limit_now))
        {
            self.worst = Some(WorstWindow { key: limit.key().clone(), admitted, limit: limit_now, at });
        }
    }
}
