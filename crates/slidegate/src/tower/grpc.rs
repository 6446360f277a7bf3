//! Denials for gRPC clients: status 200, the result of the call in headers, and no body.

use std::fmt::Write;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use super::Denial;
use super::denial::UNDECIDED;

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// Time in milliseconds after which a client may retry; clients that retry automatically wait this long.
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// Status codes of gRPC that are used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

/// Codes that report a failure of the server.
const FAILURES: [Code; 5] =
    [Code::Unknown, Code::DeadlineExceeded, Code::Internal, Code::Unavailable, Code::DataLoss];

impl Code {
    fn of(status: StatusCode) -> Self {
        match status {
            StatusCode::UNAUTHORIZED => Code::Unauthenticated,
            StatusCode::FORBIDDEN => Code::PermissionDenied,
            StatusCode::TOO_MANY_REQUESTS => Code::ResourceExhausted,
            StatusCode::SERVICE_UNAVAILABLE => Code::Unavailable,
            status if status.is_server_error() => Code::Internal,
            status if status.is_client_error() => Code::InvalidArgument,
            _ => Code::Unknown,
        }
    }
}

/// Returns true if the head of a response reports a failure that is the fault of the server. A status in trailers is not known
/// yet.
pub(super) fn failed(headers: &HeaderMap) -> bool {
    let Some(status) = headers.get(STATUS) else { return false };
    FAILURES.iter().any(|code| status.as_bytes() == number(*code).as_bytes())
}

/// Turns the head of a response into the head of a denial.
pub(super) fn add(denial: &Denial<'_>, web: bool, headers: &mut HeaderMap) {
    let kind = if web { "application/grpc-web" } else { "application/grpc" };
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    let (code, message) = match denial {
        Denial::OverLimit(decision) => {
            let wait = decision.retry_after();
            headers.insert(PUSHBACK, wait.ceil_millis().into());
            let message = match decision.denied_by() {
                Some(rule) => format!("denied by {rule}, retry in {wait}"),
                None => "denied: no rule matches the request".to_owned(),
            };
            (Code::ResourceExhausted, message)
        }
        Denial::Rejected(rejection) => (Code::of(rejection.status()), rejection.message().to_owned()),
        Denial::Unavailable(_) => (Code::Unavailable, UNDECIDED.to_owned()),
    };
    headers.insert(STATUS, number(code));
    // After escaping, the message is visible ASCII.
    if let Ok(message) = escaped(&message).try_into() {
        headers.insert(MESSAGE, message);
    }
}

fn number(code: Code) -> HeaderValue {
    HeaderValue::from(code as u16)
}

fn escaped(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => text.push(char::from(byte)),
            // Writing to a string cannot fail.
            _ => drop(write!(text, "%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_escaped() {
        assert_eq!(escaped("100% für\n"), "100%25 f%C3%BCr%0A");
    }

    #[test]
    fn only_server_faults_are_failures() {
        let says = |status: &'static str| HeaderMap::from_iter([(STATUS, HeaderValue::from_static(status))]);
        let failures: Vec<_> = (0..=16).filter(|code| failed(&with_status_number(*code))).collect();
        assert_eq!(failures, [2, 4, 13, 14, 15]);
        assert!(!failed(&HeaderMap::new()));
        assert!(!failed(&says("")));
    }

    fn with_status_number(code: u16) -> HeaderMap {
        HeaderMap::from_iter([(STATUS, HeaderValue::from(code))])
    }
}
