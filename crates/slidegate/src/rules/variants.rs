//! The same rule under other conditions: what would it have done?

use super::{Mode, Pattern, Rule};
use crate::{Algorithm, Encoding, Error, Quota};

impl Rule {
    /// What attributes must be for it to apply, beside that those of its key must be there.
    pub fn conditions(&self) -> impl Iterator<Item = (&str, &[Pattern])> {
        self.conditions.iter().map(|(name, patterns)| (name.as_str(), patterns.as_slice()))
    }

    /// The same rule and its overrides, counted by another algorithm, chosen for each of their quotas. What belongs to
    /// how it was counted before, a lease or an encoding, is left out.
    ///
    /// ```
    /// use slidegate::{Algorithm, Quota, Rule};
    /// let exact = Rule::new("api", Quota::per_second(100)?)?;
    /// let bucket = exact.counted_by(|quota| Algorithm::TokenBucket { burst: quota.limit() })?;
    /// assert_eq!(bucket.quota().capacity(), 100);
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    pub fn counted_by(mut self, algorithm: impl Fn(&Quota) -> Algorithm) -> Result<Self, Error> {
        let counted = |quota: Quota| quota.with_algorithm(algorithm(&quota));
        self.quota = counted(self.quota)?;
        for quota in self.overrides.values_mut().chain(self.spelled_overrides.values_mut()) {
            *quota = counted(*quota)?;
        }
        self.encoding = Encoding::default();
        self.lease = None;
        Ok(self)
    }

    /// A shadow of this rule under another name and quota: it counts the same requests by the same key, and denies
    /// none. What the rule has to do with others, groups and replacements, is left out.
    pub fn shadow(&self, name: &str, quota: Quota) -> Result<Self, Error> {
        let mut shadow = Rule::new(name, quota)?.mode(Mode::Shadow).keyed_as(self);
        shadow.conditions = self.conditions.clone();
        shadow.spelled = self.spelled.clone();
        shadow.only = self.only;
        Ok(shadow)
    }
}
