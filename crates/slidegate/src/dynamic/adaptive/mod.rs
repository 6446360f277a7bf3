//! Adaptive limits: the limit of a rule is multiplied by a *factor*, which rises while the server has spare capacity and
//! falls while it is overloaded.
//!
//! | type | role |
//! |---|---|
//! | [`Adaptive`] | Settings in the rule. |
//! | [`AdaptivePolicy`] | The pure part: loads in, a factor out. |
//! | [`FactorCell`] | Present factor of a rule, and the reports since the last step. |
//! | [`AdaptiveController`](crate::AdaptiveController) | Takes one step per second, and gives all processes on one Redis the same factor. |

mod factor_cell;
mod gradient;
#[cfg(feature = "host")]
mod host;
pub(crate) mod load;
mod policy;
mod thresholds;

use std::time::Duration;

pub(crate) use self::factor_cell::AdaptiveState;
#[cfg(feature = "host")]
pub use self::host::Host;
pub use self::load::{HostLoad, Load};
pub use self::policy::AdaptivePolicy;
pub use self::thresholds::Thresholds;
use crate::common::percent::percent;
use crate::error::check_between;
use crate::{Error, Micros};

/// Factor of 100 %: factors are in ten-thousandths of the limit.
pub(crate) const WHOLE: u32 = 10_000;

/// Highest factor: ten times the limit.
pub(crate) const MAX_FACTOR: u32 = 10 * WHOLE;

/// Longest smoothing time.
pub(crate) const MAX_SMOOTH: Micros = Micros::from_secs(3600);

/// Shortest smoothing time.
pub(crate) const MIN_SMOOTH: Micros = Micros::from_millis(100);

/// Method by which the limit follows latencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Latencies {
    /// By fixed thresholds.
    Thresholds(Thresholds),
    /// Relative to the floor, the long-run minimum of the average latency: the limit falls once the latency exceeds
    /// this share of the floor, in hundredths of a percent. So the limit finds the capacity of the server, for any
    /// configured limit.
    Gradient(u32),
}

/// Settings by which the limit of a rule follows the load.
///
/// Each input falls into a band, and each band has a factor. The factors are multiplied, clamped between `min` and
/// `max`, and applied smoothly. The defaults: CPU below 50 % gives 120 %, above 80 % gives 80 %; memory below 60 %
/// gives 110 %, above 85 % gives 70 %; latency below 100 ms gives 110 %, above 500 ms gives 80 %; the factor stays
/// between 10 % and 120 %.
///
/// ```
/// use slidegate::{Adaptive, Quota, Rule};
/// let rule = Rule::new("orders", Quota::per_second(200)?)?.adaptive(Adaptive::default().gradient(200)?)?;
/// # Ok::<(), slidegate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adaptive {
    pub(crate) cpu: Option<Thresholds>,
    pub(crate) memory: Option<Thresholds>,
    pub(crate) latency: Option<Latencies>,
    pub(crate) min: u32,
    pub(crate) max: u32,
    /// Strength of the thresholds, in hundredths.
    pub(crate) sensitivity: u32,
    pub(crate) smooth: Micros,
}

impl Default for Adaptive {
    fn default() -> Self {
        Adaptive {
            cpu: Some(Thresholds::CPU),
            memory: Some(Thresholds::MEMORY),
            latency: Some(Latencies::Thresholds(Thresholds::LATENCY)),
            min: WHOLE / 10,
            max: WHOLE / 100 * 120,
            sensitivity: 100,
            smooth: Micros::from_secs(5),
        }
    }
}

impl Adaptive {
    /// Sets the thresholds for CPU use, in hundredths of a percent; `None` ignores the CPU.
    #[must_use]
    pub fn cpu(mut self, thresholds: Option<Thresholds>) -> Self {
        self.cpu = thresholds;
        self
    }

    /// Sets the thresholds for memory use, in hundredths of a percent; `None` ignores memory.
    #[must_use]
    pub fn memory(mut self, thresholds: Option<Thresholds>) -> Self {
        self.memory = thresholds;
        self
    }

    /// Sets the thresholds for latency, in microseconds; `None` ignores latency.
    #[must_use]
    pub fn latency(mut self, thresholds: Option<Thresholds>) -> Self {
        self.latency = thresholds.map(Latencies::Thresholds);
        self
    }

    /// Follows latencies relative to their floor, the long-run minimum of the average latency. The limit falls once the
    /// latency exceeds `tolerance` percent of the floor. `tolerance` is from 110 to 10,000.
    pub fn gradient(mut self, tolerance: u32) -> Result<Self, Error> {
        self.set_tolerance(tolerance.saturating_mul(100))?;
        Ok(self)
    }

    pub(crate) fn set_tolerance(&mut self, share: u32) -> Result<(), Error> {
        ensure!(
            (110 * 100..=10_000 * 100).contains(&share),
            "adaptive.latency.tolerance must be between 110% and 10000%, not {}",
            percent(share)
        );
        self.latency = Some(Latencies::Gradient(share));
        Ok(())
    }

    /// Sets the bounds of the factor, in percent: `min` from 1 to 100, `max` from 100 to 1,000.
    pub fn between(mut self, min: u32, max: u32) -> Result<Self, Error> {
        let [min, max] = [min, max].map(|percent| percent.saturating_mul(100));
        let [min_text, max_text] = [min, max].map(percent);
        let valid = (WHOLE / 100..=WHOLE).contains(&min);
        ensure!(valid, "adaptive.min must be between 1% and 100%, not {min_text}");
        let valid = (WHOLE..=MAX_FACTOR).contains(&max);
        ensure!(valid, "adaptive.max must be between 100% and 1000%, not {max_text}");
        (self.min, self.max) = (min, max);
        Ok(self)
    }

    /// Sets the strength with which thresholds act, in hundredths: 100 applies their factors as they are, 50 halves the change,
    /// 200 doubles it. From 1 to 1,000.
    pub fn sensitivity(mut self, hundredths: u32) -> Result<Self, Error> {
        check_between("adaptive.sensitivity", f64::from(hundredths) / 100.0, 0.01, 10.0)?;
        self.sensitivity = hundredths;
        Ok(self)
    }

    /// Sets the time constant with which the factor falls: after this time it has covered two thirds of the distance. A rise
    /// takes three times as long.
    pub fn smooth(mut self, smooth: Duration) -> Result<Self, Error> {
        let smooth = Micros::from(smooth);
        check_between("adaptive.smooth", smooth, MIN_SMOOTH, MAX_SMOOTH)?;
        self.smooth = smooth;
        Ok(self)
    }

    /// Returns the thresholds for CPU use.
    pub fn by_cpu(&self) -> Option<Thresholds> {
        self.cpu
    }

    /// Returns the thresholds for memory use.
    pub fn by_memory(&self) -> Option<Thresholds> {
        self.memory
    }

    /// Returns the method for latencies.
    pub fn by_latency(&self) -> Option<Latencies> {
        self.latency
    }

    /// Returns the lowest and the highest factor, in ten-thousandths.
    pub fn bounds(&self) -> (u32, u32) {
        (self.min, self.max)
    }

    /// Returns the strength of the thresholds, in hundredths.
    pub fn sensitive(&self) -> u32 {
        self.sensitivity
    }

    /// Returns the time constant with which the factor falls.
    pub fn smoothed(&self) -> Micros {
        self.smooth
    }
}
