//! `ShouldRateLimit`: all descriptors of a request are admitted, or none is.

use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use slidegate::{Decision, Error, Limiter, Request};
use tonic::Status;

use super::descriptor::Descriptors;
use super::response::{Answer, response};
use crate::store::AnyStore;

pub(super) async fn decide(
    limiter: &Limiter<AnyStore>,
    asked: RateLimitRequest,
) -> Result<RateLimitResponse, Status> {
    let descriptors = Descriptors::check(asked)?;
    let decided = match descriptors.requests().collect::<Result<Vec<_>, _>>() {
        Ok(requests) => acquire(limiter, &requests)
            .await
            .map(|decisions| response(&decisions.iter().map(Answer::Decided).collect::<Vec<_>>())),
        Err(_) => refuse(limiter, &descriptors).await,
    };
    decided.map_err(status)
}

/// One is the usual case, and needs no list. What can never fit is refused: an error would let Envoy allow it.
async fn acquire(limiter: &Limiter<AnyStore>, requests: &[Request<'_>]) -> Result<Vec<Decision>, Error> {
    if let [request] = requests {
        match limiter.acquire(request.clone()).await {
            Err(error) if error.is_too_costly() => {}
            decided => return Ok(vec![decided?]),
        }
    }
    limiter.acquire_together(requests).await
}

/// A limit of 0 refuses them all; what the others would be told is only looked up.
async fn refuse(limiter: &Limiter<AnyStore>, descriptors: &Descriptors) -> Result<RateLimitResponse, Error> {
    let mut decisions = Vec::new();
    for request in descriptors.requests() {
        decisions.push(match request {
            Ok(request) => match limiter.peek(request).await {
                Err(error) if error.is_too_costly() => None,
                decided => Some(decided?),
            },
            Err(_) => None,
        });
    }
    let answers = descriptors.requests().zip(&decisions).map(|answer| match answer {
        (_, Some(decision)) => Answer::Decided(decision),
        (Err(own), None) => Answer::Nothing(own),
        (Ok(_), None) => Answer::Unknown,
    });
    Ok(response(&answers.collect::<Vec<_>>()))
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
