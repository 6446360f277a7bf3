//! Responses that are complete when they are built, and need no router.

use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;

pub(super) type BufferedResponse = Response<Bytes>;

/// Returns a JSON response with status 200.
pub(super) fn ok(body: &impl Serialize) -> BufferedResponse {
    json(StatusCode::OK, HeaderMap::new(), BytesMut::with_capacity(128), body)
}

/// Returns a JSON response. `body` is written into the unused capacity of `text`.
pub(super) fn json(
    status: StatusCode,
    mut headers: HeaderMap,
    mut text: BytesMut,
    body: &impl Serialize,
) -> BufferedResponse {
    // Serializing our own types into a growing buffer cannot fail.
    let _ = serde_json::to_writer((&mut text).writer(), body);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let mut answer = Response::new(text.freeze());
    *answer.status_mut() = status;
    *answer.headers_mut() = headers;
    answer
}
