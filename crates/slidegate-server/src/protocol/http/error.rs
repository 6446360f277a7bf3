//! Errors of the HTTP API: codes, statuses and bodies.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::BytesMut;
use schemars::JsonSchema;
use serde::Serialize;
use slidegate::Error;

use super::response::{BufferedResponse, json};

/// Machine-readable error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ErrorCode")]
pub(super) enum Code {
    InvalidJson,
    InvalidRequest,
    InvalidRules,
    InvalidKey,
    PermitsExceedLimit,
    Unauthorized,
    Forbidden,
    CrossOrigin,
    UntrustedProxy,
    NotFound,
    NoSuchKey,
    MethodNotAllowed,
    Timeout,
    TooLarge,
    UnsupportedMediaType,
    Unavailable,
}

/// Errors of an operation that takes a body and calls the store.
pub(super) const BODY_ERRORS: [Code; 6] = [
    Code::InvalidJson,
    Code::InvalidRequest,
    Code::Timeout,
    Code::TooLarge,
    Code::UnsupportedMediaType,
    Code::Unavailable,
];

impl Code {
    /// Returns the HTTP status of the code, and its description.
    pub(super) fn status_and_description(self) -> (StatusCode, &'static str) {
        match self {
            Code::InvalidJson => (StatusCode::BAD_REQUEST, "the body is not valid JSON for this operation"),
            Code::InvalidRequest => (StatusCode::BAD_REQUEST, "a field of the request is invalid"),
            Code::InvalidRules => {
                (StatusCode::BAD_REQUEST, "the rules have mistakes: the message lists all of them")
            }
            Code::InvalidKey => (StatusCode::BAD_REQUEST, "the key is invalid"),
            Code::PermitsExceedLimit => (StatusCode::BAD_REQUEST, "permits is larger than the limit"),
            Code::Unauthorized => (StatusCode::UNAUTHORIZED, "the token is missing or wrong"),
            Code::Forbidden => (
                StatusCode::FORBIDDEN,
                "this listener does not accept changes; the message says which one does",
            ),
            Code::CrossOrigin => (
                StatusCode::FORBIDDEN,
                "a web page of another origin may not charge or change without a token",
            ),
            Code::UntrustedProxy => (StatusCode::FORBIDDEN, "the peer is not one of the trusted proxies"),
            Code::NotFound => (StatusCode::NOT_FOUND, "the path does not exist"),
            Code::NoSuchKey => (StatusCode::NOT_FOUND, "the key has no count"),
            Code::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, "the path does not accept this method; see `Allow`")
            }
            Code::Timeout => (StatusCode::REQUEST_TIMEOUT, "the request took too long to arrive"),
            Code::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "the body is too large"),
            Code::UnsupportedMediaType => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "content-type is not application/json")
            }
            Code::Unavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "the store or the rules cannot be reached")
            }
        }
    }
}

/// Error response: `{"error":{"code","message"}}` and its status.
#[derive(Debug)]
pub(super) struct ApiError {
    body: ErrorBody,
}

/// Reason why a request was not answered.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub(super) struct ErrorBody {
    error: Detail,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Detail {
    code: Code,
    /// The problem, its place and the fix, for people.
    message: String,
}

impl ApiError {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        ApiError { body: ErrorBody { error: Detail { code, message: message.into() } } }
    }

    pub(super) fn into_buffered(self) -> BufferedResponse {
        let (status, _) = self.body.error.code.status_and_description();
        let mut headers = HeaderMap::new();
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        json(status, headers, BytesMut::new(), &self.body)
    }

    /// Returns only the body, for a result within a batch.
    pub(super) fn into_body(self) -> ErrorBody {
        self.body
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        if error.is_too_costly() {
            ApiError::new(Code::PermitsExceedLimit, message)
        } else if error.is_unavailable() {
            ApiError::new(Code::Unavailable, message)
        } else {
            ApiError::new(Code::InvalidRequest, message)
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.into_buffered().map(Body::from)
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use schemars::schema_for;
    use slidegate_testkit::documents::compare;

    use super::*;

    const ALL: [Code; 16] = [
        Code::InvalidJson,
        Code::InvalidRequest,
        Code::InvalidRules,
        Code::InvalidKey,
        Code::PermitsExceedLimit,
        Code::Unauthorized,
        Code::Forbidden,
        Code::CrossOrigin,
        Code::UntrustedProxy,
        Code::NotFound,
        Code::NoSuchKey,
        Code::MethodNotAllowed,
        Code::Timeout,
        Code::TooLarge,
        Code::UnsupportedMediaType,
        Code::Unavailable,
    ];

    const PAGE: &str = include_str!("../../../../../docs/reference/errors.md");
    const HEADER: &str = "| status | code | meaning |\n|---|---|---|\n";

    #[test]
    fn reference_page_lists_every_code() {
        assert_eq!(schema_for!(Code).to_value()["enum"], serde_json::json!(ALL), "ALL has every code");
        let (before, rest) = PAGE.split_once(HEADER).unwrap();
        let (_, after) = rest.split_once("\n\n").unwrap();
        let mut table = String::from(HEADER);
        for code in ALL {
            let (status, description) = code.status_and_description();
            let name = serde_json::to_value(code).unwrap();
            writeln!(table, "| {} | `{}` | {description} |", status.as_u16(), name.as_str().unwrap())
                .unwrap();
        }
        compare("docs/reference/errors.md", &format!("{before}{table}\n{after}"));
    }
}
