//! Tests counting in Redis over the API: shared by servers, with and without a reachable Redis, and outages distinct
//! from denials.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use slidegate::{Clock, SystemClock};
use slidegate_server::Config;
use slidegate_testkit::{FakeTime, Flavour, RedisServer, eventually, lasting_port, process};

use crate::server::{BINARY, Server};

const RULES: &str = "rules: [{ name: api, key: [user], limit: 5, window: 1m }]";

fn with_store(url: &str, rest: &str) -> Server {
    // A long deadline: on a busy machine Redis may take longer than the default, and then the node would decide.
    let failover = if rest.contains("guard:") { "" } else { "guard: { deadline: 20s }" };
    Server::with_rules(&format!("store: {url}\n{failover}\n{rest}\n{RULES}\n"))
}

fn acquire(server: &Server) -> u16 {
    server.post("/v1/acquire", r#"{"attributes":{"user":"alice"}}"#).status
}

#[test]
fn two_servers_share_one_count() {
    let redis = RedisServer::start(Flavour::Redis7);
    let one = with_store(&redis.url(), "");
    let two = with_store("redis", &format!("redis: {{ url: \"{}\" }}", redis.url()));
    assert!(one.greeting.contains(&format!("store: redis at 127.0.0.1:{}", redis.port)));
    let answers: Vec<u16> = [&one, &two, &one, &two, &one, &two, &one].map(acquire).into();
    assert_eq!(answers, [200, 200, 200, 200, 200, 429, 429]);
    assert_eq!(one.get("/readyz").json(), json!({ "ready": true, "store": "redis", "rules": 1 }));
    let denied = two.post("/v1/acquire", r#"{"attributes":{"user":"alice"}}"#).json();
    assert_eq!((&denied["denied_by"], &denied["limits"][0]["used"]), (&json!("api"), &json!(5)));
}

#[test]
fn reservation_is_settled_at_another_server() {
    let redis = RedisServer::start(Flavour::Redis7);
    let (one, two) = (with_store(&redis.url(), ""), with_store(&redis.url(), ""));
    let body = r#"{"attributes":{"user":"alice"},"permits":4}"#;
    let reservation = one.post("/v1/acquire", body).json()["reservation"].clone();
    assert_eq!(two.post("/v1/acquire", body).status, 429);
    let settle = json!({ "reservation": reservation, "permits": 1 }).to_string();
    assert_eq!(two.post("/v1/settle", &settle).json(), json!({ "settled": "done" }));
    assert_eq!(one.post("/v1/settle", &settle).json(), json!({ "settled": "already" }));
    assert_eq!(one.post("/v1/acquire", body).status, 200);
}

/// Unsigned reservations, as an attacker who knows the layout would write them: none is settled, and Redis is not called.
#[test]
fn forged_reservations_do_not_reach_redis() {
    let redis = RedisServer::start(Flavour::Redis7);
    let server = with_store(&redis.url(), "");
    let body = r#"{"attributes":{"user":"alice"},"permits":4,"id":"one"}"#;
    let reservation = server.post("/v1/acquire", body).json()["reservation"].as_str().unwrap().to_owned();
    let at = reservation.split('.').next().unwrap();
    let forged: String =
        (0..1_000u64).map(|n| format!("{at}.{}.1.14.api:user=alice", 10u64.pow(18) + n)).collect();
    let signed = format!("{forged}{}", &reservation[reservation.len() - 33..]);
    // In this test only decisions and settlements run scripts.
    let scripts = || {
        let stats = format!("{:?}", redis.run("INFO commandstats"));
        stats
            .split("cmdstat_evalsha:calls=")
            .nth(1)
            .and_then(|rest| rest.split(',').next())
            .unwrap()
            .to_owned()
    };
    let before = scripts();
    for text in [&forged, &signed] {
        let answer = server.post("/v1/settle", &json!({ "reservation": text, "permits": 0 }).to_string());
        assert_eq!(answer.status, 400, "{}", answer.body);
    }
    assert_eq!(scripts(), before);
    let notes = redis.run("ZCARD sg:{api:user=alice}:notes");
    assert_eq!(notes, ::redis::Value::Int(1), "only the note of the request id exists");
    let settle = json!({ "reservation": reservation, "permits": 1 }).to_string();
    assert_eq!(server.post("/v1/settle", &settle).json(), json!({ "settled": "done" }));
}

/// A node that starts while Redis is away signs with its own key, and accepts that key later too. If Redis loses the
/// shared key, a node writes it again.
#[test]
fn nodes_restore_a_lost_reservation_key() {
    let port = lasting_port();
    let url = format!("redis://127.0.0.1:{port}");
    let early = with_store(&url, "");
    let acquire = |server: &Server, user: &str| {
        let body = json!({ "attributes": { "user": user } }).to_string();
        server.post("/v1/acquire", &body).json()["reservation"].clone()
    };
    let settle = |server: &Server, reservation: &serde_json::Value| {
        server.post("/v1/settle", &json!({ "reservation": reservation, "permits": 0 }).to_string()).status
    };
    let alone = acquire(&early, "alice");
    assert!(alone.is_string());
    assert_eq!(settle(&early, &alone), 200);
    let redis = RedisServer::at(Flavour::Redis7, port);
    let has_key = || redis.run("EXISTS sg:{reservation-key}:shared") == ::redis::Value::Int(1);
    eventually("the node stores its key", has_key);
    assert_eq!(settle(&early, &alone), 200, "the node still accepts its earlier signatures");
    let late = with_store(&url, "");
    eventually("both decide by Redis", || {
        [&early, &late].iter().all(|server| server.get("/readyz").json().get("degraded").is_none())
    });
    let (from_early, from_late) = (acquire(&early, "bob"), acquire(&late, "carol"));
    assert_eq!((settle(&late, &from_early), settle(&early, &from_late)), (200, 200));
    assert_eq!(settle(&late, &alone), 200, "all nodes use the key of the first node");
    redis.run("DEL sg:{reservation-key}:shared");
    eventually("a node writes the key back", has_key);
    let newest = with_store(&url, "");
    assert_eq!(settle(&newest, &from_early), 200);
}

#[test]
fn large_batch_is_split_into_calls() {
    let redis = RedisServer::start(Flavour::Redis7);
    let server = with_store(&redis.url(), "redis: { batch-size: 100 }");
    let requests: Vec<_> = (0..250)
        .map(|n| json!({ "resource": format!("r{}", n % 125), "limit": 1, "window": "1m" }))
        .collect();
    let answer = server.post("/v1/acquire/batch", &json!({ "requests": requests }).to_string()).json();
    let results = answer["results"].as_array().unwrap();
    let allowed: Vec<bool> = results.iter().map(|result| result["allowed"] == true).collect();
    assert_eq!(allowed.len(), 250);
    assert!(allowed[..125].iter().all(|allowed| *allowed) && !allowed[125..].iter().any(|allowed| *allowed));
    let calls = format!("{:?}", redis.run("INFO commandstats"));
    let calls = calls
        .split("cmdstat_evalsha:calls=")
        .nth(1)
        .and_then(|rest| rest.split(',').next())
        .unwrap()
        .to_owned();
    // Exactly three round trips. In the first, Redis does not have the script yet.
    assert_eq!(calls, "3");
}

/// Every rule can be decided without Redis, so the node is ready, and says that it is degraded.
#[test]
fn server_starts_without_redis() {
    let port = lasting_port();
    let server = with_store(&format!("redis://:hush@127.0.0.1:{port}"), "");
    let problem = format!("Redis at 127.0.0.1:{port} cannot be reached");
    assert!(server.greeting.contains(&format!("\ndegraded: {problem}")), "{}", server.greeting);
    assert!(server.greeting.ends_with("\nready\n"), "{}", server.greeting);
    let ready = server.get("/readyz");
    assert_eq!((ready.status, &ready.json()["ready"]), (200, &json!(true)));
    let degraded = ready.json()["degraded"].to_string();
    assert!(degraded.contains(&problem), "{degraded}");
    // Nobody has to wait for it.
    let answer = server.post("/v1/acquire", r#"{"attributes":{"user":"alice"}}"#);
    assert_eq!((answer.status, &answer.json()["source"]), (200, &json!("local")));
    assert!(!format!("{}{degraded}{}", server.greeting, answer.json()).contains("hush"));
    assert_eq!(server.get("/healthz").status, 200);
    let _redis = RedisServer::at_with(Flavour::Redis7, port, &["--requirepass", "hush"]);
    eventually("it is not degraded any more", || server.get("/readyz").json().get("degraded").is_none());
    // What was admitted before it was there is counted.
    eventually("Redis has what was admitted without it", || {
        let peek = server.post("/v1/peek", r#"{"attributes":{"user":"alice"}}"#).json();
        peek["source"] == "store" && peek["limits"][0]["used"] == 1
    });
}

const STRICT: &str = "{ name: strict, key: [b], limit: 9, window: 1m, on-error: closed }";

/// One `closed` rule is enough: the node would deny its requests, though another node may decide them.
#[test]
fn node_with_a_closed_rule_is_ready_after_redis_has_answered() {
    const TOKEN: &str = "admin-token-0123456789";
    let port = lasting_port();
    let local = "{ name: usual, key: [a], limit: 1, window: 1m }";
    let settings = format!("store: redis://127.0.0.1:{port}\nguard: {{ deadline: 20s, heartbeat: 100ms }}\n");
    let rules = |rules: &[&str]| format!("rules: [{}]", rules.join(", "));
    let both = rules(&[local, STRICT]);
    let server = Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", TOKEN)], &format!("{settings}{both}"), &[]);
    let reason = "; `on-error` is `closed` for 1 rule, so this node waits for Redis";
    let last = server.greeting.lines().last().unwrap();
    assert!(last.starts_with("not ready: Redis at 127.0.0.1:") && last.ends_with(reason), "{last}");
    let ready = server.get("/readyz");
    assert_eq!((ready.status, &ready.json()["ready"]), (503, &json!(false)));
    assert!(ready.json()["reason"].as_str().unwrap().ends_with(reason), "{}", ready.body);
    // Requests are decided all the same.
    let post = |name: &str| {
        let answer = server.post("/v1/acquire", &json!({ "attributes": { name: "x" } }).to_string());
        answer.json()["source"].as_str().unwrap().to_owned()
    };
    assert_eq!((post("a").as_str(), post("b").as_str()), ("local", "fail-closed"));
    // A rule that denies nothing, and rules that are replaced, do not matter.
    let put = |rules: &str| {
        let token = format!("Bearer {TOKEN}");
        let answer = server.send("PUT", "/v1/rules", &[("authorization", &token)], rules);
        assert_eq!(answer.status, 200, "{}", answer.body);
        server.get("/readyz").status
    };
    let shadow = STRICT.replace("closed", "closed, mode: shadow");
    assert_eq!(put(&rules(&[local, &shadow])), 200);
    assert_eq!(put(&both), 503);
    let redis = RedisServer::at(Flavour::Redis7, port);
    eventually("it is ready", || server.get("/readyz").status == 200);
    // From now on it stays ready: the other nodes have lost Redis too.
    redis.kill();
    eventually("it is degraded", || server.get("/readyz").json()["degraded"].is_string());
    assert_eq!(server.get("/readyz").status, 200);
    // The breaker may still be closed, but the problem is told.
    assert!(server.get("/v1/store").json()["degraded"].is_string());
    eventually("the breaker opens", || server.get("/v1/store").json()["servers"][0]["breaker"] == "open");
    redis.restart();
    eventually("Redis decides again", || {
        let store = server.get("/v1/store").json();
        store.get("degraded").is_none() && store["servers"][0]["direct"] == true
    });
}

/// The default policy is that of rules without one, and of requests that give their own limit.
#[test]
fn closed_default_makes_a_node_wait_for_redis() {
    let server = Server::with_rules(&format!(
        "store: redis://127.0.0.1:{}\nguard: {{ on-error: closed }}\nrules: []\n",
        lasting_port()
    ));
    let reason = "; `guard.on-error` is `closed`, so this node waits for Redis\n";
    assert!(server.greeting.ends_with(reason), "{}", server.greeting);
    assert_eq!(server.get("/readyz").status, 503);
}

/// Outages of the start and of later are logged with their begin and their end.
#[test]
fn outages_are_logged_as_events() {
    let port = lasting_port();
    let config = format!("store: redis://127.0.0.1:{port}\nguard: {{ heartbeat: 50ms }}\nrules: [{STRICT}]");
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut server = Server::logging_to(log.as_file(), &[], &config, &["--log", "json"]);
    let events = || -> Vec<Value> {
        let text = std::fs::read_to_string(log.path()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
    };
    let until = |name: &str, n: usize| {
        eventually(&format!("{n} events {name}"), || {
            events().iter().filter(|event| event["event"] == name).count() == n
        });
    };
    until("not_ready", 1);
    let redis = RedisServer::at(Flavour::Redis7, port);
    until("outage_end", 1);
    until("ready", 1);
    redis.kill();
    until("outage_begin", 2);
    redis.restart();
    until("outage_end", 2);
    server.terminate();
    assert!(server.wait().success());
    let place = format!("127.0.0.1:{port}");
    let outages: Vec<Value> = events()
        .into_iter()
        .filter(|event| event["event"].as_str().is_some_and(|name| name.starts_with("outage")))
        .collect();
    assert_eq!(outages.len(), 4);
    for outage in outages.chunks(2) {
        let [begin, end] = outage else { panic!("{outages:?}") };
        assert_eq!((&begin["event"], &begin["level"]), (&json!("outage_begin"), &json!("WARN")));
        assert_eq!((&end["event"], &end["level"]), (&json!("outage_end"), &json!("WARN")));
        assert_eq!((&begin["server"], &end["server"]), (&json!(place), &json!(place)));
        assert!(begin["fault"].is_string() && end["duration_ms"].as_u64() > Some(0), "{begin} {end}");
    }
    let names: Vec<Value> = events().iter().map(|event| event["event"].clone()).collect();
    assert!(names.contains(&json!("connected")), "{names:?}");
    let stop = ["signal", "listeners_closed", "connections_closed", "left", "stopped"].map(Value::from);
    assert_eq!(names[names.len() - stop.len()..], stop);
}

#[test]
fn keys_of_all_servers_are_listed() {
    let servers = [(); 2].map(|()| RedisServer::start(Flavour::Redis7));
    let urls: Vec<String> = servers.iter().map(|server| format!("\"{}\"", server.url())).collect();
    let sharded = format!("redis: {{ shards: [{}] }}", urls.join(", "));
    for server in [with_store("redis", &sharded), with_store(&servers[0].url(), "redis: { prefix: alone }")] {
        let request = |n: usize| match n % 3 {
            0 => json!({ "resource": format!("r{n}"), "limit": 3, "window": "1h" }),
            // With an id, the key has notes beside its count.
            1 => json!({ "attributes": { "user": format!("u{n}") }, "id": format!("id{n}") }),
            _ => json!({ "attributes": { "user": format!("u{n}") }, "permits": 2 }),
        };
        let requests: Vec<_> = (0..90).map(request).collect();
        let body = json!({ "requests": requests }).to_string();
        assert_eq!(server.post("/v1/acquire/batch", &body).status, 200);
        let (keys, pages) = crate::key_list::pages(&server, "limit=10", 90);
        assert_eq!(keys.len(), 90);
        assert!(pages > 2, "{pages}");
        let name = "api:user=u2";
        assert_eq!(
            keys[name],
            json!({ "key": name, "used": 2, "rule": "api", "limit": 5, "limit_source": "rule" })
        );
        let (ad_hoc, _) = crate::key_list::pages(&server, "rule=ad-hoc", 90);
        assert_eq!(ad_hoc.len(), 30);
        assert!(ad_hoc.values().all(|key| key["limit_source"] == "request"), "{ad_hoc:?}");
        let ad_hoc = server.get("/v1/keys/ad-hoc:resource=r0:window=1h").json();
        assert_eq!((&ad_hoc["rule"], &ad_hoc["window_ms"]), (&json!("ad-hoc"), &json!(3_600_000)));
    }
    let unreachable = with_store(&format!("redis://127.0.0.1:{}", lasting_port()), "");
    let answer = unreachable.get("/v1/keys");
    assert_eq!(
        (answer.status, &answer.json()["error"]["code"]),
        (503, &json!("unavailable")),
        "{}",
        answer.body
    );
    let memory = unreachable.get("/v1/keys?cursor=m302f");
    assert_eq!(memory.status, 400, "{}", memory.body);
}

#[test]
fn each_rule_has_its_outage_policy() {
    let redis = RedisServer::at(Flavour::Redis7, lasting_port());
    let server = Server::with_rules(&format!(
        "store: {}\nguard: {{ on-error: open, deadline: 20s }}\nrules:\n\
         - {{ name: usual, key: [a], limit: 1, window: 1m }}\n\
         - {{ name: strict, key: [b], limit: 9, window: 1m, on-error: closed, code: 7 }}\n\
         - {{ name: fair, key: [c], limit: 3, window: 1m, on-error: local }}\n",
        redis.url()
    ));
    let post = |name: &str| {
        let answer = server.post("/v1/acquire", &json!({ "attributes": { name: "x" } }).to_string());
        (answer.status, answer.json()["source"].as_str().unwrap().to_owned())
    };
    let expected = |status: u16, source: &str| (status, source.to_owned());
    assert_eq!(["a", "b", "c"].map(post), [200, 200, 200].map(|status| expected(status, "store")));
    assert_eq!(post("a"), expected(429, "store"));
    redis.kill();
    // The deny cache answers until the node notices that Redis sends no notifications any more.
    eventually("the deny cache is not used any more", || post("a") != expected(429, "deny-cache"));
    assert_eq!((post("a"), post("a")), (expected(200, "fail-open"), expected(200, "fail-open")));
    assert_eq!(post("b"), expected(429, "fail-closed"));
    let denied = server.post("/v1/acquire", r#"{"attributes":{"b":"x"}}"#);
    assert_eq!((&denied.json()["denied_by"], &denied.json()["code"]), (&json!("strict"), &json!(7)));
    // One of three permits is used. The node may grant the other two, because it is the only node.
    let answers: Vec<_> = (0..4).map(|_| post("c")).collect();
    assert_eq!(answers, [200, 200, 429, 429].map(|status| expected(status, "local")));
    let ready = server.get("/readyz");
    assert_eq!((ready.status, &ready.json()["ready"]), (200, &json!(true)));
    assert!(ready.json()["degraded"].as_str().unwrap().contains("Redis at "), "{}", ready.json());
    let store = server.get("/v1/store").json();
    let seen = &store["servers"][0];
    assert_eq!((&seen["breaker"], &seen["direct"]), (&json!("open"), &json!(false)), "{store}");
    assert!(store["journal"]["entries"].as_u64() >= Some(3), "{store}");
    // Redis comes back empty, and the node writes everything back.
    redis.restart();
    eventually("Redis decides again", || server.get("/v1/store").json()["servers"][0]["direct"] == true);
    assert_eq!(
        ["a", "b", "c"].map(post),
        [expected(429, "store"), expected(200, "store"), expected(429, "store")]
    );
    let peek = server.post("/v1/peek", r#"{"attributes":{"b":"x"}}"#).json();
    assert_eq!(peek["limits"][0]["used"], 2);
    assert_eq!(server.get("/v1/store").json()["servers"][0]["nodes"], 1);
}

#[test]
fn nodes_know_the_number_of_members() {
    let redis = RedisServer::start(Flavour::Redis7);
    let failover = "guard: { heartbeat: 100ms, deadline: 20s }";
    let one = with_store(&redis.url(), failover);
    let nodes = |n: u64| {
        eventually(&format!("the node knows {n} nodes"), || {
            one.get("/v1/store").json()["servers"][0]["nodes"] == n
        });
    };
    nodes(1);
    let two = with_store(&redis.url(), failover);
    nodes(2);
    drop(two);
    nodes(1);
}

#[test]
fn warns_if_redis_may_evict_keys() {
    let settings = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let redis = RedisServer::with(Flavour::Redis7, &settings, &[]);
    let log = tempfile::NamedTempFile::new().unwrap();
    let _server = Server::logging_to(log.as_file(), &[], RULES, &["--store", &redis.url()]);
    eventually("the log names the policy and the fix", || {
        let text = std::fs::read_to_string(log.path()).unwrap();
        text.contains("maxmemory-policy is allkeys-lru") && text.contains("set it to noeviction")
    });
}

/// Asserts the exact messages for a file.
const BROKEN: &[(&str, &str)] = &[
    ("redis: 5", "1:8: redis must be a mapping, not 5"),
    (
        "redis: { host: x }",
        "1:10: unknown field `host` in redis: the fields are `url`, `cluster`, `shards`, `sentinel`, `password-file`, `tls`, `connections`, `connect-timeout`, `response-timeout`, `keep-alive`, `health-check`, `max-in-flight`, `max-wait`, `batch-size`, `min-expire`, `expire-buffer`, `mode`, `prefix`",
    ),
    (
        "redis: { url: \"http://user:hush@x\" }",
        "1:15: url must look like redis://[user:password@]host:port[/db], or rediss:// for TLS",
    ),
    (
        "redis: { url: \"redis://a\", cluster: [\"redis://b\"] }",
        "1:37: `redis` has both `url` and `cluster`: set only one of them",
    ),
    ("redis: { cluster: redis://a }", "1:19: cluster must be a list, not a text"),
    ("redis: { cluster: [] }", "1:8: cluster must name 1 to 1000 urls, not 0"),
    (
        "redis: { shards: [\"redis://u:hush@a:1\", \"redis://b:1\", \"redis://:hush@a:1\"] }",
        "1:8: shards names a:1 twice",
    ),
    (
        "redis:\n  shards:\n    - http://user:hush@x\n    - 5",
        "3:7: url must look like redis://[user:password@]host:port[/db], or rediss:// for TLS\n4:7: url must be text, not 5: write \"5\" in quotes",
    ),
    (
        "redis: { sentinel: { name: x } }",
        "1:20: sentinel needs `master`\n1:20: sentinel needs `nodes`\n1:22: unknown field `name` in sentinel: the fields are `master`, `nodes`, `username`, `password`",
    ),
    (
        "redis: { sentinel: { master: \"\", nodes: [\"redis://a\"] } }",
        "1:8: sentinel.master is empty: set the name of the primary in the sentinels",
    ),
    (
        "redis: { sentinel: { master: m, nodes: [\"redis://a\"], password: 4711 } }",
        "1:65: password must be text: write it in quotes",
    ),
    (
        "redis: { cluster: [\"rediss://a\", \"redis://b\"], tls: { ca: x } }",
        "1:53: tls needs a url that starts with rediss://",
    ),
    ("redis: { connections: 0 }", "1:23: connections must be between 1 and 64, not 0"),
    ("redis: { batch-size: 1001 }", "1:22: batch-size must be between 1 and 1000, not 1001"),
    (
        "redis: { response-timeout: soon }",
        "1:28: response-timeout must be a length of time such as 250ms, 5s or 1h, not \"soon\"",
    ),
    ("redis: { max-wait: 2m }", "1:20: max-wait must be between 0s and 1m, not 2m"),
    ("redis: { mode: lua }", "1:16: mode must be one of script, transaction, not \"lua\""),
    ("redis: { prefix: \"a b\" }", "1:8: prefix must be 1 to 32 letters, digits or any of `._-`"),
    ("redis: { tls: { ca: x } }", "1:15: tls needs a url that starts with rediss://"),
    ("redis: { url: \"rediss://x\", tls: { cert: x } }", "1:34: tls needs both `cert` and `key`, or neither"),
    ("guard: { deadline: 0s }", "1:20: deadline must be between 1ms and 1m, not 0s"),
    ("guard: { on-error: maybe }", "1:20: on-error must be one of local, open, closed, not \"maybe\""),
    ("guard: { journal: many }", "1:19: journal must be a whole number, not \"many\""),
    ("guard: { longest-pause: 10ms }", "1:8: longest-pause must be between 50ms and 1m, not 10ms"),
    (
        "guard: { timeout: 1s }",
        "1:10: unknown field `timeout` in guard: the fields are `deadline`, `on-error`, `nodes`, `failures`, `probes`, `first-pause`, `longest-pause`, `journal`, `heartbeat`, `write-back`",
    ),
    ("hot-keys: { coalesce: yes please }", "1:23: coalesce must be true or false, not \"yes please\""),
    ("hot-keys: { max-waiting: 0 }", "1:26: max-waiting must be between 1 and 1000000, not 0"),
    ("hot-keys: { deny-cache: 10000001 }", "1:25: deny-cache must be between 0 and 10000000, not 10000001"),
    (
        "hot-keys: { lease: 1 }",
        "1:13: unknown field `lease` in hot-keys: the fields are `coalesce`, `max-waiting`, `deny-cache`",
    ),
    (
        "redis: { mode: transaction }\nrules: [{ name: a, limit: 1, window: 1s, encoding: packed }]",
        "1:8: mode: transaction cannot store rule `a`, which has encoding: packed",
    ),
];

#[test]
fn every_mistake_has_its_exact_message() {
    for (text, expected) in BROKEN {
        let text = if text.contains("rules:") { (*text).to_owned() } else { format!("{text}\nrules: []") };
        let message = Config::parse(&text).unwrap_err().to_string();
        assert_eq!(message, *expected, "{text}");
    }
}

#[test]
fn reads_every_field() {
    let text = "store: redis
redis:
  url: rediss://user:password@host:6380/2
  tls: { ca: ca.pem, cert: cert.pem, key: key.pem }
  connections: 4
  connect-timeout: 2s
  response-timeout: 100ms
  keep-alive: 30s
  health-check: 1s
  max-in-flight: 1000
  max-wait: 10ms
  batch-size: 50
  min-expire: 2m
  expire-buffer: 30s
  mode: script
  prefix: acme.sg
hot-keys: { coalesce: false, max-waiting: 5, deny-cache: 0 }
rules: [{ name: hot, limit: 1000, window: 1s, lease: { permits: 100, ttl: 100ms } }]
";
    let config = Config::parse(text).unwrap();
    let error = config.settings.redis.options(None).unwrap_err();
    assert!(error.starts_with("cannot read ca.pem: "), "{error}");
    let schema = process::output(Command::new(BINARY).arg("schema"));
    let schema: serde_json::Value = serde_json::from_slice(&schema.stdout).unwrap();
    let value: serde_json::Value = serde_saphyr::from_str(text).unwrap();
    assert!(jsonschema::validator_for(&schema).unwrap().is_valid(&value));
}

/// The server prints the addresses of every topology without passwords, and the schema accepts its file.
#[test]
fn reads_every_topology() {
    let schema = process::output(Command::new(BINARY).arg("schema"));
    let schema: serde_json::Value = serde_json::from_slice(&schema.stdout).unwrap();
    let topologies = [
        ("cluster: [\"redis://u:hush@a:1\", \"redis://b:2\"]", "the cluster of a:1, b:2"),
        ("shards: [\"redis://u:hush@a:1\", \"redis://b:2\"]", "the shards a:1, b:2"),
        (
            "sentinel: { master: m, nodes: [\"redis://u:hush@a:1\"], username: u, password: hush }",
            "m of the sentinels a:1",
        ),
    ];
    for (topology, place) in topologies {
        let text = format!("store: redis\nredis: {{ {topology} }}\nrules: []");
        let options = Config::parse(&text).unwrap().settings.redis.options(None).unwrap();
        assert_eq!(options.address(), place);
        assert!(!format!("{options:?}").contains("hush"));
        let value: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert!(jsonschema::validator_for(&schema).unwrap().is_valid(&value), "{text}");
    }
}

/// The password of Redis changes under load: first Redis accepts both, then the file has the new one, then Redis forgets the old
/// one and closes all connections.
#[test]
fn password_rotates_without_a_failed_decision() {
    let redis = RedisServer::start(Flavour::Redis7);
    redis.run("ACL SETUSER app on >first ~* &* +@all");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("password");
    std::fs::write(&path, "first\n").unwrap();
    let url = format!("redis://app@127.0.0.1:{}", redis.port);
    let config = format!(
        "store: redis\nredis: {{ url: \"{url}\", password-file: {} }}\nguard: {{ deadline: 20s }}\n\
         rules: [{{ name: api, key: [user], limit: 1000000, window: 1h }}]\n",
        path.display()
    );
    let log = tempfile::NamedTempFile::new().unwrap();
    let server = Server::logging_to(log.as_file(), &[], &config, &[]);
    eventually("Redis answers", || server.get("/readyz").status == 200);
    let connected = || format!("{:?}", redis.run("CLIENT LIST")).contains("user=app");
    assert!(connected());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut statuses = Vec::new();
            while !done.load(Ordering::Relaxed) {
                statuses.push(acquire(&server));
            }
            statuses
        });
        redis.run("ACL SETUSER app >second");
        std::fs::write(&path, "second\n").unwrap();
        let reloaded = "reloaded: password of Redis";
        eventually("the new password is read", || {
            std::fs::read_to_string(log.path()).unwrap().contains(reloaded)
        });
        redis.run("ACL SETUSER app <first");
        redis.run("CLIENT KILL USER app");
        eventually("the server connects with the new password", || {
            connected() && server.get("/readyz").status == 200
        });
        let denied = redis.try_run("AUTH app first");
        assert!(denied.is_err(), "the old password is gone");
        done.store(true, Ordering::Relaxed);
        let statuses = load.join().unwrap();
        assert!(!statuses.is_empty() && statuses.iter().all(|status| *status == 200), "{statuses:?}");
    });
    assert!(!std::fs::read_to_string(log.path()).unwrap().contains("second"));
}

#[test]
fn password_is_in_one_place_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("password");
    std::fs::write(&path, "hush\n").unwrap();
    let options = |redis: &str| {
        let text = format!("redis: {{ {redis}, password-file: {} }}\nrules: []", path.display());
        Config::parse(&text).unwrap().settings.redis.options(None)
    };
    let twice = "the password of Redis is in `redis.password-file` and in its address: remove one of them";
    assert_eq!(options("url: \"redis://:x@a\"").unwrap_err(), twice);
    assert_eq!(options("sentinel: { master: m, nodes: [redis://a], password: x }").unwrap_err(), twice);
    let options = options("sentinel: { master: m, nodes: [\"redis://u:x@a\"] }").unwrap();
    assert!(options.password.is_some() && !format!("{:?}", options.password).contains("hush"));
}

/// `/readyz` names the servers that do not answer.
#[test]
fn readyz_names_unreachable_shards() {
    let servers = [(); 2].map(|()| RedisServer::start(Flavour::Redis7));
    let urls: Vec<String> = servers.iter().map(|server| format!("\"{}\"", server.url())).collect();
    let server = with_store("redis", &format!("redis: {{ shards: [{}] }}", urls.join(", ")));
    assert_eq!(server.get("/readyz").status, 200);
    servers[1].kill();
    // Redis is called at intervals, independently of the number of requests.
    eventually("the server notices the outage", || server.get("/readyz").json()["degraded"].is_string());
    let ready = server.get("/readyz");
    assert_eq!(ready.status, 200, "decisions can still be made");
    let reason = ready.json()["degraded"].to_string();
    assert!(reason.contains("1 of 2 servers do not answer"), "{reason}");
    assert!(reason.contains(&format!("127.0.0.1:{}", servers[1].port)), "{reason}");
    assert!(!reason.contains(&format!("127.0.0.1:{}", servers[0].port)), "{reason}");
}

/// The server denies a flood from its cache and rarely calls Redis.
#[test]
fn denied_flood_is_answered_without_redis() {
    let redis = RedisServer::start(Flavour::Redis7);
    let server = with_store(&redis.url(), "");
    let post = || server.post("/v1/acquire", r#"{"resource":"hot","limit":5,"window":"1h"}"#);
    for _ in 0..5 {
        assert_eq!(post().status, 200);
    }
    let scripts = || {
        let info: String = redis::from_redis_value(redis.run("INFO commandstats")).unwrap();
        let line =
            info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=").map(str::to_owned));
        line.unwrap().split(',').next().unwrap().parse::<u64>().unwrap()
    };
    // Redis decides the first denials, until this node has subscribed to invalidations.
    eventually("the deny cache answers", || post().json()["source"] == "deny-cache");
    let before = scripts();
    // On a busy machine the node may miss invalidations for a moment, and calls Redis until it receives them again.
    let mut calls = 0;
    for _ in 0..500 {
        let denied = post();
        assert_eq!(denied.status, 429);
        match denied.json()["source"].as_str() {
            Some("deny-cache") => {}
            Some("store") => calls += 1,
            other => panic!("decided by {other:?}"),
        }
        assert_eq!(denied.json()["limits"][0]["used"], 5);
        assert!(denied.json()["limits"][0]["retry_after_ms"].as_u64() > Some(3_500_000));
        assert!(denied.header("retry-after").is_some());
    }
    assert!(calls < 100, "{calls} of 500 called Redis");
    // The remaining scripts are checks of the server, not the flood.
    let scripts = scripts() - before - calls;
    assert!(scripts < 50, "{scripts}");
}

/// Three thousand entries of one and two permits, a millisecond apart: 4,500 permits. The test writes them directly,
/// which is faster.
const FILL: &str = "
local time = redis.call('TIME')
local now, key = time[1] * 1000000 + time[2], KEYS[1]
local first = now - 1000000000
for i = 1, 3000 do
  local at = first + i * 1000
  redis.call('ZADD', key, string.format('%d', at), string.format('%x*%d', at % 2 ^ 36, 1 + i % 2))
end
redis.call('ZADD', key, '-4500.25', 'u', string.format('-%d', first + 3000000), 'sliding-window 3600000000', '0', 'm', '0', 'l')
redis.call('PEXPIRE', key, '3600000')";

/// A wait that would take Redis too much reading is a lower bound, and every protocol marks it.
#[test]
fn retry_after_lower_bound_is_marked() {
    let redis = RedisServer::start(Flavour::Redis7);
    let rules = "rules: [{ name: api, key: [user], limit: 4500, window: 1h }]";
    let url = redis.url();
    let server = Server::with_rules(&format!(
        "store: {url}\nguard: {{ deadline: 20s }}\nhot-keys: {{ deny-cache: 0 }}\n{rules}\n"
    ));
    redis::cmd("EVAL").arg(FILL).arg(1).arg("sg:{api:user=alice}").exec(&mut redis.client()).unwrap();
    for path in ["/v1/acquire", "/v1/peek", "/v1/explain"] {
        let body =
            |permits: u64| json!({ "attributes": { "user": "alice" }, "permits": permits }).to_string();
        let exact = server.post(path, &body(100)).json();
        assert_eq!((&exact["allowed"], exact.get("retry_after_exact")), (&json!(false), None), "{path}");
        let bound = server.post(path, &body(4_000)).json();
        assert_eq!(
            (&bound["allowed"], &bound["retry_after_exact"]),
            (&json!(false), &json!(false)),
            "{path}"
        );
        let limit = if path == "/v1/explain" { &bound["rules"][0]["counted"] } else { &bound["limits"][0] };
        assert_eq!(limit["retry_after_exact"], json!(false), "{path}");
        // The thousandth entry leaves a second after the first, and the exact wait is almost two seconds longer.
        let (least, exact) = (bound["retry_after_ms"].as_u64(), exact["retry_after_ms"].as_u64());
        assert!(least > exact && least <= exact.map(|exact| exact + 1_000), "{path}: {least:?}, {exact:?}");
    }
}

/// A node grants the permits of its lease, and returns the unused ones on shutdown.
#[test]
fn leases_are_returned_on_shutdown() {
    // A slice of the window ends with an hour of Redis's clock, and then the node returns the unused permits of its
    // lease. Five minutes into an hour, no slice ends while the test runs.
    let time = FakeTime::start();
    let second = SystemClock::new().now().get() / 1_000_000 % 3_600;
    time.set((3_600 - second as i64 + 300) * 1_000);
    let redis = RedisServer::with(Flavour::Valkey9, &[], &time.environment());
    let text = format!(
        "store: {}\nguard: {{ deadline: 20s }}\n\
         rules: [{{ name: hot, limit: 1000, window: 10h, lease: {{ permits: 100, ttl: 1h }} }}]",
        redis.url()
    );
    let mut server = Server::with_rules(&text);
    let mut leased = 0;
    for _ in 0..100 {
        let answer = server.post("/v1/acquire", r#"{"attributes":{"a":"b"}}"#);
        assert_eq!(answer.status, 200);
        leased += u64::from(answer.json()["source"] == "lease");
    }
    assert!(leased > 30, "{leased}");
    let rule = &server.get("/v1/rules").json()["rules"][0];
    assert_eq!((&rule["algorithm"], &rule["lease"]["ttl"]), (&json!("time-slice"), &json!("1h")));
    let used = |server: &Server| {
        let peek = server.post("/v1/peek", r#"{"attributes":{"a":"b"}}"#).json();
        peek["limits"][0]["used"].as_u64().unwrap()
    };
    let store = server.get("/v1/store").json();
    let idle = store["leases"]["idle_permits"].as_u64().unwrap();
    assert_eq!((store["leases"]["keys"].as_u64(), used(&server)), (Some(1), 100 + idle), "{store}");
    server.terminate();
    assert!(server.wait().success());
    assert_eq!(used(&Server::with_rules(&text)), 100);
}
