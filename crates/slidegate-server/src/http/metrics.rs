//! `GET /metrics`, for Prometheus: which rules are in force, and how often they changed.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::Shared;
use super::call::{Call, METRICS, Who};
use super::error::{ApiError, Code};
use super::route::Route;

/// What is told, read when it is asked for.
struct Rules {
    gate: Shared,
}

impl std::fmt::Debug for Rules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Rules")
    }
}

impl Collector for Rules {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let book = &self.gate.rules;
        let edition = book.current();
        let mut one = |name: &str, help: &str, metric: &dyn Tell| metric.tell(&mut encoder, name, help);
        one("rules_version", "The edition of the rules in force.", &ConstGauge::new(edition.version as i64))?;
        let n = edition.rules.iter().count();
        one("rules_count", "How many rules are in force.", &ConstGauge::new(n as i64))?;
        one("rules_changes", "How often other rules were put in force.", &ConstCounter::new(book.changes()))?;
        one(
            "rules_failures",
            "How often rules were found that are not right.",
            &ConstCounter::new(book.failures()),
        )?;
        let hash = Info::new(vec![("hash".to_owned(), edition.hash.clone())]);
        one("rules", "The rules in force: the same on every node that has the same.", &hash)
    }
}

/// A metric of any type.
trait Tell {
    fn tell(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
    ) -> Result<(), std::fmt::Error>;
}

impl<M: EncodeMetric> Tell for M {
    fn tell(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
    ) -> Result<(), std::fmt::Error> {
        let metric = encoder.encode_descriptor(name, help, None, self.metric_type())?;
        self.encode(metric)
    }
}

pub(super) fn route() -> Route {
    let call = Call::new(Who::Asking, "metrics", "For Prometheus: OpenMetrics")
        .answers_metrics("200", "The metrics");
    Route::new("/metrics").get(metrics, call)
}

async fn metrics(State(gate): State<Shared>) -> Result<Response, ApiError> {
    let mut registry = Registry::with_prefix("slidegate");
    registry.register_collector(Box::new(Rules { gate }));
    let mut body = String::new();
    text::encode(&mut body, &registry)
        .map_err(|_| ApiError::new(Code::Unavailable, "the metrics cannot be written"))?;
    Ok(([(header::CONTENT_TYPE, METRICS)], body).into_response())
}
