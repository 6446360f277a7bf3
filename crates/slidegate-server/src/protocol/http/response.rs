//! Answers without a router: complete when they are made.

use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;

pub(super) type BufferedResponse = Response<Bytes>;

/// `body` as JSON, written into what is left of `text`.
pub(super) fn json(
    status: StatusCode,
    mut headers: HeaderMap,
    mut text: BytesMut,
    body: &impl Serialize,
) -> BufferedResponse {
    // Our own bodies can be written, and a buffer takes everything.
    let _ = serde_json::to_writer((&mut text).writer(), body);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let mut answer = Response::new(text.freeze());
    *answer.status_mut() = status;
    *answer.headers_mut() = headers;
    answer
}
