//! The encoding of keys is injective and bounded.

use std::collections::HashMap;

use proptest::prelude::*;
use slidegate::{Key, MAX_PLAIN_VALUE};

/// Texts made of what the encoding treats specially.
fn nasty() -> impl Strategy<Value = String> {
    let pieces = prop_oneof![
        Just(":".to_owned()),
        Just("=".to_owned()),
        Just("%".to_owned()),
        Just("%3A".to_owned()),
        Just("{".to_owned()),
        Just("}".to_owned()),
        Just("#".to_owned()),
        Just("a".to_owned()),
        Just(" ".to_owned()),
        Just("\n".to_owned()),
        Just("\u{85}".to_owned()),
        Just("é".to_owned()),
        "[a-c]{1,40}",
    ];
    prop::collection::vec(pieces, 1..5).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn different_values_have_different_keys(
        pairs in prop::collection::vec((nasty(), nasty()), 2..40)
    ) {
        let mut seen: HashMap<String, (String, String)> = HashMap::new();
        for (a, b) in pairs {
            let key = Key::new("rule", [("x", a.as_str()), ("y", b.as_str())]).to_string();
            let values = (a, b);
            let before = seen.insert(key.clone(), values.clone());
            prop_assert!(before.is_none_or(|before| before == values), "{} means two things", key);
        }
    }

    #[test]
    fn no_value_can_steer(value in nasty()) {
        let key = Key::new("rule", [("x", value.as_str())]).to_string();
        let steering = |c: char| c == '{' || c == '}' || c == ' ' || c.is_control();
        prop_assert!(!key.contains(steering), "{:?}", key);
        prop_assert_eq!(key.matches(':').count(), 1);
    }
}

#[test]
fn separators_do_not_shift() {
    let key = |a, b| Key::new("r", [("x", a), ("y", b)]);
    assert_ne!(key("a:b", "c"), key("a", "b:c"));
    assert_ne!(key("a:y=b", "c"), key("a", "b:y=c"));
    assert_ne!(Key::new("r", [("x", "1")]), Key::new("r", [("y", "1")]));
    assert_ne!(Key::new("r:x=1", []), Key::new("r", [("x", "1")]));
}

#[test]
fn long_values_are_digests() {
    let long = "v".repeat(MAX_PLAIN_VALUE + 1);
    let key = Key::new("r", [("x", long.as_str())]);
    assert_eq!(key.as_str(), "r:x=#F588322634849E9EEB19AEF86BEE14E5");
    // A value that looks like a digest is not taken for one.
    let pretender = Key::new("r", [("x", "#F588322634849E9EEB19AEF86BEE14E5")]);
    assert_eq!(pretender.as_str(), "r:x=%23F588322634849E9EEB19AEF86BEE14E5");
    let megabyte = "é".repeat(1 << 19);
    assert!(Key::new("r", [("x", megabyte.as_str())]).as_str().len() < 40);
}
