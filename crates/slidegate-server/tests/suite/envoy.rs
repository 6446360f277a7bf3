//! Tests a real Envoy in front of a real server, with the configuration of docs/reference/envoy.md.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use slidegate_testkit::{eventually, lasting_port, stub::Denying};

use crate::server::Server;

const DOCS: &str = include_str!("../../../../docs/reference/envoy.md");

/// The YAML blocks of the page: the rules, and Envoy's file.
fn blocks() -> [&'static str; 2] {
    let block = |rest: &'static str| rest.split("```").next().unwrap().split_once('\n').unwrap().1;
    let mut blocks = DOCS.split("```yaml").skip(1).map(block);
    [(); 2].map(|()| blocks.next().unwrap())
}

/// Upstream of Envoy: answers 200, and counts requests.
struct Upstream {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
}

impl Upstream {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        // The threads end with the process of the test.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let counted = Arc::clone(&counted);
                std::thread::spawn(move || serve(stream, &counted));
            }
        });
        Upstream { address, requests }
    }
}

fn serve(mut stream: TcpStream, requests: &AtomicUsize) {
    stream.set_nodelay(true).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    while let Some(Ok(line)) = lines.next() {
        if line.is_empty() {
            requests.fetch_add(1, Ordering::Relaxed);
            if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").is_err() {
                return;
            }
        }
    }
}

struct Envoy {
    child: Child,
    address: SocketAddr,
    upstream: Upstream,
}

impl Envoy {
    /// Starts Envoy with the file of the docs and the rate-limit service at `grpc`.
    fn start(grpc: &str, deny: bool) -> Self {
        let upstream = Upstream::start();
        let address = SocketAddr::from(([127, 0, 0, 1], lasting_port()));
        let port = |address: SocketAddr| format!("port_value: {} ", address.port());
        let config = blocks()[1]
            .replace("port_value: 10000 ", &port(address))
            .replace("port_value: 9000 ", &port(upstream.address))
            .replace("port_value: 8081 ", &port(grpc.parse().unwrap()))
            .replace("failure_mode_deny: false", &format!("failure_mode_deny: {deny}"))
            // Long timeouts, because a machine that runs tests may pause.
            .replace("timeout: 0.1s", "timeout: 20s");
        let binary = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin/envoy");
        assert!(binary.exists(), "no Envoy: run scripts/tools.sh");
        let child = Command::new(binary)
            .args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "error", "--config-yaml"])
            .arg(config)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut envoy = Envoy { child, address, upstream };
        eventually("Envoy listens", || {
            assert!(envoy.child.try_wait().unwrap().is_none(), "Envoy does not start");
            TcpStream::connect(address).is_ok()
        });
        envoy
    }

    fn connect(&self) -> Connection {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Connection(BufReader::new(stream))
    }

    fn forwarded(&self) -> usize {
        self.upstream.requests.load(Ordering::Relaxed)
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Kept-alive connection.
struct Connection(BufReader<TcpStream>);

struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

impl Connection {
    fn get(&mut self, user: &str) -> Answer {
        let request = format!("GET / HTTP/1.1\r\nhost: x\r\nx-user: {user}\r\n\r\n");
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        let mut line = || {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            line.trim_end().to_owned()
        };
        let status = line().split(' ').nth(1).expect("a status").parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let line = line();
            let Some((name, value)) = line.split_once(": ") else { break };
            headers.push((name.to_owned(), value.to_owned()));
        }
        let answer = Answer { status, headers };
        let length = answer.header("content-length").map_or(0, |length| length.parse().unwrap());
        self.0.read_exact(&mut vec![0; length]).unwrap();
        answer
    }
}

#[test]
fn admits_exactly_the_limit_with_headers() {
    let server = Server::with_rules(blocks()[0]);
    let envoy = Envoy::start(server.listener_address("grpc"), false);
    let mut connection = envoy.connect();
    for n in 1..=60 {
        let answer = connection.get("ann");
        let left = if n <= 50 { 50 - n } else { 0 };
        assert_eq!(answer.status, if n <= 50 { 200 } else { 429 }, "request {n}");
        let text = |name| answer.header(name).unwrap_or_else(|| panic!("no {name} in request {n}"));
        assert_eq!(text("x-ratelimit-limit"), r#"50, 50;w=3600;name="per-user""#);
        assert_eq!(text("x-ratelimit-remaining"), left.to_string());
        assert_eq!(text("ratelimit-policy"), r#""per-user";q=50;w=3600"#);
        assert!(text("ratelimit").starts_with(&format!(r#""per-user";r={left};t="#)));
        // Seconds until no permit is in use, if allowed; until the first of the fifty admissions has left, if denied.
        let reset: u64 = text("x-ratelimit-reset").parse().unwrap();
        assert!((3_500..=3_600).contains(&reset), "{reset}");
        let retry = answer.header("retry-after").map(|wait| wait.parse::<u64>().unwrap());
        assert_eq!(retry, (n > 50).then_some(reset), "request {n}");
    }
    assert_eq!(connection.get("bob").header("x-ratelimit-remaining"), Some("49"));
    assert_eq!(envoy.forwarded(), 51);
}

#[test]
fn unreachable_server_follows_the_failure_mode() {
    let denying = Denying::new();
    for (deny, status) in [(false, 200), (true, 500)] {
        let envoy = Envoy::start(&denying.address.to_string(), deny);
        assert_eq!(envoy.connect().get("ann").status, status);
        assert_eq!(envoy.forwarded(), usize::from(!deny));
    }
}

/// 20,000 requests of 40 users, over eight connections: each is either allowed or denied, and each user has fifty.
#[test]
fn every_request_is_allowed_or_denied() {
    const CONNECTIONS: usize = 8;
    const EACH: usize = 2_500;
    const USERS: usize = 40;
    let server = Server::with_rules(blocks()[0]);
    let envoy = Envoy::start(server.listener_address("grpc"), false);
    let counts = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CONNECTIONS)
            .map(|client| {
                let mut connection = envoy.connect();
                scope.spawn(move || {
                    let (mut allowed, mut denied) = ([0; USERS], 0);
                    for n in 0..EACH {
                        let user = (client + n) % USERS;
                        match connection.get(&format!("user{user}")).status {
                            200 => allowed[user] += 1,
                            429 => denied += 1,
                            other => panic!("{other}"),
                        }
                    }
                    (allowed, denied)
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    for user in 0..USERS {
        assert_eq!(counts.iter().map(|(allowed, _)| allowed[user]).sum::<usize>(), 50, "user{user}");
    }
    let denied: usize = counts.iter().map(|(_, denied)| denied).sum();
    assert_eq!(denied, CONNECTIONS * EACH - 50 * USERS);
    assert_eq!(envoy.forwarded(), 50 * USERS);
}
