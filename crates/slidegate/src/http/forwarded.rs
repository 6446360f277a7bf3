//! Client addresses reported by proxies, nearest first: `X-Forwarded-For`, and `Forwarded` of RFC 7239. Pure.
//!
//! Both headers are lists to which each proxy appends. They are parsed from the end: the last entry was written by the direct
//! peer, and text that a client put before this entry cannot change how the entry is parsed.

use http::HeaderMap;

/// Returns the addresses of `X-Forwarded-For`.
pub fn x_forwarded_for(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    lines(headers, "x-forwarded-for").flat_map(|line| line.rsplit(|byte| *byte == b',')).map(text)
}

/// Returns the addresses of `Forwarded`: the `for=` value of each element, empty if there is none.
pub fn forwarded(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let elements = lines(headers, "forwarded").flat_map(|line| split_from_end(line, b','));
    elements.map(|element| for_value(element).unwrap_or_default())
}

fn lines<'h>(headers: &'h HeaderMap, name: &str) -> impl Iterator<Item = &'h [u8]> {
    headers.get_all(name).iter().rev().map(|value| value.as_bytes())
}

/// Returns the bytes as text; empty if they are not UTF-8. The other entries of the header are still used.
fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap_or_default()
}

/// Splits at separators outside quotes, the last part first.
fn split_from_end(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let (before, part) = match last_outside_quotes(text, separator) {
            Some(at) => (Some(&text[..at]), &text[at + 1..]),
            None => (None, text),
        };
        rest = before;
        Some(part)
    })
}

fn last_outside_quotes(text: &[u8], separator: u8) -> Option<usize> {
    let mut quoted = false;
    for at in (0..text.len()).rev() {
        match text[at] {
            b'"' if !(quoted && is_escaped(text, at)) => quoted = !quoted,
            byte if byte == separator && !quoted => return Some(at),
            _ => {}
        }
    }
    None
}

fn is_escaped(text: &[u8], at: usize) -> bool {
    text[..at].iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

fn for_value(element: &[u8]) -> Option<&str> {
    split_from_end(element, b';').find_map(|pair| {
        let (name, value) = text(pair).split_once('=')?;
        let value = value.trim();
        let inside = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        name.trim().eq_ignore_ascii_case("for").then_some(inside.unwrap_or(value))
    })
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(name: &'static str, lines: &[&[u8]]) -> HeaderMap {
        let value = |line: &&[u8]| HeaderValue::from_bytes(line).unwrap();
        lines.iter().map(|line| (HeaderName::from_static(name), value(line))).collect()
    }

    #[test]
    fn nearest_proxy_comes_first_across_lines() {
        let headers = headers("x-forwarded-for", &[b"6.6.6.6, \xff, 1.1.1.1", b"2.2.2.2,3.3.3.3"]);
        let addresses: Vec<_> = x_forwarded_for(&headers).map(str::trim).collect();
        assert_eq!(addresses, ["3.3.3.3", "2.2.2.2", "1.1.1.1", "", "6.6.6.6"]);
    }

    #[test]
    fn parses_elements_of_forwarded() {
        let cases: [(&[&[u8]], &[&str]); 7] = [
            (&[b"for=192.0.2.60;proto=http;by=203.0.113.43"], &["192.0.2.60"]),
            (&[b"For=\"[2001:db8::1]:4711\", for=10.0.0.7"], &["10.0.0.7", "[2001:db8::1]:4711"]),
            (&[b"for=1.1.1.1", b"proto=https; for = 2.2.2.2"], &["2.2.2.2", "1.1.1.1"]),
            (&[b"for=unknown, for=_hidden"], &["_hidden", "unknown"]),
            (&[b"proto=http"], &[""]),
            // A host chosen by the client, quoted by its proxy, is not an element.
            (&[b"for=1.2.3.4;host=\"x,for=6.6.6.6;y\""], &["1.2.3.4"]),
            (&[b"for=1.2.3.4;host=\"x\\\",for=6.6.6.6;y\""], &["1.2.3.4"]),
        ];
        for (lines, expected) in cases {
            let headers = headers("forwarded", lines);
            assert_eq!(forwarded(&headers).collect::<Vec<_>>(), expected, "{headers:?}");
        }
    }

    #[test]
    fn unclosed_quotes_of_a_client_hide_nothing() {
        for theirs in ["for=\"6.6.6.6", "for=6.6.6.6;host=\"", "\"", "for=\"\\\"", "\\", "\u{e4}"] {
            let line = format!("{theirs}, for=1.2.3.4");
            let headers = headers("forwarded", &[line.as_bytes()]);
            assert_eq!(forwarded(&headers).next(), Some("1.2.3.4"), "{line}");
        }
    }
}
