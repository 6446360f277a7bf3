//! `/v1/authorize`: decides whether a request that a proxy received may pass. The proxy describes that
//! request in headers.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use bytes::BytesMut;
use serde_json::json as value;
use slidegate::http::{client, counted, headers, host, x_forwarded_for};
use slidegate::{Decision, Request, bounds::MAX_LIMIT};

use super::Shared;
use super::error::{ApiError, Code};
use super::operation::{Access, Charge, DECISION_HEADERS, Operation};
use super::query::QueryParams;
use super::response::json;
use super::route::Route;
use crate::app::decision_body::DenialBody;
use crate::common::protocol::Protocol;
use crate::config::{AuthorizeConfig, Origin, deny_status};
use crate::telemetry::trace::TraceContext;

/// Address of the client that opened the connection.
#[derive(Clone, Copy)]
pub(super) struct Peer(pub(super) SocketAddr);

pub(super) fn route() -> Route {
    let operation = Operation::new(
        Access::Api,
        "authorize",
        "Decide whether a proxy may forward the request of a client (forward auth)",
    )
    .parameter(
        "query",
        "permits",
        "Number of permits. Default: 1.",
        value!({ "type": "integer", "minimum": 0, "maximum": MAX_LIMIT }),
    )
    .parameter(
        "query",
        "deny",
        "HTTP status of a denial. Default: `authorize.deny-status`.",
        value!({ "type": "integer", "minimum": 400, "maximum": 599 }),
    )
    .text_parameter("query", "headers", "With `x-ratelimit`, the response also has the headers `X-RateLimit-*`.")
    .text_parameter(
        "header",
        "X-Forwarded-For",
        "Addresses of the client and of the proxies before this one. The last address that is not a trusted proxy is the client.",
    )
    .text_parameter(
        "header",
        "X-Forwarded-Uri",
        "Path of the client's request. `X-Original-Uri` and `X-Original-Url` are accepted too.",
    )
    .text_parameter(
        "header",
        "X-Forwarded-Method",
        "Method of the client's request. `X-Original-Method` is accepted too.",
    )
    .text_parameter(
        "header",
        "X-Forwarded-Host",
        "Host of the client's request. `X-Original-Host` is accepted too.",
    )
    .charges(Charge::Forwarded)
    .answers_without_body("200", "Allowed")
    .with_headers(&DECISION_HEADERS)
    .answers::<DenialBody>("429", "Denied", &[r#"{"allowed":false,"code":10007,"retry_after_ms":4986}"#])
    .with_headers(&DECISION_HEADERS)
    .with_headers(&["Retry-After"])
    .denies_with_any_status::<DenialBody>()
    .fails(&[
        Code::InvalidRequest,
        Code::PermitsExceedLimit,
        Code::UntrustedProxy,
        Code::Timeout,
        Code::Unavailable,
    ]);
    Route::new("/v1/authorize").any(authorize, &operation)
}

async fn authorize(
    State(app): State<Shared>,
    Extension(Peer(peer)): Extension<Peer>,
    uri: Uri,
    head: HeaderMap,
) -> Result<Response, ApiError> {
    // The proxy's configuration sets the query, so unknown parameters are not rejected.
    let query = QueryParams::read_any(&uri)?;
    let permits = query.number("permits", 0..=MAX_LIMIT)?.unwrap_or(1);
    let config = &app.settings.authorize;
    let denied = query.number("deny", 400..=599)?.map_or(Ok(config.deny_status), deny_status);
    let deny_status_code = denied.map_err(|message| ApiError::new(Code::InvalidRequest, message))?;
    let forwarded = ForwardedRequest { config, peer: peer.ip().to_canonical(), head: &head };
    if !forwarded.is_from_trusted_proxy() {
        let message =
            format!("{} is not one of the trusted proxies: see `authorize` in the file", forwarded.peer);
        return Err(ApiError::new(Code::UntrustedProxy, message));
    }
    let attributes = forwarded.attributes();
    let pairs = attributes.iter().map(|(name, value)| (*name, &**value));
    let request = Request::new(pairs).permits(permits);
    let instrumented = app.instrumented(Protocol::Http).called_by(TraceContext::of(&head));
    let decision = instrumented.acquire(&request).await?;
    Ok(answer(&decision, deny_status_code, query.text("headers") == Some("x-ratelimit")))
}

fn answer(decision: &Decision, deny_status_code: StatusCode, legacy_headers: bool) -> Response {
    let mut text = BytesMut::with_capacity(256);
    let mut head = HeaderMap::new();
    headers::add(decision, legacy_headers, &mut text, &mut head);
    if decision.allowed() {
        return (StatusCode::OK, head).into_response();
    }
    json(deny_status_code, head, text, &DenialBody::from(decision)).map(axum::body::Body::from)
}

/// Request as its proxy describes it.
struct ForwardedRequest<'r> {
    config: &'r AuthorizeConfig,
    peer: IpAddr,
    head: &'r HeaderMap,
}

impl<'r> ForwardedRequest<'r> {
    fn attributes(&self) -> Vec<(&'r str, Cow<'r, str>)> {
        let config = self.config;
        let known = config.attributes.iter();
        known.filter_map(|(name, origin)| Some((name.as_str(), self.value(origin)?))).collect()
    }

    /// Returns true if the peer is a trusted proxy. Any other client could send arbitrary headers.
    fn is_from_trusted_proxy(&self) -> bool {
        self.config.trusted_proxies.iter().any(|net| net.contains(&self.peer))
    }

    /// Returns the value of an attribute, `None` if it is missing or empty.
    fn value(&self, origin: &Origin) -> Option<Cow<'r, str>> {
        let value = match origin {
            Origin::Client => self.client().into(),
            Origin::Path => {
                let names = ["x-forwarded-uri", "x-original-uri", "x-original-url"];
                let header = names.iter().find_map(|name| self.head.get(*name))?;
                self.config.path.path(header.as_bytes())
            }
            Origin::Method => self.first_header(&["x-forwarded-method", "x-original-method"])?,
            Origin::Host => host(&self.first_header(&["x-forwarded-host", "x-original-host"])?).into(),
            Origin::Header(name) => self.header(name)?,
        };
        (!value.is_empty()).then_some(value)
    }

    fn client(&self) -> String {
        let client = client(self.peer, x_forwarded_for(self.head), &self.config.trusted_proxies);
        counted(client, self.config.ipv6_prefix)
    }

    /// Returns the value of the first of these headers that is present.
    fn first_header(&self, names: &[&'static str]) -> Option<Cow<'r, str>> {
        names.iter().find_map(|name| self.header(&HeaderName::from_static(name)))
    }

    fn header(&self, name: &HeaderName) -> Option<Cow<'r, str>> {
        self.head.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()))
    }
}
