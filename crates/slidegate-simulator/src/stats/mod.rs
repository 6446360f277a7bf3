//! What became of requests, rule by rule, in bounded memory.

mod keys;
mod timeline;
mod trailing_window;

use slidegate::{
    Algorithm, Count, Decision, Key, Limit, Micros, Mode, Quota, RequestId, Rules, ShadowChange,
};

pub(crate) use self::keys::{Hit, KeyHasher, Keys, RuleKeys, Spread};
pub(crate) use self::timeline::{Bucket, Timeline};
use self::trailing_window::Trailing;

/// Counts what a lane decides.
pub(crate) struct Stats {
    pub(crate) requests: u64,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// Requests that no counting rule applies to; `unmatched: deny` denies those that no rule matches.
    pub(crate) unruled: u64,
    /// One a rule, in their order, and one for requests that bring their own limit.
    pub(crate) rows: Vec<Row>,
    pub(crate) keys: Keys,
    trailing: Trailing,
}

/// What became of the requests that one rule applied to.
#[derive(Debug)]
pub(crate) struct Row {
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
    pub(crate) worst: Option<Worst>,
}

/// The most that was admitted to one key in any window, compared with its limit.
#[derive(Clone, Debug)]
pub(crate) struct Worst {
    pub(crate) key: Key,
    pub(crate) admitted: u64,
    pub(crate) limit: u64,
    /// When the window ended.
    pub(crate) at: Micros,
}

impl Worst {
    /// So much more than the limit.
    pub(crate) fn over(&self) -> u64 {
        self.admitted.saturating_sub(self.limit)
    }

    fn is_less(&self, admitted: u64, limit: u64) -> bool {
        u128::from(self.admitted) * u128::from(limit) < u128::from(admitted) * u128::from(self.limit)
    }
}

impl Stats {
    /// Remembers up to `max_keys` keys one by one. Traffic begins then, or with the first request.
    pub(crate) fn new(rules: &Rules, max_keys: usize, begin: Option<Micros>) -> Self {
        let rows = rules.iter().map(|rule| {
            Row::new(rule.name(), rule.in_mode(), rule.is_limited().then(|| rule.quota()), begin)
        });
        let own = Row::new(slidegate::AD_HOC, Mode::Enforce, None, begin);
        Stats {
            requests: 0,
            allowed: 0,
            denied: 0,
            unruled: 0,
            rows: rows.chain([own]).collect(),
            keys: Keys::new(max_keys),
            trailing: Trailing::new(max_keys),
        }
    }

    /// Adds what was decided at `at`.
    pub(crate) fn add(&mut self, at: Micros, decision: &Decision) {
        let allowed = decision.allowed();
        self.requests += 1;
        *(if allowed { &mut self.allowed } else { &mut self.denied }) += 1;
        let mut met = false;
        let mut denied = false;
        let own = self.rows.len() - 1;
        for limit in decision.limits() {
            met = true;
            let place = limit.index().min(own);
            let denies = limit.outcome().denies();
            let watches = limit.mode() == Mode::Shadow;
            // The first that denies ends it; what comes after is only reported. One that watches says what it would do.
            let by_this = denies && (watches || !denied);
            denied |= denies && !watches;
            let level = level(&mut self.trailing, at, &limit, allowed, decision.request_id());
            let row = &mut self.rows[place];
            row.add(at, &limit, allowed, by_this, level);
            if watches {
                row.watch(decision.shadow_change(&limit));
            }
            self.keys.add(limit.key(), place, at, allowed, by_this);
        }
        self.unruled += u64::from(!met);
    }

    /// Whether some keys were too many to be watched one by one.
    pub(crate) fn is_short(&self) -> bool {
        self.keys.untracked > 0 || self.trailing.is_short()
    }
}

/// What was admitted to the key in the window that ends now; none if that is not known.
fn level(
    trailing: &mut Trailing,
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

impl Row {
    fn new(rule: &str, mode: Mode, quota: Option<Quota>, begin: Option<Micros>) -> Self {
        Row {
            rule: rule.to_owned(),
            mode,
            quota,
            asked: 0,
            allowed: 0,
            denied: 0,
            newly_denied: 0,
            newly_allowed: 0,
            timeline: Timeline::beginning(begin),
            worst: None,
        }
    }

    #[cold]
    fn watch(&mut self, change: Option<ShadowChange>) {
        match change {
            Some(ShadowChange::NewlyDenied) => self.newly_denied += 1,
            Some(ShadowChange::NewlyAllowed) => self.newly_allowed += 1,
            None => {}
        }
    }

    fn add(&mut self, at: Micros, limit: &Limit<'_>, allowed: bool, by_this: bool, level: Option<u64>) {
        self.asked += 1;
        self.allowed += u64::from(allowed && !by_this);
        self.denied += u64::from(by_this);
        // A climbing limit is what it is at the moment; that of a bucket is its rate, whatever its burst.
        let most = match limit.quota().algorithm() {
            Algorithm::TokenBucket { .. } => limit.quota().limit(),
            _ => limit.limit(),
        };
        self.timeline.add(at, allowed && !by_this, by_this, level.unwrap_or_default(), most);
        if let Some(admitted) = level
            && admitted > 0
            && self.worst.as_ref().is_none_or(|worst| worst.is_less(admitted, most))
        {
            self.worst = Some(Worst { key: limit.key().clone(), admitted, limit: most, at });
        }
    }
}
