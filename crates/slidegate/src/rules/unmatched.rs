//! Policy for requests that no rule matches.

use super::Rules;

crate::words! {
    /// Policy for a request that no rule matches. A mistyped attribute causes such requests, so that a limit silently has no
    /// effect.
    ///
    /// A rule matches a request if it applies to it, even if it is a shadow, unlimited, or replaced by another rule that
    /// applies. A rule that is off matches nothing.
    pub enum Unmatched default Warn {
        /// The request is allowed.
        Allow = "allow",
        /// The request is allowed. A server also logs the names of its attributes, at most once a minute.
        Warn = "warn",
        /// The request is denied, with code 429 and the source `no-rule`.
        Deny = "deny",
    }
}

impl Rules {
    /// Sets the policy for requests that no rule matches.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use slidegate::{Limiter, MemoryStore, Quota, Request, Rule, Rules, Unmatched};
    /// let rules = Rules::new([Rule::new("per-user", Quota::per_minute(5)?)?.per(["user"])?])?;
    /// let limiter = Limiter::new(MemoryStore::new(), rules.with_unmatched(Unmatched::Deny));
    /// assert!(limiter.acquire(Request::new([("user", "alice")])).await?.allowed());
    /// assert!(!limiter.acquire(Request::new([("usr", "alice")])).await?.allowed());
    /// # Ok::<(), slidegate::Error>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn with_unmatched(mut self, unmatched: Unmatched) -> Self {
        self.unmatched = Some(unmatched);
        self
    }

    /// Sets the policy, unless there is one already.
    #[must_use]
    pub fn or_unmatched(mut self, unmatched: Unmatched) -> Self {
        self.unmatched.get_or_insert(unmatched);
        self
    }

    /// Returns the policy for requests that no rule matches.
    #[inline]
    pub fn unmatched(&self) -> Unmatched {
        self.unmatched.unwrap_or_default()
    }

    /// Returns true if a policy was given.
    pub fn has_unmatched(&self) -> bool {
        self.unmatched.is_some()
    }
}
