//! What a client asks for, in one spelling: another must not avoid a rule. Pure.

use std::borrow::Cow;

/// The path of an address or of its part: without query, escapes that need not be, doubled slashes and dots.
pub fn path(text: &str) -> Cow<'_, str> {
    if is_plain(text) { text.into() } else { spelled_out(text).into() }
}

/// Whether there is nothing to take away: most clients send it so.
fn is_plain(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.first() == Some(&b'/')
        && !bytes.iter().any(|byte| b"?#%".contains(byte))
        && !bytes.windows(2).any(|pair| pair == b"//" || pair == b"/.")
}

fn spelled_out(text: &str) -> String {
    let text = text.split(['?', '#']).next().unwrap_or_default();
    // Some send the whole address.
    let path = match text.split_once("://") {
        Some((_, rest)) if !text.starts_with('/') => rest.find('/').map_or("/", |start| &rest[start..]),
        _ => text,
    };
    let plain = unescape(path);
    let mut parts: Vec<&str> = Vec::new();
    for part in plain.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    // What ends in a slash, or in dots that stand for one, keeps it.
    let ends = ["/", "/.", "/.."].iter().any(|end| plain.ends_with(end));
    let end = if ends && !parts.is_empty() { "/" } else { "" };
    format!("/{}{end}", parts.join("/"))
}

/// Names are the same in any case, and on any port.
pub fn host(text: &str) -> String {
    let name = match text.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() => name,
        _ => text,
    };
    name.trim_end_matches('.').to_ascii_lowercase()
}

/// Escapes of what can stand for itself; others stay, in upper case.
fn unescape(path: &str) -> String {
    let bytes = path.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while let Some(&byte) = bytes.get(i) {
        let escape = if byte == b'%' { bytes.get(i + 1..i + 3).and_then(hex) } else { None };
        match escape {
            Some(escaped) if escaped.is_ascii_alphanumeric() || b"-._~/".contains(&escaped) => {
                plain.push(escaped)
            }
            Some(_) => plain.extend(bytes[i..i + 3].to_ascii_uppercase()),
            None => plain.push(byte),
        }
        i += if escape.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&plain).into_owned()
}

fn hex(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(str::from_utf8(digits).ok().filter(|text| !text.starts_with('+'))?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_spelling_for_one_path() {
        for spelling in [
            "/login",
            "/%6cogin",
            "//login",
            "/./login",
            "/x/../login",
            "/login?x=/y",
            "http://h/login",
            "/%2Flogin",
            "/../login",
            "/login#x",
            "login",
        ] {
            assert_eq!(path(spelling), "/login", "{spelling}");
        }
        let cases = [
            ("/", "/"),
            ("", "/"),
            ("http://h", "/"),
            ("/a/", "/a/"),
            ("/a/.", "/a/"),
            ("/a/b/..", "/a/"),
            ("/a.", "/a."),
            ("/a%20b", "/a%20b"),
            ("/a%2", "/a%2"),
            ("/%zz", "/%zz"),
            ("/%c3%a4", "/%C3%A4"),
            ("/go/http://x", "/go/http:/x"),
            ("/a..", "/a.."),
        ];
        for (text, expected) in cases {
            assert_eq!(path(text), expected, "{text}");
        }
    }

    #[test]
    fn one_spelling_for_one_host() {
        for spelling in ["example.org", "EXAMPLE.org", "example.org:443", "Example.Org."] {
            assert_eq!(host(spelling), "example.org", "{spelling}");
        }
        assert_eq!(host("[::1]:80"), "[::1]");
    }
}
