//! Tests `rules: redis`: every node follows one set of rules, which one `PUT` replaces.

use slidegate_testkit::{Flavour, RedisServer, eventually, lasting_port, process};

use crate::server::{Answer, Server};

const TOKEN: &str = "admin-token-0123456789";
const KEY: &str = "sg:{rules}:shared";
const BODY: &str = r#"{"attributes":{"user":"a"}}"#;

fn config(redis: &RedisServer) -> String {
    format!("store: {}\nguard: {{ deadline: 20s }}\nrules: redis\n", redis.url())
}

fn node(redis: &RedisServer) -> Server {
    Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", TOKEN)], &config(redis), &[])
}

fn put(server: &Server, rules: &str) -> Answer {
    server.send("PUT", "/v1/rules", &[("authorization", &format!("Bearer {TOKEN}"))], rules)
}

fn rules(limit: u64) -> String {
    format!("rules: [{{ name: one, key: [user], limit: {limit}, window: 1h }}]")
}

#[test]
fn one_put_changes_every_node() {
    // The rules stay until they are replaced.
    let redis = RedisServer::at(Flavour::Redis7, lasting_port()).without_ttl_check();
    let nodes = [node(&redis), node(&redis)];
    // Nodes decide nothing until the rules are known.
    for node in &nodes {
        assert_eq!(node.get("/readyz").status, 503);
        let answer = node.post("/v1/acquire", BODY);
        assert_eq!(
            (answer.status, &answer.json()["error"]["code"]),
            (503, &"unavailable".into()),
            "{}",
            answer.body
        );
    }
    assert_eq!(put(&nodes[0], &rules(2)).status, 200);
    let edition = |node: &Server| node.get("/v1/rules").json()["edition"].clone();
    eventually("the other node follows", || edition(&nodes[0])["version"] == edition(&nodes[1])["version"]);
    assert_eq!(edition(&nodes[0])["hash"], edition(&nodes[1])["hash"]);
    let statuses: Vec<u16> = (0..3).map(|i| nodes[i % 2].post("/v1/acquire", BODY).status).collect();
    assert_eq!(statuses, [200, 200, 429]);
    assert_eq!(nodes[1].get("/readyz").status, 200);

    // The second node changes the rules, and invalid rules change nothing on any node.
    let before = edition(&nodes[0]);
    assert_eq!(put(&nodes[1], "rules: [{ name: one }]").status, 400);
    assert_eq!(edition(&nodes[0]), before);
    assert_eq!(put(&nodes[1], &rules(3)).status, 200);
    eventually("the first node follows", || edition(&nodes[0])["version"] == edition(&nodes[1])["version"]);
    assert!(edition(&nodes[0])["version"].as_u64() > before["version"].as_u64());
    assert_eq!(nodes[0].post("/v1/acquire", BODY).status, 200, "the count was kept");
    assert_eq!(nodes[1].post("/v1/acquire", BODY).status, 429);

    // A node that starts later finds the rules.
    let late = node(&redis);
    eventually("the late node follows", || edition(&late)["hash"] == edition(&nodes[0])["hash"]);

    // Rules that cannot be read from Redis stay in force.
    let limit = |node: &Server| node.get("/v1/rules").json()["rules"][0]["limit"].clone();
    redis.run(&format!("DEL {KEY}"));
    redis.run(&format!("SET {KEY} text"));
    eventually("the late node cannot read the rules", || edition(&late)["failure"].is_object());
    assert_eq!(limit(&late), 3);
    // If Redis loses the rules, the nodes write them again. The nodes check periodically, and on a signal.
    let put_back = |what: &str| {
        eventually(what, || {
            nodes.iter().for_each(|node| node.signal("HUP"));
            late.signal("HUP");
            ::redis::cmd("TYPE").arg(KEY).query::<String>(&mut redis.client()).unwrap() == "stream"
        });
    };
    redis.run(&format!("DEL {KEY}"));
    put_back("the rules are back");
    assert_eq!(nodes.each_ref().map(limit), [3, 3]);

    // Rules stay in force while Redis is away. A change that cannot be shared is rejected.
    redis.kill();
    eventually("the late node notices", || late.get("/readyz").json()["degraded"].is_string());
    assert_eq!(put(&late, &rules(4)).status, 503);
    assert_eq!(limit(&late), 3);
    redis.restart();
    put_back("the rules are in the empty Redis");
    assert_eq!(limit(&late), 3);
}

/// A program that can write to Redis adds an id that no clock produces: nodes skip the entry, and rules can still be
/// changed.
#[test]
fn impossible_stream_id_is_skipped() {
    let redis = RedisServer::at(Flavour::Redis7, lasting_port()).without_ttl_check();
    let server = node(&redis);
    eventually("the rules are in Redis", || put(&server, &rules(2)).status == 200);
    let version = |server: &Server| server.get("/v1/rules").json()["edition"]["version"].as_u64().unwrap();
    let limit = |server: &Server| server.get("/v1/rules").json()["rules"][0]["limit"].clone();
    let ids = ["18446744073709551615-18446744073709551615", "253402300800000-7", "1900000000000-5000"];
    for (n, id) in ids.into_iter().enumerate() {
        let before = version(&server);
        redis.run(&format!("XADD {KEY} {id} text nonsense"));
        // A node that starts now finds the rules before this entry, and logs the skipped entry.
        let log = tempfile::NamedTempFile::new().unwrap();
        let late = Server::logging_to(log.as_file(), &[], &config(&redis), &[]);
        eventually("the late node has the rules", || limit(&late) == limit(&server));
        assert_eq!(version(&late), before);
        eventually("the skipped entry is logged", || {
            std::fs::read_to_string(log.path())
                .unwrap()
                .contains(&format!("the id {id}, which no clock produces"))
        });
        let changed = put(&server, &rules(n as u64 + 3));
        assert_eq!(changed.status, 200, "{id}: {}", changed.body);
        eventually("the late node follows", || limit(&late) == n as u64 + 3);
        assert!(version(&late) > before && version(&late) == version(&server), "{id}");
    }
    // Redis does not accept such an id again, even if its entry was deleted.
    redis.run(&format!("XADD {KEY} {} text nonsense", ids[0]));
    redis.run(&format!("XDEL {KEY} {}", ids[0]));
    assert_eq!(put(&server, &rules(9)).status, 200);
    assert_eq!(limit(&server), 9);
}

#[test]
fn shared_rules_need_redis() {
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), "rules: redis").unwrap();
    let output = process::output(
        std::process::Command::new(crate::server::BINARY)
            .args(["serve", "--http", "127.0.0.1:0", "--grpc", "off", "--resp", "off", "--config"])
            .arg(config.path()),
    );
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && message.contains("needs `store: redis`"), "{message}");
}
