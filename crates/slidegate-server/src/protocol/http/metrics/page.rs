//! How a page of metrics is written.

use std::fmt::Error;

use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use crate::telemetry::stats::{BOUNDS, Durations};

/// Labels and a value.
pub(super) type Labelled<const N: usize, V, L = &'static str> = ([(&'static str, L); N], V);

/// How often something was up to each bound, and above them all.
pub(super) struct Histogram {
    pub(super) bounds: Vec<f64>,
    pub(super) counts: Vec<u64>,
    pub(super) sum: f64,
}

/// What is written so far.
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

    /// One without labels, if there is one.
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

    /// A total, if there is one.
    pub(super) fn total(&mut self, name: &str, help: &str, value: Option<u64>) -> Result<(), Error> {
        let values: Vec<Labelled<0, u64>> = value.map(|value| ([], value)).into_iter().collect();
        self.counters(name, help, &values)
    }

    /// How many there are now, if that is known.
    pub(super) fn size(&mut self, name: &str, help: &str, value: Option<usize>) -> Result<(), Error> {
        let values: Vec<Labelled<0, i64>> = value.map(|value| ([], value as i64)).into_iter().collect();
        self.gauges(name, help, None, &values)
    }

    /// How many bytes there are now, if that is known.
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
