//! `ShouldRateLimit`: admits all descriptors of a request, or none.

use slidegate::{Decision, Error, Request};
use tonic::Status;

use super::descriptor::Descriptors;
use super::messages::{Code, RateLimitRequest, RateLimitResponse};
use super::response::{DescriptorOutcome, rate_limit_response};
use crate::telemetry::stats::Instrumented;

pub(super) async fn decide(
    instrumented: Instrumented<'_>,
    request: RateLimitRequest,
) -> Result<RateLimitResponse, Status> {
    let descriptors = Descriptors::check(request)?;
    let response = match descriptors.requests().collect::<Result<Vec<_>, _>>() {
        Ok(requests) => acquire(instrumented, &requests).await.map(|decisions| {
            rate_limit_response(&decisions.iter().map(DescriptorOutcome::Decided).collect::<Vec<_>>())
        }),
        Err(_) => deny_by_zero_limit(instrumented, &descriptors).await,
    };
    response.map_err(status)
}

/// Acquires the permits of all requests, or of none.
///
/// Most calls have one descriptor, whose request is decided alone and not as a list. A request for more permits
/// than the limit ever allows is denied: if this server returned an error, Envoy would let the client's request
/// pass.
async fn acquire(instrumented: Instrumented<'_>, requests: &[Request<'_>]) -> Result<Vec<Decision>, Error> {
    if let [request] = requests {
        match instrumented.acquire(request).await {
            Err(error) if error.is_too_costly() => {}
            decision => return Ok(vec![decision?]),
        }
    }
    instrumented.acquire_together(requests).await
}

/// Denies all descriptors because one of them has a limit of 0. The other descriptors are only peeked at, for
/// their status.
async fn deny_by_zero_limit(
    instrumented: Instrumented<'_>,
    descriptors: &Descriptors,
) -> Result<RateLimitResponse, Error> {
    let mut decisions = Vec::new();
    for request in descriptors.requests() {
        decisions.push(match request {
            Ok(request) => match instrumented.peek(&request).await {
                Err(error) if error.is_too_costly() => None,
                decision => Some(decision?),
            },
            Err(_) => None,
        });
    }
    instrumented.stats.count_denied(instrumented.protocol);
    let outcomes = descriptors.requests().zip(&decisions).map(|outcome| match outcome {
        (_, Some(decision)) => DescriptorOutcome::Decided(decision),
        (Err(limit_override), None) => DescriptorOutcome::ZeroLimit(limit_override),
        (Ok(_), None) => DescriptorOutcome::ExceedsLimit,
    });
    Ok(rate_limit_response(&outcomes.collect::<Vec<_>>()))
}

/// Returns the response to a message that is too large to be read.
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
    fn maps_errors_to_grpc_codes() {
        assert_eq!(status(Error::unavailable("gone")).code(), tonic::Code::Unavailable);
        assert_eq!(status(Error::invalid("what?")).code(), tonic::Code::InvalidArgument);
    }
}
