//! Tests thousands of idle connections, and a shutdown under load.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use slidegate::{Clock, SystemClock};
use slidegate_testkit::{Flavour, RedisServer, eventually};

use crate::resp::{Wire, simple};
use crate::server::Server;

const SLOW: usize = 1_000;
const IDLE: usize = 5_000;

/// Half of the 10 s for which the server waits for a slow client. A request that had to wait for the timeout of a slow
/// or idle client takes longer than this, on any machine.
const LONGEST: Duration = Duration::from_secs(5);

fn request(body: &str) -> String {
    format!(
        "POST /v1/acquire HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A thousand clients send their headers byte by byte and five thousand send nothing, on all listeners.
#[test]
fn idle_connections_do_not_delay_other_clients() {
    let needed = (SLOW + IDLE + 200) as u64;
    let allowed = rlimit::increase_nofile_limit(needed).unwrap();
    assert!(
        allowed >= needed,
        "this test needs {needed} open files, and may have {allowed}: `ulimit -n {needed}`"
    );
    let server = Server::with_rules("rules: [{ name: one, key: [user], limit: 1000000, window: 1h }]");
    let memory = || server.resident();
    let before = memory();
    let addresses =
        [server.listener_address("http"), server.listener_address("grpc"), server.listener_address("redis")];
    let _idle: Vec<TcpStream> = (0..IDLE).map(|i| TcpStream::connect(addresses[i % 3]).unwrap()).collect();
    let mut slow: Vec<TcpStream> = (0..SLOW).map(|_| TcpStream::connect(addresses[0]).unwrap()).collect();
    let text = request(r#"{"attributes":{"user":"slow"}}"#);
    let clock = SystemClock::new();
    let mut longest = Duration::ZERO;
    let mut healthy = server.connect();
    let request_text = request(r#"{"attributes":{"user":"healthy"}}"#);
    let mut answered = 0;
    for byte in text.as_bytes().iter().take(30) {
        for client in &mut slow {
            client.write_all(std::slice::from_ref(byte)).unwrap();
        }
        for _ in 0..20 {
            let start = Duration::from(clock.now());
            healthy.write_all(request_text.as_bytes()).unwrap();
            let mut answer = [0; 2_048];
            let n = healthy.read(&mut answer).unwrap();
            assert!(answer[..n].starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&answer[..n]));
            longest = longest.max(Duration::from(clock.now()) - start);
            answered += 1;
        }
    }
    let grown = memory().saturating_sub(before);
    let each = grown / (SLOW + IDLE) as u64;
    eprintln!(
        "{answered} answers beside {SLOW} slow and {IDLE} idle connections, the longest in {longest:?}; {each} bytes each"
    );
    assert!(longest < LONGEST, "an answer took {longest:?}");
    assert!(each < 40 << 10, "{each} bytes a connection");
    // New connections are accepted too.
    assert_eq!(server.post("/v1/acquire", r#"{"attributes":{"user":"new"}}"#).status, 200);
}

/// More connections than a listener has slots, and all are silent. No client has to wait until they time out.
#[test]
fn silent_connections_do_not_block_a_port() {
    const SILENT: usize = 10_050;
    let needed = (SILENT + 200) as u64;
    let allowed = rlimit::increase_nofile_limit(needed).unwrap();
    assert!(allowed >= needed, "this test needs {needed} open files, and may have {allowed}");
    let server = Server::with_rules("listen: { limits: { first-byte: 1h } }\nrules: []");
    for protocol in ["http", "redis"] {
        let address = server.listener_address(protocol);
        let silent: Vec<TcpStream> = (0..SILENT).map(|_| TcpStream::connect(address).unwrap()).collect();
        for _ in 0..20 {
            match protocol {
                "http" => assert_eq!(server.get("/healthz").status, 200),
                _ => assert_eq!(Wire::connect(address).call("PING"), simple("PONG")),
            }
        }
        let shed = format!(
            "slidegate_connections_shed_total{{protocol=\"{}\",reason=\"room\"}} ",
            protocol.replace("redis", "resp")
        );
        let page = server.get("/metrics").body;
        let shed: u64 = page.lines().find_map(|line| line.strip_prefix(&shed)).unwrap().parse().unwrap();
        // One address may use half of the connection slots.
        assert!(shed >= 5_000, "{shed} connections made room");
        drop(silent);
    }
}

/// If the server is stopped under load, every admission that Redis has counted was answered.
#[test]
fn shutdown_under_load_loses_no_response() {
    let redis = RedisServer::start(Flavour::Redis7);
    for protocol in ["http", "redis"] {
        let rules = format!(
            "store: {}\nguard: {{ deadline: 20s }}\nrules: [{{ name: {protocol}, limit: 1000000, window: 1h }}]",
            redis.url()
        );
        let mut server = Server::with_rules(&rules);
        let answered = AtomicU64::new(0);
        let stopped = AtomicBool::new(false);
        let address = server.listener_address(protocol).to_owned();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let request_text = match protocol {
                        "http" => request(r#"{"attributes":{"user":"a"}}"#),
                        _ => "*3\r\n$8\r\nSG.CHECK\r\n$4\r\nuser\r\n$1\r\na\r\n".to_owned(),
                    };
                    let yes: &[u8] = if protocol == "http" { b"HTTP/1.1 200 " } else { b"*5\r\n:1\r\n" };
                    let mut stream = TcpStream::connect(&address).unwrap();
                    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
                    let mut answer = [0; 4_096];
                    // Loops until the server closes the connection, which happens only before it has read the next
                    // request.
                    while stream.write_all(request_text.as_bytes()).is_ok() {
                        match stream.read(&mut answer) {
                            Ok(n) if n > 0 => {
                                assert!(
                                    answer[..n].starts_with(yes),
                                    "{}",
                                    String::from_utf8_lossy(&answer[..n])
                                );
                                answered.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                                panic!("neither an answer nor the end of the connection in 30 s")
                            }
                            _ => break,
                        }
                    }
                    assert!(stopped.load(Ordering::Relaxed), "the server closed a connection while it ran");
                });
            }
            eventually("the server is under load", || answered.load(Ordering::Relaxed) > 500);
            stopped.store(true, Ordering::Relaxed);
            server.terminate();
        });
        assert!(server.wait().success());
        let answered = answered.load(Ordering::Relaxed);
        let counted: f64 = ::redis::cmd("ZSCORE")
            .arg(format!("sg:{{{protocol}}}"))
            .arg("u")
            .query(&mut redis.client())
            .unwrap();
        eprintln!("{protocol}: {answered} answers until it stopped");
        assert_eq!(answered, (-counted).floor() as u64, "as many answers as Redis has counted");
    }
}
