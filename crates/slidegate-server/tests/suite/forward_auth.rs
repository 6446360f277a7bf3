//! Tests `/v1/authorize`: the client in a request of a proxy, and the trusted proxies.

use std::process::Command;

use slidegate_testkit::process;

use crate::server::{Answer, BINARY, Server};

const RULES: &str = "
rules:
  - { name: login, match: { api: /login }, key: [ip], limit: 2, window: 1h }
  - { name: shop, match: { host: shop.example }, key: [user], limit: 1, window: 1h }
";

fn authorize(server: &Server, headers: &[(&str, &str)]) -> Answer {
    server.send("GET", "/v1/authorize", headers, "")
}

#[test]
fn no_path_spelling_avoids_a_rule() {
    let server = Server::with_rules(RULES);
    let spellings = ["/login", "/%6cogin", "//login", "/x/../login?y", "/./login", "/login#top"];
    let statuses = spellings
        .map(|path| authorize(&server, &[("x-forwarded-uri", path), ("x-forwarded-for", "1.1.1.1")]).status);
    assert_eq!(statuses, [200, 200, 429, 429, 429, 429]);
}

/// Returns the status of a third request for `path`, after two for `/login`: 429 if it is the same path.
fn after_two_logins(config: &str, path: &str) -> u16 {
    let server = Server::with_rules(&format!("{config}{RULES}"));
    let status =
        |path| authorize(&server, &[("x-forwarded-uri", path), ("x-forwarded-for", "1.1.1.1")]).status;
    assert_eq!([(); 2].map(|()| status("/login")), [200, 200]);
    status(path)
}

#[test]
fn equivalent_path_spellings_share_a_key() {
    let server = Server::with_rules(RULES);
    let status =
        |path| authorize(&server, &[("x-forwarded-uri", path), ("x-forwarded-for", "1.1.1.1")]).status;
    assert_eq!([(); 2].map(|()| status("/login")), [200, 200]);
    for path in [
        "/login/",
        "/LOGIN",
        "/Login;a",
        "/login;jsessionid=1?x",
        "/login%2f",
        "/login%3Ba",
        "/%256cogin",
        "/%%36cogin",
        "\\login",
        "/x%5c..%5clogin",
        "/x/..;/login",
        "/login/.",
        "/%2e/login",
    ] {
        assert_eq!(status(path), 429, "{path}");
    }
    for path in ["/logins", "/login/x", "/xlogin"] {
        assert_eq!(status(path), 200, "{path}");
    }
}

#[test]
fn path_spellings_are_distinct_if_configured() {
    for (option, path) in [
        ("trailing-slash: keep", "/login/"),
        ("case: keep", "/LOGIN"),
        ("parameters: keep", "/login;a"),
        ("backslash: keep", "/x\\..\\login"),
    ] {
        let config = format!("authorize: {{ path: {{ {option} }} }}");
        assert_eq!(after_two_logins(&config, path), 200, "{option}");
        assert_eq!(after_two_logins(&config, "//%6cogin"), 429, "{option}");
    }
}

/// Rules in another spelling than the requested paths apply too.
#[test]
fn rules_accept_any_path_spelling() {
    let server = Server::with_rules(
        "rules:
  - { name: admin, match: { api: /Admin/ }, key: [ip], limit: 1, window: 1h }
  - { name: docs, match: { api: \"/Docs/*\" }, key: [ip], limit: 1, window: 1h }
  - name: own
    match: { api: \"/own/*\" }
    key: [api]
    limit: 1
    window: 1h
    overrides: [{ key: { api: /own/Large }, limit: 2 }]",
    );
    let statuses = |paths: [&str; 3]| {
        paths.map(|path| {
            authorize(&server, &[("x-forwarded-uri", path), ("x-forwarded-for", "1.1.1.1")]).status
        })
    };
    assert_eq!(statuses(["/Admin/", "/admin", "/ADMIN"]), [200, 429, 429]);
    assert_eq!(statuses(["/Docs/x", "/docs/y", "/docs"]), [200, 429, 429]);
    assert_eq!(statuses(["/own/Large", "/own/large/", "/own/Large"]), [200, 200, 429]);
    // `GET /v1/rules` shows patterns as they were written.
    let shown = server.get("/v1/rules").json();
    assert_eq!(shown["rules"][0]["match"]["api"], "/Admin/");
    assert_eq!(shown["rules"][2]["overrides"].as_array().unwrap().len(), 1);
}

#[test]
fn invalid_options_are_reported_with_their_lines() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "authorize:\n  path:\n    case: upper\n    trailing-slash: off\n    dots: keep\nrules: []\n";
    std::fs::write(file.path(), text).unwrap();
    let output = process::output(Command::new(BINARY).arg("validate").arg(file.path()));
    let stderr = String::from_utf8(output.stderr).unwrap();
    for mistake in ["3:11: case must be one of lower, keep, not \"upper\"", "4:21: ", "5:5: "] {
        assert!(stderr.contains(mistake), "{stderr}");
    }
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn longer_path_does_not_escape_a_rule() {
    let server = Server::with_rules(
        "rules: [{ name: login, match: { api: \"/login*\" }, key: [ip], limit: 2, window: 1h }]",
    );
    let statuses = [0, 1_000, 9_000, 60_000].map(|n| {
        let path = format!("/login/{}", "x".repeat(n));
        authorize(&server, &[("x-forwarded-uri", &path), ("x-forwarded-for", "1.1.1.1")]).status
    });
    assert_eq!(statuses, [200, 200, 429, 429]);
}

#[test]
fn forged_forwarded_for_does_not_change_the_client() {
    let server = Server::with_rules(RULES);
    let forged = [
        "1.2.3.4",
        "6.6.6.6, 1.2.3.4",
        "\u{e9}, 1.2.3.4",
        "127.0.0.1, 1.2.3.4",
        "1.2.3.4:99",
        "::ffff:1.2.3.4",
    ];
    let statuses = forged
        .map(|chain| authorize(&server, &[("x-forwarded-uri", "/login"), ("x-forwarded-for", chain)]).status);
    assert_eq!(statuses, [200, 200, 429, 429, 429, 429]);
}

#[test]
fn attributes_are_read_from_headers() {
    let config = format!(
        "authorize: {{ attributes: {{ host: host, user: header x-user }}, deny-status: 403 }}{RULES}"
    );
    let server = Server::with_rules(&config);
    let long = "a".repeat(9_000);
    for user in ["alice", &long] {
        let headers = [("x-forwarded-host", "SHOP.example:443"), ("x-user", user)];
        assert_eq!(authorize(&server, &headers).status, 200);
        let denied = authorize(&server, &headers);
        assert_eq!(denied.status, 403, "a value that is too long is limited too");
        assert!(
            denied.header("retry-after").is_some() && denied.header("ratelimit").is_some(),
            "{}",
            denied.head
        );
        assert!(!denied.body.contains("user"), "the response must not contain keys: {}", denied.body);
    }
    // The proxy may choose another status, and the older headers.
    let headers = [("x-forwarded-host", "shop.example"), ("x-user", "alice")];
    let denied = server.send("GET", "/v1/authorize?deny=401&headers=x-ratelimit", &headers, "");
    assert_eq!((denied.status, denied.header("x-ratelimit-limit")), (401, Some("1")));
    for bad in ["deny=200", "deny=x", "permits=-1"] {
        assert_eq!(server.send("GET", &format!("/v1/authorize?{bad}"), &headers, "").status, 400, "{bad}");
    }
}

#[test]
fn untrusted_proxy_gets_403() {
    let config = format!("authorize: {{ trusted-proxies: [10.0.0.0/8] }}{RULES}");
    let server = Server::with_rules(&config);
    let answer = authorize(&server, &[("x-forwarded-uri", "/login"), ("x-forwarded-for", "1.2.3.4")]);
    assert_eq!(
        (answer.status, &answer.json()["error"]["code"]),
        (403, &"untrusted_proxy".into()),
        "{}",
        answer.body
    );
}

/// A page can make a browser request this address. A proxy forwards the headers of the browser, and adds the requested URI.
#[test]
fn cross_origin_page_charges_nothing_and_a_proxy_does() {
    let server = Server::with_rules(
        "authorize: { attributes: { user: header x-user, agent: header user-agent } }
rules: [{ name: all, limit: 100, window: 1h }]",
    );
    let browser: [&[(&str, &str)]; 5] = [
        &[("origin", "http://evil.example")],
        &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")],
        &[("referer", "http://evil.example/page")],
        // A request for an image, for which some browsers send no other header.
        &[("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0")],
        &[("origin", "http://evil.example"), ("access-control-request-headers", "x-forwarded-for")],
    ];
    for headers in browser {
        for method in ["GET", "POST", "OPTIONS"] {
            let answer = server.send(method, "/v1/authorize", headers, "");
            let code = &answer.json()["error"]["code"];
            assert_eq!((answer.status, code), (403, &"cross_origin".into()), "{method} {headers:?}");
        }
    }
    let mut passed = 0;
    for headers in browser {
        for header in
            ["x-forwarded-for", "x-forwarded-uri", "x-original-url", "x-real-ip", "forwarded", "x-user"]
        {
            let headers = [headers, &[(header, "1")]].concat();
            assert_eq!(server.send("GET", "/v1/authorize", &headers, "").status, 200, "{headers:?}");
            passed += 1;
        }
    }
    // A program without these headers is not a browser.
    assert_eq!(authorize(&server, &[]).status, 200);
    let used = server.post("/v1/peek", r#"{"attributes":{}}"#).json()["limits"][0]["used"].clone();
    assert_eq!(used, passed + 1, "only allowed requests are charged");
}
