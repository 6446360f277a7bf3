//! Shadows: rules that only observe, next to the rule that they would replace.

use std::collections::HashSet;

use super::rule::{Mode, Rule};
use crate::Error;
#[cfg(feature = "yaml")]
use crate::common::yaml::{Fields, Node, Reader};

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
        if rule == self.name {
            return Err(Error::invalid(format!("rule `{rule}` cannot be a shadow of itself")));
        }
        self.shadow_of = Some(rule.to_owned());
        self.mode = Mode::Shadow;
        Ok(self)
    }

    /// Returns the rule that this rule is a shadow of.
    pub fn shadowed(&self) -> Option<&str> {
        self.shadow_of.as_deref()
    }
}

/// Checks that every rule with a shadow exists.
pub(super) fn check(rules: &[Rule], names: &HashSet<&str>) -> Result<(), Error> {
    let mut shadowed = rules.iter().filter_map(Rule::shadowed);
    shadowed.find(|name| !names.contains(name)).map_or(Ok(()), |name| Err(no_such_rule(name)))
}

pub(super) fn no_such_rule(name: &str) -> Error {
    Error::invalid(format!("shadow-of names `{name}`, which is no rule"))
}

/// Reads the field `shadow-of`. If a mode is given, it must be `shadow` or `off`. The name is checked when all names are
/// known.
#[cfg(feature = "yaml")]
pub(super) fn read<'n>(
    fields: &Fields<'n>,
    reader: &mut Reader,
    rule: Rule,
    mode: Option<Mode>,
    shadowed: &mut Vec<(&'n Node, &'n str)>,
) -> Option<Rule> {
    let given = |rule: Rule| match mode {
        Some(mode) => rule.mode(mode),
        None => rule,
    };
    let Some(node) = fields.get("shadow-of") else { return Some(given(rule)) };
    let name = reader.text(node, "shadow-of")?;
    if mode == Some(Mode::Enforce) {
        reader.problem(node, "`shadow-of` is for rules that only watch: mode must be shadow or off");
        return None;
    }
    shadowed.push((node, name));
    reader.accept(node, rule.shadow_of(name)).map(given)
}
