//! Thresholds with hysteresis: a low, a normal and a high band, each with a factor.
//!
//! A change to a stricter band happens at once; a change to a looser band needs a margin, so that an input near a
//! threshold does not make the limit oscillate.

use super::WHOLE;
use crate::{Error, Micros};

/// An input returns to a lower band once it is below this fraction of the threshold.
const MARGIN: f64 = 0.9;

/// Two thresholds, and the factors outside of them; between them the factor is 100 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Below this value there is spare capacity.
    pub(crate) low: u64,
    /// From this value on there is too little capacity.
    pub(crate) high: u64,
    /// Factor below `low`, in ten-thousandths; `above` is the factor from `high` on.
    pub(crate) below: u32,
    pub(crate) above: u32,
}

/// Band of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Band {
    Below,
    Within,
    Above,
}

impl Thresholds {
    pub(crate) const CPU: Thresholds = Thresholds { low: 5_000, high: 8_000, below: 12_000, above: 8_000 };
    pub(crate) const MEMORY: Thresholds = Thresholds { low: 6_000, high: 8_500, below: 11_000, above: 7_000 };
    pub(crate) const LATENCY: Thresholds = Thresholds {
        low: Micros::from_millis(100).get(),
        high: Micros::from_millis(500).get(),
        below: 11_000,
        above: 8_000,
    };

    /// Creates thresholds with two factors in percent: `below` applies to inputs below `low`, `above` to inputs from
    /// `high` on. `low` and `high` are in the unit of the input.
    pub fn new(low: u64, high: u64, below: u32, above: u32) -> Result<Self, Error> {
        Thresholds { low, high, below: below.saturating_mul(100), above: above.saturating_mul(100) }.checked()
    }

    pub(crate) fn checked(self) -> Result<Self, Error> {
        let Thresholds { low, high, below, above } = self;
        ensure!(low < high, "low must be less than high");
        let valid = (WHOLE..=10 * WHOLE).contains(&below) && (WHOLE / 100..=WHOLE).contains(&above);
        ensure!(valid, "below must be between 100% and 1000%, and above between 1% and 100%");
        Ok(self)
    }

    /// Returns the band of `value`, if the previous band was `before`; `None` for NaN.
    pub(super) fn band(&self, before: Option<Band>, value: f64) -> Option<Band> {
        if value.is_nan() {
            return None;
        }
        let band_at = |scale: f64| match value {
            value if value >= self.high as f64 * scale => Band::Above,
            value if value >= self.low as f64 * scale => Band::Within,
            _ => Band::Below,
        };
        let present = band_at(1.0);
        Some(match before {
            // A return to a looser band needs the margin.
            Some(before) if present < before => band_at(MARGIN).min(before),
            _ => present,
        })
    }

    /// Returns the factor of a band, as a fraction of 1.
    pub(super) fn factor(&self, band: Band, sensitivity: u32) -> f64 {
        let factor = match band {
            Band::Below => self.below,
            Band::Within => WHOLE,
            Band::Above => self.above,
        };
        let change = f64::from(factor) / f64::from(WHOLE) - 1.0;
        (1.0 + change * f64::from(sensitivity) / 100.0).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::{Band, Thresholds};

    #[test]
    fn becomes_stricter_at_once_and_looser_past_a_margin() {
        let walk = |values: &[f64]| {
            let mut band = None;
            values.iter().map(|value| band = Thresholds::CPU.band(band, *value)).for_each(drop);
            band
        };
        use Band::{Above, Below, Within};
        for (values, band) in [
            (&[4_999.0][..], Below),
            (&[5_000.0], Within),
            (&[7_999.0], Within),
            (&[8_000.0], Above),
            (&[8_000.0, 7_900.0], Above),
            (&[8_000.0, 7_200.0], Above),
            (&[8_000.0, 7_199.0], Within),
            (&[8_000.0, 4_600.0], Within),
            (&[8_000.0, 4_499.0], Below),
            (&[6_000.0, 4_900.0], Within),
            (&[6_000.0, 4_499.0], Below),
            (&[4_000.0, 5_000.0, 8_000.0], Above),
            (&[f64::INFINITY], Above),
            (&[-1.0], Below),
        ] {
            assert_eq!(walk(values), Some(band), "{values:?}");
        }
        assert_eq!(walk(&[f64::NAN]), None);
    }
}
