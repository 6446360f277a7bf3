//! Tests `GET /v1/fleet`: nodes that share a Redis see each other, and each adds up the statistics of all.

use serde_json::{Value, json};
use slidegate_testkit::{Flavour, RedisServer, eventually, lasting_port};

use crate::server::Server;

const RULES: &str = "
rules:
  - { name: per-user, key: [user], limit: 5, window: 1h }
  - { name: unused, match: { api: /none }, limit: 1, window: 1h }
";
const STREAM: &str = "sg:{fleet}:shared";

fn with_rules(redis: &RedisServer, rules: &str) -> Server {
    // On a busy machine Redis may take longer than the usual deadline; then it would not be who decides.
    Server::with_rules(&format!("store: {}\nguard: {{ deadline: 20s }}\n{rules}", redis.url()))
}

fn node(redis: &RedisServer) -> Server {
    with_rules(redis, RULES)
}

fn acquire(server: &Server) -> u16 {
    server.post("/v1/acquire", r#"{"attributes":{"user":"alice"}}"#).status
}

/// Waits until the answer of `server` is as `wanted`, and returns it.
fn fleet(server: &Server, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let mut fleet = Value::Null;
    eventually(what, || {
        fleet = server.get("/v1/fleet").json();
        wanted(&fleet)
    });
    fleet
}

fn nodes(fleet: &Value) -> &[Value] {
    fleet["nodes"].as_array().unwrap()
}

fn minute(value: &Value) -> (u64, u64) {
    (value["allowed_minute"].as_u64().unwrap(), value["denied_minute"].as_u64().unwrap())
}

#[test]
fn every_node_adds_up_the_statistics_of_all_nodes() {
    let redis = RedisServer::start(Flavour::Redis7);
    let (one, two) = (node(&redis), node(&redis));
    let answers: Vec<u16> = [&one, &two, &two, &one, &two, &two, &two].map(acquire).into();
    assert_eq!(answers, [200, 200, 200, 200, 200, 429, 429]);
    for (server, other) in [(&one, &two), (&two, &one)] {
        let sum = fleet(server, "the sum has all requests", |fleet| minute(fleet) == (5, 2));
        assert_eq!(nodes(&sum).len(), 2, "{sum}");
        assert_eq!(sum.get("error"), None);
        for node in nodes(&sum) {
            let origin = if node["this_node"] == true { server } else { other };
            let expected = if std::ptr::eq(origin, &one) { (2, 0) } else { (3, 2) };
            assert_eq!(minute(node), expected, "{sum}");
            let port = origin.address.rsplit(':').next().unwrap();
            assert!(node["name"].as_str().unwrap().ends_with(&format!(":{port}")), "{sum}");
            assert_eq!(node["version"], env!("CARGO_PKG_VERSION"));
            assert_eq!((&node["store"], &node["edition"]), (&json!("ok"), &json!(1)));
            assert_eq!(node["hash"], server.get("/v1/rules").json()["edition"]["hash"]);
            assert!(node["age_ms"].as_u64().unwrap() <= 5_000, "{sum}");
        }
        let rules = sum["rules"].as_array().unwrap();
        assert_eq!(rules.len(), 1, "rules without a decision are left out: {sum}");
        let rule = &rules[0];
        assert_eq!((&rule["rule"], &rule["nodes"]), (&json!("per-user"), &json!(2)));
        assert_eq!((minute(rule), &rule["charged_minute"]), ((5, 2), &json!(5)));
        assert!(rule["mean_us"].as_f64().unwrap() > 0.0);
    }

    // A node with other rules has another hash.
    let three = with_rules(&redis, &RULES.replace("limit: 5", "limit: 6"));
    let sum = fleet(&one, "the third node is there", |fleet| nodes(fleet).len() == 3);
    let hash = three.get("/v1/rules").json()["edition"]["hash"].clone();
    assert_eq!(nodes(&sum).iter().filter(|node| node["hash"] == hash).count(), 1, "{sum}");

    // A node that has stopped disappears with its counts.
    two.terminate();
    drop(three);
    let sum = fleet(&one, "the others are gone", |fleet| nodes(fleet).len() == 1);
    assert_eq!(nodes(&sum)[0]["this_node"], true);
    assert_eq!(minute(&sum), minute(&nodes(&sum)[0]));
}

/// Any program that can write to Redis can add entries: what no node has written is skipped, and nodes continue.
#[test]
fn malformed_messages_are_ignored() {
    let redis = RedisServer::start(Flavour::Redis7);
    let (one, two) = (node(&redis), node(&redis));
    let both = |fleet: &Value| nodes(fleet).len() == 2;
    fleet(&one, "both are there", both);
    let mut client = redis.client();
    let add = |client: &mut ::redis::Connection, sender: &[u8], text: &[u8]| {
        ::redis::cmd("XADD").arg(STREAM).arg("*").arg(sender).arg(text).exec(client).unwrap();
    };
    let long = format!("{{\"name\":\"{}\"", "x".repeat(100_000));
    let deep = "[".repeat(10_000);
    for text in ["", "no JSON", "{}", "null", r#"{"name":"x"}"#, long.as_str(), deep.as_str()] {
        add(&mut client, b"forged", text.as_bytes());
    }
    add(&mut client, b"forged", b"\xff\xfe");
    add(&mut client, b"\xff", b"{}");
    // Numbers that no node counts are added up without an overflow.
    let most = u64::MAX;
    let many = json!({
        "name": "many", "version": "9", "edition": 1, "hash": "h", "store": "ok", "would_deny": most,
        "second": { "allowed": most, "denied": most }, "minute": { "allowed": most, "denied": most },
        "p50_us": most, "p99_us": null, "later_field": [1],
        "rules": [["per-user", [most, most, most, 0, most], [most, most, most, most, most], most]],
    });
    add(&mut client, b"many", many.to_string().as_bytes());
    assert_eq!(acquire(&two), 200);
    let sum = fleet(&one, "the forged node is there", |fleet| nodes(fleet).len() == 3);
    assert_eq!(minute(&sum), (most, most));
    assert_eq!(nodes(&sum).iter().filter(|node| node["name"] == "many").count(), 1, "{sum}");
    let sum = fleet(&one, "it is gone", both);
    assert_eq!(minute(&sum), (1, 0));
    // Ids that no clock makes, and one in the future.
    for id in ["18446744073709551615-18446744073709551615", "253402300800000-7", "253402300799999-7"] {
        redis.run(&format!("XADD {STREAM} {id} forged nonsense"));
        eventually("a new stream begins", || {
            one.get("/v1/fleet");
            let mut read = ::redis::cmd("XREVRANGE");
            read.arg(STREAM).arg("+").arg("-").arg("COUNT").arg(1);
            let newest: Vec<(String, Vec<String>)> = read.query(&mut client).unwrap();
            // Milliseconds of this century have 13 digits.
            newest.first().is_some_and(|(id, _)| id.find('-') == Some(13))
        });
        fleet(&two, "the second node sees both", both);
        fleet(&one, "the first node sees both", both);
    }
    assert_eq!(acquire(&one), 200);
    fleet(&two, "messages arrive", |fleet| minute(fleet).0 == 2);
}

#[test]
fn node_without_redis_knows_only_itself() {
    let memory = Server::with_rules(RULES);
    acquire(&memory);
    let alone = fleet(&memory, "it has counted", |fleet| minute(fleet) == (1, 0));
    assert_eq!((nodes(&alone).len(), &nodes(&alone)[0]["store"]), (1, &json!("ok")));

    let redis = RedisServer::at(Flavour::Redis7, lasting_port());
    let (one, _two) = (node(&redis), node(&redis));
    fleet(&one, "both are there", |fleet| nodes(fleet).len() == 2);
    redis.kill();
    let alone = fleet(&one, "Redis is gone", |fleet| fleet["error"].is_string());
    assert_eq!((nodes(&alone).len(), &nodes(&alone)[0]["this_node"]), (1, &json!(true)), "{alone}");
    fleet(&one, "it decides without Redis", |fleet| nodes(fleet)[0]["store"] == "down");
    redis.restart();
    let sum = fleet(&one, "both are there again", |fleet| nodes(fleet).len() == 2);
    assert_eq!(sum.get("error"), None);
}

#[test]
fn node_without_permission_says_so_and_decides() {
    let redis = RedisServer::start(Flavour::Redis7);
    redis.run("ACL SETUSER limited on >secret ~sg:* &sg:* +@all -xadd -xrevrange");
    let url = redis.url().replace("redis://", "redis://limited:secret@");
    let log = tempfile::NamedTempFile::new().unwrap();
    let config = format!("store: {url}\nguard: {{ deadline: 20s }}\n{RULES}");
    let server = Server::logging_to(log.as_file(), &[], &config, &[]);
    eventually("it is logged", || {
        let text = std::fs::read_to_string(log.path()).unwrap();
        text.contains("the other nodes do not see the statistics of this node: ")
    });
    assert_eq!(acquire(&server), 200);
    let alone = fleet(&server, "it has counted", |fleet| minute(fleet) == (1, 0));
    assert!(alone["error"].as_str().unwrap().contains("NOPERM"), "{alone}");
}
