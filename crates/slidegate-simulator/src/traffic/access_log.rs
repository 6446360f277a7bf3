//! Access logs as Apache and nginx write them: Common, Combined, and Combined with the virtual host in front.
//!
//! `1.2.3.4 - alice [17/Nov/2026:01:50:56 +0000] "GET /a?b HTTP/1.1" 200 5 "https://from/" "agent"`
//!
//! Fields are taken as they are written; `-` is none. The path is without its query, and the status is not a field: it is what
//! became of a request, not what it asked.

use std::net::IpAddr;

use memchr::{memchr, memchr2};
use slidegate::Request;

use super::event::Event;
use super::fields::{Fields, never_seen};
use super::time::AccessLogTime;

/// What a line has.
const FIELDS: [&str; 7] = ["ip", "user", "method", "path", "host", "referer", "user-agent"];

/// The method and the path, and where the headers begin.
const TARGET: std::ops::Range<usize> = 2..4;
const HEADERS: usize = 5;

/// Reads lines of access logs.
#[derive(Debug)]
pub(super) struct Combined {
    /// The place of each attribute's field.
    attributes: Vec<(usize, String)>,
    wanted: Wanted,
    /// Which of the attributes any line had.
    seen: Vec<bool>,
    fields: Fields,
    time: AccessLogTime,
}

/// What need not be looked for where nobody looks at it.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    /// The method or the path.
    target: bool,
    headers: bool,
}

impl Combined {
    pub(super) fn new(fields: &Fields) -> Result<Self, String> {
        if let Some((flag, field)) = fields
            .time
            .as_ref()
            .map(|field| ("--time", field))
            .or(fields.permits.as_ref().map(|field| ("--permits", field)))
        {
            return Err(format!(
                "{flag} {field} is for JSON lines and CSV: an access log has one time, and no permits"
            ));
        }
        let attributes = fields.places(&FIELDS, "an access log")?;
        let places = || attributes.iter().map(|(place, _)| *place);
        let wanted = Wanted {
            target: places().any(|place| TARGET.contains(&place)),
            headers: places().any(|place| place >= HEADERS),
        };
        let (seen, time) = (vec![false; attributes.len()], AccessLogTime::default());
        Ok(Combined { attributes, wanted, seen, fields: fields.clone(), time })
    }

    /// What is not as it seems, for people.
    pub(super) fn note(&self) -> Option<String> {
        let missing = self.fields.missing(&FIELDS);
        let Some(first) = missing.first() else {
            let seen = self.attributes.iter().zip(&self.seen);
            return never_seen(seen.map(|((place, _), seen)| (FIELDS[*place], *seen)));
        };
        Some(format!(
            "an access log has no `{}`, which the rules look at: --attribute {first}=path, or --constant {first}=VALUE",
            missing.join("`, `")
        ))
    }

    /// Gives one line to `visit`.
    #[inline(always)]
    pub(super) fn read(
        &mut self,
        line: &str,
        visit: impl FnOnce(Event<'_, '_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let (time, values) = split(line, self.wanted).ok_or("it is not a line of an access log")?;
        let at = self.time.read(time).ok_or("its time is not one of an access log")?;
        let named = self.attributes.iter().zip(&mut self.seen).filter_map(|((place, name), seen)| {
            let value = values[*place].filter(is_said)?;
            *seen = true;
            Some((name.as_str(), value))
        });
        visit(Event::new(at, &Request::new(named.chain(self.fields.constants()))))
    }

    /// Whether this is a line of an access log.
    pub(super) fn knows(line: &str) -> bool {
        let wanted = Wanted { target: false, headers: false };
        split(line, wanted).is_some_and(|(time, _)| AccessLogTime::default().read(time).is_some())
    }
}

/// The time, and those fields that are wanted, as they are written, `-` for none included.
#[inline(always)]
fn split(line: &str, wanted: Wanted) -> Option<(&str, [Option<&str>; 7])> {
    let (who, rest) = cut(line, b'[')?;
    let (time, rest) = cut(rest, b']')?;
    let (host, ip, user) = client(who.strip_suffix(' ')?)?;
    let (asked, rest) = quoted(rest.strip_prefix(" \"")?)?;
    let (method, path) = if wanted.target { target(asked) } else { (None, None) };
    let (referer, agent) = if wanted.headers { headers(rest) } else { (None, None) };
    Some((time, [Some(ip), user, method, path, host, referer, agent]))
}

fn is_said(value: &&str) -> bool {
    !matches!(*value, "" | "-")
}

/// What stands before and after the first such byte.
fn cut(text: &str, byte: u8) -> Option<(&str, &str)> {
    let at = memchr(byte, text.as_bytes())?;
    Some((&text[..at], &text[at + 1..]))
}

/// `ip ident user`, perhaps with a host in front. A user may have spaces in its name.
fn client(who: &str) -> Option<(Option<&str>, &str, Option<&str>)> {
    let (first, rest) = cut(who, b' ')?;
    let (second, third) = cut(rest, b' ')?;
    if let Some((_, user)) = cut(third, b' ')
        && first.parse::<IpAddr>().is_err()
        && second.parse::<IpAddr>().is_ok()
    {
        let host = first.rsplit_once(':').map_or(first, |(host, _)| host);
        return Some((Some(host), second, Some(user)));
    }
    Some((None, first, Some(third)))
}

/// What stands before the next quote that is not escaped, and what follows it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let bytes = text.as_bytes();
    let mut from = 0;
    loop {
        let end = from + memchr2(b'"', b'\\', &bytes[from..])?;
        if bytes[end] == b'"' {
            return Some((&text[..end], &text[end + 1..]));
        }
        // A backslash, and what it escapes: perhaps of several bytes.
        from = end + 1 + text[end + 1..].chars().next()?.len_utf8();
    }
}

/// The method and the path of `GET /a?b HTTP/1.1`. Strangers send other things than requests: those have neither.
fn target(asked: &str) -> (Option<&str>, Option<&str>) {
    let Some((method, rest)) = cut(asked, b' ') else { return (None, None) };
    let target = rest.rsplit_once(' ').map_or(rest, |(target, _)| target);
    (Some(method), Some(cut(target, b'?').map_or(target, |(path, _)| path)))
}

/// The referer and the agent after `" 200 5 "`, if they are there.
fn headers(rest: &str) -> (Option<&str>, Option<&str>) {
    let Some((_, rest)) = cut(rest, b'"') else { return (None, None) };
    let Some((referer, rest)) = quoted(rest) else { return (None, None) };
    let agent = cut(rest, b'"').and_then(|(_, rest)| quoted(rest)).map(|(agent, _)| agent);
    (Some(referer), agent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(line: &str) -> Option<[Option<&str>; 7]> {
        let (_, fields) = split(line, Wanted { target: true, headers: true })?;
        Some(fields.map(|value| value.filter(is_said)))
    }

    #[test]
    fn lines_of_access_logs() {
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
    fn what_strangers_send_still_comes_from_somewhere() {
        let time = "[17/Nov/2026:01:50:56 +0000]";
        for asked in ["-", "", "\\x16\\x03\\x01", "\\\\", "é\\é"] {
            let line = format!("::1 - - {time} \"{asked}\" 400 0 \"-\" \"-\"");
            assert_eq!(fields(&line), Some([Some("::1"), None, None, None, None, None, None]), "{asked}");
        }
        for line in
            ["", "-", "1.2.3.4 - -", "1.2.3.4 - - [x] \"GET", "1.2.3.4 [x] \"a\"", "1.2.3.4 - - [x] \"a\\"]
        {
            assert_eq!(fields(line), None, "{line}");
        }
    }
}
