//! A call of `ShouldRateLimit`: the first byte selects the cuts, the rest is the message. The response has a status for
//! each descriptor, all of them allowed or none charged; errors have messages.
#![no_main]

use http::{HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;
use prost::Message;
use slidegate_fuzz::{assert_plain_line, bounded, cut};
use slidegate_server::fuzzing::should_rate_limit;
use slidegate_server::messages::{RateLimitRequest, RateLimitResponse};

const OK: i32 = 1;
const OVER_LIMIT: i32 = 2;
const INVALID_ARGUMENT: i32 = 3;

fuzz_target!(|bytes: &[u8]| {
    let Some((message, pieces)) = cut(bytes) else { return };
    let length = (message.len() as u32).to_be_bytes();
    let prefix = [&[0], &length[..]].concat();
    let (before, after) = prefix.split_at(message.len() % 5);
    let pieces = [&[before, after], &pieces[..]].concat();
    let request = RateLimitRequest::decode(message);
    // An empty descriptor is two bytes.
    let answered = bounded(message.len(), 4 << 20, 1 << 10, || should_rate_limit(&pieces));
    match (request, answered) {
        (Ok(request), Ok(frames)) => answer(&request, &frames),
        (_, Err((code, message))) => {
            assert_eq!(code, INVALID_ARGUMENT);
            assert_plain_line(&message);
        }
        (Err(error), Ok(_)) => panic!("{error} was answered"),
    }
    // The same bytes without a frame.
    if let Err((_, message)) = should_rate_limit(&[message]) {
        assert_plain_line(&message);
    }
});

fn answer(request: &RateLimitRequest, frames: &[u8]) {
    assert_eq!(frames[..5], [&[0], &((frames.len() - 5) as u32).to_be_bytes()[..]].concat());
    let response = RateLimitResponse::decode(&frames[5..]).expect("a response");
    assert_eq!(response.statuses.len(), request.descriptors.len());
    let allowed = response.statuses.iter().all(|status| status.code == OK);
    assert_eq!(response.overall_code, if allowed { OK } else { OVER_LIMIT });
    for header in &response.response_headers_to_add {
        HeaderName::from_bytes(header.key.as_bytes()).expect("a name");
        HeaderValue::from_str(&header.value).expect("a value");
    }
}
