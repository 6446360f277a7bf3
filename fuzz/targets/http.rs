//! HTTP input, split as the first byte says: answers are well-formed, and the same for the fast path and hyper, for any
//! split of the input.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slidegate_fuzz::http::{Answer, answers};
use slidegate_fuzz::{bounded, cut};
use slidegate_server::fuzzing::http;

fuzz_target!(|bytes: &[u8]| {
    let Some((whole, pieces)) = cut(bytes) else { return };
    if whole.windows(5).any(|word| word == b"HEAD ") {
        // The response to HEAD has the length of a body, but no body.
        return;
    }
    let closed = whole.len() % 8 == 7;
    let responses = |pieces: &[&[u8]]| {
        answers(&bounded(whole.len(), 4 << 20, 256, || http(pieces, closed)))
            .iter()
            .filter(|answer| !by_hyper(answer))
            .map(|answer| (answer.status, timeless(answer)))
            .collect::<Vec<_>>()
    };
    let split = responses(&pieces);
    // Half of a request goes to hyper, and everything after it.
    let (first, rest) = whole.split_at(whole.len().min(1));
    same(&responses(&[first, rest]), &split);
    same(&responses(&[whole]), &split);
});

/// A connection may end after a response to an incomplete request, but not after a decision.
#[track_caller]
fn same(one: &[(u16, String)], other: &[(u16, String)]) {
    let both = one.len().min(other.len());
    assert_eq!(one[..both], other[..both]);
    let decisions = one[..both].iter().all(|(_, body)| body.starts_with("{\"allowed\""));
    assert!(one.len() == other.len() || !decisions, "{one:?} {other:?}");
}

/// Returns true for answers of hyper whose moment depends on the bytes that have arrived: to continue, or not HTTP.
fn by_hyper(answer: &Answer) -> bool {
    answer.status == 100 || (answer.status >= 400 && answer.body.is_empty())
}

/// Removes the parts that depend on the time: numbers, and the signatures of reservations.
fn timeless(answer: &Answer) -> String {
    const FIELD: &str = "\"reservation\":\"";
    const SIGNATURE: usize = 32;
    let text = String::from_utf8(answer.body.clone()).expect("answers are text");
    let mut parts = text.split(FIELD);
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find('"').unwrap_or(part.len());
        kept += FIELD;
        kept += part.get(..end.saturating_sub(SIGNATURE)).unwrap_or_default();
        kept += &part[end..];
    }
    kept.retain(|c| !c.is_ascii_digit());
    kept
}
