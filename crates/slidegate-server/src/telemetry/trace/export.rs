//! Exporter of spans to an OpenTelemetry collector, by OTLP over gRPC, in batches from a bounded queue.

use std::env;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use hyper::Uri;
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::tonic_types::transport::ClientTlsConfig;
use opentelemetry_otlp::{
    OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, SpanExporter as Exporter,
    WithExportConfig, WithTonicConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::resource::{EnvResourceDetector, TelemetryResourceDetector};
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider, SpanData, SpanExporter};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;

use super::TARGET;
use crate::common::console::warn;
use crate::telemetry::log::BoxLayer;

/// Time limit for sending the queued spans when the server stops.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
#[command(next_help_heading = "OpenTelemetry")]
pub(crate) struct ExportArgs {
    /// Export a span for every decision to the collector at this URL, such as http://127.0.0.1:4317, with OTLP over
    /// gRPC [env: OTEL_EXPORTER_OTLP_ENDPOINT]
    #[arg(long, value_name = "URL", value_parser = endpoint)]
    otlp: Option<String>,
    /// Share of the traces to export, from 0 to 1. It has no effect on requests with a traceparent header, which
    /// contains the sampling decision [default: 1]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    otlp_ratio: Option<f64>,
}

/// Running exporter.
pub(crate) struct ExportHandle(SdkTracerProvider);

impl ExportArgs {
    /// Starts the exporter. None if no collector is configured. Must be called in a runtime, which sends the spans.
    pub(crate) fn start(&self) -> Result<Option<(BoxLayer, ExportHandle)>, String> {
        let variables = [OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT];
        let from_env = variables
            .into_iter()
            .find_map(|name| Some((name, env::var(name).ok().filter(|url| !url.is_empty())?)));
        let url = match (&self.otlp, from_env) {
            (Some(url), _) => url.clone(),
            (None, Some((name, url))) => endpoint(&url).map_err(|error| format!("{name}: {error}"))?,
            (None, None) => return Ok(None),
        };
        let mut exporter = Exporter::builder().with_tonic().with_endpoint(&url);
        if url.starts_with("https://") {
            exporter = exporter.with_tls_config(ClientTlsConfig::new().with_native_roots());
        }
        let exporter = exporter.build().map_err(|error| format!("cannot send spans: {error}"))?;
        let spans = SdkTracerProvider::builder()
            .with_batch_exporter(LoggingExporter { exporter, failing: AtomicBool::new(false) })
            .with_resource(resource());
        // Without a ratio, the SDK reads OTEL_TRACES_SAMPLER.
        let spans = match self.otlp_ratio {
            Some(share) => {
                spans.with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(share))))
            }
            None => spans,
        };
        let provider = spans.build();
        let layer = tracing_opentelemetry::layer()
            .with_tracer(provider.tracer("slidegate"))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_error_records_to_exceptions(false)
            .with_error_fields_to_exceptions(false)
            .with_filter(Targets::new().with_target(TARGET, LevelFilter::DEBUG))
            .boxed();
        Ok(Some((layer, ExportHandle(provider))))
    }
}

impl ExportHandle {
    /// Sends the queued spans.
    pub(crate) fn finish(self) {
        // The exporter itself logs failures.
        let _ = self.0.shutdown_with_timeout(FINISH_TIMEOUT);
    }
}

/// Returns the resource that identifies this process: `slidegate`, unless the OTEL variables override it.
fn resource() -> Resource {
    let known = Resource::builder_empty()
        .with_service_name("slidegate")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_detector(Box::new(TelemetryResourceDetector))
        .with_detector(Box::new(EnvResourceDetector::new()));
    match env::var("OTEL_SERVICE_NAME") {
        Ok(name) if !name.is_empty() => known.with_service_name(name),
        _ => known,
    }
    .build()
}

fn endpoint(text: &str) -> Result<String, String> {
    let uri: Uri = text.parse().map_err(|error| format!("{error}: try http://127.0.0.1:4317"))?;
    let valid =
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty());
    if !valid {
        return Err("must begin with http:// or https://, such as http://127.0.0.1:4317".to_owned());
    }
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err("must not contain credentials: set OTEL_EXPORTER_OTLP_HEADERS instead".to_owned());
    }
    Ok(text.to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "must be a number from 0 to 1".to_owned())
}

/// Exporter that logs when sending begins to fail, and when it works again.
#[derive(Debug)]
struct LoggingExporter {
    exporter: Exporter,
    failing: AtomicBool,
}

impl SpanExporter for LoggingExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let sent = self.exporter.export(batch).await;
        match (self.failing.swap(sent.is_err(), Ordering::Relaxed), &sent) {
            (false, Err(error)) => {
                warn(&format!("cannot send spans to the collector, dropping them: {error}"))
            }
            (true, Ok(())) => warn("spans reach the collector again"),
            _ => {}
        }
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collector_addresses_are_checked() {
        for good in ["http://127.0.0.1:4317", "https://collector.example:4317", "http://[::1]:4317"] {
            assert_eq!(endpoint(good).as_deref(), Ok(good));
        }
        for bad in [
            "",
            "collector:4317",
            "127.0.0.1:4317",
            "ftp://collector",
            "http://",
            "http://me:secret@collector",
        ] {
            let message = endpoint(bad).unwrap_err();
            assert!(!message.contains("secret"), "{message}");
        }
        assert_eq!([share("0"), share("0.25"), share("1")], [Ok(0.0), Ok(0.25), Ok(1.0)]);
        assert!(["", "-0.1", "1.1", "nan", "half"].iter().all(|bad| share(bad).is_err()));
    }
}
