//! What a client is told when its request cannot be answered.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use slidegate::Error;

/// `{"error":{"code","message"}}` and its status.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    body: ErrorBody,
}

#[derive(Debug, Serialize)]
pub(super) struct ErrorBody {
    error: Detail,
}

#[derive(Debug, Serialize)]
struct Detail {
    code: &'static str,
    message: String,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        ApiError { status, body: ErrorBody { error: Detail { code, message: message.into() } } }
    }

    pub(super) fn bad_request(code: &'static str, message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// The body alone, for an answer among others.
    pub(super) fn into_body(self) -> ErrorBody {
        self.body
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        if error.is_too_costly() {
            ApiError::bad_request("permits-exceed-limit", message)
        } else if error.is_unavailable() {
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
        } else {
            ApiError::bad_request("invalid-request", message)
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(self.body)).into_response()
    }
}
