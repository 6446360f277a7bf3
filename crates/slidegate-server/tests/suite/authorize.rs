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
fn a_longer_path_does_not_escape_a_rule() {
    let server = Server::with_rules(
        "rules: [{ name: login, match: { api: \"/login*\" }, key: [ip], limit: 2, window: 1h }]",
    );
    let statuses = [0, 1_000, 9_000, 60_000].map(|n| {
        let path = format!("/login/{}", "x".repeat(n));
        ask(&server, &[("x-forwarded-uri", &path), ("x-forwarded-for", "1.1.1.1")]).status
    });
    assert_eq!(statuses, [200, 200, 429, 429]);
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
