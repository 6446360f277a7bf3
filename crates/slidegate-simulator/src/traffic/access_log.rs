//! Parses access logs of Apache and nginx: Common, Combined, and Combined with the virtual host in front.
//!
//! `1.2.3.4 - alice [17/Nov/2026:01:50:56 +0000] "GET /a?b HTTP/1.1" 200 5 "https://from/" "agent"`
//!
//! Field values are not decoded; `-` means that there is no value. The path has no query. The status is not a field, because it
//! is a result of the request and not part of it.

use std::net::IpAddr;

use memchr::{memchr, memchr2};
use slidegate::Request;

use super::event::Event;
use super::fields::{Fields, MappedAttribute, ResolvedFields, unseen_fields_note};
use super::time::AccessLogTime;

/// Names of the fields of a line.
const FIELDS: [&str; 7] = ["ip", "user", "method", "path", "host", "referer", "user-agent"];

/// Indices of the method and the path, and the index of the first header, in [`FIELDS`].
const TARGET: std::ops::Range<usize> = 2..4;
const HEADERS: usize = 5;

/// Parser for lines of an access log.
#[derive(Debug)]
pub(super) struct AccessLog {
    /// Each attribute, with the index of its field.
    attributes: Vec<(usize, String)>,
    wanted: WantedFields,
    /// For each attribute, true if any line has had it.
    seen: Vec<bool>,
    mapped: Vec<MappedAttribute>,
    /// Attributes that an access log does not have.
    missing: Vec<String>,
    fields: Fields,
    time: AccessLogTime,
}

/// Groups of fields that are parsed only if an attribute uses them.
#[derive(Clone, Copy, Debug)]
struct WantedFields {
    /// The method or the path.
    target: bool,
    headers: bool,
}

impl AccessLog {
    pub(super) fn new(fields: &Fields) -> Result<Self, String> {
        if let Some((flag, field)) = fields
            .time
            .as_ref()
            .map(|field| ("--time", field))
            .or(fields.permits.as_ref().map(|field| ("--permits", field)))
        {
            return Err(format!(
                "{flag} {field} needs JSON lines or CSV: an access log has one time and no permits"
            ));
        }
        let ResolvedFields { indices: attributes, mapped, missing } =
            fields.resolve(&FIELDS, "an access log")?;
        let indices = || attributes.iter().map(|(index, _)| *index);
        let wanted = WantedFields {
            target: indices().any(|index| TARGET.contains(&index)),
            headers: indices().any(|index| index >= HEADERS),
        };
        let (seen, time) = (vec![false; attributes.len()], AccessLogTime::default());
        Ok(AccessLog { attributes, wanted, seen, mapped, missing, fields: fields.clone(), time })
    }

    pub(super) fn mapped(&self) -> Vec<MappedAttribute> {
        self.mapped.clone()
    }

    /// Returns a note for the report about attributes that are missing.
    pub(super) fn note(&self) -> Option<String> {
        let Some(first) = self.missing.first() else {
            let seen = self.attributes.iter().zip(&self.seen);
            return unseen_fields_note(seen.map(|((index, _), seen)| (FIELDS[*index], *seen)));
        };
        Some(format!(
            "an access log has no `{}`, which the rules use: set --attribute {first}=path, or --constant {first}=VALUE",
            self.missing.join("`, `")
        ))
    }

    /// Parses one line and gives its request to `visit`.
    #[inline(always)]
    pub(super) fn read(
        &mut self,
        line: &str,
        visit: impl FnOnce(Event<'_, '_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let (time, values) = split_line(line, self.wanted).ok_or("not a line of an access log")?;
        let at = self.time.read(time).ok_or("the time is not in the format of an access log")?;
        let named = self.attributes.iter().zip(&mut self.seen).filter_map(|((index, name), seen)| {
            let value = values[*index].filter(is_present)?;
            *seen = true;
            Some((name.as_str(), value))
        });
        visit(Event::new(at, &Request::new(named.chain(self.fields.constants()))))
    }

    /// Returns true if this is a line of an access log.
    pub(super) fn recognises(line: &str) -> bool {
        let wanted = WantedFields { target: false, headers: false };
        split_line(line, wanted).is_some_and(|(time, _)| AccessLogTime::default().read(time).is_some())
    }
}

/// Splits a line into its time and the wanted fields. A missing value is still `-`.
#[inline(always)]
fn split_line(line: &str, wanted: WantedFields) -> Option<(&str, [Option<&str>; 7])> {
    let (client, rest) = split_at_byte(line, b'[')?;
    let (time, rest) = split_at_byte(rest, b']')?;
    let (host, ip, user) = parse_client(client.strip_suffix(' ')?)?;
    let (request_line, rest) = parse_quoted(rest.strip_prefix(" \"")?)?;
    let (method, path) = if wanted.target { parse_request_line(request_line) } else { (None, None) };
    let (referer, agent) = if wanted.headers { parse_headers(rest) } else { (None, None) };
    Some((time, [Some(ip), user, method, path, host, referer, agent]))
}

fn is_present(value: &&str) -> bool {
    !matches!(*value, "" | "-")
}

/// Returns the text before and after the first `byte`.
fn split_at_byte(text: &str, byte: u8) -> Option<(&str, &str)> {
    let at = memchr(byte, text.as_bytes())?;
    Some((&text[..at], &text[at + 1..]))
}

/// Parses `ip ident user`, optionally with a host in front. A user's name may contain spaces.
fn parse_client(client: &str) -> Option<(Option<&str>, &str, Option<&str>)> {
    let (first, rest) = split_at_byte(client, b' ')?;
    let (second, third) = split_at_byte(rest, b' ')?;
    if let Some((_, user)) = split_at_byte(third, b' ')
        && first.parse::<IpAddr>().is_err()
        && second.parse::<IpAddr>().is_ok()
    {
        let host = first.rsplit_once(':').map_or(first, |(host, _)| host);
        return Some((Some(host), second, Some(user)));
    }
    Some((None, first, Some(third)))
}

/// Returns the text before and after the next quote that is not escaped.
fn parse_quoted(text: &str) -> Option<(&str, &str)> {
    let bytes = text.as_bytes();
    let mut from = 0;
    loop {
        let end = from + memchr2(b'"', b'\\', &bytes[from..])?;
        if bytes[end] == b'"' {
            return Some((&text[..end], &text[end + 1..]));
        }
        // Skips a backslash and the character that it escapes, which may have several bytes.
        from = end + 1 + text[end + 1..].chars().next()?.len_utf8();
    }
}

/// Parses the method and the path of `GET /a?b HTTP/1.1`. Untrusted clients may send bytes that are no HTTP request: then there
/// is neither.
fn parse_request_line(request_line: &str) -> (Option<&str>, Option<&str>) {
    let Some((method, rest)) = split_at_byte(request_line, b' ') else { return (None, None) };
    let target = rest.rsplit_once(' ').map_or(rest, |(target, _)| target);
    (Some(method), Some(split_at_byte(target, b'?').map_or(target, |(path, _)| path)))
}

/// Parses the referer and the user agent after `" 200 5 "`, if they are there.
fn parse_headers(rest: &str) -> (Option<&str>, Option<&str>) {
    let Some((_, rest)) = split_at_byte(rest, b'"') else { return (None, None) };
    let Some((referer, rest)) = parse_quoted(rest) else { return (None, None) };
    let agent = split_at_byte(rest, b'"').and_then(|(_, rest)| parse_quoted(rest)).map(|(agent, _)| agent);
    (Some(referer), agent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(line: &str) -> Option<[Option<&str>; 7]> {
        let (_, fields) = split_line(line, WantedFields { target: true, headers: true })?;
        Some(fields.map(|value| value.filter(is_present)))
    }

    #[test]
    fn parses_common_and_combined_lines() {
        let time = "[17/Nov/2026:01:50:56 +0000]";
        let common = format!("1.2.3.4 - alice {time} \"GET /a?b HTTP/1.1\" 200 5");
        let [ip, user, method, path] = [Some("1.2.3.4"), Some("alice"), Some("GET"), Some("/a")];
        assert_eq!(fields(&common), Some([ip, user, method, path, None, None, None]));
        let combined = format!("{common} \"https://from/\" \"agent \\\"x\\\" y\" 0.001");
        let [referer, agent] = [Some("https://from/"), Some("agent \\\"x\\\" y")];
        assert_eq!(fields(&combined), Some([ip, user, method, path, None, referer, agent]));
        let host = format!("shop.example:443 {combined}");
        assert_eq!(fields(&host), Some([ip, user, method, path, Some("shop.example"), referer, agent]));
        let spaces = format!("1.2.3.4 - alice b {time} \"GET / HTTP/1.1\" 200 5");
        assert_eq!(fields(&spaces).unwrap()[1], Some("alice b"));
    }

    #[test]
    fn malformed_requests_still_have_a_client() {
        let time = "[17/Nov/2026:01:50:56 +0000]";
        for request_line in ["-", "", "\\x16\\x03\\x01", "\\\\", "é\\é"] {
            let line = format!("::1 - - {time} \"{request_line}\" 400 0 \"-\" \"-\"");
            assert_eq!(
                fields(&line),
                Some([Some("::1"), None, None, None, None, None, None]),
                "{request_line}"
            );
        }
        for line in
            ["", "-", "1.2.3.4 - -", "1.2.3.4 - - [x] \"GET", "1.2.3.4 [x] \"a\"", "1.2.3.4 - - [x] \"a\\"]
        {
            assert_eq!(fields(line), None, "{line}");
        }
    }
}
