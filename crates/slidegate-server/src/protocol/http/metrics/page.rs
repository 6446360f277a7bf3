//! Encoder for a page of metrics.

use std::fmt::Error;

use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;

use super::catalog::Metric;

/// Histogram: number of values up to each bound and above all bounds, and the sum of the values.
pub(super) struct Histogram<'h> {
    pub(super) bounds: &'static [u64],
    pub(super) counts: &'h [u64],
    pub(super) sum: u64,
}

/// Page that is being written.
pub(super) struct Page<'e> {
    pub(super) encoder: DescriptorEncoder<'e>,
}

impl Page<'_> {
    /// Writes a counter or a gauge: a number for each combination of label values.
    pub(super) fn series<'v, const N: usize, V: EncodeCounterValue + EncodeGaugeValue>(
        &mut self,
        metric: &Metric<N>,
        values: impl IntoIterator<Item = ([&'v str; N], V)>,
    ) -> Result<(), Error> {
        let is_counter = matches!(metric.kind, MetricType::Counter);
        self.encode(metric, values, |encoder, value| match is_counter {
            true => encoder.encode_counter::<NoLabelSet, V, u64>(value, None),
            false => encoder.encode_gauge(value),
        })
    }

    /// Writes a counter or a gauge without labels; only its description if the value is unknown.
    pub(super) fn value<V: EncodeCounterValue + EncodeGaugeValue>(
        &mut self,
        metric: &Metric<0>,
        value: Option<V>,
    ) -> Result<(), Error> {
        self.series(metric, value.map(|value| ([], value)))
    }

    /// Writes histograms. `unit` is the number of recorded units in one unit of the metric.
    pub(super) fn histograms<'h, const N: usize>(
        &mut self,
        metric: &Metric<N>,
        unit: f64,
        values: impl IntoIterator<Item = ([&'h str; N], Histogram<'h>)>,
    ) -> Result<(), Error> {
        self.encode(metric, values, |encoder, Histogram { bounds, counts, sum }| {
            let bounds = bounds.iter().map(|bound| *bound as f64 / unit).chain([f64::MAX]);
            let buckets: Vec<(f64, u64)> = bounds.zip(counts.iter().copied()).collect();
            let count = counts.iter().sum();
            encoder.encode_histogram::<NoLabelSet>(*sum as f64 / unit, count, &buckets, None)
        })
    }

    /// Writes texts as the labels of a metric.
    pub(super) fn info<const N: usize>(&mut self, metric: &Metric<N>, texts: [&str; N]) -> Result<(), Error> {
        let mut encoder = self.describe(metric)?;
        encoder.encode_info(&pairs(metric, &texts))
    }

    fn encode<'v, const N: usize, V>(
        &mut self,
        metric: &Metric<N>,
        values: impl IntoIterator<Item = ([&'v str; N], V)>,
        encode_value: impl Fn(&mut MetricEncoder<'_>, &V) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut encoder = self.describe(metric)?;
        for (texts, value) in values {
            match N {
                0 => encode_value(&mut encoder, &value)?,
                _ => encode_value(&mut encoder.encode_family(&pairs(metric, &texts))?, &value)?,
            }
        }
        Ok(())
    }

    fn describe<'s, const N: usize>(&'s mut self, metric: &'s Metric<N>) -> Result<MetricEncoder<'s>, Error> {
        self.encoder.encode_descriptor(metric.name, metric.help, metric.unit.as_ref(), metric.kind)
    }
}

fn pairs<'t, const N: usize>(metric: &Metric<N>, texts: &[&'t str; N]) -> Vec<(&'static str, &'t str)> {
    metric.labels.into_iter().zip(*texts).collect()
}
