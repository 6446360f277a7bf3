//! Limits that follow the load: what a rule allows is multiplied by a *factor* that goes up while there is room behind
//! it, and down while there is not.
//!
//! [`Adaptive`] is what a rule says about it. A [`AdaptivePolicy`] is the pure part: loads go in, a factor comes out. A [`FactorCell`]
//! is where a rule keeps its factor, and what was reported since the last step. An [`AdaptiveController`](crate::AdaptiveController) takes a step a second, and
//! sees to it that every process that counts in one Redis has the same factor.

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
use crate::{Error, Micros};

/// What a factor is counted in: ten thousand of these are the limit itself.
pub(crate) const WHOLE: u32 = 10_000;

/// The highest factor, ten times the limit.
const MOST: u32 = 10 * WHOLE;

/// The longest time that a factor may take to follow.
const MAX_SMOOTH: Micros = Micros::from_secs(3600);

/// The least.
const MIN_SMOOTH: Micros = Micros::from_millis(100);

/// How latencies are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Latencies {
    /// By bands.
    Thresholds(Thresholds),
    /// Against their long-run floor: they may be so many hundredths of a percent of it before the limit falls. So the
    /// limit finds what the server behind it can do, whatever number the rule has.
    Gradient(u32),
}

/// How the limit of a rule follows the load.
///
/// Each input lies in a band, and each band has a factor. The factors are multiplied, kept between `min` and `max`, and
/// followed smoothly. The defaults: CPU below 50 % gives 120 %, above 80 % gives 80 %; memory below 60 % 110 %, above 85 % 70 %;
/// latency below 100 ms 110 %, above 500 ms 80 %; between 10 % and 120 % of the limit.
///
/// ```
/// use slidegate::{Adaptive, Quota, Rule};
/// let rule = Rule::new("orders", Quota::per_second(200)?)?.adaptive(Adaptive::default().gradient(200)?)?;
/// # Ok::<(), slidegate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adaptive {
    cpu: Option<Thresholds>,
    memory: Option<Thresholds>,
    latency: Option<Latencies>,
    min: u32,
    max: u32,
    /// In hundredths.
    sensitivity: u32,
    smooth: Micros,
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
    /// Follows the share of the CPU that is in use by these bands, in hundredths of a percent; or not at all.
    #[must_use]
    pub fn cpu(mut self, bands: Option<Thresholds>) -> Self {
        self.cpu = bands;
        self
    }

    /// Follows the share of the memory that is in use by these bands, in hundredths of a percent; or not at all.
    #[must_use]
    pub fn memory(mut self, bands: Option<Thresholds>) -> Self {
        self.memory = bands;
        self
    }

    /// Follows latencies by these bands, in microseconds; or not at all.
    #[must_use]
    pub fn latency(mut self, bands: Option<Thresholds>) -> Self {
        self.latency = bands.map(Latencies::Thresholds);
        self
    }

    /// Follows latencies against their long-run floor: they may be so many percent of it. From 110 to 10,000.
    pub fn gradient(mut self, tolerance: u32) -> Result<Self, Error> {
        self.set_tolerance(tolerance.saturating_mul(100))?;
        Ok(self)
    }

    pub(crate) fn set_tolerance(&mut self, share: u32) -> Result<(), Error> {
        if !(110 * 100..=10_000 * 100).contains(&share) {
            return Err(Error::invalid(format!(
                "adaptive.latency.tolerance must be between 110% and 10000%, not {}",
                percent(share)
            )));
        }
        self.latency = Some(Latencies::Gradient(share));
        Ok(())
    }

    /// Keeps the factor between these, in percent: `min` from 1 to 100, `max` from 100 to 1,000.
    pub fn between(mut self, min: u32, max: u32) -> Result<Self, Error> {
        self.set_bounds(min.saturating_mul(100), max.saturating_mul(100))?;
        Ok(self)
    }

    pub(crate) fn set_bounds(&mut self, min: u32, max: u32) -> Result<(), Error> {
        if !(WHOLE / 100..=WHOLE).contains(&min) {
            return Err(Error::invalid(format!(
                "adaptive.min must be between 1% and 100%, not {}",
                percent(min)
            )));
        }
        if !(WHOLE..=MOST).contains(&max) {
            return Err(Error::invalid(format!(
                "adaptive.max must be between 100% and 1000%, not {}",
                percent(max)
            )));
        }
        (self.min, self.max) = (min, max);
        Ok(())
    }

    /// How much of what the bands say is taken, in hundredths: 100 is all of it, 50 half of it, 200 twice as much.
    /// From 1 to 1,000.
    pub fn sensitivity(mut self, hundredths: u32) -> Result<Self, Error> {
        if !(1..=1_000).contains(&hundredths) {
            return Err(Error::invalid(format!(
                "adaptive.sensitivity must be between 0.01 and 10, not {}",
                f64::from(hundredths) / 100.0
            )));
        }
        self.sensitivity = hundredths;
        Ok(self)
    }

    /// How long the factor takes to fall: after this, it has come two thirds of the way. To climb it takes three times as
    /// long.
    pub fn smooth(mut self, smooth: Duration) -> Result<Self, Error> {
        let smooth = Micros::from(smooth);
        if !(MIN_SMOOTH..=MAX_SMOOTH).contains(&smooth) {
            return Err(Error::invalid(format!(
                "adaptive.smooth must be between {MIN_SMOOTH} and {MAX_SMOOTH}, not {smooth}"
            )));
        }
        self.smooth = smooth;
        Ok(self)
    }

    /// By what the CPU is followed.
    pub fn by_cpu(&self) -> Option<Thresholds> {
        self.cpu
    }

    /// By what memory is followed.
    pub fn by_memory(&self) -> Option<Thresholds> {
        self.memory
    }

    /// By what latencies are followed.
    pub fn by_latency(&self) -> Option<Latencies> {
        self.latency
    }

    /// The least and the most that the limit is multiplied by, in ten-thousandths.
    pub fn bounds(&self) -> (u32, u32) {
        (self.min, self.max)
    }

    /// How much of what the bands say is taken, in hundredths.
    pub fn sensitive(&self) -> u32 {
        self.sensitivity
    }

    /// How long the factor takes to fall.
    pub fn smoothed(&self) -> Micros {
        self.smooth
    }
}

/// Ten-thousandths as a file writes them.
pub(crate) fn percent(share: u32) -> String {
    let (whole, rest) = (share / 100, share % 100);
    if rest == 0 { format!("{whole}%") } else { format!("{whole}.{rest:02}%") }
}
