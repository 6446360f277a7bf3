//! What a client is told whose request does not go on.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};

use super::{Rejection, grpc};
use crate::http::headers;
use crate::{Decision, Error};

/// Why a request does not go on.
#[derive(Clone, Copy, Debug)]
pub enum Denial<'r> {
    /// A rule denied it.
    OverLimit(&'r Decision),
    /// It could not be asked about as it stands.
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

/// How a client is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speech {
    Http,
    Grpc { web: bool },
}

impl Speech {
    /// What a request is: gRPC says so in its content type.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
        match kind.strip_prefix(b"application/grpc") {
            Some(rest) => Speech::Grpc { web: rest.starts_with(b"-web") },
            None => Speech::Http,
        }
    }

    pub(super) fn answer(self, denial: &Denial<'_>, older: bool) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        if let Denial::OverLimit(decision) = denial {
            let mut text = BytesMut::with_capacity(128);
            headers::add(decision, older, &mut text, response.headers_mut());
        }
        match self {
            Speech::Http => {
                *response.status_mut() = denial.status();
                *response.body_mut() = body(denial).into();
                let json = HeaderValue::from_static("application/json");
                response.headers_mut().insert(header::CONTENT_TYPE, json);
            }
            Speech::Grpc { web } => grpc::add(denial, web, response.headers_mut()),
        }
        response
    }
}

/// What the HTTP door's `/v1/authorize` says.
fn body(denial: &Denial<'_>) -> String {
    let (code, message) = match denial {
        Denial::OverLimit(decision) => {
            let (code, wait) = (decision.code(), decision.retry_after().ceil_millis());
            return format!(r#"{{"allowed":false,"code":{code},"retry_after_ms":{wait}}}"#);
        }
        Denial::Rejected(rejection) => ("invalid_request", rejection.message().to_owned()),
        // What the store says of itself is not for strangers.
        Denial::Unavailable(_) => ("unavailable", UNDECIDED.to_owned()),
    };
    let message = serde_json::Value::String(message);
    format!(r#"{{"error":{{"code":"{code}","message":{message}}}}}"#)
}

/// Told where a store could not decide.
pub(super) const UNDECIDED: &str = "it cannot be decided now whether this request may go on";
