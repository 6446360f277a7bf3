//! Tests nginx, Traefik and Caddy with `/v1/authorize`: exactly the limit passes, and other clients get 429 with a time
//! to retry.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use slidegate_testkit::{eventually, lasting_port, upstream::Upstream};

use crate::server::{Answer, Server};

const CLIENTS: &str = include_str!("../../../../docs/how-to/clients.md");
const LIMIT: usize = 25;
const REQUESTS: usize = 60;

/// Starts a server with a limit per client address on `/api`.
fn slidegate() -> Server {
    Server::with_rules(&format!(
        "rules: [{{ name: per-client, match: {{ api: \"/api*\" }}, key: [ip], limit: {LIMIT}, window: 1h }}]"
    ))
}

/// Configuration under a heading of docs/how-to/clients.md, with the addresses of this test.
fn configuration(heading: &str, slidegate: &Server, upstream: &Upstream, port: u16) -> String {
    let (_, section) = CLIENTS.split_once(&format!("\n### {heading}\n")).unwrap();
    let block = section.split("```").nth(1).unwrap();
    let (_, text) = block.split_once('\n').unwrap();
    let text =
        text.replace("127.0.0.1:8080", &slidegate.address).replace("127.0.0.1:9000", &upstream.address);
    text.replace(":8000", &format!(":{port}"))
}

/// A proxy that runs in a folder of its own, killed on drop.
struct Proxy {
    child: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Proxy {
    /// `command` makes the program from its folder, the port to listen on.
    fn start(command: impl Fn(&Path, u16) -> Command) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // If another process takes the port in between, the proxy exits, and the next one is tried.
        for _ in 0..10 {
            let port = lasting_port();
            let log = fs::File::create(folder.path().join("log")).unwrap();
            let mut command = command(folder.path(), port);
            let mut child =
                command.stdout(log.try_clone().unwrap()).stderr(log).stdin(Stdio::null()).spawn().unwrap();
            let address = format!("127.0.0.1:{port}");
            for _ in 0..1_200 {
                if child.try_wait().unwrap().is_some() {
                    break;
                }
                if TcpStream::connect(&address).is_ok() {
                    return Proxy { child, address, _folder: folder };
                }
                std::thread::sleep(Duration::from_millis(25));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        panic!("it does not start: {}", fs::read_to_string(folder.path().join("log")).unwrap());
    }

    /// Sends requests from several clients at once, each on its own connections, and returns all responses.
    fn send(&self, path: &str, headers: &[(&str, &str)]) -> Vec<Answer> {
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let proxy = Server::at(&self.address);
                        (0..REQUESTS / 4).map(|_| proxy.send("GET", path, headers, "")).collect::<Vec<_>>()
                    })
                })
                .collect();
            clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
        })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn tool(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin").join(name)
}

/// Assertions for every proxy.
fn exactly_the_limit_passes(proxy: &Proxy, upstream: &Upstream, shows_what_is_left: bool) {
    // A client cannot choose whom it is counted as.
    // Headers of a browser are passed on, and are not taken for a cross-origin request to Slidegate itself.
    let forged = [
        ("x-forwarded-for", "6.6.6.6"),
        ("x-forwarded-uri", "/free"),
        ("x-original-uri", "/free"),
        ("origin", "https://other.example"),
        ("sec-fetch-site", "cross-site"),
        ("referer", "https://other.example/page"),
        ("user-agent", "Mozilla/5.0"),
    ];
    let answers = proxy.send("/api/things?x=1", &forged);
    let passed = answers.iter().filter(|answer| answer.status == 200).count();
    let denied: Vec<&Answer> = answers.iter().filter(|answer| answer.status == 429).collect();
    let others: Vec<u16> = answers.iter().map(|a| a.status).filter(|s| ![200, 429].contains(s)).collect();
    assert_eq!((passed, denied.len(), others), (LIMIT, REQUESTS - LIMIT, vec![]));
    assert_eq!(upstream.requests(), LIMIT, "what is denied never reaches it");
    for answer in denied {
        let wait: u64 = answer.header_in_any_case("retry-after").expect("Retry-After").parse().unwrap();
        assert!((1..=3600).contains(&wait), "{wait}");
        assert!(
            answer.header_in_any_case("ratelimit").expect("RateLimit").starts_with("\"per-client\";r=0;t=")
        );
    }
    for answer in answers.iter().filter(|answer| answer.status == 200) {
        assert_eq!(answer.body, "from upstream");
        let shown = answer.header_in_any_case("ratelimit");
        assert_eq!(
            shown.is_some_and(|shown| shown.starts_with("\"per-client\";r=")),
            shows_what_is_left,
            "{shown:?}"
        );
    }
    // What no rule is about passes.
    let free = proxy.send("/free", &[]);
    assert!(free.len() == REQUESTS && free.iter().all(|answer| answer.status == 200));
}

/// nginx with more settings of its `http` block.
fn nginx_with(more: &str, slidegate: &Server, upstream: &Upstream) -> Proxy {
    Proxy::start(|folder, port| {
        let config = format!(
            r#"
daemon off; worker_processes 2; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log off;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  {more}
  {example}
}}
"#,
            folder = folder.display(),
            example = configuration("nginx", slidegate, upstream, port),
        );
        fs::write(folder.join("nginx.conf"), config).unwrap();
        let mut command = Command::new("nginx");
        command.arg("-p").arg(folder).arg("-c").arg(folder.join("nginx.conf"));
        command
    })
}

#[test]
fn nginx() {
    let (slidegate, upstream) = (slidegate(), Upstream::start("from upstream"));
    let proxy = nginx_with("", &slidegate, &upstream);
    exactly_the_limit_passes(&proxy, &upstream, true);
}

/// A client that is over its limit stays over it, for any length and spelling of its path.
#[test]
fn nginx_with_large_headers() {
    let (slidegate, upstream) = (slidegate(), Upstream::start("from upstream"));
    let proxy = nginx_with("large_client_header_buffers 4 64k;", &slidegate, &upstream);
    let passed = |path: &str| proxy.send(path, &[]).iter().filter(|answer| answer.status == 200).count();
    assert_eq!(passed("/api/things"), LIMIT);
    for path in
        [&format!("/api/{}", "x".repeat(9_000)), &format!("/api/{}", "x".repeat(40_000)), "/API/", "/api;a"]
    {
        assert_eq!(passed(path), 0, "{} bytes", path.len());
    }
    assert_eq!(upstream.requests(), LIMIT);
}

#[test]
fn traefik() {
    let (slidegate, upstream) = (slidegate(), Upstream::start("from upstream"));
    let proxy = Proxy::start(|folder, port| {
        let dynamic = configuration("Traefik", &slidegate, &upstream, port);
        fs::write(folder.join("dynamic.yaml"), dynamic).unwrap();
        let fixed = format!(
            r#"
entryPoints: {{ web: {{ address: "127.0.0.1:{port}" }} }}
providers: {{ file: {{ filename: {folder}/dynamic.yaml }} }}
global: {{ checkNewVersion: false, sendAnonymousUsage: false }}
"#,
            folder = folder.display(),
        );
        fs::write(folder.join("traefik.yaml"), fixed).unwrap();
        let mut command = Command::new(tool("traefik"));
        command.arg(format!("--configFile={}/traefik.yaml", folder.display()));
        command
    });
    // It listens before it knows its routes.
    eventually("Traefik knows its routes", || Server::at(&proxy.address).get("/free").status == 200);
    upstream.reset_count();
    // What it copies of a good answer goes to the upstream, not to the client.
    exactly_the_limit_passes(&proxy, &upstream, false);
}

#[test]
fn caddy() {
    let (slidegate, upstream) = (slidegate(), Upstream::start("from upstream"));
    let proxy = Proxy::start(|folder, port| {
        let example = configuration("Caddy", &slidegate, &upstream, port);
        let config = format!(
            "{{\n  admin off\n  auto_https off\n  persist_config off\n  default_bind 127.0.0.1\n}}\n{example}"
        );
        fs::write(folder.join("Caddyfile"), config).unwrap();
        let mut command = Command::new(tool("caddy"));
        command.args(["run", "--adapter", "caddyfile", "--config"]).arg(folder.join("Caddyfile"));
        command.env("HOME", folder).env("XDG_DATA_HOME", folder).env("XDG_CONFIG_HOME", folder);
        command
    });
    exactly_the_limit_passes(&proxy, &upstream, true);
}
