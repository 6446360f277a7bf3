//! Tests rules that change while they are used: whole or not at all, and no request fails.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::Value;
use slidegate_testkit::eventually;

use crate::server::Server;

fn rules(limit: u64) -> String {
    format!("rules: [{{ name: one, key: [user], limit: {limit}, window: 1h }}]")
}

/// Waits until the rules in force have this limit.
fn until(server: &Server, limit: u64) {
    eventually(&format!("the limit is {limit}"), || limit_of(server) == limit);
}

fn limit_of(server: &Server) -> Value {
    server.get("/v1/rules").json()["rules"][0]["limit"].clone()
}

fn version_of(server: &Server) -> Value {
    server.get("/v1/rules").json()["edition"]["version"].clone()
}

/// Waits until the server reports the error of the newest file, which shows that it has read the file.
fn until_failure(server: &Server, text: &str) {
    eventually(&format!("a failure with {text:?}"), || {
        let shown = server.get("/v1/rules").json();
        shown["edition"]["failure"]["message"].as_str().is_some_and(|message| message.contains(text))
    });
}

/// Writes `text`, whose rules are valid, and waits until the server has read it. First it writes a file with a mistake:
/// the server reports the mistake until it has read the valid file.
fn write_and_wait(server: &Server, file: &Path, text: &str) {
    fs::write(file, "rules: [{ name: one, limit: zero }]").unwrap();
    until_failure(server, "limit");
    fs::write(file, text).unwrap();
    eventually("the mistake is no longer reported", || {
        server.get("/v1/rules").json()["edition"]["failure"].is_null()
    });
}

fn serve(path: &Path) -> Server {
    Server::start(&["--config", path.to_str().unwrap()])
}

#[test]
fn file_changes_are_reloaded() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    fs::write(&file, rules(5)).unwrap();
    let server = serve(&file);
    let acquire = || server.post("/v1/acquire", r#"{"attributes":{"user":"a"}}"#).json();
    assert_eq!(acquire()["limits"][0]["remaining"], 4);
    let hash =
        |server: &Server| server.get("/v1/rules").json()["edition"]["hash"].as_str().unwrap().to_owned();
    let first = hash(&server);

    fs::write(&file, rules(6)).unwrap();
    until(&server, 6);
    assert_eq!(acquire()["limits"][0]["remaining"], 4, "counts are kept");
    assert_ne!(hash(&server), first);

    let next = folder.path().join("next");
    fs::write(&next, rules(7)).unwrap();
    fs::rename(&next, &file).unwrap();
    until(&server, 7);

    // A mistake changes nothing, and is reported until it is corrected. A comment changes the file, not the rules.
    let version = version_of(&server);
    write_and_wait(&server, &file, &format!("# the same\n{}", rules(7)));
    assert_eq!((version_of(&server), limit_of(&server)), (version, 7.into()));

    // A missing file changes nothing either.
    fs::remove_file(&file).unwrap();
    until_failure(&server, "cannot read");
    assert_eq!(limit_of(&server), 7, "the last valid rules stay in force");
    let metrics = server.get("/metrics").body;
    for line in [
        "slidegate_rules_version 3\n",
        "slidegate_rules_changes_total 2\n",
        "slidegate_rules_failures_total 2\n",
    ] {
        assert!(metrics.contains(line), "{line}{metrics}");
    }
    fs::write(&file, rules(5)).unwrap();
    until(&server, 5);
    assert!(server.get("/metrics").body.contains(&format!("slidegate_rules_info{{hash=\"{first}\"}} 1\n")));
    let shown = server.get("/v1/rules").json();
    assert_eq!(shown["edition"]["hash"].as_str(), Some(first.as_str()), "the same rules, the same hash");
    assert!(shown["edition"]["failure"].is_null(), "{shown}");
}

/// Rules that a request set stay in force while the rules of the file stay the same, also if its other settings change.
#[test]
fn unchanged_file_keeps_rules_set_by_request() {
    const TOKEN: &str = "admin-token-0123456789";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    fs::write(&file, rules(5)).unwrap();
    let path = file.to_str().unwrap();
    let server = Server::start_with(&[("SLIDEGATE_ADMIN_TOKEN", TOKEN)], &["--config", path]);
    let put = server.send("PUT", "/v1/rules", &[("authorization", &format!("Bearer {TOKEN}"))], &rules(9));
    assert_eq!(put.status, 200);
    write_and_wait(&server, &file, &format!("# touched\n{}", rules(5)));
    assert_eq!(limit_of(&server), 9);
    fs::write(&file, "rules: redis").unwrap();
    until_failure(&server, "takes effect after a restart");
    assert_eq!(limit_of(&server), 9);
    assert_eq!(server.post("/v1/acquire", r#"{"attributes":{"user":"a"}}"#).status, 200, "and it goes on");
    fs::write(&file, rules(5)).unwrap();
    server.signal("HUP");
    until(&server, 5);
}

/// Kubernetes mounts a ConfigMap like this: the file is a link through a second link to a folder, and Kubernetes
/// replaces the second link.
#[test]
fn swapped_symlink_is_reloaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for (version, limit) in [("v1", 5), ("v2", 6)] {
        fs::create_dir(path(version)).unwrap();
        fs::write(path(version).join("rules.yaml"), rules(limit)).unwrap();
    }
    symlink("v1", path("..data")).unwrap();
    symlink("..data/rules.yaml", path("rules.yaml")).unwrap();
    let server = serve(&path("rules.yaml"));
    until(&server, 5);
    symlink("v2", path("..next")).unwrap();
    fs::rename(path("..next"), path("..data")).unwrap();
    until(&server, 6);
}

#[test]
fn sighup_reloads_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    fs::write(&file, rules(5)).unwrap();
    let server = serve(&file);
    for limit in [6, 7] {
        fs::write(&file, rules(limit)).unwrap();
        server.signal("HUP");
        until(&server, limit);
    }
}

/// 2,000 versions, a third of them invalid, under load: each request is answered, and decided by one complete version.
#[test]
fn reloads_under_load_fail_no_request() {
    const TOKEN: &str = "admin-token-0123456789";
    const RELOADS: u64 = 2_000;
    // Two rules that always have the same limit, so a mixture of versions would be visible.
    let edition = |n: u64| {
        format!(
            "rules: [{{ name: a, key: [user], limit: {n}, window: 1h }}, {{ name: b, key: [user], limit: {n}, window: 1h }}]"
        )
    };
    let server = Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", TOKEN)], &edition(1_000_000), &[]);
    let (stop, requests) = (AtomicBool::new(false), AtomicU64::new(0));
    let denied = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
                    let url = format!("http://{}/v1/acquire", server.address);
                    let mut seen: HashMap<u64, u64> = HashMap::new();
                    while !stop.load(Ordering::Relaxed) {
                        let mut answer = agent
                            .post(&url)
                            .header("content-type", "application/json")
                            .send(r#"{"attributes":{"user":"a"}}"#)
                            .expect("every request is answered");
                        assert_eq!(answer.status().as_u16(), 200);
                        let text = answer.body_mut().read_to_string().unwrap();
                        let body: serde_json::Value = serde_json::from_str(&text).unwrap();
                        let limits: Vec<u64> = body["limits"]
                            .as_array()
                            .unwrap()
                            .iter()
                            .map(|l| l["limit"].as_u64().unwrap())
                            .collect();
                        assert_eq!(limits.len(), 2);
                        assert_eq!(limits[0], limits[1], "the limits are of different editions");
                        *seen.entry(limits[0]).or_default() += 1;
                        requests.fetch_add(1, Ordering::Relaxed);
                    }
                    seen.len()
                })
            })
            .collect();
        let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
        let url = format!("http://{}/v1/rules", server.address);
        let mut denied = 0;
        for n in 1..=RELOADS {
            let mut text = edition(1_000_000 + n);
            if n % 3 == 0 {
                text = text.replace("name: b", "nam: b");
            }
            let put = agent.put(&url).header("authorization", format!("Bearer {TOKEN}")).send(&text).unwrap();
            match (n % 3, put.status().as_u16()) {
                (0, 400) => denied += 1,
                (1 | 2, 200) => {}
                other => panic!("edition {n}: {other:?}"),
            }
        }
        stop.store(true, Ordering::Relaxed);
        let editions: usize = callers.into_iter().map(|caller| caller.join().unwrap()).sum();
        eprintln!(
            "{RELOADS} reloads, {} requests, which saw {editions} editions",
            requests.load(Ordering::Relaxed)
        );
        assert!(editions > 30, "{editions}");
        denied
    });
    assert_eq!(denied, RELOADS / 3);
    let shown = server.get("/v1/rules").json();
    assert_eq!(shown["edition"]["version"].as_u64(), Some(1 + RELOADS - RELOADS / 3));
    let used = server.post("/v1/peek", r#"{"attributes":{"user":"a"}}"#).json()["limits"][0]["used"].as_u64();
    assert_eq!(used, Some(requests.load(Ordering::Relaxed)), "every request was counted");
}
