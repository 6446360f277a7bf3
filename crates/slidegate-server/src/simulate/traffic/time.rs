//! Times as logs write them.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use slidegate::Micros;

/// The time of an access log, such as `17/Nov/2026:01:50:56 +0000`, or with a part of a second.
const ACCESS_LOG: &str = "%d/%b/%Y:%H:%M:%S%.f %z";

/// Reads a time: a date with its time and offset (RFC 3339; without an offset it is UTC), that of an access log, or a number
/// since 1970 of seconds, milliseconds, microseconds or nanoseconds, which its size tells.
pub(super) fn read_time(text: &str) -> Option<Micros> {
    let text = text.trim();
    if text.starts_with(|c: char| c.is_ascii_digit()) && text.bytes().all(|b| b.is_ascii_digit() || b == b'.')
    {
        return read_number(text);
    }
    let written = text.parse::<Timestamp>().ok();
    let written = written.or_else(|| read_access_log_time(text));
    let written = written.or_else(|| {
        let civil: DateTime = text.replacen(',', ".", 1).parse().ok()?;
        Some(civil.to_zoned(TimeZone::UTC).ok()?.timestamp())
    });
    micros(written?)
}

fn read_access_log_time(text: &str) -> Option<Timestamp> {
    strtime::parse(ACCESS_LOG, text).ok()?.to_timestamp().ok()
}

/// Exact to the microsecond: no floating point.
fn read_number(text: &str) -> Option<Micros> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if fraction.contains('.') {
        return None;
    }
    let number: u64 = whole.parse().ok()?;
    // In the year 2001 there were as many seconds as three years have milliseconds.
    let (unit, per) = match number {
        0..100_000_000_000 => (1_000_000, 1),
        100_000_000_000..100_000_000_000_000 => (1_000, 1),
        100_000_000_000_000..100_000_000_000_000_000 => (1, 1),
        _ => (1, 1_000),
    };
    let digits = format!("{:0<6.6}", fraction);
    let part = digits.parse::<u64>().ok()? * unit / 1_000_000;
    Some(Micros::new(number.checked_mul(unit)? / per + part))
}

fn micros(time: Timestamp) -> Option<Micros> {
    u64::try_from(time.as_microsecond()).ok().map(Micros::new)
}

/// The time of an access log, read once for all lines of a second.
#[derive(Debug, Default)]
pub(super) struct AccessLogTime {
    text: String,
    at: Micros,
}

impl AccessLogTime {
    pub(super) fn read(&mut self, text: &str) -> Option<Micros> {
        if self.text != text {
            self.at = micros(read_access_log_time(text)?)?;
            text.clone_into(&mut self.text);
        }
        Some(self.at)
    }
}

/// An instant as people read it, to the millisecond if it has any.
pub(in super::super) fn written(at: Micros) -> String {
    let time = i64::try_from(at.get()).ok().and_then(|at| Timestamp::from_microsecond(at).ok());
    time.map_or_else(|| at.to_string(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_logs_write_them() {
        let at = Some(Micros::new(1_794_880_256_000_000));
        for text in [
            "17/Nov/2026:01:50:56 +0000",
            "17/Nov/2026:03:50:56 +0200",
            "2026-11-17T01:50:56Z",
            "2026-11-17T01:50:56.000+00:00",
            "2026-11-17 01:50:56",
            "2026-11-17 01:50:56,000",
            "1794880256",
            "1794880256.0",
            "1794880256000",
            "1794880256000000",
            "1794880256000000000",
        ] {
            assert_eq!(read_time(text), at, "{text}");
        }
        assert_eq!(read_time("17/Nov/2026:01:50:56.25 +0000"), Some(Micros::new(1_794_880_256_250_000)));
        assert_eq!(read_time("0.99"), Some(Micros::from_millis(990)));
        assert_eq!(read_time("1794880256.407676"), Some(Micros::new(1_794_880_256_407_676)));
        assert_eq!(read_time("1794880256407.6"), Some(Micros::new(1_794_880_256_407_600)));
        for text in
            ["", "-", "yesterday", "1.2.3", "-5", "99999999999999999999", "17/Nov/1926:01:50:56 +0000"]
        {
            assert_eq!(read_time(text), None, "{text}");
        }
    }

    #[test]
    fn the_time_of_a_log_is_kept_and_never_mistaken() {
        let mut time = AccessLogTime::default();
        for _ in 0..2 {
            assert_eq!(time.read("17/Nov/2026:01:50:56 +0000"), Some(Micros::from_secs(1_794_880_256)));
            assert_eq!(time.read("17/Nov/2026:01:50:57 +0000"), Some(Micros::from_secs(1_794_880_257)));
            assert_eq!(time.read("no time"), None);
        }
        assert_eq!(time.read(""), None);
    }
}
