//! Tests that the encoding of keys is injective and bounded.

use std::collections::HashMap;

use proptest::prelude::*;
use slidegate::{Key, Quota, Request, Rule, Rules, bounds::MAX_PLAIN_VALUE};

/// Texts made of the characters that the encoding escapes.
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
    fn different_values_have_different_tagged_keys(
        pairs in prop::collection::vec((nasty(), nasty(), 0..3u8), 2..40)
    ) {
        let mut seen: HashMap<String, (String, String, u8)> = HashMap::new();
        for (a, b, kind) in pairs {
            let (x, y) = (("x", a.as_str()), ("y", b.as_str()));
            let key = match kind {
                0 => Key::new("rule", [x, y]),
                1 => Key::tagged(x, "rule", [y]),
                _ => Key::tagged(y, "rule", [x]),
            };
            let values = (a.clone(), b.clone(), kind);
            let before = seen.insert(key.to_string(), values.clone());
            prop_assert!(before.is_none_or(|before| before == values), "{} means two things", key);
        }
    }

    /// Only the tag determines the slot: it is in the only pair of braces, at the start.
    #[test]
    fn values_do_not_change_the_slot(tenant in nasty(), user in nasty(), other in nasty()) {
        let key = |rule, user: &str| Key::tagged(("t", &tenant), rule, [("u", user)]);
        let (one, two) = (key("a", &user), key("b", &other));
        prop_assert_eq!(one.tag(), two.tag());
        prop_assert!(one.tag().is_some());
        for key in [one, two] {
            prop_assert_eq!(key.as_str().matches(['{', '}']).count(), 2);
            prop_assert_eq!(key.as_str().find('{'), Some(0));
        }
        let elsewhere = Key::tagged(("t", &other), "a", [("u", user.as_str())]);
        prop_assert_eq!(elsewhere.tag() == key("a", &user).tag(), tenant == other);
    }

    /// A rule writes the common part of its keys once, and the result equals keys that are built one by one.
    #[test]
    fn rule_keys_equal_keys_built_one_by_one(
        name in "[a-z][a-z._/-]{0,30}",
        values in prop::collection::vec(nasty(), 0..4),
        tag in prop::option::of(0..4usize),
    ) {
        let names = ["ip", "user.name", "x-tenant", "api"];
        let pairs: Vec<(&str, &str)> = names.into_iter().zip(values.iter().map(String::as_str)).collect();
        let tag = tag.filter(|tag| *tag < pairs.len());
        let mut rule = Rule::new(&name, Quota::per_second(1).unwrap()).unwrap();
        rule = rule.per(pairs.iter().map(|(name, _)| *name)).unwrap();
        let expected = match tag {
            None => Key::new(&name, pairs.clone()),
            Some(tag) => {
                rule = rule.tag(names[tag]).unwrap();
                let others = pairs.iter().copied().filter(|(name, _)| *name != names[tag]);
                Key::tagged(pairs[tag], &name, others)
            }
        };
        let shadow = rule.shadow("shadow", Quota::per_second(2).unwrap()).unwrap();
        let rules = Rules::new([rule, shadow]).unwrap();
        let checks = rules.checks_for(&Request::from(pairs.as_slice())).unwrap();
        prop_assert_eq!(&checks.as_slice()[0].key, &expected);
        prop_assert_eq!(&checks.as_slice()[1].key, &Key::new("shadow", pairs));
    }

    #[test]
    fn values_contain_no_separators_or_control_characters(value in nasty()) {
        let key = Key::new("rule", [("x", value.as_str())]).to_string();
        let steering = |c: char| c == '{' || c == '}' || c == ' ' || c.is_control();
        prop_assert!(!key.contains(steering), "{:?}", key);
        prop_assert_eq!(key.matches(':').count(), 1);
    }
}

#[test]
fn separators_in_values_are_escaped() {
    let key = |a, b| Key::new("r", [("x", a), ("y", b)]);
    assert_ne!(key("a:b", "c"), key("a", "b:c"));
    assert_ne!(key("a:y=b", "c"), key("a", "b:y=c"));
    assert_ne!(Key::new("r", [("x", "1")]), Key::new("r", [("y", "1")]));
    assert_ne!(Key::new("r:x=1", []), Key::new("r", [("x", "1")]));
}

#[test]
fn long_values_become_digests() {
    let long = "v".repeat(MAX_PLAIN_VALUE + 1);
    let key = Key::new("r", [("x", long.as_str())]);
    assert_eq!(key.as_str(), "r:x=#F588322634849E9EEB19AEF86BEE14E5");
    // A value that looks like a digest is not taken for one.
    let pretender = Key::new("r", [("x", "#F588322634849E9EEB19AEF86BEE14E5")]);
    assert_eq!(pretender.as_str(), "r:x=%23F588322634849E9EEB19AEF86BEE14E5");
    let megabyte = "é".repeat(1 << 19);
    assert!(Key::new("r", [("x", megabyte.as_str())]).as_str().len() < 40);
}

#[test]
fn rules_digest_long_values_as_keys_do() {
    let rules = Rules::from_yaml(
        "rules:
  - { name: a, key: [p, q], limit: 1, window: 1h }
  - { name: b, key: [q], match: { p: \"xx*\" }, limit: 1, window: 1h }",
    )
    .unwrap();
    let (p, q) = ("x".repeat(9_000), "y".repeat(81));
    let checks = rules.checks_for(&Request::new([("p", p.as_str()), ("q", &q)])).unwrap();
    let keys: Vec<&Key> = checks.as_slice().iter().map(|check| &check.key).collect();
    assert_eq!(keys, [&Key::new("a", [("p", p.as_str()), ("q", &q)]), &Key::new("b", [("q", q.as_str())])]);
}
