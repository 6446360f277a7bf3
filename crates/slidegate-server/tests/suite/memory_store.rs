//! Tests the bounds of the memory store: in the configuration file, and as a client sees them.

use std::process::Command;

use serde_json::Value;
use slidegate::{MemoryOptions, OnFull};
use slidegate_server::Config;
use slidegate_testkit::process;

use crate::server::{BINARY, Server};

#[test]
fn invalid_fields_are_reported_with_their_line() {
    let broken = [
        ("memory: { max-keys: 0 }", "1:21: max-keys must be between 1 and 1000000000, not 0"),
        ("memory: { max-keys: many }", "1:21: max-keys must be a whole number, not \"many\""),
        ("memory: { on-full: forget }", "1:20: on-full must be one of share, deny, evict, not \"forget\""),
        (
            "memory: { max-note-bytes: 1000 }",
            "1:27: max-note-bytes must be between 1048576 and 1099511627776, not 1000",
        ),
        (
            "memory: { keys: 1 }",
            "1:11: unknown field `keys` in memory: the fields are `max-keys`, `on-full`, `max-note-bytes`",
        ),
    ];
    for (text, expected) in broken {
        let message = Config::parse(&format!("{text}\nrules: []")).unwrap_err().to_string();
        assert_eq!(message, expected);
    }
}

#[test]
fn reads_every_field_and_the_defaults() {
    let defaults = Config::parse("rules: []").unwrap().settings.memory;
    assert_eq!(defaults, MemoryOptions::default());
    assert_eq!((defaults.max_keys, defaults.on_full), (1_000_000, OnFull::Share));
    let schema = process::output(Command::new(BINARY).arg("schema"));
    let schema: Value = serde_json::from_slice(&schema.stdout).unwrap();
    let words = [("share", OnFull::Share), ("deny", OnFull::Deny), ("evict", OnFull::Evict)];
    for (word, on_full) in words {
        let text =
            format!("memory: {{ max-keys: 5000, on-full: {word}, max-note-bytes: 2000000 }}\nrules: []");
        let config = Config::parse(&text).unwrap();
        assert_eq!(
            config.settings.memory,
            MemoryOptions { max_keys: 5_000, on_full, max_note_bytes: 2_000_000 }
        );
        let value: Value = serde_saphyr::from_str(&text).unwrap();
        assert!(jsonschema::validator_for(&schema).unwrap().is_valid(&value));
    }
}

/// A client fills the store with invented names. The account that it then attacks stays limited.
#[test]
fn key_flood_does_not_reset_a_limit() {
    const RULES: &str = "rules: [{ name: login, key: [user], limit: 3, window: 1h }]";
    let allowed = |on_full: &str| {
        let memory = format!("memory: {{ max-keys: 64, on-full: {on_full} }}");
        let server = Server::with_rules(&format!("{memory}\n{RULES}"));
        let acquire = |user: &str| {
            let body = format!("{{\"attributes\":{{\"user\":\"{user}\"}}}}");
            server.post("/v1/acquire", &body).status == 200
        };
        for n in 0..200 {
            acquire(&format!("first-{n}"));
        }
        let mut allowed = 0;
        for round in 0..10 {
            allowed += (0..3).filter(|_| acquire("alice")).count();
            for n in 0..20 {
                acquire(&format!("{round}-{n}"));
            }
        }
        (allowed, server.get("/v1/store").json(), server.get("/metrics").body)
    };
    let (shared, store, metrics) = allowed("share");
    assert!(shared <= 3, "{shared} logins");
    assert!(
        store["shared"].as_u64().unwrap() > 200 && store["keys"] == 64 && store["evicted"] == 0,
        "{store}"
    );
    assert!(!metrics.contains("slidegate_memory_store_shared_decisions_total 0\n"), "{metrics}");
    let (denied, store, _) = allowed("deny");
    assert_eq!((denied, &store["keys"]), (0, &Value::from(64)));
    assert!(store["denied_full"].as_u64().unwrap() > 200, "{store}");
    let (evicted, store, _) = allowed("evict");
    assert!(evicted == 30 && store["evicted"].as_u64().unwrap() > 200, "{evicted} logins, {store}");
}
