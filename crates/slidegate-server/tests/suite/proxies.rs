//! Tests nginx, Traefik and Caddy with `/v1/authorize`: exactly the limit passes, and other requests get 429 with a time
//! to retry. Without Slidegate, the variants of docs/how-to/clients.md fail closed or open.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use slidegate_testkit::{eventually, lasting_port, stub::Denying, upstream::Upstream};

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

/// Code blocks under a heading of docs/how-to/clients.md, in order.
fn blocks(heading: &str) -> Vec<&'static str> {
    let (_, section) = CLIENTS.split_once(&format!("\n### {heading}\n")).unwrap();
    let section = section.split("\n### ").next().unwrap();
    section.split("```").skip(1).step_by(2).map(|block| block.split_once('\n').unwrap().1).collect()
}

/// Returns a configuration with the addresses of this test.
fn with_addresses(text: &str, slidegate: &str, upstream: &Upstream, port: u16) -> String {
    let text = text.replace("127.0.0.1:8080", slidegate).replace("127.0.0.1:9000", &upstream.address);
    text.replace(":8000", &format!(":{port}"))
}

/// Returns a configuration with longer timeouts: a machine that runs tests may pause for longer than a decision takes.
fn patient(text: &str) -> String {
    assert!(text.contains("250ms"), "no timeout in {text}");
    text.replace("250ms", "20s")
}

/// Proxy that runs in its own folder and is killed on drop.
struct Proxy {
    child: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Proxy {
    /// `command` builds the command from the folder and the port to listen on.
    fn start(command: impl Fn(&Path, u16) -> Command) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // If another process takes the port in between, the proxy exits, and the test tries the next port.
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
    // A client cannot choose the client under which it is counted. Headers of a browser are passed on, and are not
    // taken for a cross-origin request to Slidegate itself.
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
    assert_eq!(upstream.requests(), LIMIT, "denied requests never reach the application");
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
    // Requests that no rule matches pass.
    let free = proxy.send("/free", &[]);
    assert!(free.len() == REQUESTS && free.iter().all(|answer| answer.status == 200));
}

/// Addresses at which Slidegate does not answer.
struct Faults {
    refusing: Denying,
    /// This listener never accepts: connections stay in its backlog.
    silent: TcpListener,
    failing: Upstream,
}

impl Faults {
    fn new() -> Self {
        Faults {
            refusing: Denying::new(),
            silent: TcpListener::bind("127.0.0.1:0").unwrap(),
            failing: Upstream::with_status(503, "unavailable"),
        }
    }

    /// Asserts the statuses that clients get if Slidegate refuses the connection, does not answer, and answers 503.
    /// `start` starts a proxy with a configuration and the address of Slidegate. Only requests with status 200 reach
    /// the upstream.
    fn assert_statuses(
        &self,
        configuration: &str,
        start: impl Fn(&str, &str, &Upstream) -> Proxy,
        statuses: [u16; 3],
    ) {
        let patient = patient(configuration);
        let faults = [
            ("refused", patient.as_str(), self.refusing.address.to_string()),
            ("no answer", configuration, self.silent.local_addr().unwrap().to_string()),
            ("503", patient.as_str(), self.failing.address.clone()),
        ];
        for ((fault, configuration, address), status) in faults.into_iter().zip(statuses) {
            let upstream = Upstream::start("from upstream");
            let proxy = start(configuration, &address, &upstream);
            upstream.reset_count();
            let answer = Server::at(&proxy.address).get("/api/things");
            assert_eq!(answer.status, status, "{fault}: {}", answer.body);
            assert_eq!(upstream.requests(), usize::from(status == 200), "{fault}");
        }
    }
}

/// Starts nginx with a configuration of its `http` block.
fn start_nginx(configuration: &str, slidegate: &str, upstream: &Upstream) -> Proxy {
    Proxy::start(|folder, port| {
        let config = format!(
            r#"
daemon off; worker_processes 2; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log off;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  {example}
}}
"#,
            folder = folder.display(),
            example = with_addresses(configuration, slidegate, upstream, port),
        );
        fs::write(folder.join("nginx.conf"), config).unwrap();
        let mut command = Command::new("nginx");
        command.arg("-p").arg(folder).arg("-c").arg(folder.join("nginx.conf"));
        command
    })
}

/// Both variants of nginx: fail closed, fail open.
fn nginx_variants() -> [String; 2] {
    let [closed, replacement]: [&str; 2] = blocks("nginx").try_into().unwrap();
    let line = closed.lines().find(|line| line.contains("location @slidegate_away")).unwrap();
    assert_ne!(line, replacement.trim_end());
    [closed.to_owned(), closed.replace(line, replacement.trim_end())]
}

#[test]
fn nginx() {
    for configuration in nginx_variants() {
        let (slidegate, upstream) = (slidegate(), Upstream::start("from upstream"));
        let proxy = start_nginx(&patient(&configuration), &slidegate.address, &upstream);
        exactly_the_limit_passes(&proxy, &upstream, true);
    }
}

/// The tutorial has the configuration that is tested here.
#[test]
fn nginx_tutorial_has_the_same_configuration() {
    let tutorial = include_str!("../../../../docs/tutorials/behind-nginx.md");
    let trimmed = |text: &str| text.lines().map(|line| line.trim().to_owned() + "\n").collect::<String>();
    assert!(trimmed(tutorial).contains(&trimmed(&nginx_variants()[0])));
}

#[test]
fn nginx_without_slidegate() {
    let [closed, open] = nginx_variants();
    Faults::new().assert_statuses(&closed, start_nginx, [503, 503, 503]);
    Faults::new().assert_statuses(&open, start_nginx, [200, 200, 200]);
}

/// nginx calls the second server of an `upstream` block if the first does not answer.
#[test]
fn nginx_with_two_nodes() {
    let (slidegate, upstream, refusing) = (slidegate(), Upstream::start("from upstream"), Denying::new());
    let [closed, _] = nginx_variants();
    let one = "server 127.0.0.1:8080;";
    assert!(closed.contains(one));
    let both = closed.replace(one, &format!("server {}; {one}", refusing.address));
    let proxy = start_nginx(&patient(&both), &slidegate.address, &upstream);
    exactly_the_limit_passes(&proxy, &upstream, true);
}

/// A client that is over its limit stays over it, for any length and spelling of its path.
#[test]
fn nginx_with_large_headers() {
    for configuration in nginx_variants() {
        let (slidegate, upstream) = (slidegate(), Upstream::start("from upstream"));
        let configuration = format!("large_client_header_buffers 4 64k;\n{}", patient(&configuration));
        let proxy = start_nginx(&configuration, &slidegate.address, &upstream);
        let passed = |path: &str| proxy.send(path, &[]).iter().filter(|answer| answer.status == 200).count();
        assert_eq!(passed("/api/things"), LIMIT);
        for path in [
            &format!("/api/{}", "x".repeat(9_000)),
            &format!("/api/{}", "x".repeat(40_000)),
            "/API/",
            "/api;a",
        ] {
            assert_eq!(passed(path), 0, "{} bytes", path.len());
        }
        assert_eq!(upstream.requests(), LIMIT);
    }
}

/// Starts Traefik with a dynamic configuration. `fixed` is the static configuration.
fn start_traefik(fixed: &str, dynamic: &str, slidegate: &str, upstream: &Upstream) -> Proxy {
    let proxy = Proxy::start(|folder, port| {
        let authorize = format!("127.0.0.1:{}", lasting_port());
        let write = |name: &str, text: &str| {
            let text = text.replace("127.0.0.1:8079", &authorize);
            let path = folder.join(name);
            fs::write(&path, with_addresses(&text, slidegate, upstream, port)).unwrap();
            path
        };
        let dynamic = write("dynamic.yaml", dynamic);
        let fixed = fixed.replace("dynamic.yaml", &dynamic.display().to_string());
        let fixed = write("traefik.yaml", &format!("{fixed}\n{TRAEFIK_WITHOUT_NETWORK}"));
        let mut command = Command::new(tool("traefik"));
        command.arg(format!("--configFile={}", fixed.display()));
        command
    });
    // Traefik listens before it has loaded its routes.
    eventually("Traefik knows its routes", || Server::at(&proxy.address).get("/free").status != 404);
    proxy
}

const TRAEFIK_WITHOUT_NETWORK: &str = "global: { checkNewVersion: false, sendAnonymousUsage: false }";

/// Static configuration for the first dynamic one.
const TRAEFIK_STATIC: &str = r#"
entryPoints: { web: { address: "127.0.0.1:8000" } }
providers: { file: { filename: dynamic.yaml } }
"#;

/// Traefik copies headers of an allowed answer to the request for the upstream, not to the response for the client.
fn exactly_the_limit_passes_traefik(fixed: &str, dynamic: &str) {
    let (slidegate, upstream) = (slidegate(), Upstream::start("from upstream"));
    let proxy = start_traefik(fixed, dynamic, &slidegate.address, &upstream);
    upstream.reset_count();
    exactly_the_limit_passes(&proxy, &upstream, false);
}

#[test]
fn traefik() {
    let [closed, fixed, open]: [&str; 3] = blocks("Traefik").try_into().unwrap();
    exactly_the_limit_passes_traefik(TRAEFIK_STATIC, closed);
    exactly_the_limit_passes_traefik(fixed, &patient(open));
}

#[test]
fn traefik_without_slidegate() {
    let [closed, fixed, open]: [&str; 3] = blocks("Traefik").try_into().unwrap();
    let start = |dynamic: &str, slidegate: &str, upstream: &Upstream| {
        start_traefik(fixed, dynamic, slidegate, upstream)
    };
    Faults::new().assert_statuses(open, start, [200, 200, 200]);
    let middleware = ", middlewares: [fail-open]";
    assert!(open.contains(middleware));
    Faults::new().assert_statuses(&open.replace(middleware, ""), start, [502, 504, 503]);

    // The first file has no timeout.
    let (refusing, upstream) = (Denying::new(), Upstream::start("from upstream"));
    let proxy = start_traefik(TRAEFIK_STATIC, closed, &refusing.address.to_string(), &upstream);
    assert_eq!(Server::at(&proxy.address).get("/api/things").status, 500);
    assert_eq!(upstream.requests(), 0);
}

/// Starts Caddy with the configuration of a site.
fn start_caddy(configuration: &str, slidegate: &str, upstream: &Upstream) -> Proxy {
    Proxy::start(|folder, port| {
        let example = with_addresses(configuration, slidegate, upstream, port);
        let config = format!(
            "{{\n  admin off\n  auto_https off\n  persist_config off\n  default_bind 127.0.0.1\n}}\n{example}"
        );
        fs::write(folder.join("Caddyfile"), config).unwrap();
        let mut command = Command::new(tool("caddy"));
        command.args(["run", "--adapter", "caddyfile", "--config"]).arg(folder.join("Caddyfile"));
        command.env("HOME", folder).env("XDG_DATA_HOME", folder).env("XDG_CONFIG_HOME", folder);
        command
    })
}

#[test]
fn caddy() {
    for configuration in blocks("Caddy") {
        let (slidegate, upstream) = (slidegate(), Upstream::start("from upstream"));
        let proxy = start_caddy(&patient(configuration), &slidegate.address, &upstream);
        exactly_the_limit_passes(&proxy, &upstream, true);
    }
}

#[test]
fn caddy_without_slidegate() {
    let [closed, open]: [&str; 2] = blocks("Caddy").try_into().unwrap();
    Faults::new().assert_statuses(closed, start_caddy, [502, 504, 503]);
    Faults::new().assert_statuses(open, start_caddy, [200, 200, 200]);
}

/// Caddy does not send a request to the application again if the application closes the connection without an answer.
#[test]
fn caddy_without_the_application() {
    let [_, open]: [&str; 2] = blocks("Caddy").try_into().unwrap();
    let application = TcpListener::bind("127.0.0.1:0").unwrap();
    let configuration = open.replace("127.0.0.1:9000", &application.local_addr().unwrap().to_string());
    let requests = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&requests);
    // The thread ends with the process of the test.
    std::thread::spawn(move || {
        for stream in application.incoming().flatten() {
            counter.fetch_add(1, Ordering::Relaxed);
            let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
            lines.find(String::is_empty);
        }
    });
    let (slidegate, unused) = (slidegate(), Upstream::start("unused"));
    let proxy = start_caddy(&patient(&configuration), &slidegate.address, &unused);
    assert_eq!(Server::at(&proxy.address).get("/api/things").status, 502);
    assert_eq!(requests.load(Ordering::Relaxed), 1);
}
