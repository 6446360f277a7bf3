//! `adaptive` as a file has it.

use schemars::JsonSchema;
use serde::Serialize;

use crate::dynamic::adaptive::percent;
use crate::{Adaptive, Latencies, Micros, Thresholds};

/// How a limit follows the load.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "Adaptive")]
pub struct AdaptiveFile {
    /// The share of the CPU in use: below 50% there is room, from 80% on there is not, unless given; or `off`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpu: Option<SharesFile>,
    /// The share of the memory in use: below 60% there is room, from 85% on there is not, unless given; or `off`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub memory: Option<SharesFile>,
    /// Latencies that are reported: below 100ms there is room, from 500ms on there is not, unless given; or `gradient`; or
    /// `off`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub latency: Option<LatencyFile>,
    /// The least that is left of the limit. 10%, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub min: Option<String>,
    /// The most that it becomes. 120%, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max: Option<String>,
    /// How much of what the bands say is taken. 1, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 0.01, max = 10.0))]
    pub sensitivity: Option<f64>,
    /// How long it takes to fall: after this it has come two thirds of the way; to climb, three times as long. 5s, unless
    /// given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub smooth: Option<String>,
}

/// Bands of a share, or none.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Shares")]
pub enum SharesFile {
    /// By bands.
    Thresholds(BandsFile),
    /// Not at all.
    Off(OffFile),
}

/// How latencies are followed.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Latencies")]
pub enum LatencyFile {
    /// By bands.
    Thresholds(BandsFile),
    /// Against their long-run floor.
    Tolerance(ToleranceFile),
    /// The same, up to twice the floor; or not at all.
    Word(LatencyWordFile),
}

/// A word instead of bands.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Off")]
pub enum OffFile {
    /// It is not followed.
    Off,
}

/// A word instead of bands.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "LatencyWord")]
pub enum LatencyWordFile {
    /// Up to twice the floor.
    Gradient,
    /// They are not followed.
    Off,
}

/// How far above their long-run floor latencies may be.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "Tolerance")]
pub struct ToleranceFile {
    /// From `110%` to `10000%`.
    pub tolerance: String,
}

/// Where there is room, and where there is not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "Bands")]
pub struct BandsFile {
    /// Below this there is room.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub low: Option<String>,
    /// From here on there is not.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub high: Option<String>,
    /// What the limit becomes where there is room: from `100%` to `1000%`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub below: Option<String>,
    /// What is left of it where there is not: from `1%` to `100%`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub above: Option<String>,
}

impl AdaptiveFile {
    /// The same without what it would be anyway.
    pub(super) fn brief(mut self) -> Self {
        let usual = AdaptiveFile::from(&Adaptive::default());
        fn unlike<T: PartialEq>(field: &mut Option<T>, usual: &Option<T>) {
            if field == usual {
                *field = None;
            }
        }
        unlike(&mut self.cpu, &usual.cpu);
        unlike(&mut self.memory, &usual.memory);
        unlike(&mut self.latency, &usual.latency);
        unlike(&mut self.min, &usual.min);
        unlike(&mut self.max, &usual.max);
        unlike(&mut self.sensitivity, &usual.sensitivity);
        unlike(&mut self.smooth, &usual.smooth);
        self
    }
}

impl From<&Adaptive> for AdaptiveFile {
    fn from(terms: &Adaptive) -> Self {
        let shares = |by: Option<Thresholds>| {
            let edge = |edge: u64| percent(u32::try_from(edge).unwrap_or(u32::MAX));
            Some(by.map_or(SharesFile::Off(OffFile::Off), |by| SharesFile::Thresholds(bands(by, edge))))
        };
        let (min, max) = terms.bounds();
        AdaptiveFile {
            cpu: shares(terms.by_cpu()),
            memory: shares(terms.by_memory()),
            latency: Some(match terms.by_latency() {
                Some(Latencies::Thresholds(by)) => {
                    LatencyFile::Thresholds(bands(by, |edge| Micros::new(edge).to_string()))
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

fn bands(bands: Thresholds, edge: impl Fn(u64) -> String) -> BandsFile {
    BandsFile {
        low: Some(edge(bands.low)),
        high: Some(edge(bands.high)),
        below: Some(percent(bands.below)),
        above: Some(percent(bands.above)),
    }
}
