//! Variants of a rule for comparisons: another algorithm, or a shadow with another quota.

use super::{Mode, Pattern, Rule};
use crate::{Algorithm, Encoding, Error, Quota};

impl Rule {
    /// Returns the conditions on attributes. In addition, the key attributes must be present.
    pub fn conditions(&self) -> impl Iterator<Item = (&str, &[Pattern])> {
        self.conditions.iter().map(|(name, patterns)| (name.as_str(), patterns.as_slice()))
    }

    /// Returns the same rule and its overrides with another algorithm, chosen for each of their quotas. A lease and an encoding
    /// are dropped, because they belong to the previous algorithm.
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
        for quota in self.overrides.values_mut().chain(self.normalized_overrides.values_mut()) {
            *quota = counted(*quota)?;
        }
        self.encoding = Encoding::default();
        self.lease = None;
        Ok(self)
    }

    /// Returns a shadow of this rule with another name and quota: it counts the same requests by the same key, and denies none.
    /// Groups and replacements are dropped.
    pub fn shadow(&self, name: &str, quota: Quota) -> Result<Self, Error> {
        let mut shadow = Rule::new(name, quota)?.mode(Mode::Shadow).keyed_as(self);
        shadow.conditions = self.conditions.clone();
        shadow.normalized_conditions = self.normalized_conditions.clone();
        shadow.only = self.only;
        Ok(shadow)
    }
}
