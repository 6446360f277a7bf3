//! Adaptive policy: a pure function of loads and time that returns a factor.

use super::gradient::{FAILURE_THRESHOLD, Gradient};
use super::thresholds::{Band, Thresholds};
use super::{Adaptive, Latencies, Load, WHOLE};
use crate::Micros;

/// Bounds of the time between two steps, in seconds; values outside are clamped.
const ELAPSED_BOUNDS: (f64, f64) = (0.001, 60.0);

/// A limit rises this many times slower than it falls. Otherwise it would oscillate around the capacity of the server.
const RISE_SLOWDOWN: f64 = 3.0;

/// Controls the limit of one rule. It has no clock: the caller passes the elapsed time to each step.
///
/// ```
/// use slidegate::{adaptive::{HostLoad, Load, AdaptivePolicy}, Adaptive, Micros};
///
/// let terms = Adaptive::default();
/// let mut policy = AdaptivePolicy::new(10_000);
/// let busy = Load { host: HostLoad { cpu: Some(9_000), memory: Some(7_000) }, ..Load::default() };
/// for _ in 0..60 {
///     let factor = policy.step(&terms, Micros::from_secs(1), &busy);
///     policy.follow(factor);
/// }
/// assert_eq!(policy.factor(), 8_000); // CPU above 80 %, memory as usual, latency not known
/// ```
#[derive(Clone, Debug)]
pub struct AdaptivePolicy {
    factor: f64,
    cpu: Option<Band>,
    memory: Option<Band>,
    latency: Option<Band>,
    gradient: Gradient,
}

impl AdaptivePolicy {
    /// Creates a policy with a present factor in ten-thousandths of the limit.
    pub fn new(factor: u32) -> Self {
        let factor = f64::from(factor) / f64::from(WHOLE);
        AdaptivePolicy { factor, cpu: None, memory: None, latency: None, gradient: Gradient::new(factor) }
    }

    /// Returns the factor for `elapsed` after the previous step, in ten-thousandths; always within the bounds of `terms`.
    pub fn step(&mut self, terms: &Adaptive, elapsed: Micros, load: &Load) -> u32 {
        let (min, max) = terms.bounds();
        let [min, max] = [min, max].map(|bound| f64::from(bound) / f64::from(WHOLE));
        let elapsed = seconds(elapsed).clamp(ELAPSED_BOUNDS.0, ELAPSED_BOUNDS.1);
        let smooth = seconds(terms.smoothed());
        let sensitivity = terms.sensitive();
        let share = |share: Option<u32>| share.map(f64::from);
        let cpu = band_factor(terms.by_cpu(), &mut self.cpu, share(load.host.cpu), sensitivity);
        let memory = band_factor(terms.by_memory(), &mut self.memory, share(load.host.memory), sensitivity);
        let failing = load.failed >= FAILURE_THRESHOLD;
        let latency = load.latency;
        self.factor = match terms.by_latency() {
            Some(Latencies::Gradient(tolerance)) => {
                let tolerance = f64::from(tolerance) / f64::from(WHOLE);
                let latency = latency.map(|latency| seconds(latency).max(1e-6));
                let factor = self.gradient.step(elapsed, latency, failing, tolerance, smooth);
                self.gradient.clamp(min, max);
                // `factor` follows the measured capacity of the server, so an idle CPU must not raise it further.
                factor.clamp(min, max) * (cpu * memory).min(1.0)
            }
            by_thresholds => {
                let thresholds = by_thresholds.and_then(|latencies| match latencies {
                    Latencies::Thresholds(thresholds) => Some(thresholds),
                    Latencies::Gradient(_) => None,
                });
                let micros = latency.map(|latency| latency.get() as f64);
                let micros = if failing { Some(f64::INFINITY) } else { micros };
                let latency = band_factor(thresholds, &mut self.latency, micros, sensitivity);
                let target = (cpu * memory * latency).clamp(min, max);
                let smooth = if target > self.factor { smooth * RISE_SLOWDOWN } else { smooth };
                self.factor + (target - self.factor) * (1.0 - (-elapsed / smooth).exp())
            }
        }
        .clamp(min, max);
        self.factor()
    }

    /// Records the factor that applies from now on: the result of [`AdaptivePolicy::step`], here or in another process.
    pub fn follow(&mut self, factor: u32) {
        // `step` returns a rounded factor. If `factor` equals it, keep the unrounded value.
        if factor != self.factor() {
            self.factor = f64::from(factor) / f64::from(WHOLE);
        }
        self.gradient.follow(self.factor);
    }

    /// Returns the last factor, from [`AdaptivePolicy::step`] or [`AdaptivePolicy::follow`], in ten-thousandths.
    pub fn factor(&self) -> u32 {
        (self.factor * f64::from(WHOLE)).round() as u32
    }
}

/// Returns the factor of an input; 1 if the input is ignored or unknown.
fn band_factor(
    thresholds: Option<Thresholds>,
    band: &mut Option<Band>,
    value: Option<f64>,
    sensitivity: u32,
) -> f64 {
    *band = thresholds.zip(value).and_then(|(thresholds, value)| thresholds.band(*band, value));
    thresholds.zip(*band).map_or(1.0, |(thresholds, band)| thresholds.factor(band, sensitivity))
}

fn seconds(time: Micros) -> f64 {
    time.get() as f64 / 1e6
}
