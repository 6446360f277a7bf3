//! `/v1/authorize`: whom a proxy asks about, and whose word is taken.

use crate::server::{Answer, Server};

const RULES: &str = "
rules:
  - { name: login, match: { api: /login }, key: [ip], limit: 2, window: 1h }
  - { name: shop, match: { host: shop.example }, key: [user], limit: 1, window: 1h }
";

fn ask(server: &Server, headers: &[(&str, &str)]) -> Answer {
    server.send("GET", "/v1/authorize", headers, "")
}

#[test]
fn no_spelling_avoids_a_rule() {
    let server = Server::with_rules(RULES);
    let spellings = ["/login", "/%6cogin", "//login", "/x/../login?y", "/./login", "/login#top"];
    let statuses = spellings
        .map(|path| ask(&server, &[("x-forwarded-uri", path), ("x-forwarded-for", "1.1.1.1")]).status);
    assert_eq!(statuses, [200, 200, 429, 429, 429, 429]);
}

#[test]
fn a_client_cannot_choose_whom_it_is_counted_as() {
    let server = Server::with_rules(RULES);
    let forged = [
        "1.2.3.4",
        "6.6.6.6, 1.2.3.4",
        "\u{e9}, 1.2.3.4",
        "127.0.0.1, 1.2.3.4",
        "1.2.3.4:99",
        "::ffff:1.2.3.4",
    ];
    let statuses =
        forged.map(|chain| ask(&server, &[("x-forwarded-uri", "/login"), ("x-forwarded-for", chain)]).status);
    assert_eq!(statuses, [200, 200, 429, 429, 429, 429]);
}

#[test]
fn attributes_come_from_headers_too() {
    let config = format!(
        "authorize: {{ attributes: {{ host: host, user: header x-user }}, deny-status: 403 }}{RULES}"
    );
    let server = Server::with_rules(&config);
    let long = "a".repeat(9_000);
    for user in ["alice", &long] {
        let headers = [("x-forwarded-host", "SHOP.example:443"), ("x-user", user)];
        assert_eq!(ask(&server, &headers).status, 200);
        let refused = ask(&server, &headers);
        assert_eq!(refused.status, 403, "also what is too long to be a value is limited");
        assert!(
            refused.header("retry-after").is_some() && refused.header("ratelimit").is_some(),
            "{}",
            refused.head
        );
        assert!(!refused.body.contains("user"), "clients see nothing of keys: {}", refused.body);
    }
    // The proxy may ask for another status, and for the older headers.
    let headers = [("x-forwarded-host", "shop.example"), ("x-user", "alice")];
    let refused = server.send("GET", "/v1/authorize?deny=401&headers=x-ratelimit", &headers, "");
    assert_eq!((refused.status, refused.header("x-ratelimit-limit")), (401, Some("1")));
    for bad in ["deny=200", "deny=x", "permits=-1"] {
        assert_eq!(server.send("GET", &format!("/v1/authorize?{bad}"), &headers, "").status, 400, "{bad}");
    }
}

#[test]
fn who_is_not_trusted_is_told_so() {
    let config = format!("authorize: {{ trusted-proxies: [10.0.0.0/8] }}{RULES}");
    let server = Server::with_rules(&config);
    let answer = ask(&server, &[("x-forwarded-uri", "/login"), ("x-forwarded-for", "1.2.3.4")]);
    assert_eq!(
        (answer.status, &answer.json()["error"]["code"]),
        (403, &"untrusted-proxy".into()),
        "{}",
        answer.body
    );
}

/// A page can make a browser ask for this address. A proxy passes on what a browser has sent to it, and says what was asked for.
#[test]
fn a_page_charges_nothing_and_a_proxy_does() {
    let server = Server::with_rules(
        "authorize: { attributes: { user: header x-user, agent: header user-agent } }
rules: [{ name: all, limit: 100, window: 1h }]",
    );
    let browser: [&[(&str, &str)]; 5] = [
        &[("origin", "http://evil.example")],
        &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")],
        &[("referer", "http://evil.example/page")],
        // An image on a page, where the browser says no more.
        &[("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0")],
        &[("origin", "http://evil.example"), ("access-control-request-headers", "x-forwarded-for")],
    ];
    for headers in browser {
        for method in ["GET", "POST", "OPTIONS"] {
            let answer = server.send(method, "/v1/authorize", headers, "");
            let code = &answer.json()["error"]["code"];
            assert_eq!((answer.status, code), (403, &"by-a-page".into()), "{method} {headers:?}");
        }
    }
    let mut passed = 0;
    for headers in browser {
        for said in
            ["x-forwarded-for", "x-forwarded-uri", "x-original-url", "x-real-ip", "forwarded", "x-user"]
        {
            let headers = [headers, &[(said, "1")]].concat();
            assert_eq!(server.send("GET", "/v1/authorize", &headers, "").status, 200, "{headers:?}");
            passed += 1;
        }
    }
    // A program that says nothing is not a browser.
    assert_eq!(ask(&server, &[]).status, 200);
    let used = server.post("/v1/peek", r#"{"attributes":{}}"#).json()["limits"][0]["used"].clone();
    assert_eq!(used, passed + 1, "and only what was allowed is charged");
}
