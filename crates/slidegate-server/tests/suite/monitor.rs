//! Tests the self-checks of the server: damaged counts, and a Redis that runs out of memory.

use slidegate_testkit::{Flavour, RedisServer, eventually};

use crate::server::Server;

const RULES: &str = "rules: [{ name: one, key: [user], limit: 5, window: 1h }]";
/// Long deadline: on a busy machine Redis may take longer than the default, and the node would decide alone.
const GUARD: &str = "guard: { deadline: 20s }";
const BODY: &str = r#"{"attributes":{"user":"alice"}}"#;
const KEY: &str = "sg:{one:user=alice}";

fn has_metric(server: &Server, line: &str) -> bool {
    server.get("/metrics").body.lines().any(|other| other == line)
}

fn used(server: &Server) -> u64 {
    server.post("/v1/peek", BODY).json()["limits"][0]["used"].as_u64().unwrap()
}

#[test]
fn wrong_total_is_reported_and_repaired() {
    let redis = RedisServer::start(Flavour::Redis7);
    let monitor = format!(
        "monitor: {{ accuracy: {{ every: 100ms }} }}\nhot-keys: {{ deny-cache: 0 }}\n{GUARD}\n{RULES}"
    );
    let server = Server::with_env(&[], &monitor, &["--store", &redis.url()]);
    assert!(!server.get("/metrics").body.contains("\nslidegate_accuracy_ratio "), "nothing was checked yet");
    for _ in 0..3 {
        server.post("/v1/acquire", BODY);
    }
    eventually("all counts are correct", || has_metric(&server, "slidegate_accuracy_ratio 1.0"));
    assert!(has_metric(&server, "slidegate_accuracy_wrong_keys_total 0"));
    // Member `u` is the running total, which decisions use. Its fraction says how entries are read.
    let score: f64 = redis::from_redis_value(redis.run(&format!("ZSCORE {KEY} u"))).unwrap();
    redis.run(&format!("ZADD {KEY} {} u", score - 2.0));
    eventually("the server repairs the total", || {
        has_metric(&server, "slidegate_accuracy_repaired_keys_total 1")
    });
    assert!(has_metric(&server, "slidegate_accuracy_discrepancies_total{cause=\"total\"} 1"));
    assert_eq!(used(&server), 3, "the total is the sum of the entries");
    redis.run(&format!("PERSIST {KEY}"));
    eventually("the key expires again", || {
        has_metric(&server, "slidegate_accuracy_discrepancies_total{cause=\"no-expiry\"} 1")
    });
    let left: i64 = redis::from_redis_value(redis.run(&format!("PTTL {KEY}"))).unwrap();
    assert!(left > 3_500_000, "{left}");
    eventually("all counts are correct again", || has_metric(&server, "slidegate_accuracy_ratio 1.0"));
}

#[test]
fn repair_can_be_disabled() {
    let redis = RedisServer::start(Flavour::Redis7);
    let monitor = format!("monitor: {{ accuracy: {{ every: 100ms, repair: false }} }}\n{GUARD}\n{RULES}");
    let server = Server::with_env(&[], &monitor, &["--store", &redis.url()]);
    server.post("/v1/acquire", BODY);
    let score: f64 = redis::from_redis_value(redis.run(&format!("ZSCORE {KEY} u"))).unwrap();
    redis.run(&format!("ZADD {KEY} {} u", score - 1.0));
    eventually("the wrong count is reported", || has_metric(&server, "slidegate_accuracy_ratio 0.0"));
    assert!(has_metric(&server, "slidegate_accuracy_repaired_keys_total 0"));
    assert_eq!(used(&server), 2);
}

#[test]
fn memory_store_is_audited() {
    let server = Server::with_rules(&format!("monitor: {{ accuracy: {{ every: 100ms }} }}\n{RULES}"));
    server.post("/v1/acquire", BODY);
    eventually("all counts are correct", || has_metric(&server, "slidegate_accuracy_ratio 1.0"));
}

#[test]
fn gc_runs_when_memory_gets_short() {
    let redis = RedisServer::start(Flavour::Redis7).without_ttl_check();
    let rules = format!(
        "{GUARD}\nrules: [{{ name: one, key: [user], limit: 100, window: 1s }}, {{ name: two, key: [tenant], limit: 5, window: 1h }}]"
    );
    let quiet = Server::with_env(
        &[],
        &format!("monitor: {{ memory: {{ every: 'off' }} }}\n{rules}"),
        &["--store", &redis.url()],
    );
    for n in 0..200 {
        quiet.post("/v1/acquire", &format!(r#"{{"attributes":{{"user":"u{n}"}},"permits":3}}"#));
    }
    quiet.post("/v1/acquire", r#"{"attributes":{"tenant":"acme"},"permits":2}"#);
    // Keys without an expiry, for example after a manual restore, would stay for ever.
    for n in 0..200 {
        redis.run(&format!("PERSIST sg:{{one:user=u{n}}}"));
    }
    redis.run("SET other kept");
    redis.run("ZADD sg:{not-ours} 1 a");
    redis.run("PERSIST sg:{not-ours}");
    let keys = || -> u64 { redis::from_redis_value(redis.run("DBSIZE")).unwrap() };
    assert!(keys() >= 203, "{}", keys());
    let watched =
        format!("monitor: {{ memory: {{ every: 200ms, threshold: 1%, max-bytes: 1000000 }} }}\n{rules}");
    let server = Server::with_env(&[], &watched, &["--store", &redis.url()]);
    eventually("keys are dropped", || keys() < 20);
    eventually("the freed keys are reported", || !has_metric(&server, "slidegate_gc_dropped_keys_total 0"));
    let page = server.get("/metrics").body;
    for line in [
        "slidegate_redis_memory_used_bytes{server=",
        "slidegate_redis_own_keys ",
        "slidegate_gc_freed_bytes_total ",
    ] {
        assert!(page.contains(line), "{line}{page}");
    }
    let there =
        |name: &str| -> bool { redis::from_redis_value(redis.run(&format!("EXISTS {name}"))).unwrap() };
    assert!(there("other") && there("sg:{not-ours}"), "foreign keys are not touched");
    let acme = server.post("/v1/peek", r#"{"attributes":{"tenant":"acme"}}"#).json();
    assert_eq!(acme["limits"][0]["used"], 2, "entries that count still count");
}
