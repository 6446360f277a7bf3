//! Effect that enforcing a shadow rule would have on one decision.

use crate::{Decision, Limit, Mode};

crate::words! {
    /// Difference between a decision and the decision if one of its shadow rules were enforced.
    pub enum ShadowChange {
        /// The request was allowed, and the shadow rule would have denied it.
        NewlyDenied = "newly-denied",
        /// The request was denied only by the rule that this one is a shadow of, and the shadow rule would have allowed it.
        NewlyAllowed = "newly-allowed",
    }
}

impl Decision {
    /// Returns how this decision would change if the shadow rule of `limit` were enforced. A rule that is a
    /// [shadow of](crate::Rule::shadow_of) another rule would be enforced in place of that rule. Returns `None` if the
    /// decision would be the same.
    ///
    /// `limit` must be one of [`Decision::limits`], in [`Mode::Shadow`].
    #[cold]
    pub fn shadow_change(&self, limit: &Limit<'_>) -> Option<ShadowChange> {
        let denies = limit.outcome().denies();
        if self.allowed() {
            return denies.then_some(ShadowChange::NewlyDenied);
        }
        let replaced = limit.shadow_of().filter(|_| !denies)?;
        let denied = |limit: &Limit<'_>| limit.mode() == Mode::Enforce && limit.outcome().denies();
        let alone = self.limits().filter(denied).all(|limit| limit.rule() == replaced);
        alone.then_some(ShadowChange::NewlyAllowed)
    }
}
