//! Tests `GET /v1/keys`: every key on one page, and the limits as far as they are known.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::resp::Wire;
use crate::server::Server;

const RULES: &str = "
ad-hoc: { limit: { default: 10, min: 1, max: 100 } }
rules:
  - { name: per-user, key: [user], limit: 5, window: 1h }
  - { name: per-tenant, key: [tenant, user], tag: tenant, limit: 7, window: 1h }
";

fn acquire(server: &Server, body: &Value) {
    let answer = server.post("/v1/acquire", &body.to_string());
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// Reads all pages with this query. Returns the keys, and the number of pages.
pub(crate) fn pages(server: &Server, query: &str, most: usize) -> (BTreeMap<String, Value>, usize) {
    let (mut found, mut cursor, mut pages) = (BTreeMap::new(), String::new(), 0);
    loop {
        let page = server.get(&format!("/v1/keys?{query}{cursor}"));
        assert_eq!(page.status, 200, "{}", page.body);
        let page = page.json();
        let keys = page["keys"].as_array().unwrap();
        assert!(keys.len() <= most, "{page}");
        for key in keys {
            let name = key["key"].as_str().unwrap().to_owned();
            assert_eq!(found.insert(name, key.clone()), None, "{key} is listed twice");
        }
        pages += 1;
        assert!(pages < 10_000, "the list does not end");
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return (found, pages),
        }
    }
}

#[test]
fn pages_list_every_key_once() {
    let server = Server::with_rules(RULES);
    for n in 0..300 {
        acquire(&server, &json!({ "attributes": { "user": format!("u{n}") }, "permits": 1 + n % 3 }));
    }
    for tenant in ["acme", "other"] {
        acquire(&server, &json!({ "attributes": { "user": "u0", "tenant": tenant } }));
    }
    acquire(&server, &json!({ "resource": "r/1", "limit": 3, "window": "90s" }));
    for limit in [1, 7, 200] {
        let (keys, pages) = pages(&server, &format!("limit={limit}"), limit);
        assert_eq!(keys.len(), 303);
        assert!(pages >= 303 / limit);
        for n in 1..300 {
            let name = format!("per-user:user=u{n}");
            let used = 1 + n % 3;
            let expected =
                json!({ "key": name, "used": used, "rule": "per-user", "limit": 5, "limit_source": "rule" });
            assert_eq!(keys[&name], expected);
        }
    }
    let (tenants, _) = pages(&server, "rule=per-tenant", 100);
    assert_eq!(
        tenants.keys().collect::<Vec<_>>(),
        ["{tenant=acme}per-tenant:user=u0", "{tenant=other}per-tenant:user=u0"]
    );
    let (some, _) = pages(&server, "prefix=per-user:user=u29&limit=3", 3);
    assert_eq!(some.len(), 11, "u29, and u290 to u299: {some:?}");
    let (ad_hoc, _) = pages(&server, "rule=ad-hoc", 100);
    let key = "ad-hoc:resource=r/1:window=1m%2030s";
    let expected = json!({ "key": key, "used": 1, "rule": "ad-hoc", "limit": null, "limit_source": "request", "default_limit": 10 });
    assert_eq!(ad_hoc.into_values().collect::<Vec<_>>(), [expected]);
    assert_eq!(server.get("/v1/keys?rule=nobody").json(), json!({ "keys": [], "next_cursor": null }));
}

#[test]
fn limit_is_told_as_far_as_it_is_known() {
    let admin = "admin-token-0123456789";
    let server = Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", admin)], RULES, &[]);
    let key = |name: &str| server.get(&format!("/v1/keys/{name}")).json();
    acquire(&server, &json!({ "resource": "user123", "window": "1h", "permits": 2 }));
    let ad_hoc = key("ad-hoc:resource=user123:window=1h");
    let told = |body: &Value| {
        ["rule", "limit", "limit_source", "default_limit", "algorithm", "window_ms", "used"]
            .map(|name| body.get(name).cloned().unwrap_or_default())
    };
    let (null, hour) = (json!(null), json!(3_600_000));
    let expected = [
        json!("ad-hoc"),
        null.clone(),
        json!("request"),
        json!(10),
        json!("sliding-window"),
        hour.clone(),
        json!(2),
    ];
    assert_eq!(told(&ad_hoc), expected, "{ad_hoc}");
    // A bucket stores its size: CL.THROTTLE has a burst of 4 after the first.
    let mut client = Wire::connect(server.listener_address("redis"));
    client.call("CL.THROTTLE user456 4 30 60 1");
    let (buckets, _) = pages(&server, "prefix=ad-hoc:bucket=", 100);
    let (name, listed) = buckets.into_iter().next().expect("a bucket");
    let bucket = key(&name);
    assert_eq!(
        (&bucket["rule"], &bucket["limit"], &bucket["limit_source"], &bucket["algorithm"]),
        (&json!("ad-hoc"), &json!(5), &json!("count"), &json!("token-bucket")),
        "{bucket}"
    );
    assert_eq!((&listed["limit"], &listed["limit_source"]), (&json!(5), &json!("count")), "{listed}");
    // The rule is gone, the count is not.
    acquire(&server, &json!({ "attributes": { "user": "alice" } }));
    assert_eq!(told(&key("per-user:user=alice"))[..3], [json!("per-user"), json!(5), json!("rule")]);
    let token = format!("Bearer {admin}");
    assert_eq!(server.send("PUT", "/v1/rules", &[("authorization", &token)], "rules: []").status, 200);
    let gone = key("per-user:user=alice");
    assert_eq!(told(&gone)[..3], [null.clone(), null, json!("unknown")], "{gone}");
    let listed = server.get("/v1/keys?prefix=per-user").json();
    assert_eq!(listed["keys"][0]["limit_source"], "unknown", "{listed}");
}

/// The list needs the same token as the count of a key.
#[test]
fn list_needs_the_token_of_the_api() {
    const DATA: &str = "data-token-0123456789";
    let server = Server::with_env(&[("SLIDEGATE_TOKEN", DATA)], RULES, &[]);
    let token = format!("Bearer {DATA}");
    for path in ["/v1/keys", "/v1/keys?limit=5", "/v1/keys/per-user:user=a"] {
        assert_eq!(server.get(path).status, 401, "{path}");
        let status = server.send("GET", path, &[("authorization", &token)], "").status;
        assert_eq!(status, if path.contains("user=a") { 404 } else { 200 }, "{path}");
    }
    assert_eq!(server.send("POST", "/v1/keys", &[("authorization", &token)], "").status, 405);
}
