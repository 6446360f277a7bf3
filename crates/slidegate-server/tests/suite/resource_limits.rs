//! Tests the bounds on connections and memory of clients that never finish a request.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use slidegate_testkit::eventually;

use crate::resp::{Wire, simple};
use crate::server::{Answer, Server};

const RULES: &str = "rules: [{ name: one, key: [user], limit: 1000000, window: 1h }]";

fn server(limits: &str) -> Server {
    Server::with_rules(&format!("listen: {{ limits: {{ {limits} }} }}\n{RULES}"))
}

fn metric(server: &Server, name: &str) -> u64 {
    let page = server.get("/metrics").body;
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in {page}")).parse().unwrap()
}

fn healthz(stream: &mut TcpStream) -> bool {
    let mut answer = [0; 1_024];
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").is_ok()
        && stream.read(&mut answer).is_ok_and(|n| answer[..n].starts_with(b"HTTP/1.1 200 "))
}

/// Returns true if the server has closed a connection. The server must close it or send something before the timeout of
/// [`Server::connect`].
fn is_ended(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 1_024]) {
        Ok(n) => n == 0,
        Err(error) => {
            assert_ne!(error.kind(), ErrorKind::WouldBlock, "the connection is still open after 30 s");
            true
        }
    }
}

#[test]
fn silent_connections_are_closed() {
    let server = server("first-byte: 100ms");
    for (protocol, label) in [("http", "http"), ("grpc", "grpc"), ("redis", "resp")] {
        let mut silent = TcpStream::connect(server.listener_address(protocol)).unwrap();
        silent.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        assert!(is_ended(&mut silent), "{protocol}");
        let name = format!("slidegate_connections_shed_total{{protocol=\"{label}\",reason=\"silent\"}}");
        assert_eq!(metric(&server, &name), 1);
    }
}

/// All connection slots are used by connections that have sent a request. Idle connections are closed to make room,
/// active ones are not.
#[test]
fn idle_connections_make_room_for_new_ones() {
    let server = server("connections: 4, connections-per-address: 4");
    let mut idle: Vec<TcpStream> = (0..3).map(|_| server.connect()).collect();
    let mut active = server.connect();
    assert!(idle.iter_mut().all(healthz) && healthz(&mut active));
    // Only connections that were idle for a second are closed.
    eventually("a new connection is answered", || {
        assert!(healthz(&mut active), "an active connection is not closed");
        let mut new = server.connect();
        new.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        healthz(&mut new)
    });
    assert!(healthz(&mut active));
    assert!(idle.iter_mut().any(is_ended));
}

/// Streams are active for as long as they last. One address has at most its share of the connections.
#[test]
fn connections_per_address_are_bounded() {
    let server = server("connections: 100, connections-per-address: 2");
    let live = || {
        let mut stream = server.connect();
        stream.write_all(b"GET /v1/live HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"HTTP/1.1 200");
        stream
    };
    let streams = [live(), live()];
    let mut third = server.connect();
    assert!(is_ended(&mut third), "the connection is closed at once");
    // Another listener has its own connection slots.
    assert_eq!(Wire::connect(server.listener_address("redis")).call("PING"), simple("PONG"));
    drop(streams);
    eventually("there is room again", || {
        let mut next = server.connect();
        healthz(&mut next)
    });
    let denied = "slidegate_connections_shed_total{protocol=\"http\",reason=\"per-address\"}";
    assert!(metric(&server, denied) >= 1);
}

const BUDGET: u64 = 8 << 20;

/// Largest number of unfinished requests of 900,000 bytes that fit into the budget. On a busy machine, any of the
/// clients may be among them.
const FITTING: usize = (BUDGET / 900_000) as usize;

/// Commands of nearly a megabyte that never end.
#[test]
fn unfinished_commands_share_a_memory_budget() {
    let server = server(&format!("unfinished-bytes: {BUDGET}"));
    let before = server.resident();
    let word = [&b"$65000\r\n"[..], &[b'x'; 65_000], b"\r\n"].concat();
    let half = [&b"*20\r\n"[..], &word.repeat(14)].concat();
    let mut clients: Vec<Wire> = (0..60).map(|_| Wire::connect(server.listener_address("redis"))).collect();
    for client in &mut clients {
        client.try_send(&half);
    }
    let unfinished = || metric(&server, "slidegate_unfinished_requests_bytes");
    let resident = server.resident().saturating_sub(before);
    assert!(
        unfinished() <= BUDGET && resident < 8 * BUDGET,
        "{} bytes are held, {resident} taken",
        unfinished()
    );
    let mut answers: Vec<_> = clients.drain(20..).flat_map(|mut client| client.read()).collect();
    assert!(answers.len() >= 40 - FITTING, "{} of 40 get an answer", answers.len());
    let message = answers.remove(0);
    assert!(
        message.error().starts_with("UNAVAILABLE the unfinished commands of all clients use"),
        "{message:?}"
    );
    // Small commands are answered meanwhile, and large ones when there is room again.
    assert_eq!(Wire::connect(server.listener_address("redis")).call("PING"), simple("PONG"));
    drop(clients);
    eventually("the bytes are given back", || unfinished() == 0);
    let mut client = Wire::connect(server.listener_address("redis"));
    client.send(&half);
    client.send(&word.repeat(2));
    client.send(&b"$1\r\nx\r\n".repeat(4));
    assert!(client.read().unwrap().error().starts_with("ERR unknown command"));
}

/// Bodies of HTTP and messages of gRPC share the same budget.
#[test]
fn unfinished_bodies_share_the_memory_budget() {
    let server = server(&format!("unfinished-bytes: {BUDGET}"));
    let head = "POST /v1/acquire/batch HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n";
    let half = vec![b' '; 900_000];
    let mut clients: Vec<TcpStream> = (0..40).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.write_all(head.as_bytes()).unwrap();
        // The server may have answered already.
        let _ = client.write_all(&half);
    }
    let denied = clients.drain(20..).map(Answer::read);
    let denied = denied.filter(|answer| answer.status == 503).inspect(|answer| {
        let error = &answer.json()["error"];
        assert_eq!(error["code"], "unavailable");
        assert!(error["message"].as_str().unwrap().contains("listen.limits.unfinished-bytes"), "{error}");
    });
    let count = denied.count();
    assert!(count >= 20 - FITTING, "{count} of 20 requests are denied");
    assert!(metric(&server, "slidegate_unfinished_requests_bytes") <= BUDGET);
    assert_eq!(server.post("/v1/acquire", r#"{"attributes":{"user":"a"}}"#).status, 200);
    drop(clients);
    eventually("the bytes are given back", || metric(&server, "slidegate_unfinished_requests_bytes") == 0);
    let body = format!("{{\"requests\":[{{\"attributes\":{{\"user\":\"b\"}}}}]}}{}", " ".repeat(900_000));
    assert_eq!(server.post("/v1/acquire/batch", &body).status, 200);
}
