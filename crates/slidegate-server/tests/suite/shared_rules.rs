//! `rules: redis`: every node follows one set of rules, which one `PUT` replaces.

use crate::redis_server::{Flavour, Server as Redis, eventually};
use crate::server::{Answer, Server};

const TOKEN: &str = "admin-token-0123456789";
const ASK: &str = r#"{"attributes":{"user":"a"}}"#;

fn node(redis: &Redis) -> Server {
    let config = format!("store: {}\nrules: redis\n", redis.url());
    Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", TOKEN)], &config, &[])
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
    let redis = Redis::start(Flavour::Redis7).without_ttl_check();
    let nodes = [node(&redis), node(&redis)];
    // Nothing is decided by rules that are not known.
    for node in &nodes {
        assert_eq!(node.get("/readyz").status, 503);
        let answer = node.post("/v1/acquire", ASK);
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
    let statuses: Vec<u16> = (0..3).map(|i| nodes[i % 2].post("/v1/acquire", ASK).status).collect();
    assert_eq!(statuses, [200, 200, 429]);
    assert_eq!(nodes[1].get("/readyz").status, 200);

    // The other way, and what is wrong changes nothing anywhere.
    let before = edition(&nodes[0]);
    assert_eq!(put(&nodes[1], "rules: [{ name: one }]").status, 400);
    assert_eq!(edition(&nodes[0]), before);
    assert_eq!(put(&nodes[1], &rules(3)).status, 200);
    eventually("the first node follows", || edition(&nodes[0])["version"] == edition(&nodes[1])["version"]);
    assert!(edition(&nodes[0])["version"].as_u64() > before["version"].as_u64());
    assert_eq!(nodes[0].post("/v1/acquire", ASK).status, 200, "the count was kept");
    assert_eq!(nodes[1].post("/v1/acquire", ASK).status, 429);

    // A signal that asks to look again ends nobody.
    nodes[0].signal("HUP");
    // Lost in Redis, they are put back by those who have them.
    let _: () = ::redis::cmd("DEL").arg("sg:{rules}:shared").query(&mut redis.client()).unwrap();
    eventually("they are back", || {
        ::redis::cmd("EXISTS").arg("sg:{rules}:shared").query::<u64>(&mut redis.client()).unwrap() == 1
    });
    assert_eq!(nodes[0].get("/v1/rules").json()["rules"][0]["limit"], 3);

    // A node that comes later finds them; one that runs keeps them when Redis is gone.
    let late = node(&redis);
    eventually("the late node follows", || edition(&late)["hash"] == edition(&nodes[0])["hash"]);
    drop(redis);
    std::thread::sleep(std::time::Duration::from_millis(1_200));
    assert_eq!(late.get("/v1/rules").json()["rules"][0]["limit"], 3);
    assert_eq!(put(&late, &rules(4)).status, 503, "and a change that cannot be told is none");
    assert_eq!(late.get("/v1/rules").json()["rules"][0]["limit"], 3);
}

#[test]
fn it_needs_redis() {
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), "rules: redis").unwrap();
    let output = std::process::Command::new(crate::server::BINARY)
        .args(["serve", "--http", "127.0.0.1:0", "--grpc", "off", "--resp", "off", "--config"])
        .arg(config.path())
        .output()
        .unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && message.contains("needs `store: redis`"), "{message}");
}
