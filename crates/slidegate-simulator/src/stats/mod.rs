//! Statistics of the decisions of a scenario, by rule and by key, in bounded memory.

mod keys;
mod timeline;
mod trailing_window;

use slidegate::{Count, Decision, Key, Limit, Micros, Mode, Quota, RequestId, Rules, ShadowChange};

pub(crate) use self::keys::{DenialDistribution, DeniedKey, KeyHasher, KeyTable, RuleKeys};
pub(crate) use self::timeline::{Bucket, Timeline};
use self::trailing_window::TrailingWindows;

/// Statistics of one scenario.
pub(crate) struct Stats {
    pub(crate) requests: u64,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// Requests that no counting rule applies to; `unmatched: deny` denies those that no rule matches.
    pub(crate) unruled: u64,
    /// Statistics of each rule, in the order of the rules. The last entry is for requests with an ad-hoc limit.
    pub(crate) rules: Vec<RuleStats>,
    pub(crate) keys: KeyTable,
    trailing: TrailingWindows,
}

/// Statistics of the requests that one rule applied to.
#[derive(Debug)]
pub(crate) struct RuleStats {
    pub(crate) rule: String,
    pub(crate) mode: Mode,
    /// Quota of the rule, without overrides; none if the rule has no limit, and for ad-hoc limits.
    pub(crate) quota: Option<Quota>,
    pub(crate) asked: u64,
    /// Requests that all rules allowed.
    pub(crate) allowed: u64,
    /// Requests that this rule denied. For a shadow rule, requests that it would have denied.
    pub(crate) denied: u64,
    /// For a shadow rule, requests that would be newly denied or newly allowed if it were enforced.
    pub(crate) newly_denied: u64,
    pub(crate) newly_allowed: u64,
    pub(crate) timeline: Timeline,
    pub(crate) worst: Option<WorstWindow>,
}

/// The window with the most admitted permits, relative to its limit.
#[derive(Clone, Debug)]
pub(crate) struct WorstWindow {
    pub(crate) key: Key,
    pub(crate) admitted: u64,
    pub(crate) limit: u64,
    /// End of the window.
    pub(crate) at: Micros,
}

impl WorstWindow {
    /// Returns the number of permits admitted over the limit.
    pub(crate) fn over(&self) -> u64 {
        self.admitted.saturating_sub(self.limit)
    }

    fn is_below(&self, admitted: u64, limit: u64) -> bool {
        u128::from(self.admitted) * u128::from(limit) < u128::from(admitted) * u128::from(self.limit)
    }
}

impl Stats {
    /// Creates empty statistics with up to `max_keys` keys. `begin` is the start of the traffic; if it is not known, the first
    /// request is.
    pub(crate) fn new(rule_set: &Rules, max_keys: usize, begin: Option<Micros>) -> Self {
        let rules = rule_set.iter().map(|rule| {
            RuleStats::new(rule.name(), rule.in_mode(), rule.is_limited().then(|| rule.quota()), begin)
        });
        let ad_hoc = RuleStats::new(slidegate::rules::AD_HOC, Mode::Enforce, None, begin);
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

    /// Adds a decision that was made at `at`.
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
            // A denial is attributed to the first enforced rule that denies. A shadow rule always counts its own
            // denials.
            let denied_here = denies && (is_shadow || !denied);
            denied |= denies && !is_shadow;
            let admitted = admitted_in_window(&mut self.trailing, at, &limit, allowed, decision.request_id());
            let rule_stats = &mut self.rules[index];
            rule_stats.add(at, &limit, allowed, denied_here, admitted);
            if is_shadow {
                rule_stats.add_shadow_change(decision.shadow_change(&limit));
            }
            let wait = denied_here.then(|| limit.retry_after());
            self.keys.add(limit.key(), index, at, allowed, wait);
        }
        self.unruled += u64::from(!matched);
    }

    /// Returns true if there were too many keys to have exact statistics of all.
    pub(crate) fn is_truncated(&self) -> bool {
        self.keys.untracked > 0 || self.trailing.is_truncated()
    }
}

/// Returns the permits admitted to the key in the window that ends now; none if there are too many keys to measure.
fn admitted_in_window(
    trailing: &mut TrailingWindows,
    at: Micros,
    limit: &Limit<'_>,
    allowed: bool,
    id: Option<&RequestId>,
) -> Option<u64> {
    let quota = limit.quota();
    // For the exact window, the permits in use are the permits admitted.
    if quota.algorithm().is_exact() && quota.count() == Count::Admitted {
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
        // The limit during a warm-up is the current one. The limit of a token bucket is its rate per window, without its burst.
        let bucket = limit.quota().algorithm().burst().is_some();
        let limit_now = if bucket { limit.quota().limit() } else { limit.limit() };
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
