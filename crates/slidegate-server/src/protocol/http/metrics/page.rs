//! Encoder for a page of metrics.

use std::fmt::Error;

use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// Metric with `N` labels.
pub(super) struct Metric<const N: usize> {
    pub(super) kind: MetricType,
    /// Name without the prefix `slidegate_` and without the unit.
    pub(super) name: &'static str,
    pub(super) unit: Option<Unit>,
    pub(super) labels: [&'static str; N],
    pub(super) help: &'static str,
}

/// Value of a metric.
pub(super) trait Value {
    fn encode<const N: usize>(
        &self,
        metric: &Metric<N>,
        encoder: &mut MetricEncoder<'_>,
    ) -> Result<(), Error>;
}

impl<V: EncodeCounterValue + EncodeGaugeValue> Value for V {
    fn encode<const N: usize>(
        &self,
        metric: &Metric<N>,
        encoder: &mut MetricEncoder<'_>,
    ) -> Result<(), Error> {
        match metric.kind {
            MetricType::Counter => encoder.encode_counter::<NoLabelSet, V, u64>(self, None),
            _ => encoder.encode_gauge(self),
        }
    }
}

/// Histogram: number of values up to each bound and above all bounds, and the sum of the values. Durations are in
/// microseconds.
pub(super) struct Histogram<'h> {
    pub(super) bounds: &'static [u64],
    pub(super) counts: &'h [u64],
    pub(super) sum: u64,
}

impl Value for Histogram<'_> {
    fn encode<const N: usize>(
        &self,
        metric: &Metric<N>,
        encoder: &mut MetricEncoder<'_>,
    ) -> Result<(), Error> {
        let unit = if matches!(metric.unit, Some(Unit::Seconds)) { 1e6 } else { 1.0 };
        let bounds = self.bounds.iter().map(|bound| *bound as f64 / unit).chain([f64::MAX]);
        let buckets: Vec<(f64, u64)> = bounds.zip(self.counts.iter().copied()).collect();
        let count = self.counts.iter().sum();
        encoder.encode_histogram::<NoLabelSet>(self.sum as f64 / unit, count, &buckets, None)
    }
}

/// Page that is being written.
pub(super) struct Page<'e> {
    pub(super) encoder: DescriptorEncoder<'e>,
}

impl Page<'_> {
    /// Writes the description of a metric, and a value for each combination of label values.
    pub(super) fn write<'v, const N: usize>(
        &mut self,
        metric: &Metric<N>,
        values: impl IntoIterator<Item = ([&'v str; N], impl Value)>,
    ) -> Result<(), Error> {
        #[cfg(test)]
        super::collector::tests::ROWS.with_borrow_mut(|rows| rows.push(metric.row()));
        let Metric { kind, name, unit, labels, help } = metric;
        let mut encoder = self.encoder.encode_descriptor(name, help, unit.as_ref(), *kind)?;
        for (texts, value) in values {
            let pairs: Vec<(&str, &str)> = labels.iter().copied().zip(texts).collect();
            match kind {
                MetricType::Info => encoder.encode_info(&pairs)?,
                _ if pairs.is_empty() => value.encode(metric, &mut encoder)?,
                _ => value.encode(metric, &mut encoder.encode_family(&pairs)?)?,
            }
        }
        Ok(())
    }
}
