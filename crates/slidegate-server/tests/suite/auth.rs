//! Tests access by tokens: decisions and changes, each at the right listener, and never open by default.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use slidegate_testkit::{eventually, process};

use crate::server::{Answer, BINARY, Server};

const DATA: &str = "data-token-0123456789";
const ADMIN: &str = "admin-token-0123456789";
const RULES: &str = "rules: [{ name: one, key: [user], limit: 1, window: 1m }]";
const BODY: &str = r#"{"attributes":{"user":"a"}}"#;

fn with_token(server: &Server, method: &str, path: &str, token: &str, body: &str) -> Answer {
    let token = format!("Bearer {token}");
    let headers = [("authorization", token.as_str()), ("content-type", "application/json")];
    server.send(method, path, &headers, body)
}

/// Requests that change state.
const CHANGES: [(&str, &str); 3] =
    [("PUT", "/v1/rules"), ("DELETE", "/v1/keys/one:user=a"), ("POST", "/v1/record")];

#[test]
fn changes_need_a_token() {
    let closed = Server::with_rules(RULES);
    let guarded = Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", ADMIN)], RULES, &[]);
    for (method, path) in CHANGES {
        // Every token is rejected, because no admin token is configured.
        for token in ["", ADMIN, DATA] {
            let answer = with_token(&closed, method, path, token, "rules: []");
            assert_eq!(answer.status, 403, "{method} {path}: {}", answer.body);
        }
        for token in ["", "wrong", DATA, &ADMIN[1..], &format!("{ADMIN}x"), &ADMIN.to_uppercase()] {
            let answer = with_token(&guarded, method, path, token, "rules: []");
            assert_eq!(answer.status, 401, "{method} {path} with {token}: {}", answer.body);
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        }
        let answer = guarded.send(method, path, &[], "rules: []");
        assert_eq!(answer.status, 401, "{method} {path}: {}", answer.body);
    }
    for server in [&closed, &guarded] {
        assert_eq!(server.get("/v1/rules").json()["rules"][0]["name"], "one");
        assert_eq!(server.post("/v1/acquire", BODY).status, 200, "acquire needs no token");
    }
}

#[test]
fn token_allows_replacing_rules_and_resetting_keys() {
    let server = Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", ADMIN)], RULES, &[]);
    assert_eq!(server.post("/v1/acquire", BODY).status, 200);
    assert_eq!(server.post("/v1/acquire", BODY).status, 429);
    let key = with_token(&server, "GET", "/v1/keys/one:user=a", ADMIN, "");
    assert_eq!((key.status, key.json()["used"].as_u64()), (200, Some(1)), "{}", key.body);
    assert_eq!(with_token(&server, "DELETE", "/v1/keys/one:user=a", ADMIN, "").json()["reset"], true);
    assert_eq!(with_token(&server, "GET", "/v1/keys/one:user=a", ADMIN, "").status, 404);
    assert_eq!(with_token(&server, "DELETE", "/v1/keys/one:user=a", ADMIN, "").json()["reset"], false);
    assert_eq!(server.post("/v1/acquire", BODY).status, 200);

    // A key can be looked up by the text in a decision.
    let odd = r#"{"attributes":{"user":"2001:db8::1 %"}}"#;
    let key = server.post("/v1/acquire", odd).json()["limits"][0]["key"].as_str().unwrap().to_owned();
    assert_eq!(key, "one:user=2001%3Adb8%3A%3A1%20%25");
    assert_eq!(with_token(&server, "GET", &format!("/v1/keys/{key}"), ADMIN, "").json()["key"], key.as_str());
    assert_eq!(with_token(&server, "DELETE", &format!("/v1/keys/{key}"), ADMIN, "").json()["reset"], true);

    // Counts are kept: one of three is used.
    let three = RULES.replace("limit: 1", "limit: 3");
    let put = with_token(&server, "PUT", "/v1/rules", ADMIN, &three);
    assert_eq!((put.status, put.json()["edition"]["version"].as_u64()), (200, Some(2)), "{}", put.body);
    let statuses: Vec<u16> = (0..3).map(|_| server.post("/v1/acquire", BODY).status).collect();
    assert_eq!(statuses, [200, 200, 429]);

    // The output of GET can be sent back, and does not create a new edition.
    let shown = server.get("/v1/rules").body;
    let put = with_token(&server, "PUT", "/v1/rules", ADMIN, &shown);
    assert_eq!((put.status, put.json()["edition"]["version"].as_u64()), (200, Some(2)), "{}", put.body);

    let bad = with_token(
        &server,
        "PUT",
        "/v1/rules",
        ADMIN,
        "rules: [{ name: one, limit: 0, window: 1m }, { nam: x }]",
    );
    assert_eq!(bad.status, 400);
    let message = bad.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("limit") && message.contains("nam"), "every mistake: {message}");
    assert_eq!(server.get("/v1/rules").body, shown, "nothing has changed");
}

#[test]
fn decisions_need_the_configured_token() {
    let env = [("SLIDEGATE_TOKEN", DATA), ("SLIDEGATE_ADMIN_TOKEN", ADMIN)];
    let server = Server::with_env(&env, RULES, &[]);
    for path in ["/v1/acquire", "/v1/peek", "/v1/acquire/batch", "/v1/settle"] {
        assert_eq!(server.post(path, BODY).status, 401, "{path}");
        assert_eq!(with_token(&server, "POST", path, "wrong-token-0123456789", BODY).status, 401, "{path}");
    }
    for path in
        ["/v1/rules", "/v1/store", "/v1/top", "/v1/live", "/v1/keys/one:user=a", "/v1/authorize", "/nowhere"]
    {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
    for path in ["/", "/healthz", "/readyz"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    assert_eq!(with_token(&server, "POST", "/v1/acquire", DATA, BODY).status, 200);
    assert_eq!(
        with_token(&server, "POST", "/v1/acquire", ADMIN, BODY).status,
        429,
        "an admin token also allows decisions"
    );
    assert_eq!(with_token(&server, "PUT", "/v1/rules", DATA, RULES).status, 401);
    // `slidegate acquire` sends its token.
    let url = format!("http://{}", server.address);
    let acquire = |token: &str| {
        let mut command = Command::new(BINARY);
        command
            .args(["acquire", "--url", &url, "user=b"])
            .env("SLIDEGATE_TOKEN", token)
            .status()
            .unwrap()
            .code()
    };
    assert_eq!([acquire(""), acquire(DATA), acquire(DATA)], [Some(2), Some(0), Some(1)]);
    // On one connection, by the fast path: no token, then a wrong token, then the right one.
    let mut stream = server.connect();
    for (token, status) in [
        ("", "401"),
        ("authorization: Bearer wrong\r\n", "401"),
        ("authorization: bearer data-token-0123456789\r\n", "429"),
    ] {
        let text = format!(
            "POST /v1/acquire HTTP/1.1\r\nhost: x\r\n{token}content-type: application/json\r\ncontent-length: {}\r\n\r\n{BODY}",
            BODY.len()
        );
        stream.write_all(text.as_bytes()).unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        assert_eq!(&head[9..], status.as_bytes(), "{token}");
        let mut rest = Vec::new();
        while !rest.ends_with(b"}") {
            let mut some = [0; 4096];
            let n = stream.read(&mut some).unwrap();
            assert!(n > 0, "the answer ends in {:?}", String::from_utf8_lossy(&rest));
            rest.extend_from_slice(&some[..n]);
        }
    }
}

#[test]
fn admin_listener_is_separate() {
    let server = Server::with_env(&[], RULES, &["--admin", "127.0.0.1:0"]);
    let other = server.listener_address("admin http").to_owned();
    for (method, path) in CHANGES {
        let answer = server.send(method, path, &[], RULES);
        assert_eq!(
            (answer.status, &answer.json()["error"]["code"]),
            (403, &"forbidden".into()),
            "{method} {path}"
        );
    }
    let admin = Server::at(&other);
    let three = RULES.replace("limit: 1", "limit: 3");
    assert_eq!(admin.send("PUT", "/v1/rules", &[], &three).status, 200, "whoever reaches it may");
    assert_eq!(server.get("/v1/rules").json()["rules"][0]["limit"], 3);

    let page = admin.send("PUT", "/v1/rules", &[("origin", "http://evil.example")], RULES);
    assert_eq!(page.status, 403, "a page of a browser may not: {}", page.body);

    let server = Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", ADMIN)], RULES, &["--admin", "127.0.0.1:0"]);
    let admin = Server::at(server.listener_address("admin http"));
    assert_eq!(admin.send("PUT", "/v1/rules", &[], &three).status, 401, "with the token, if there is one");
    assert_eq!(with_token(&admin, "PUT", "/v1/rules", ADMIN, &three).status, 200);
    assert_eq!(
        with_token(&server, "PUT", "/v1/rules", ADMIN, &three).status,
        403,
        "changes are not accepted at the other listener"
    );
}

#[test]
fn tokens_are_read_from_files_and_never_printed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("data"), format!("\n{DATA}\nanother-token-0123456789\n")).unwrap();
    std::fs::write(path("admin"), ADMIN).unwrap();
    let config =
        format!("access: {{ tokens-file: {}, admin-tokens-file: {} }}\n{RULES}", path("data"), path("admin"));
    std::fs::write(path("config"), &config).unwrap();
    let any = "127.0.0.1:0";
    let arguments = ["serve", "--http", any, "--grpc", any, "--resp", any, "--config", &path("config")];
    let mut command = Command::new(BINARY);
    let mut child = command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stdout = process::Lines::of(child.stdout.take().unwrap());
    let mut printed = String::new();
    while !printed.ends_with("ready\n") {
        printed += &(stdout.next("the server is ready").expect("the server starts") + "\n");
    }
    let address = printed.lines().find_map(|line| line.strip_prefix("listening on http://")).unwrap();
    let server = Server::at(address);
    assert_eq!(server.post("/v1/acquire", BODY).status, 401);
    for token in [DATA, "another-token-0123456789", ADMIN] {
        assert_ne!(with_token(&server, "POST", "/v1/acquire", token, BODY).status, 401);
    }
    assert_eq!(with_token(&server, "PUT", "/v1/rules", ADMIN, "rules: nonsense").status, 400);
    assert_eq!(with_token(&server, "PUT", "/v1/rules", DATA, RULES).status, 401);
    let shown = with_token(&server, "GET", "/v1/rules", DATA, "").body;
    let _ = child.kill();
    let output = process::finish(child, "the server");
    while let Some(line) = stdout.next("the end of the server's output") {
        printed += &(line + "\n");
    }
    printed += &format!("{}{shown}", String::from_utf8_lossy(&output.stderr));
    for token in [DATA, ADMIN, "another-token-0123456789"] {
        assert!(!printed.contains(token), "{printed}");
    }

    // An empty token is an error. It does not open the API.
    let mut serve = Command::new(BINARY);
    let denied = process::output(serve.args(["serve", "--http", any]).env("SLIDEGATE_TOKEN", ""));
    assert!(!denied.status.success() && String::from_utf8_lossy(&denied.stderr).contains("is empty"));

    // A short token is an error, and the message does not repeat it.
    let mut serve = Command::new(BINARY);
    let denied =
        process::output(serve.args(["serve", "--http", any]).env("SLIDEGATE_ADMIN_TOKEN", "hunter2"));
    let message = String::from_utf8(denied.stderr).unwrap();
    assert!(
        !denied.status.success() && message.contains("16 characters") && !message.contains("hunter2"),
        "{message}"
    );
}

/// Tokens are replaced while the server runs. A file without a token changes nothing: it does not open the API.
#[test]
fn tokens_follow_their_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    let (old, new) = ("old-token-0123456789", "new-token-0123456789");
    std::fs::write(&path, old).unwrap();
    let log = tempfile::NamedTempFile::new().unwrap();
    let config = format!("access: {{ tokens-file: {} }}\n{RULES}", path.display());
    let server = Server::logging_to(log.as_file(), &[], &config, &[]);
    let status = |token: &str| with_token(&server, "GET", "/v1/rules", token, "").status;
    assert_eq!((status(old), status(new)), (200, 401));
    std::fs::write(&path, new).unwrap();
    eventually("the new token is accepted", || status(new) == 200);
    assert_eq!(status(old), 401);
    std::fs::write(&path, "\n").unwrap();
    let kept = "tokens stay as they were: ";
    eventually("the mistake is logged", || std::fs::read_to_string(log.path()).unwrap().contains(kept));
    assert_eq!((status(new), server.get("/v1/rules").status), (200, 401));
}

/// The admin listener needs no token if none is configured. Then it must be on a loopback address, unless a flag permits
/// other addresses.
#[test]
fn admin_listener_without_token_is_loopback_only() {
    let any = "127.0.0.1:0";
    for admin in ["0.0.0.0:0", "[::]:0", "[::ffff:0.0.0.0]:0"] {
        let mut serve = Command::new(BINARY);
        let denied = process::output(serve.args(["serve", "--http", any, "--admin", admin]));
        let message = String::from_utf8(denied.stderr).unwrap();
        assert_eq!(denied.status.code(), Some(2), "{admin}");
        assert!(message.contains("without a token: set SLIDEGATE_ADMIN_TOKEN"), "{message}");
        assert!(message.contains("--admin-without-token"), "{message}");
    }
    let server = Server::with_env(&[], RULES, &["--admin", "0.0.0.0:0", "--admin-without-token"]);
    assert!(server.listener_address("admin http").starts_with("0.0.0.0:"));
    Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", ADMIN)], RULES, &["--admin", "0.0.0.0:0"]);
    // The same holds for an address in the configuration file.
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), format!("listen: {{ admin: 0.0.0.0:0 }}\n{RULES}")).unwrap();
    let path = config.path().to_str().unwrap();
    let mut serve = Command::new(BINARY);
    assert_eq!(
        process::output(serve.args(["serve", "--http", any, "--config", path])).status.code(),
        Some(2)
    );
}

/// A page of another site makes a browser send requests: nothing is charged.
#[test]
fn cross_origin_pages_charge_nothing() {
    let server = Server::with_rules(RULES);
    let host = server.address.clone();
    let json = ("content-type", "application/json");
    let own = format!("http://{host}");
    let used = || server.post("/v1/peek", BODY).json()["limits"][0]["used"].clone();
    let foreign: [&[(&str, &str)]; 4] = [
        &[json, ("origin", "http://evil.example")],
        &[json, ("origin", "null")],
        &[json, ("sec-fetch-site", "cross-site")],
        &[json, ("sec-fetch-site", "same-site"), ("origin", "http://x")],
    ];
    for headers in foreign {
        for path in
            ["/v1/acquire", "/v1/acquire/batch", "/v1/settle", "/v1/release", "/v1/extend", "/v1/report"]
        {
            let answer = server.send("POST", path, headers, BODY);
            let code = &answer.json()["error"]["code"];
            assert_eq!((answer.status, code), (403, &"cross_origin".into()), "{path} {headers:?}");
        }
    }
    assert_eq!(used(), 0);
    // Requests of the dashboard's own page and of programs pass. The tests send `host: x`.
    for headers in
        [&[json, ("origin", "http://x")][..], &[json, ("sec-fetch-site", "same-origin"), ("origin", &own)]]
    {
        assert_ne!(server.send("POST", "/v1/acquire", headers, BODY).status, 403, "{headers:?}");
    }
    assert_eq!(used(), 1);
    // With a token, only clients that send it may call.
    let server = Server::with_env(&[("SLIDEGATE_TOKEN", DATA)], RULES, &[]);
    let headers = [json, ("origin", "http://evil.example"), ("authorization", &format!("Bearer {DATA}"))];
    assert_eq!(server.send("POST", "/v1/acquire", &headers, BODY).status, 200);
}
