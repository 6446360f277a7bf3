//! `ShouldRateLimit`: all descriptors of a request are admitted, or none is.

use slidegate::{Decision, Error, Request};
use tonic::Status;

use super::descriptor::Descriptors;
use super::messages::{Code, RateLimitRequest, RateLimitResponse};
use super::response::{Answer, response};
use crate::telemetry::stats::Instrumented;

pub(super) async fn decide(
    deciding: Instrumented<'_>,
    asked: RateLimitRequest,
) -> Result<RateLimitResponse, Status> {
    let descriptors = Descriptors::check(asked)?;
    let decided = match descriptors.requests().collect::<Result<Vec<_>, _>>() {
        Ok(requests) => acquire(deciding, &requests)
            .await
            .map(|decisions| response(&decisions.iter().map(Answer::Decided).collect::<Vec<_>>())),
        Err(_) => deny(deciding, &descriptors).await,
    };
    decided.map_err(status)
}

/// One is the usual case, and needs no list. What can never fit is denied: an error would let Envoy allow it.
async fn acquire(deciding: Instrumented<'_>, requests: &[Request<'_>]) -> Result<Vec<Decision>, Error> {
    if let [request] = requests {
        match deciding.acquire(request).await {
            Err(error) if error.is_too_costly() => {}
            decided => return Ok(vec![decided?]),
        }
    }
    deciding.acquire_together(requests).await
}

/// A limit of 0 denies them all; what the others would be told is only looked up.
async fn deny(deciding: Instrumented<'_>, descriptors: &Descriptors) -> Result<RateLimitResponse, Error> {
    let mut decisions = Vec::new();
    for request in descriptors.requests() {
        decisions.push(match request {
            Ok(request) => match deciding.peek(&request).await {
                Err(error) if error.is_too_costly() => None,
                decided => Some(decided?),
            },
            Err(_) => None,
        });
    }
    deciding.stats.count_denied(deciding.protocol);
    let answers = descriptors.requests().zip(&decisions).map(|answer| match answer {
        (_, Some(decision)) => Answer::Decided(decision),
        (Err(own), None) => Answer::Nothing(own),
        (Ok(_), None) => Answer::Unknown,
    });
    Ok(response(&answers.collect::<Vec<_>>()))
}

/// The answer to a message that is too large to be read.
pub(super) fn over_limit() -> RateLimitResponse {
    RateLimitResponse { overall_code: Code::OverLimit as i32, ..RateLimitResponse::default() }
}

fn status(error: Error) -> Status {
    let message = error.to_string();
    if error.is_unavailable() { Status::unavailable(message) } else { Status::invalid_argument(message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_to_blame() {
        assert_eq!(status(Error::unavailable("gone")).code(), tonic::Code::Unavailable);
        assert_eq!(status(Error::invalid("what?")).code(), tonic::Code::InvalidArgument);
    }
}
