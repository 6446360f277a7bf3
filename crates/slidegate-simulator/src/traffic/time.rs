//! Parses and prints times as logs write them.

use std::time::{Duration, SystemTime};

use humantime::{format_rfc3339, parse_rfc3339_weak};
use slidegate::Micros;

/// Parses a time: RFC 3339 (UTC if it has no offset), the format of access logs, or a number of seconds, milliseconds,
/// microseconds or nanoseconds since 1970. The size of the number tells its unit.
pub(super) fn read_time(text: &str) -> Option<Micros> {
    let text = text.trim();
    if text.starts_with(|c: char| c.is_ascii_digit()) && text.bytes().all(|b| b.is_ascii_digit() || b == b'.')
    {
        return read_number(text);
    }
    read_access_log_time(text).or_else(|| read_rfc3339(text))
}

/// Parses `17/Nov/2026:01:50:56 +0000`. The seconds may have a fraction.
fn read_access_log_time(text: &str) -> Option<Micros> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (day, rest) = text.split_once('/')?;
    let (month, rest) = rest.split_once('/')?;
    let (year, rest) = rest.split_once(':')?;
    let (time, offset) = rest.split_once(' ')?;
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    shift(read_utc(&format!("{year}-{month:02}-{day}T{time}"))?, offset)
}

/// Parses `2026-11-17T01:50:56.25+02:00`. A space may stand for the `T`, a comma for the point; the offset may be missing.
fn read_rfc3339(text: &str) -> Option<Micros> {
    // The search for the offset starts after the hours, because the date contains hyphens too.
    let offset = text.get(13..)?.find(['Z', 'z', '+', '-']).map_or(text.len(), |at| at + 13);
    let (time, offset) = text.split_at(offset);
    shift(read_utc(&time.replacen(',', ".", 1).replacen('t', "T", 1))?, offset)
}

/// Parses a date and time of day without an offset.
fn read_utc(text: &str) -> Option<Micros> {
    // The parser reads at most nanoseconds.
    let text = text.get(.."2026-11-17T01:50:56.123456789".len()).unwrap_or(text);
    let since = parse_rfc3339_weak(text).ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_micros()).ok().map(Micros::new)
}

/// Converts a local time to UTC. An offset is `Z`, `+0200`, `+02:00`, `+02` or empty.
fn shift(local: Micros, offset: &str) -> Option<Micros> {
    let Some(sign) = offset.chars().next().filter(|c| !matches!(c, 'Z' | 'z')) else {
        return (offset.len() <= 1).then_some(local);
    };
    let digits = offset.get(1..)?.replacen(':', "", 1);
    if !matches!(digits.len(), 2 | 4) || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let hours: u64 = digits[..2].parse().ok()?;
    let minutes: u64 = if digits.len() == 4 { digits[2..].parse().ok()? } else { 0 };
    if hours > 23 || minutes > 59 {
        return None;
    }
    let offset = (hours * 60 + minutes) * 60_000_000;
    match sign {
        '+' => local.get().checked_sub(offset).map(Micros::new),
        '-' => local.get().checked_add(offset).map(Micros::new),
        _ => None,
    }
}

/// Parses a number since 1970, exact to the microsecond: without floating point.
fn read_number(text: &str) -> Option<Micros> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if fraction.contains('.') {
        return None;
    }
    let number: u64 = whole.parse().ok()?;
    // A number below 10^11 is in seconds: that reaches to the year 5138, while 10^11 milliseconds after 1970 is in 1973. Each
    // smaller unit follows at a number that is 1,000 times as large.
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

/// Parser for the times of an access log. Lines of the same second are parsed once.
#[derive(Debug, Default)]
pub(super) struct AccessLogTime {
    text: String,
    at: Micros,
}

impl AccessLogTime {
    pub(super) fn read(&mut self, text: &str) -> Option<Micros> {
        if self.text != text {
            self.at = read_access_log_time(text)?;
            text.clone_into(&mut self.text);
        }
        Some(self.at)
    }
}

/// Prints an instant as RFC 3339, with as many decimal places as it needs.
pub(crate) fn format_time(at: Micros) -> String {
    // The last instant of the year 9999, the largest that the format has.
    if at > Micros::from_secs(253_402_300_799) {
        return at.to_string();
    }
    format_rfc3339(SystemTime::UNIX_EPOCH + Duration::from_micros(at.get())).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_time_formats() {
        let at = Some(Micros::new(1_794_880_256_000_000));
        for text in [
            "17/Nov/2026:01:50:56 +0000",
            "17/Nov/2026:03:50:56 +0200",
            "2026-11-17T01:50:56Z",
            "2026-11-17T01:50:56.000+00:00",
            "2026-11-17T03:50:56+02:00",
            "2026-11-16T22:20:56-0330",
            "2026-11-17t03:50:56.000000000000+02",
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
        for text in [
            "",
            "-",
            "yesterday",
            "1.2.3",
            "-5",
            "99999999999999999999",
            "17/Nov/1926:01:50:56 +0000",
            "17/Nov/2026:01:50:56",
            "17/Nov/2026:01:50:56 +9900",
            "17/Nov/2026:01:50:56 UTC",
            "7/Nov/2026:01:50:56 +0000",
            "31/Feb/2026:01:50:56 +0000",
            "17/XXX/2026:01:50:56 +0000",
            "2026-11-17T01:50:56+2",
            "2026-11-17T01:50:56Z+",
            "2026-11-17T01:50:56é",
            "2026-11-17T01:50é",
            "1970-01-01T00:00:00+01:00",
        ] {
            assert_eq!(read_time(text), None, "{text}");
        }
    }

    #[test]
    fn access_log_time_cache_keeps_times_apart() {
        let mut time = AccessLogTime::default();
        for _ in 0..2 {
            assert_eq!(time.read("17/Nov/2026:01:50:56 +0000"), Some(Micros::from_secs(1_794_880_256)));
            assert_eq!(time.read("17/Nov/2026:01:50:57 +0000"), Some(Micros::from_secs(1_794_880_257)));
            assert_eq!(time.read("no time"), None);
        }
        assert_eq!(time.read(""), None);
    }
}
