//! `POST /v1/acquire`, `/v1/peek` and `/v1/acquire/batch`.

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use slidegate::{Decision, Error};

use super::body::{AcquireBody, BatchBody, DecisionBody, JsonBytes};
use super::error::{ApiError, ErrorBody};
use super::{Shared, headers};

pub(super) async fn acquire(
    State(limiter): State<Shared>,
    RawQuery(query): RawQuery,
    body: JsonBytes,
) -> Result<Response, ApiError> {
    let body: AcquireBody<'_> = body.read()?;
    let decision = limiter.acquire(body.request()?).await?;
    Ok(answer(&decision, query))
}

pub(super) async fn peek(
    State(limiter): State<Shared>,
    RawQuery(query): RawQuery,
    body: JsonBytes,
) -> Result<Response, ApiError> {
    let body: AcquireBody<'_> = body.read()?;
    let decision = limiter.peek(body.request()?).await?;
    Ok(answer(&decision, query))
}

/// `?headers=x-ratelimit` asks for the older headers too.
fn answer(decision: &Decision, query: Option<String>) -> Response {
    let older = query.is_some_and(|query| query.split('&').any(|wish| wish == "headers=x-ratelimit"));
    let status = if decision.allowed() { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
    (status, headers::of(decision, older), Json(DecisionBody::from(decision))).into_response()
}

/// Each request is judged on its own: a bad or a refused one does not stop the others.
pub(super) async fn batch(State(limiter): State<Shared>, body: JsonBytes) -> Result<Response, ApiError> {
    let body: BatchBody<'_> = body.read()?;
    let requests: Vec<_> = body.requests.iter().map(AcquireBody::request).collect();
    let good: Vec<_> = requests.iter().flatten().cloned().collect();
    let mut decided = limiter.acquire_many(&good).await?.into_iter();
    let answers: Vec<Result<Decision, Error>> = requests
        .into_iter()
        .map(|request| request.and_then(|_| decided.next().unwrap_or_else(|| Err(missing()))))
        .collect();
    let results = answers.iter().map(|answer| match answer {
        Ok(decision) => Answer::Decision(DecisionBody::from(decision)),
        Err(error) => Answer::Error(ApiError::from(error.clone()).into_body()),
    });
    Ok(Json(BatchAnswer { results: results.collect() }).into_response())
}

fn missing() -> Error {
    Error::unavailable("the store answered fewer requests than it was given")
}

#[derive(Serialize)]
struct BatchAnswer<'d> {
    results: Vec<Answer<'d>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Answer<'d> {
    Decision(DecisionBody<'d>),
    Error(ErrorBody),
}
