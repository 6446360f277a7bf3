//! Normalization of paths and hosts, so that a client cannot avoid a rule with another spelling. Pure.

use std::borrow::Cow;

/// The set of path spellings that are treated as one path.
///
/// Back ends disagree: many treat `/login/`, `/LOGIN` and `/login;a` as `/login`. [`PathSpelling::merged`], the default, merges
/// all spellings that some back end merges, so that none of them escapes a limit on `/login`. The cost: paths that a back
/// end distinguishes are counted together. [`PathSpelling::distinct`] is for a back end that is known to distinguish them.
///
/// These spellings are always merged: with and without escapes (`/%6cogin`, `/%256cogin`), doubled slashes, dots
/// (`/x/../login`), with and without a query.
///
/// ```
/// use slidegate::http::PathSpelling;
/// for path in ["/login", "/Login/", "/%4Cogin;v=1", "/x/..;/login", "\\login?x=1"] {
///     assert_eq!(PathSpelling::merged().path(path.as_bytes()), "/login");
/// }
/// assert_eq!(PathSpelling::merged().keep_case().path(b"/Login/"), "/Login");
/// assert_eq!(PathSpelling::distinct().path(b"/Login/"), "/Login/");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathSpelling {
    strip_trailing_slash: bool,
    lower_case: bool,
    strip_parameters: bool,
    backslash_is_slash: bool,
}

impl Default for PathSpelling {
    fn default() -> Self {
        PathSpelling::merged()
    }
}

impl PathSpelling {
    /// Merges all spellings that some back end merges.
    pub const fn merged() -> Self {
        PathSpelling {
            strip_trailing_slash: true,
            lower_case: true,
            strip_parameters: true,
            backslash_is_slash: true,
        }
    }

    /// Distinguishes trailing slash, letter case, parameters and backslashes.
    pub const fn distinct() -> Self {
        PathSpelling {
            strip_trailing_slash: false,
            lower_case: false,
            strip_parameters: false,
            backslash_is_slash: false,
        }
    }

    /// Distinguishes `/login/` from `/login`.
    #[must_use]
    pub const fn keep_trailing_slash(self) -> Self {
        PathSpelling { strip_trailing_slash: false, ..self }
    }

    /// Distinguishes `/LOGIN` from `/login`.
    #[must_use]
    pub const fn keep_case(self) -> Self {
        PathSpelling { lower_case: false, ..self }
    }

    /// Distinguishes `/login;a` from `/login`.
    #[must_use]
    pub const fn keep_parameters(self) -> Self {
        PathSpelling { strip_parameters: false, ..self }
    }

    /// Distinguishes `\login` from `/login`.
    #[must_use]
    pub const fn keep_backslash(self) -> Self {
        PathSpelling { backslash_is_slash: false, ..self }
    }

    /// Returns the normalized path of a URL or of a part of one: visible ASCII that starts with a slash. Characters that can
    /// appear unescaped are unescaped; others are escaped. An escaped escape, such as `%256c`, is unescaped fully,
    /// because some back ends unescape twice. Normalizing a normalized path changes nothing.
    ///
    /// Takes time linear in the length of `text`.
    pub fn path<'t>(&self, text: &'t [u8]) -> Cow<'t, str> {
        match str::from_utf8(text) {
            Ok(plain) if self.is_plain(text) => plain.into(),
            _ => self.normalize(text).into(),
        }
    }

    /// Returns true if the text is already normalized, which is the case for most clients.
    fn is_plain(&self, text: &[u8]) -> bool {
        let stands = |byte: &u8| {
            is_visible(*byte)
                && *byte != b'%'
                && !(self.lower_case && byte.is_ascii_uppercase())
                && !(self.strip_parameters && *byte == b';')
                && !(self.backslash_is_slash && *byte == b'\\')
        };
        text.first() == Some(&b'/')
            && text.iter().all(stands)
            && !text.windows(2).any(|pair| pair == b"//" || pair == b"/.")
            && !(self.strip_trailing_slash && text.len() > 1 && text.ends_with(b"/"))
    }

    fn normalize(&self, text: &[u8]) -> String {
        let mut plain = unescape(path_part(text));
        if self.backslash_is_slash {
            plain.iter_mut().filter(|byte| **byte == b'\\').for_each(|byte| *byte = b'/');
        }
        if self.lower_case {
            plain.make_ascii_lowercase();
        }
        let (mut parts, mut ends_with_slash): (Vec<&[u8]>, bool) = (Vec::new(), false);
        for part in plain.split(|byte| *byte == b'/') {
            let part = match part.iter().position(|byte| *byte == b';') {
                Some(end) if self.strip_parameters => &part[..end],
                _ => part,
            };
            // A dot segment at the end names a directory, like a slash at the end.
            ends_with_slash = matches!(part, b"" | b"." | b"..");
            match part {
                b"" | b"." => {}
                b".." => drop(parts.pop()),
                part => parts.push(part),
            }
        }
        let end = if ends_with_slash && !self.strip_trailing_slash && !parts.is_empty() { "/" } else { "" };
        // All bytes are ASCII, so the conversion changes nothing.
        format!("/{}{end}", String::from_utf8_lossy(&parts.join(&b'/')))
    }
}

/// Returns the path of a URL or of a part of one, normalized by [`PathSpelling::distinct`]: without query, unnecessary
/// escapes, doubled slashes and dots.
pub fn path(text: &str) -> Cow<'_, str> {
    PathSpelling::distinct().path(text.as_bytes())
}

/// Returns the host of a URL or header, without port and in lower case.
pub fn host(text: &str) -> String {
    let name = match text.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() => name,
        _ => text,
    };
    name.trim_end_matches('.').to_ascii_lowercase()
}

/// Returns the text without query and fragment and, if the text is a full URL, without scheme and authority.
fn path_part(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| matches!(byte, b'?' | b'#')).unwrap_or(text.len());
    let text = &text[..end];
    let in_scheme = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    let scheme = text.iter().take_while(|byte| in_scheme(byte)).count();
    match text[scheme..].strip_prefix(b"://") {
        Some(rest) if scheme > 0 => {
            let start = rest.iter().position(|byte| matches!(byte, b'/' | b'\\')).unwrap_or(rest.len());
            &rest[start..]
        }
        _ => text,
    }
}

/// Returns true if the byte appears unescaped in a normalized path.
fn is_visible(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#')
}

/// Returns the text as visible ASCII with only the necessary escapes. The hexadecimal digits of escapes are upper case.
///
/// The text is unescaped repeatedly until nothing changes, in one pass: whenever the output ends with an escape, the escape is
/// replaced by its character. Each replacement makes the output shorter.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    for &byte in text {
        if is_visible(byte) {
            plain.push(byte);
            while let Some(escaped) = escape_at_end(&plain) {
                let start = plain.len() - 3;
                if !is_visible(escaped) {
                    plain[start..].make_ascii_uppercase();
                    break;
                }
                plain.truncate(start);
                plain.push(escaped);
            }
        } else {
            const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
            let digit = |n: u8| DIGITS[usize::from(n & 15)];
            plain.extend([b'%', digit(byte >> 4), digit(byte)]);
        }
    }
    plain
}

fn escape_at_end(text: &[u8]) -> Option<u8> {
    let [.., b'%', high, low] = text else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(*high)? << 4 | digit(*low)?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn equivalent_paths_have_one_spelling() {
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
            "/%256cogin",
            "/%25256Cogin",
            "/%%36cogin",
            "/%2e/login",
            "/x/%2E%2e/login",
        ] {
            assert_eq!(path(spelling), "/login", "{spelling}");
            assert_eq!(PathSpelling::merged().path(spelling.as_bytes()), "/login", "{spelling}");
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
            ("/\u{e4}", "/%C3%A4"),
            ("/go/http://x", "/go/http:/x"),
            ("go/http://x/y", "/go/http:/x/y"),
            ("/a..", "/a.."),
            ("/a%3Ab%21", "/a:b!"),
            ("/a%3fb%23", "/a%3Fb%23"),
            ("/100%25", "/100%"),
            ("/Login;a", "/Login;a"),
            ("/a\\b", "/a\\b"),
        ];
        for (text, expected) in cases {
            assert_eq!(path(text), expected, "{text}");
        }
    }

    #[test]
    fn each_option_merges_its_spellings() {
        let merged = PathSpelling::merged();
        let cases: [(&str, &str, PathSpelling, &str); 12] = [
            ("/login/", "/login", merged.keep_trailing_slash(), "/login/"),
            ("/login%2f", "/login", merged.keep_trailing_slash(), "/login/"),
            ("/login/.", "/login", merged.keep_trailing_slash(), "/login/"),
            ("/LOGIN", "/login", merged.keep_case(), "/LOGIN"),
            ("/%4cogin", "/login", merged.keep_case(), "/Login"),
            ("/%C3%84", "/%c3%84", merged.keep_case(), "/%C3%84"),
            ("/login;a=1", "/login", merged.keep_parameters(), "/login;a=1"),
            ("/login%3ba", "/login", merged.keep_parameters(), "/login;a"),
            ("/;a/login", "/login", merged.keep_parameters(), "/;a/login"),
            ("/x/..;a/login", "/login", merged.keep_parameters(), "/x/..;a/login"),
            ("\\login", "/login", merged.keep_backslash(), "/\\login"),
            ("/x%5c..%5Clogin", "/login", merged.keep_backslash(), "/x\\..\\login"),
        ];
        for (text, by_default, spelling, expected) in cases {
            assert_eq!(merged.path(text.as_bytes()), by_default, "{text}");
            assert_eq!(spelling.path(text.as_bytes()), expected, "{text} with {spelling:?}");
        }
        assert_eq!(merged.path(b"/caf\xe9"), merged.path(b"/caf%E9"), "bytes that are no UTF-8 too");
        assert_eq!(merged.path(b"/"), "/");
    }

    fn any_spelling() -> impl Strategy<Value = PathSpelling> {
        any::<[bool; 4]>().prop_map(|[slash, case, parameters, backslash]| PathSpelling {
            strip_trailing_slash: slash,
            lower_case: case,
            strip_parameters: parameters,
            backslash_is_slash: backslash,
        })
    }

    proptest! {
        #[test]
        fn normalizing_twice_changes_nothing(
            text in proptest::collection::vec(proptest::sample::select(&b"/.%;\\2356cCfFaZ\xc3 ?#:h"[..]), 0..40),
            spelling in any_spelling(),
        ) {
            let once = spelling.path(&text).into_owned();
            prop_assert!(once.starts_with('/') && once.bytes().all(is_visible), "{once}");
            prop_assert_eq!(&spelling.path(once.as_bytes()), &once);
            let escaped: String = once.bytes().map(|byte| format!("%25{byte:02x}")).collect();
            prop_assert_eq!(spelling.path(escaped.as_bytes()), once);
        }
    }

    #[test]
    fn equivalent_hosts_have_one_spelling() {
        for spelling in ["example.org", "EXAMPLE.org", "example.org:443", "Example.Org."] {
            assert_eq!(host(spelling), "example.org", "{spelling}");
        }
        assert_eq!(host("[::1]:80"), "[::1]");
    }
}
