//! Bodies of `acquire`, `peek`, `batch` and `settle`, as the first byte says: every request has one answer, whose numbers
//! agree with each other.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use slidegate::{bounds::MAX_LIMIT, Limiter};
use slidegate_fuzz::http::answers;
use slidegate_fuzz::{assert_plain_line, bounded};
use slidegate_server::fuzzing::http;

fuzz_target!(|bytes: &[u8]| {
    let Some((which, body)) = bytes.split_first() else { return };
    let path = ["acquire", "peek", "acquire/batch", "settle"][usize::from(which % 4)];
    let length = body.len();
    let head = format!(
        "POST /v1/{path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    // The responses to many short requests are longer than the requests.
    let all = bounded(body.len(), 4 << 20, 1 << 10, || http(&[head.as_bytes(), body], false));
    let [answer] = &answers(&all)[..] else { panic!("one answer: {all:?}") };
    assert!(answer.json);
    let json: Value = serde_json::from_slice(&answer.body).expect("JSON");
    match (path, answer.status) {
        (_, 400) => error(&json),
        ("settle", 200) => assert!(["done", "already", "gone"].iter().any(|word| json["settled"] == *word)),
        ("acquire/batch", 200) => {
            let requests: Value = serde_json::from_slice(body).expect("JSON");
            let (requests, results) = (requests["requests"].as_array(), json["results"].as_array());
            let results = results.expect("results");
            assert_eq!(requests.map(Vec::len), Some(results.len()));
            for result in results {
                if result["error"].is_null() { decision(result) } else { error(result) }
            }
        }
        (_, 200 | 429) => {
            assert_eq!(json["allowed"], answer.status == 200);
            decision(&json);
        }
        other => panic!("{other:?}: {json}"),
    }
});

fn error(json: &Value) {
    assert_plain_line(json["error"]["message"].as_str().expect("a message"));
}

fn decision(json: &Value) {
    let number = |json: &Value| json.as_u64().expect("a number");
    let allowed = json["allowed"].as_bool().expect("allowed");
    assert_eq!(allowed, json["denied_by"].is_null());
    assert_eq!(allowed, number(&json["code"]) == 0);
    assert!(!allowed || number(&json["retry_after_ms"]) == 0);
    for limit in json["limits"].as_array().expect("limits") {
        let (most, remaining) = (number(&limit["limit"]), number(&limit["remaining"]));
        assert!(most <= MAX_LIMIT && remaining <= MAX_LIMIT, "{limit}");
        assert!(number(&limit["used"]).saturating_add(remaining) >= most, "{limit}");
        assert_plain_line(limit["key"].as_str().expect("a key"));
    }
    if let Some(text) = json["reservation"].as_str() {
        // All limiters of a process share one signing key.
        let limiter = Limiter::per_second(1).expect("a limiter");
        let reservation = limiter.verify(text).expect("the reservation was signed in this process");
        assert_eq!(limiter.sign(&reservation), text);
        assert!(allowed);
    }
}
