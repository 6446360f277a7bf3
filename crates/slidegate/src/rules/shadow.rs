//! A rule that only watches, beside the one that it would replace.

use std::collections::HashSet;

use super::rule::{Mode, Rule};
use crate::Error;
#[cfg(feature = "yaml")]
use crate::common::yaml::{Fields, Node, Reader};

impl Rule {
    /// Makes it a [shadow](Mode::Shadow) of another rule, which it is tried out to replace: it counts what it would have
    /// admitted in its place, also what the other one denies. For that it is judged apart, right after the rest and by a
    /// second call to the store; [`acquire_together`](crate::Limiter::acquire_together) alone takes it for a plain shadow.
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

    /// The rule that it is a shadow of.
    pub fn shadowed(&self) -> Option<&str> {
        self.shadow_of.as_deref()
    }
}

/// Whether every rule that has a shadow is among those with these names.
pub(super) fn check(rules: &[Rule], names: &HashSet<&str>) -> Result<(), Error> {
    let mut shadowed = rules.iter().filter_map(Rule::shadowed);
    shadowed.find(|name| !names.contains(name)).map_or(Ok(()), |name| Err(no_such_rule(name)))
}

pub(super) fn no_such_rule(name: &str) -> Error {
    Error::invalid(format!("shadow-of names `{name}`, which is no rule"))
}

/// `shadow-of` in a file, of a rule whose mode is that, if it is given. Whether there is such a rule is checked when all
/// names are known.
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
