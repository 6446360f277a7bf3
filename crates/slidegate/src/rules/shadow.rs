//! Shadows: rules that only observe, next to the rule that they would replace.

use std::collections::HashSet;

use super::rule::{Mode, Rule};
use super::selection::no_such_rule;
use crate::Error;

impl Rule {
    /// Makes this rule a [shadow](Mode::Shadow) of another rule, to test it as a replacement: it counts the requests that it
    /// would have admitted in place of that rule, also those that the other rule denies. For that it is evaluated separately,
    /// after the other rules and by a second call to the store. Only
    /// [`acquire_together`](crate::Limiter::acquire_together) treats it as a plain shadow.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use slidegate::{Limiter, MemoryStore, Quota, Rule, Rules};
    /// let rules = Rules::new([
    ///     Rule::new("now", Quota::per_hour(1)?)?,
    ///     Rule::new("soon", Quota::per_hour(3)?)?.shadow_of("now")?,
    /// ])?;
    /// let limiter = Limiter::new(MemoryStore::new(), rules);
    /// for used in [1, 2, 3, 3] {
    ///     let decision = limiter.acquire("alice").await?;
    ///     assert_eq!(decision.limits().last().unwrap().used(), used);
    /// }
    /// # Ok::<(), slidegate::Error>(()) }).unwrap();
    /// ```
    pub fn shadow_of(mut self, rule: &str) -> Result<Self, Error> {
        ensure!(rule != self.name, "rule `{rule}` cannot be a shadow of itself");
        self.shadow_of = Some(rule.to_owned());
        self.mode = Mode::Shadow;
        Ok(self)
    }

    /// Returns the rule that this rule is a shadow of.
    pub fn shadowed(&self) -> Option<&str> {
        self.shadow_of.as_deref()
    }
}

/// Checks for every shadow that the set contains the shadowed rule.
pub(super) fn check(rules: &[Rule], names: &HashSet<&str>) -> Result<(), Error> {
    let mut shadowed = rules.iter().filter_map(Rule::shadowed);
    shadowed.find(|name| !names.contains(name)).map_or(Ok(()), |name| Err(no_such_rule("shadow-of", name)))
}
