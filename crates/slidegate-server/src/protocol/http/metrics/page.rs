//! Encoder for a page of metrics.

use std::fmt::Error;

use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use crate::telemetry::stats::{BOUNDS, Durations};

/// Value with its labels.
pub(super) type Labelled<const N: usize, V, L = &'static str> = ([(&'static str, L); N], V);

/// Histogram: number of values up to each bound, and above all bounds.
pub(super) struct Histogram {
    pub(super) bounds: Vec<f64>,
    pub(super) counts: Vec<u64>,
    pub(super) sum: f64,
}

/// Page that is being written.
pub(super) struct Page<'e> {
    pub(super) encoder: DescriptorEncoder<'e>,
}

impl Page<'_> {
    pub(super) fn counters<const N: usize, L: AsRef<str>, V: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        values: &[Labelled<N, V, L>],
    ) -> Result<(), Error> {
        let mut metric = self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            if N == 0 {
                metric.encode_counter::<NoLabelSet, V, u64>(value, None)?;
            } else {
                metric.encode_family(&pairs(labels))?.encode_counter::<NoLabelSet, V, u64>(value, None)?;
            }
        }
        Ok(())
    }

    pub(super) fn gauges<const N: usize, L: AsRef<str>, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        values: &[Labelled<N, V, L>],
    ) -> Result<(), Error> {
        let mut metric = self.encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for (labels, value) in values {
            if N == 0 {
                metric.encode_gauge(value)?;
            } else {
                metric.encode_family(&pairs(labels))?.encode_gauge(value)?;
            }
        }
        Ok(())
    }

    /// Writes a histogram without labels; only its descriptor if there are no values.
    pub(super) fn histogram(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        values: Option<Histogram>,
    ) -> Result<(), Error> {
        let mut metric = self.encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Histogram)?;
        let Some(Histogram { bounds, counts, sum }) = values else { return Ok(()) };
        let buckets: Vec<(f64, u64)> =
            bounds.into_iter().chain([f64::MAX]).zip(counts.iter().copied()).collect();
        metric.encode_histogram::<NoLabelSet>(sum, counts.iter().sum(), &buckets, None)
    }

    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) -> Result<(), Error> {
        self.counters::<0, &str, u64>(name, help, &[([], value)])
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, value: i64) -> Result<(), Error> {
        self.gauges::<0, &str, i64>(name, help, None, &[([], value)])
    }

    /// Writes a counter without labels; only its descriptor if there is no value.
    pub(super) fn total(&mut self, name: &str, help: &str, value: Option<u64>) -> Result<(), Error> {
        let values: Vec<Labelled<0, u64>> = value.map(|value| ([], value)).into_iter().collect();
        self.counters(name, help, &values)
    }

    /// Writes a gauge without labels; only its descriptor if the value is unknown.
    pub(super) fn size(&mut self, name: &str, help: &str, value: Option<usize>) -> Result<(), Error> {
        let values: Vec<Labelled<0, i64>> = value.map(|value| ([], value as i64)).into_iter().collect();
        self.gauges(name, help, None, &values)
    }

    /// Writes a gauge in bytes; only its descriptor if the value is unknown.
    pub(super) fn bytes(&mut self, name: &str, help: &str, value: Option<u64>) -> Result<(), Error> {
        let values: Vec<Labelled<0, i64>> = value.map(|value| ([], value as i64)).into_iter().collect();
        self.gauges(name, help, Some(Unit::Bytes), &values)
    }

    pub(super) fn info(&mut self, name: &str, help: &str, labels: &[(&str, &str)]) -> Result<(), Error> {
        let mut metric = self.encoder.encode_descriptor(name, help, None, MetricType::Info)?;
        metric.encode_info(&labels)
    }

    pub(super) fn durations<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: &[Labelled<N, Durations>],
    ) -> Result<(), Error> {
        let mut metric =
            self.encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for (labels, durations) in values {
            let bounds = BOUNDS.iter().map(|micros| *micros as f64 / 1e6).chain([f64::MAX]);
            let buckets: Vec<(f64, u64)> = bounds.zip(durations.buckets).collect();
            let (sum, count) = (durations.sum as f64 / 1e6, durations.count());
            metric
                .encode_family(&pairs(labels))?
                .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

fn pairs<'a, const N: usize, L: AsRef<str>>(
    labels: &'a [(&'static str, L); N],
) -> Vec<(&'static str, &'a str)> {
    labels.iter().map(|(name, value)| (*name, value.as_ref())).collect()
}
