//! Tests the data of the dashboard: statistics by second, hot keys, the window of a key, and the page itself.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use serde_json::Value;
use slidegate_testkit::eventually;

use crate::server::Server;

const RULES: &str = "
rules:
  - { name: login, match: { api: /login }, key: [ip], limit: 3, window: 1h }
  - { name: watched, match: { api: /login }, key: [user], limit: 1, window: 1h, mode: shadow }
";

fn login(server: &Server, ip: &str) {
    server.post("/v1/acquire", &format!(r#"{{"attributes":{{"api":"/login","ip":"{ip}","user":"alice"}}}}"#));
}

/// Stream of server-sent events.
struct Events {
    lines: std::io::Lines<BufReader<TcpStream>>,
}

impl Events {
    fn of(server: &Server) -> Self {
        let mut stream = server.connect();
        stream.write_all(b"GET /v1/live HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        Events { lines: BufReader::new(stream).lines() }
    }

    /// Returns the next event of that name.
    fn next(&mut self, name: &str) -> Value {
        let event = format!("event: {name}");
        self.lines.by_ref().map(Result::unwrap).find(|line| *line == event).expect("there are more events");
        let data = self.lines.next().unwrap().unwrap();
        serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap()
    }

    /// Reads to the end. Returns the last line that is not empty: "0", the last chunk, if the server has ended the
    /// response and not only the connection. Panics after about a minute of events.
    fn end(self) -> Option<String> {
        self.lines.map_while(Result::ok).take(300).filter(|line| !line.is_empty()).last()
    }
}

fn sum(history: &Value, name: &str) -> u64 {
    history[name].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum()
}

#[test]
fn stream_reports_every_second() {
    let mut server = Server::with_rules(RULES);
    for _ in 0..2 {
        login(&server, "1.2.3.4");
    }
    // A second is reported when it is over.
    eventually("the second of both requests is over", || {
        sum(&Events::of(&server).next("history"), "allowed") == 2
    });
    let mut events = Events::of(&server);
    let history = events.next("history");
    assert_eq!(
        (sum(&history, "allowed"), sum(&history, "denied"), &history["step_ms"]),
        (2, 0, &1_000.into())
    );
    for _ in 0..5 {
        login(&server, "1.2.3.4");
    }
    let (mut allowed, mut denied, mut would) = (0, 0, 0);
    let mut last = Value::Null;
    // The requests may fall into more than one second.
    for _ in 0..20 {
        last = events.next("tick");
        allowed += last["allowed"].as_u64().unwrap();
        denied += last["denied"].as_u64().unwrap();
        would += last["would_deny"].as_u64().unwrap();
        if allowed + denied >= 5 {
            break;
        }
    }
    assert_eq!((allowed, denied, would), (1, 4, 5), "{last}");
    let rule = &last["rules"][0];
    assert_eq!(
        (&rule["rule"], &rule["limit"], &rule["mode"]),
        (&"login".into(), &3.into(), &"enforce".into())
    );
    assert_eq!((&rule["allowed_minute"], &rule["denied_minute"]), (&3.into(), &4.into()));
    assert_eq!(rule["usage"], 1.0);
    assert_eq!((&last["store"]["store"], &last["edition"]["version"]), (&"memory".into(), &1.into()));
    assert!(last["connections"]["http"].as_u64().unwrap() >= 1);
    // A client of the live feed does not delay the shutdown: the server ends its response properly.
    server.terminate();
    assert_eq!(events.end().as_deref(), Some("0"));
    assert!(server.wait().success());
}

#[test]
fn top_keys_by_requests_and_denials() {
    let server = Server::with_rules(RULES);
    for (ip, times) in [("1.1.1.1", 9), ("2.2.2.2", 2), ("3.3.3.3", 5)] {
        for _ in 0..times {
            login(&server, ip);
        }
    }
    for period in ["minute", "hour"] {
        let top = server.get(&format!("/v1/top?period={period}&rule=login")).json();
        let top_of = |name: &str| -> Vec<(String, u64)> {
            let keys = top[name].as_array().unwrap().iter();
            keys.map(|key| (key["key"].as_str().unwrap().to_owned(), key["count"].as_u64().unwrap()))
                .collect()
        };
        let key = |ip: &str, count| (format!("login:ip={ip}"), count);
        assert_eq!(top_of("hottest"), [key("1.1.1.1", 9), key("3.3.3.3", 5), key("2.2.2.2", 2)]);
        assert_eq!(top_of("denied"), [key("1.1.1.1", 6), key("3.3.3.3", 2)]);
    }
    assert_eq!(server.get("/v1/top").json()["hottest"][0]["key"], "watched:user=alice");
    assert_eq!(server.get("/v1/top?period=year").status, 400);
}

#[test]
fn key_is_shown_with_its_window() {
    let server = Server::with_rules(
        "rules: [{ name: one, key: [user], limit: 3, window: 1h, overrides: [{ key: { user: bob }, limit: 5 }] }]",
    );
    for (user, permits) in [("alice", 1), ("alice", 2), ("bob", 4)] {
        server.post("/v1/acquire", &format!(r#"{{"attributes":{{"user":"{user}"}},"permits":{permits}}}"#));
    }
    let alice = server.get("/v1/keys/one:user=alice").json();
    assert_eq!((&alice["rule"], &alice["limit"], &alice["used"]), (&"one".into(), &3.into(), &3.into()));
    assert_eq!((&alice["window_ms"], &alice["algorithm"]), (&3_600_000.into(), &"sliding-window".into()));
    assert_eq!(alice["count"], "admitted");
    let [first, second] = [0, 1].map(|n| alice["entries"][n]["at_ms"].as_f64().unwrap());
    assert!(first < second && second <= alice["at_ms"].as_f64().unwrap(), "{alice}");
    assert_eq!(server.get("/v1/keys/one:user=bob").json()["limit"], 5, "an override");
    assert_eq!(server.send("DELETE", "/v1/keys/one:user=bob", &[], "").status, 403, "nobody may change");
}

#[test]
fn browser_gets_the_dashboard() {
    let server = Server::with_env(&[("SLIDEGATE_TOKEN", "data-token-0123456789")], RULES, &[]);
    let page = server.send("GET", "/", &[("accept", "text/html,*/*")], "");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(page.header("content-security-policy").unwrap().contains("script-src 'self'"));
    let names = page.body.split('"').filter_map(|text| text.strip_prefix("dashboard/"));
    let names: Vec<&str> = names.collect();
    assert!(names.len() >= 3, "{names:?}");
    for name in names {
        assert_eq!(server.get(&format!("/dashboard/{name}")).status, 200, "{name}");
    }
    assert_eq!(server.get("/dashboard/nothing.js").status, 404);
    assert!(server.get("/").body.starts_with("Slidegate\n"), "for people with curl");
    assert_eq!(server.get("/v1/live").status, 401, "it needs the decision token");
}

#[test]
fn dry_run_previews_rule_changes() {
    let token = [("authorization", "Bearer admin-token-0123456789")];
    let server = Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", "admin-token-0123456789")], RULES, &[]);
    let yaml = server.get("/v1/rules?format=yaml");
    assert_eq!(yaml.header("content-type"), Some("application/yaml"));
    let same = server.send("PUT", "/v1/rules?dry-run=true", &token, &yaml.body);
    assert_eq!((same.status, &same.json()["changed"]), (200, &false.into()), "{}", yaml.body);
    let other = yaml.body.replace("limit: 3", "limit: 4").replace("watched", "new");
    let preview = server.send("PUT", "/v1/rules?dry-run=true", &token, &other).json();
    assert_eq!(
        (&preview["changed"], &preview["added"], &preview["removed"], &preview["altered"]),
        (
            &true.into(),
            &["new"].as_slice().into(),
            &["watched"].as_slice().into(),
            &["login"].as_slice().into()
        )
    );
    let changes = serde_json::json!([{ "rule": "login", "field": "limit", "before": 3, "after": 4 }]);
    assert_eq!(preview["changes"], changes);
    let wrong =
        server.send("PUT", "/v1/rules?dry-run=true", &token, "rules:\n  - name: one\n    limit: zero\n");
    assert_eq!((wrong.status, &wrong.json()["error"]["code"]), (400, &"invalid_rules".into()));
    assert_eq!(server.get("/v1/rules").json()["edition"]["version"], 1, "nothing has changed");
}

#[test]
fn rules_are_replaced_only_if_they_match_the_etag() {
    const ADMIN: (&str, &str) = ("authorization", "Bearer admin-token-0123456789");
    let server = Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", "admin-token-0123456789")], RULES, &[]);
    let shown = server.get("/v1/rules");
    let etag = shown.header("etag").unwrap();
    assert_eq!(etag, format!("\"{}\"", shown.json()["edition"]["hash"].as_str().unwrap()));
    assert_eq!(server.get("/v1/rules?format=yaml").header("etag"), Some(etag));
    let put = |if_match: &str, limit: u64| {
        let rules = format!("rules: [{{ name: one, limit: {limit}, window: 1m }}]");
        server.send("PUT", "/v1/rules", &[ADMIN, ("if-match", if_match)], &rules)
    };
    let stale = put("\"0000000000000000\"", 7);
    assert_eq!((stale.status, &stale.json()["error"]["code"]), (412, &"edition_mismatch".into()));
    assert_eq!(server.get("/v1/rules").header("etag"), Some(etag), "nothing has changed");
    let replaced = put(&format!("\"0000000000000000\", {etag}"), 7);
    assert_eq!((replaced.status, &replaced.json()["edition"]["version"]), (200, &2.into()));
    let next = replaced.header("etag").unwrap();
    assert_ne!(next, etag);
    assert_eq!(put(etag, 8).status, 412, "the first edition is no longer in force");
    assert_eq!(put(next, 8).status, 200);
    assert_eq!(put("*", 9).status, 200);
    assert_eq!(server.get("/v1/rules").json()["edition"]["source"], "PUT /v1/rules of 127.0.0.1");
}

/// A whole configuration file can be sent: its rules are put in force, and its other sections are ignored.
#[test]
fn rules_of_a_configuration_file_are_put_in_force() {
    let token = [("authorization", "Bearer admin-token-0123456789")];
    let server = Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", "admin-token-0123456789")], RULES, &[]);
    let file = "listen: { http: 8080 }\nstore: redis\nrules: [{ name: one, limit: 7, window: 1m }]\n";
    assert_eq!(server.send("PUT", "/v1/rules", &token, file).status, 200);
    assert_eq!(server.get("/v1/rules").json()["rules"][0]["limit"], 7);
    let wrong = server.send("PUT", "/v1/rules", &token, "rulez: []\nrules: []\n");
    assert!(wrong.body.contains("did you mean `rules`?"), "{}", wrong.body);
}

#[test]
fn query_errors_name_the_parameter() {
    let server = Server::with_env(&[], RULES, &[]);
    let limit = "`limit` must be a whole number between 1 and 200";
    let cursor = "`cursor` must be the `next_cursor` of an earlier page";
    for (path, problem) in [
        ("/v1/rules?colour=red", "there is no parameter `colour`: the parameters are `format`"),
        ("/v1/rules?format=xml", "`format` must be one of `json`, `yaml`, `source`"),
        ("/v1/history", "`rule` is missing"),
        ("/v1/top?period=year", "`period` must be one of `minute`, `hour`"),
        ("/v1/authorize?permits=-1", "`permits` must be a whole number between 0 and 1000000000000"),
        ("/v1/keys?limit=0", limit),
        ("/v1/keys?limit=201", limit),
        ("/v1/keys?limit=", limit),
        ("/v1/keys?limit=1&limit=2", "`limit` is given twice"),
        ("/v1/keys?cursor=x", cursor),
        // A cursor of a server with Redis.
        ("/v1/keys?cursor=r10", cursor),
        (
            "/v1/keys?page=2",
            "there is no parameter `page`: the parameters are `limit`, `cursor`, `rule`, `prefix`",
        ),
    ] {
        let answer = server.get(path);
        assert_eq!(
            (answer.status, &answer.json()["error"]["code"]),
            (400, &"invalid_request".into()),
            "{path}"
        );
        assert_eq!(answer.json()["error"]["message"], format!("invalid query: {problem}"), "{path}");
    }
}

#[test]
fn rule_reports_what_it_charged() {
    let server = Server::with_rules(
        "rules:
  - { name: global, limit: 1000, window: 1h }
  - { name: narrow, key: [user], limit: 1, window: 1h }
",
    );
    for _ in 0..3 {
        server.post("/v1/acquire", r#"{"attributes":{"user":"alice"}}"#);
    }
    let tick = || Events::of(&server).next("tick");
    eventually("the requests are counted", || tick()["rules"][0]["allowed_minute"] == 3);
    let tick = tick();
    let [global, narrow] = [0, 1].map(|n| &tick["rules"][n]);
    assert_eq!((&global["charged_minute"], &global["not_charged_minute"]), (&1.into(), &2.into()), "{tick}");
    assert_eq!((&narrow["charged_minute"], &narrow["denied_minute"]), (&1.into(), &2.into()), "{tick}");
    assert_eq!(narrow["not_charged_minute"], 0);
    // The first event contains the history of each rule.
    let history = Events::of(&server).next("history");
    for name in ["global", "narrow"] {
        let rule = history["rules"].as_array().unwrap().iter().find(|rule| rule["rule"] == name).unwrap();
        assert_eq!(sum(rule, "charged"), 1, "{history}");
    }
    assert_eq!(sum(&history["rules"][0], "denied") + sum(&history["rules"][1], "denied"), 2);
    // The history of a rule over an hour has steps of ten seconds.
    let hour = server.get("/v1/history?rule=global").json();
    assert_eq!((&hour["rule"], &hour["step_ms"]), (&"global".into(), &10_000.into()));
    let steps = hour["charged"].as_array().unwrap().len();
    for name in ["not_charged", "denied", "would_deny", "mean_us"] {
        assert_eq!(hour[name].as_array().unwrap().len(), steps, "{name}");
    }
    assert_eq!(server.get("/v1/history?rule=none").status, 400);
    assert_eq!(server.get("/v1/history").status, 400);
}

#[test]
fn access_reports_the_rights_of_a_token() {
    let (data, admin) = ("data-token-0123456789", "admin-token-0123456789");
    let rights = |server: &Server, token: &str| {
        let header = format!("Bearer {token}");
        let headers: &[(&str, &str)] =
            if token.is_empty() { &[] } else { &[("authorization", header.as_str())] };
        let answer = server.send("GET", "/v1/access", headers, "");
        assert_eq!(answer.status, 200);
        let body = answer.json();
        let code = body["change_error"]["code"].as_str().unwrap_or_default().to_owned();
        (body["token"].clone(), body["may_call"] == true, body["may_change"] == true, code)
    };
    let expect = |token: &str, call, change, code: &str| (Value::from(token), call, change, code.to_owned());
    let both = [("SLIDEGATE_TOKEN", data), ("SLIDEGATE_ADMIN_TOKEN", admin)];
    let server = Server::with_env(&both, RULES, &[]);
    assert_eq!(rights(&server, ""), expect("none", false, false, "unauthorized"));
    assert_eq!(rights(&server, "wrong-token-0123456789"), expect("wrong", false, false, "unauthorized"));
    assert_eq!(rights(&server, data), expect("client", true, false, "unauthorized"));
    assert_eq!(rights(&server, admin), expect("admin", true, true, ""));
    let server = Server::with_rules(RULES);
    assert_eq!(rights(&server, ""), expect("none", true, false, "forbidden"));
    assert_eq!(rights(&server, data), expect("wrong", true, false, "forbidden"));
}

#[test]
fn rules_are_shown_as_their_author_wrote_them() {
    let admin = [("authorization", "Bearer admin-token-0123456789")];
    let file = format!("# A file.{RULES}# Where to listen.\nlisten: {{ limits: {{ connections: 100 }} }}\n");
    let server = Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", "admin-token-0123456789")], &file, &[]);
    let source = |headers: &[(&str, &str)]| server.send("GET", "/v1/rules?format=source", headers, "").body;
    assert_eq!(source(&admin), format!("# A file.{RULES}"), "only the rules of the file");
    let generated = server.get("/v1/rules?format=yaml").body;
    assert_eq!(source(&[]), generated, "only clients that may change the rules see comments");
    let mine = "rules:\n  # The only one.\n  - { name: one, limit: 1, window: 1h }\n";
    assert_eq!(server.send("PUT", "/v1/rules", &admin, mine).status, 200);
    assert_eq!(source(&admin), mine);
    // Rules in JSON have no comments.
    let other = r#"{"rules":[{"name":"one","limit":2,"window":"1h"}]}"#;
    assert_eq!(server.send("PUT", "/v1/rules", &admin, other).status, 200);
    assert_eq!(source(&admin), server.get("/v1/rules?format=yaml").body);
}
