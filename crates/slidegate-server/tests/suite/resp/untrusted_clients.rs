//! Tests invalid and unfinished input: memory is bounded, and the connection gets an error or is closed.

use std::net::Shutdown;
use std::time::Duration;

use slidegate_server::Limits;
use slidegate_server::{Auth, Token};
use slidegate_testkit::eventually;

use super::raw_client::{RespServer, encode, simple};

#[test]
fn invalid_bytes_get_an_error_and_close() {
    let server = RespServer::open();
    let nested = [&b"*1\r\n".repeat(100_000)[..], b"\r\n"].concat();
    let word = [&b"$65536\r\n"[..], &[b'x'; 65_536], b"\r\n"].concat();
    let large = [&b"*17\r\n"[..], &word.repeat(17)].concat();
    for (bytes, message) in [
        (&b"*1000000000\r\n"[..], "invalid multibulk length: too many arguments"),
        (b"*73\r\n$4\r\nPING\r\n", "invalid multibulk length: too many arguments"),
        (b"*99999999999999999999\r\n", "invalid multibulk length"),
        (b"*x\r\n", "invalid multibulk length"),
        (b"*1\r\n$2000000000\r\n", "invalid bulk length"),
        (b"*1\r\n$65537\r\n", "invalid bulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n:1\r\n", "expected '$': a command is an array of bulk strings"),
        (b"*1\r\n$2\r\nPING\r\n", "a bulk string is longer than its length"),
        (&nested, "expected '$': a command is an array of bulk strings"),
        (&large, "too big a command"),
        (&[b'a'; 17_000], "too big inline request"),
        (b"PING \"a\r\n", "quotes are not supported in an inline command"),
    ] {
        let mut client = server.client();
        // The server may close the connection before all bytes are sent.
        client.try_send(&encode("PING"));
        client.try_send(bytes);
        let rest = client.rest();
        assert_eq!(rest[0], simple("PONG"), "the commands before are answered");
        assert_eq!(rest[1].error(), format!("ERR Protocol error: {message}"));
        assert_eq!(rest.len(), 2);
    }
    assert_eq!(server.client().call("PING"), simple("PONG"));
}

#[test]
fn random_bytes_affect_no_other_client() {
    let server = RespServer::open();
    let mut seed = 88_172_645_463_325_252_u64;
    let mut answers = 0;
    for _ in 0..200 {
        let mut noise = Vec::new();
        for _ in 0..40 {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            noise.extend(match seed % 6 {
                0 => b"\r\n".to_vec(),
                1 => b"*2\r\n$4\r\n".to_vec(),
                2 => b"SG.ACQUIRE ".to_vec(),
                3 => b"$9\r\n".to_vec(),
                _ => seed.to_le_bytes().to_vec(),
            });
        }
        let mut client = server.client();
        client.try_send(&noise);
        client.finish(Shutdown::Write);
        for answer in client.rest() {
            assert!(answer.error().starts_with("ERR "), "{answer:?}");
            answers += 1;
        }
    }
    assert!(answers >= 100, "{answers}");
    assert_eq!(server.client().call("PING"), simple("PONG"));
}

fn short() -> Limits {
    Limits {
        head: Duration::from_millis(20),
        request: Duration::from_millis(200),
        connections: 2,
        connections_per_address: Some(2),
        ..Limits::default()
    }
}

#[test]
fn unfinished_and_idle_connections_time_out() {
    let patient = Limits { head: Duration::from_secs(60), ..short() };
    let server = RespServer::impatient(patient);
    let mut half = server.client();
    half.send(b"PING\r\n*2\r\n$4\r\nECHO\r\n$100\r\nabc");
    assert_eq!(half.read(), Some(simple("PONG")));
    assert_eq!(half.read(), None, "the connection is closed long before the idle timeout");
    // A command that never ends is given up, even if bytes keep arriving.
    let mut endless = server.client();
    endless.send(b"*1\r\n$60000\r\n");
    eventually("the endless command is given up", || !endless.try_send(b"x"));
    // A command that arrives slowly, but in time, is answered.
    let server = RespServer::impatient(Limits { request: Duration::from_secs(60), ..patient });
    let mut slow = server.client();
    for byte in encode("PING") {
        slow.send(&[byte]);
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(slow.read(), Some(simple("PONG")));

    let limits = Limits { head: Duration::from_millis(50), request: Duration::from_secs(60), ..short() };
    let server = RespServer::impatient(limits);
    let mut idler = server.client();
    assert_eq!(idler.call("PING"), simple("PONG"));
    assert_eq!(idler.read(), None);

    // A client without a token has a shorter idle timeout: clients with a token are still connected when it is closed.
    let limits = Limits { head: Duration::from_secs(1), ..short() };
    let server = RespServer::with(limits, Auth::new(vec![Token::new(b"secret")], vec![]));
    let mut authenticated = server.client();
    assert_eq!(authenticated.call("AUTH secret"), simple("OK"));
    let mut unauthenticated = server.client();
    assert_eq!(unauthenticated.call("PING").error(), "NOAUTH Authentication required.");
    assert_eq!(unauthenticated.read(), None);
    assert_eq!(authenticated.call("PING"), simple("PONG"));
}

/// One client sends without reading; there is room for only one connection.
#[test]
fn client_that_does_not_read_is_closed() {
    // Both clients have the same address.
    let limits =
        Limits { head: Duration::from_secs(60), connections: 1, connections_per_address: Some(2), ..short() };
    let server = RespServer::impatient(limits);
    let mut deaf = server.client();
    // The connection is in use. So the next client cannot evict it, and must wait.
    assert_eq!(deaf.call("PING"), simple("PONG"));
    let commands = encode("INFO").repeat(1_000);
    // The replies are larger than the buffers of both sockets.
    let stuck = std::thread::spawn(move || while deaf.try_send(&commands) {});
    assert_eq!(server.client().call("PING"), simple("PONG"));
    stuck.join().unwrap();
}
