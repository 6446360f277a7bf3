//! Parses the caller's deadline, the header `grpc-timeout`.

use std::time::Duration;

use hyper::HeaderMap;
use tonic::Status;

const HEADER: &str = "grpc-timeout";

/// Returns the timeout of the call: the timeout that the caller sends, but at most `max`.
pub(super) fn from_headers(headers: &HeaderMap, max: Duration) -> Result<Duration, Status> {
    let Some(text) = headers.get(HEADER) else { return Ok(max) };
    let timeout = parse(text.as_bytes()).ok_or_else(|| {
        Status::invalid_argument(format!(
            "{HEADER} must be one to eight digits and one of H, M, S, m, u, n, such as 100m"
        ))
    })?;
    if timeout.is_zero() {
        return Err(exceeded());
    }
    Ok(timeout.min(max))
}

pub(super) fn exceeded() -> Status {
    Status::deadline_exceeded("no decision within the deadline")
}

fn parse(text: &[u8]) -> Option<Duration> {
    let (unit, digits) = text.split_last()?;
    if digits.is_empty() || digits.len() > 8 {
        return None;
    }
    let n = digits
        .iter()
        .try_fold(0u64, |n, digit| digit.is_ascii_digit().then(|| n * 10 + u64::from(digit - b'0')))?;
    Some(match unit {
        b'H' => Duration::from_secs(n * 3600),
        b'M' => Duration::from_secs(n * 60),
        b'S' => Duration::from_secs(n),
        b'm' => Duration::from_millis(n),
        b'u' => Duration::from_micros(n),
        b'n' => Duration::from_nanos(n),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_every_unit() {
        let read = |text: &str| parse(text.as_bytes());
        assert_eq!(read("1H"), Some(Duration::from_secs(3600)));
        assert_eq!(read("2M"), Some(Duration::from_secs(120)));
        assert_eq!(read("3S"), Some(Duration::from_secs(3)));
        assert_eq!(read("20m"), Some(Duration::from_millis(20)));
        assert_eq!(read("99999999u"), Some(Duration::from_micros(99_999_999)));
        assert_eq!(read("0n"), Some(Duration::ZERO));
        for bad in ["", "m", "1", "-1m", "1.5S", "123456789m", "1s", "1 S"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
