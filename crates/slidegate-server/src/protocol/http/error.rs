//! Errors of the HTTP API: codes, statuses and bodies.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::BytesMut;
use schemars::JsonSchema;
use serde::Serialize;
use slidegate::Error;

use super::response::{BufferedResponse, json};

/// Declares the error codes: name, HTTP status, description.
macro_rules! codes {
    ($($name:ident = $status:ident, $description:literal;)+) => {
        /// Machine-readable error code.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        #[schemars(rename = "ErrorCode")]
        pub(super) enum Code {
            $($name,)+
        }

        impl Code {
            #[cfg(test)]
            const ALL: &[Code] = &[$(Code::$name),+];

            /// Returns the HTTP status of the code, and its description.
            pub(super) fn status_and_description(self) -> (StatusCode, &'static str) {
                match self {
                    $(Code::$name => (StatusCode::$status, $description),)+
                }
            }
        }
    };
}

codes! {
    InvalidJson = BAD_REQUEST, "the body is not valid JSON, or not a valid body of this operation";
    InvalidRequest = BAD_REQUEST, "a field of the request is invalid";
    InvalidRules = BAD_REQUEST, "the rules have mistakes; the message lists all of them";
    InvalidKey = BAD_REQUEST, "the key is invalid";
    PermitsExceedLimit = BAD_REQUEST, "the request needs more permits than a limit ever allows";
    Unauthorized = UNAUTHORIZED, "the token is missing or wrong";
    Forbidden = FORBIDDEN, "this listener does not accept changes; the message names the reason and the fix";
    CrossOrigin = FORBIDDEN, "without a token, a web page of another origin may not charge or change anything";
    UntrustedProxy = FORBIDDEN, "the caller is not a trusted proxy";
    NotFound = NOT_FOUND, "the path does not exist";
    NoSuchKey = NOT_FOUND, "the key has no count";
    EditionMismatch = PRECONDITION_FAILED, "the rules in force are not those that `If-Match` names";
    MethodNotAllowed = METHOD_NOT_ALLOWED, "the path does not accept this method; the header `Allow` lists the methods";
    Timeout = REQUEST_TIMEOUT, "the request was not received and answered in time";
    TooLarge = PAYLOAD_TOO_LARGE, "the body is too large";
    UnsupportedMediaType = UNSUPPORTED_MEDIA_TYPE, "the header `content-type` is not `application/json`";
    Unavailable = SERVICE_UNAVAILABLE, "the store does not answer, the rules are not known yet, or a bound on clients is reached";
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

/// Error response: `{"error":{"code","message"}}` and its status.
#[derive(Debug)]
pub(super) struct ApiError {
    pub(super) body: ErrorBody,
}

/// Reason why a request was not answered.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub(super) struct ErrorBody {
    pub(super) error: Detail,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Detail {
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

    use slidegate_testkit::documents::compare;

    use super::*;

    const PAGE: &str = include_str!("../../../../../docs/reference/errors.md");
    const HEADER: &str = "| status | code | meaning |\n|---|---|---|\n";

    #[test]
    fn reference_page_lists_every_code() {
        let (before, rest) = PAGE.split_once(HEADER).unwrap();
        let (_, after) = rest.split_once("\n\n").unwrap();
        let mut table = String::from(HEADER);
        for &code in Code::ALL {
            let (status, description) = code.status_and_description();
            let name = serde_json::to_value(code).unwrap();
            writeln!(table, "| {} | `{}` | {description} |", status.as_u16(), name.as_str().unwrap())
                .unwrap();
        }
        compare("docs/reference/errors.md", &format!("{before}{table}\n{after}"));
    }
}
