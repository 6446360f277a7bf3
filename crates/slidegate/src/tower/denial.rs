//! Responses to requests that are denied, rejected or undecided.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};

use super::{Rejection, grpc};
use crate::http::headers;
use crate::{Decision, Error};

/// Reason why a request does not reach the service.
#[derive(Clone, Copy, Debug)]
pub enum Denial<'r> {
    /// A rule denied the request.
    OverLimit(&'r Decision),
    /// The request is invalid, so the limiter was not called.
    Rejected(&'r Rejection),
    /// The store could not decide.
    Unavailable(&'r Error),
}

impl Denial<'_> {
    fn status(&self) -> StatusCode {
        match self {
            Denial::OverLimit(_) => StatusCode::TOO_MANY_REQUESTS,
            Denial::Rejected(rejection) => rejection.status(),
            Denial::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// Protocol of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http,
    Grpc { web: bool },
}

impl Protocol {
    /// Detects the protocol of a request: gRPC has its own content type.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
        match kind.strip_prefix(b"application/grpc") {
            Some(rest) => Protocol::Grpc { web: rest.starts_with(b"-web") },
            None => Protocol::Http,
        }
    }

    pub(super) fn answer(self, denial: &Denial<'_>, older: bool) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        if let Denial::OverLimit(decision) = denial {
            let mut text = BytesMut::with_capacity(128);
            headers::add(decision, older, &mut text, response.headers_mut());
        }
        match self {
            Protocol::Http => {
                *response.status_mut() = denial.status();
                *response.body_mut() = body(denial).into();
                let json = HeaderValue::from_static("application/json");
                response.headers_mut().insert(header::CONTENT_TYPE, json);
            }
            Protocol::Grpc { web } => grpc::add(denial, web, response.headers_mut()),
        }
        response
    }
}

/// Returns the same body as `/v1/authorize` of the HTTP API.
fn body(denial: &Denial<'_>) -> String {
    let (code, message) = match denial {
        Denial::OverLimit(decision) => {
            let (code, wait) = (decision.code(), decision.retry_after().ceil_millis());
            return format!(r#"{{"allowed":false,"code":{code},"retry_after_ms":{wait}}}"#);
        }
        Denial::Rejected(rejection) => ("invalid_request", rejection.message().to_owned()),
        // Untrusted clients must not see details of the store.
        Denial::Unavailable(_) => ("unavailable", UNDECIDED.to_owned()),
    };
    let message = serde_json::Value::String(message);
    format!(r#"{{"error":{{"code":"{code}","message":{message}}}}}"#)
}

/// Message for requests about which the store could not decide.
pub(super) const UNDECIDED: &str = "the request cannot be decided now: try again later";
