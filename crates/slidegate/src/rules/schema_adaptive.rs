//! Serializable form of the field `adaptive`.

use schemars::JsonSchema;
use serde::Serialize;

use crate::dynamic::adaptive::percent;
use crate::{Adaptive, Latencies, Micros, Thresholds};

/// Settings by which a limit follows the load.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "Adaptive")]
pub struct AdaptiveFile {
    /// CPU use: spare capacity below `low`, overload from `high` on. Default: 50% and 80%. Or `off`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpu: Option<SharesFile>,
    /// Memory use: spare capacity below `low`, overload from `high` on. Default: 60% and 85%. Or `off`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub memory: Option<SharesFile>,
    /// Reported latencies: spare capacity below `low`, overload from `high` on. Default: 100ms and 500ms. Or `gradient`, or
    /// `off`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub latency: Option<LatencyFile>,
    /// Lowest share of the limit. Default: 10%.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub min: Option<String>,
    /// Highest share of the limit. Default: 120%.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max: Option<String>,
    /// Strength with which the thresholds act. Default: 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 0.01, max = 10.0))]
    pub sensitivity: Option<f64>,
    /// Time constant of a fall: after this time the limit has covered two thirds of the distance. A rise takes three times as
    /// long. Default: 5s.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub smooth: Option<String>,
}

/// Thresholds of a share, or `off`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Shares")]
pub enum SharesFile {
    /// By thresholds.
    Thresholds(ThresholdsFile),
    /// Ignored.
    Off(OffFile),
}

/// Method by which the limit follows latencies.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Latencies")]
pub enum LatencyFile {
    /// By thresholds.
    Thresholds(ThresholdsFile),
    /// Relative to their long-run floor.
    Tolerance(ToleranceFile),
    /// `gradient` for up to twice the floor, or `off`.
    Word(LatencyWordFile),
}

/// A word instead of thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Off")]
pub enum OffFile {
    /// The input is ignored.
    Off,
}

/// A word instead of thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "LatencyWord")]
pub enum LatencyWordFile {
    /// Up to twice the floor.
    Gradient,
    /// Latencies are ignored.
    Off,
}

/// Tolerance of latencies relative to their long-run floor.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "Tolerance")]
pub struct ToleranceFile {
    /// From `110%` to `10000%`.
    pub tolerance: String,
}

/// Thresholds of spare capacity and of overload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "Bands")]
pub struct ThresholdsFile {
    /// Below this value there is spare capacity.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub low: Option<String>,
    /// From this value on the server is overloaded.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub high: Option<String>,
    /// Share of the limit with spare capacity: from `100%` to `1000%`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub below: Option<String>,
    /// Share of the limit under overload: from `1%` to `100%`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub above: Option<String>,
}

impl AdaptiveFile {
    /// Removes the fields that equal their defaults.
    pub(super) fn brief(mut self) -> Self {
        let defaults = AdaptiveFile::from(&Adaptive::default());
        fn drop_default<T: PartialEq>(field: &mut Option<T>, defaults: &Option<T>) {
            if field == defaults {
                *field = None;
            }
        }
        drop_default(&mut self.cpu, &defaults.cpu);
        drop_default(&mut self.memory, &defaults.memory);
        drop_default(&mut self.latency, &defaults.latency);
        drop_default(&mut self.min, &defaults.min);
        drop_default(&mut self.max, &defaults.max);
        drop_default(&mut self.sensitivity, &defaults.sensitivity);
        drop_default(&mut self.smooth, &defaults.smooth);
        self
    }
}

impl From<&Adaptive> for AdaptiveFile {
    fn from(terms: &Adaptive) -> Self {
        let shares = |by: Option<Thresholds>| {
            let threshold = |threshold: u64| percent(u32::try_from(threshold).unwrap_or(u32::MAX));
            Some(by.map_or(SharesFile::Off(OffFile::Off), |by| {
                SharesFile::Thresholds(thresholds_file(by, threshold))
            }))
        };
        let (min, max) = terms.bounds();
        AdaptiveFile {
            cpu: shares(terms.by_cpu()),
            memory: shares(terms.by_memory()),
            latency: Some(match terms.by_latency() {
                Some(Latencies::Thresholds(by)) => {
                    LatencyFile::Thresholds(thresholds_file(by, |threshold| {
                        Micros::new(threshold).to_string()
                    }))
                }
                Some(Latencies::Gradient(share)) => {
                    LatencyFile::Tolerance(ToleranceFile { tolerance: percent(share) })
                }
                None => LatencyFile::Word(LatencyWordFile::Off),
            }),
            min: Some(percent(min)),
            max: Some(percent(max)),
            sensitivity: Some(f64::from(terms.sensitive()) / 100.0),
            smooth: Some(terms.smoothed().to_string()),
        }
    }
}

fn thresholds_file(thresholds: Thresholds, threshold: impl Fn(u64) -> String) -> ThresholdsFile {
    ThresholdsFile {
        low: Some(threshold(thresholds.low)),
        high: Some(threshold(thresholds.high)),
        below: Some(percent(thresholds.below)),
        above: Some(percent(thresholds.above)),
    }
}
