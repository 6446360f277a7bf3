//! Normalized paths: the result is visible ASCII, normalizing it again changes nothing, and all spellings that the
//! options merge have the same result.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slidegate::http::PathSpelling;

fuzz_target!(|input: &[u8]| {
    let Some((&options, text)) = input.split_first() else { return };
    let [slash, case, parameters, backslash] = [1, 2, 4, 8].map(|bit| options & bit == 0);
    let mut spelling = PathSpelling::merged();
    spelling = if slash { spelling } else { spelling.keep_trailing_slash() };
    spelling = if case { spelling } else { spelling.keep_case() };
    spelling = if parameters { spelling } else { spelling.keep_parameters() };
    spelling = if backslash { spelling } else { spelling.keep_backslash() };

    let path = spelling.path(text).into_owned();
    assert!(path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic()), "{path}");
    assert!(!path.contains("//") && !path.contains(['?', '#']), "{path}");
    assert!(!path.split('/').any(|part| part == "." || part == ".."), "{path}");
    assert!(!(slash && path.len() > 1 && path.ends_with('/')), "{path}");
    assert!(!(case && path.bytes().any(|byte| byte.is_ascii_uppercase())), "{path}");
    assert!(!(parameters && path.contains(';')), "{path}");
    assert!(!(backslash && path.contains('\\')), "{path}");

    let same = |other: &str| assert_eq!(spelling.path(other.as_bytes()), path, "{other}");
    same(&path);
    same(&format!("{path}?{path}"));
    same(&format!("/.{path}"));
    same(&format!("/x/..{path}"));
    same(&format!("https://example.org{path}"));
    same(&path.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>());
    same(&path.bytes().map(|byte| format!("%25{byte:02X}")).collect::<String>());
    if slash {
        same(&format!("{path}/"));
        same(&format!("{path}%2f."));
    }
    if case {
        same(&path.to_ascii_uppercase());
    }
    if parameters {
        same(&format!("{path};a=b"));
        same(&format!("{path}%3B"));
    }
    if backslash {
        same(&path.replace('/', "\\"));
        same(&path.replace('/', "%5c"));
    }
});
