//! Tests the export of decision spans to a collector.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use slidegate_testkit::stub::Denying;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use super::{BODY, Logged, RULES, digest, envoy, post, redis};
use crate::server::messages;

#[derive(Clone, Default)]
struct Received(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

#[tonic::async_trait]
impl TraceService for Received {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.lock().unwrap().push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// Collector that answers until it is dropped.
struct Collector {
    _runtime: tokio::runtime::Runtime,
    url: String,
    received: Received,
}

impl Collector {
    fn new() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let received = Received::default();
        let service = TraceServiceServer::new(received.clone());
        let server = tonic::transport::Server::builder().add_service(service);
        runtime.spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        Collector { _runtime: runtime, url, received }
    }

    /// Received resource attributes and spans, in the order of their start.
    fn spans(&self) -> (HashMap<String, String>, Vec<Span>) {
        let received = self.received.0.lock().unwrap();
        let (mut resource, mut spans) = (HashMap::new(), Vec::new());
        for sent in received.iter().flat_map(|request| &request.resource_spans) {
            resource.extend(texts(&sent.resource.as_ref().unwrap().attributes));
            spans.extend(sent.scope_spans.iter().flat_map(|scope| scope.spans.clone()));
        }
        spans.sort_by_key(|span| span.start_time_unix_nano);
        (resource, spans)
    }
}

fn texts(attributes: &[KeyValue]) -> HashMap<String, String> {
    let text = |attribute: &KeyValue| {
        let value = match attribute.value.as_ref()?.value.as_ref()? {
            any_value::Value::StringValue(text) => text.clone(),
            any_value::Value::BoolValue(value) => value.to_string(),
            any_value::Value::IntValue(value) => value.to_string(),
            other => format!("{other:?}"),
        };
        Some((attribute.key.clone(), value))
    };
    attributes.iter().filter_map(text).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Span of the n-th caller.
fn parent(n: u8, flags: &str) -> String {
    format!("00-{n:032x}-{n:016x}-{flags}")
}

#[test]
fn spans_are_children_of_the_callers_span() {
    let collector = Collector::new();
    let logged = Logged::new(&[], RULES, &["--otlp", &collector.url]);
    let server = &logged.server;
    let mut stream = server.connect();
    let header = |value: &str| format!("traceparent: {value}\r\n");
    assert_eq!(post(&mut stream, "/v1/acquire", &header(&parent(1, "01")), BODY), 200);
    // An invalid `traceparent` is ignored, and so are two of them.
    let not_right = header(&parent(2, "01").to_uppercase().replace("00-", "xx-"));
    assert_eq!(post(&mut stream, "/v1/acquire", &not_right, BODY), 200);
    let two = header(&parent(3, "01")) + &header(&parent(4, "01"));
    assert_eq!(post(&mut stream, "/v1/acquire", &two, BODY), 429);
    // The flag 00 means that the caller does not want this span.
    assert_eq!(post(&mut stream, "/v1/acquire", &header(&parent(5, "00")), BODY), 429);
    let by_hyper = header(&parent(6, "01")) + "upgrade: none\r\n";
    assert_eq!(post(&mut stream, "/v1/acquire", &by_hyper, BODY), 429);
    let batch = r#"{"requests":[{"attributes":{"user":"cid"},"permits":9}]}"#;
    assert_eq!(post(&mut stream, "/v1/acquire/batch", &header(&parent(7, "01")), batch), 200);
    redis(server.listener_address("redis"), "SG.CHECK user dan\r\n", "\r\n");
    assert!(envoy(server.listener_address("grpc"), &["eve"], &[("traceparent", &parent(8, "01"))]));
    let log = messages(&logged.stop());
    assert_eq!(log, "received SIGTERM: stopping\nstopped\n", "they are not logged as well");

    let (resource, spans) = collector.spans();
    assert_eq!(resource["service.name"], "slidegate");
    assert_eq!(resource["service.version"], env!("CARGO_PKG_VERSION"));
    let ann = digest("one:user=ann");
    let expected = [
        (Some(1), "http", "allowed=true", &ann),
        (None, "http", "allowed=true", &ann),
        (None, "http", "allowed=false", &ann),
        (Some(6), "http", "allowed=false", &ann),
        (Some(7), "http", "error=permits_exceed_limit", &String::new()),
        (None, "resp", "allowed=true", &digest("one:user=dan")),
        (Some(8), "grpc", "allowed=true", &digest("one:user=eve")),
    ];
    assert_eq!(spans.len(), expected.len(), "{spans:#?}");
    for (span, (caller, protocol, outcome, keys)) in spans.iter().zip(expected) {
        let attributes = texts(&span.attributes);
        assert_eq!((span.name.as_str(), span.kind()), ("decision", SpanKind::Server));
        match caller {
            Some(n) => {
                assert_eq!(hex(&span.trace_id), format!("{n:032x}"), "{span:?}");
                assert_eq!(hex(&span.parent_span_id), format!("{n:016x}"));
            }
            None => assert!(span.parent_span_id.is_empty() && span.trace_id[..15] != [0; 15], "{span:?}"),
        }
        let (name, value) = outcome.split_once('=').unwrap();
        assert_eq!((attributes["protocol"].as_str(), attributes[name].as_str()), (protocol, value));
        assert_eq!(attributes.get("keys").map_or("", String::as_str), keys);
        assert_eq!(span.status.as_ref().is_some_and(|status| status.code == 2), name == "error", "{span:?}");
        let allowed_names =
            ["protocol", "kind", "permits", "allowed", "denied_by", "source", "error", "keys", "took_us"];
        assert!(attributes.keys().all(|name| allowed_names.contains(&name.as_str())), "{attributes:?}");
        let took = Duration::from_nanos(span.end_time_unix_nano - span.start_time_unix_nano);
        assert!(took < Duration::from_secs(10) && attributes.contains_key("took_us"), "{span:?}");
    }
}

#[test]
fn sampling_and_environment_variables() {
    let collector = Collector::new();
    let variables =
        [("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url.as_str()), ("OTEL_SERVICE_NAME", "gate-7")];
    let logged =
        Logged::new(&variables, RULES, &["--otlp-ratio", "0", "--log", "json", "--log-level", "debug"]);
    let mut stream = logged.server.connect();
    for _ in 0..5 {
        post(&mut stream, "/v1/peek", "", BODY);
    }
    let header = format!("traceparent: {}\r\n", parent(1, "01"));
    post(&mut stream, "/v1/peek", &header, BODY);
    assert_eq!(logged.decisions().len(), 6, "all decisions are logged");
    let (resource, spans) = collector.spans();
    assert_eq!(spans.len(), 1, "only the span whose caller wants it is exported");
    assert_eq!(resource["service.name"], "gate-7");
}

#[test]
fn unreachable_collector_fails_no_decision() {
    let denying = Denying::new();
    let url = format!("http://{}", denying.address);
    let logged = Logged::new(&[("OTEL_BSP_SCHEDULE_DELAY", "50")], RULES, &["--otlp", &url]);
    for _ in 0..3 {
        logged.server.post("/v1/acquire", BODY);
    }
    logged.until("cannot send spans to the collector");
    assert_eq!(logged.server.post("/v1/acquire", BODY).status, 429);
    let log = logged.stop();
    assert_eq!(log.lines().count(), 3, "it is logged once, before the two lines of the end: {log}");
}
