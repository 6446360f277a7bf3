//! Tests of the fault proxy: each fault, as a plain client sees it. Times are only lower bounds.
#![expect(clippy::disallowed_methods, reason = "a client measures how late an answer is")]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::fault::Fault;
use crate::fault_proxy::FaultProxy;
use crate::redis_server::{Flavour, RedisServer, eventually};

const A_WHILE: Duration = Duration::from_millis(100);
const PONG: &[u8] = b"+PONG\r\n";

fn proxied() -> (RedisServer, FaultProxy) {
    let server = RedisServer::start(Flavour::Redis7).without_ttl_check();
    let proxy = FaultProxy::start(server.address());
    (server, proxy)
}

fn connect(proxy: &FaultProxy) -> TcpStream {
    let client = TcpStream::connect(proxy.address()).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    client.set_nodelay(true).unwrap();
    client
}

fn answer(client: &mut TcpStream, length: usize) -> std::io::Result<Vec<u8>> {
    let mut answer = vec![0; length];
    client.read_exact(&mut answer)?;
    Ok(answer)
}

fn ping(client: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    client.write_all(b"PING\r\n")?;
    answer(client, PONG.len())
}

/// Asserts that nothing arrives for a while and the connection stays open.
fn silent(client: &mut TcpStream) {
    client.set_read_timeout(Some(A_WHILE)).unwrap();
    let error = client.read(&mut [0]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
}

#[test]
fn without_fault_passes_and_counts_every_byte() {
    let (server, proxy) = proxied();
    let mut connection = redis::Client::open(proxy.url()).unwrap().get_connection().unwrap();
    let (sent, received) = (proxy.bytes_to_server(), proxy.bytes_to_client());
    let long: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    redis::cmd("SET").arg("long").arg(&long).exec(&mut connection).unwrap();
    assert!(redis::cmd("GET").arg("long").query::<Vec<u8>>(&mut connection).unwrap() == long);
    assert_eq!(proxy.connections(), 1);
    let requests = b"*3\r\n$3\r\nSET\r\n$4\r\nlong\r\n$3000000\r\n*2\r\n$3\r\nGET\r\n$4\r\nlong\r\n".len()
        + 2
        + long.len();
    let answers = b"+OK\r\n$3000000\r\n\r\n".len() + long.len();
    assert_eq!(proxy.bytes_to_server() - sent, requests as u64);
    assert_eq!(proxy.bytes_to_client() - received, answers as u64);
    drop(proxy);
    assert!(redis::cmd("PING").exec(&mut connection).is_err(), "a dropped proxy leaves nothing open");
    assert_eq!(server.run("PING"), redis::Value::SimpleString("PONG".into()));
}

#[test]
fn delay_is_independent_of_the_number_of_requests() {
    let (_server, proxy) = proxied();
    let mut client = connect(&proxy);
    assert_eq!(ping(&mut client).unwrap(), PONG);
    proxy.set(Fault::Delay(A_WHILE));
    let begin = Instant::now();
    assert_eq!(ping(&mut client).unwrap(), PONG);
    assert!(begin.elapsed() >= 2 * A_WHILE, "each direction: {:?}", begin.elapsed());
    // Forty writes are delayed in parallel: one after the other they would take eight seconds, longer than the timeout.
    client.set_read_timeout(Some(Duration::from_secs(4))).unwrap();
    for _ in 0..40 {
        client.write_all(b"PING\r\n").unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(answer(&mut client, 40 * PONG.len()).unwrap(), PONG.repeat(40));
}

#[test]
fn black_hole_keeps_connections_and_bytes() {
    let (_server, proxy) = proxied();
    let mut old = connect(&proxy);
    assert_eq!(ping(&mut old).unwrap(), PONG);
    let passed = (proxy.bytes_to_server(), proxy.bytes_to_client());
    proxy.set(Fault::BlackHole);
    let mut new = connect(&proxy);
    for client in [&mut old, &mut new] {
        client.write_all(b"PING\r\n").unwrap();
        silent(client);
    }
    assert_eq!((proxy.bytes_to_server(), proxy.bytes_to_client()), passed);
    proxy.set(Fault::None);
    for client in [&mut old, &mut new] {
        assert_eq!(answer(client, PONG.len()).unwrap(), PONG, "the connection continues where it stopped");
    }
}

#[test]
fn black_hole_buffers_a_bounded_number_of_bytes() {
    let (_server, proxy) = proxied();
    let mut client = connect(&proxy);
    assert_eq!(ping(&mut client).unwrap(), PONG);
    proxy.set(Fault::BlackHole);
    client.set_write_timeout(Some(A_WHILE)).unwrap();
    let megabyte = vec![b'x'; 1 << 20];
    // Only the buffers of the kernel accept bytes.
    let full = (0..64).find_map(|_| client.write_all(&megabyte).err());
    assert!(full.is_some_and(|error| error.kind() == ErrorKind::WouldBlock));
}

#[test]
fn reset_closes_open_and_new_connections() {
    let (_server, proxy) = proxied();
    let mut old = connect(&proxy);
    assert_eq!(ping(&mut old).unwrap(), PONG);
    let mut holed = {
        proxy.set(Fault::BlackHole);
        connect(&proxy)
    };
    proxy.set(Fault::Reset);
    assert_eq!(old.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(holed.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    let new = TcpStream::connect(proxy.address()).and_then(|mut new| new.read(&mut [0]));
    assert_eq!(new.unwrap_err().kind(), ErrorKind::ConnectionReset);
    // Even a fault that ends at once has its effect.
    for _ in 0..50 {
        proxy.set(Fault::None);
        let mut client = connect(&proxy);
        assert_eq!(ping(&mut client).unwrap(), PONG);
        proxy.set(Fault::Reset);
        proxy.set(Fault::None);
        assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
}

#[test]
fn drip_is_slow_and_complete() {
    let (_server, proxy) = proxied();
    let mut client = connect(&proxy);
    assert_eq!(ping(&mut client).unwrap(), PONG);
    proxy.set(Fault::Drip { bytes: 2, every: Duration::from_millis(10) });
    let begin = Instant::now();
    assert_eq!(ping(&mut client).unwrap(), PONG);
    // Six bytes go to the server, and seven come back.
    assert!(begin.elapsed() >= Duration::from_millis((3 + 4) * 10), "{:?}", begin.elapsed());
    proxy.set(Fault::Drip { bytes: 1, every: Duration::from_secs(3_600) });
    client.write_all(b"PING\r\n").unwrap();
    silent(&mut client);
    proxy.set(Fault::None);
    assert_eq!(answer(&mut client, PONG.len()).unwrap(), PONG, "no write waits for the next chunk");
}

#[test]
fn half_open_forwards_requests_and_drops_replies() {
    let (server, proxy) = proxied();
    let mut client = connect(&proxy);
    assert_eq!(ping(&mut client).unwrap(), PONG);
    proxy.set(Fault::HalfOpen);
    client.write_all(b"INCR n\r\n").unwrap();
    eventually("the server counts", || server.run("GET n") == redis::Value::BulkString(b"1".into()));
    silent(&mut client);
    proxy.set(Fault::None);
    assert_eq!(answer(&mut client, 4).unwrap(), b":1\r\n");
}

#[test]
fn deny_closes_connections_and_stops_listening() {
    let (_server, proxy) = proxied();
    let mut client = connect(&proxy);
    assert_eq!(ping(&mut client).unwrap(), PONG);
    for _ in 0..20 {
        proxy.set(Fault::Deny);
        let error = TcpStream::connect(proxy.address()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        proxy.set(Fault::None);
        client = connect(&proxy);
        assert_eq!(ping(&mut client).unwrap(), PONG);
    }
    assert_eq!(proxy.connections(), 21);
}

#[test]
fn cut_after_commands_executes_and_loses_the_reply() {
    let (server, proxy) = proxied();
    for round in 1..=20 {
        let mut client = connect(&proxy);
        assert_eq!(ping(&mut client).unwrap(), PONG);
        proxy.set(Fault::CutAfterCommands(2));
        assert_eq!(ping(&mut client).unwrap(), PONG);
        client.write_all(b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n*2\r\n$4\r\nINCR\r\n$5\r\nnever\r\n").unwrap();
        let lost = client.read(&mut [0]);
        assert!(matches!(&lost, Ok(0)) || lost.is_err(), "{lost:?}");
        let counted = redis::Value::BulkString(round.to_string().into());
        eventually("the server counts", || server.run("GET n") == counted);
        assert_eq!(proxy.fault(), Fault::None, "once");
    }
    assert_eq!(server.run("GET never"), redis::Value::Nil);
}

#[test]
fn cut_after_bytes_leaves_a_partial_command() {
    let (server, proxy) = proxied();
    let mut client = connect(&proxy);
    assert_eq!(ping(&mut client).unwrap(), PONG);
    let before = proxy.bytes_to_server();
    proxy.set(Fault::CutAfterBytes(8 + 5));
    client.write_all(b"INCR a\r\nINCR b\r\n").unwrap();
    let lost = client.read(&mut [0]);
    assert!(matches!(&lost, Ok(0)) || lost.is_err(), "{lost:?}");
    assert_eq!(proxy.bytes_to_server() - before, 13);
    eventually("the first is counted", || server.run("GET a") == redis::Value::BulkString(b"1".into()));
    assert_eq!(server.run("GET b"), redis::Value::Nil);
    assert_eq!(ping(&mut connect(&proxy)).unwrap(), PONG);
}

#[tokio::test]
async fn retarget_applies_to_new_connections() {
    let (first, proxy) = proxied();
    let second = RedisServer::start(Flavour::Redis7).without_ttl_check();
    first.run("SET name first");
    second.run("SET name second");
    let client = redis::Client::open(proxy.url()).unwrap();
    let mut old = client.get_multiplexed_async_connection().await.unwrap();
    proxy.retarget(second.address());
    let mut new = client.get_multiplexed_async_connection().await.unwrap();
    for (connection, expected) in [(&mut old, "first"), (&mut new, "second")] {
        assert_eq!(redis::cmd("GET").arg("name").query_async::<String>(connection).await.unwrap(), expected);
    }
    second.kill();
    assert!(redis::cmd("PING").exec_async(&mut new).await.is_err());
    let mut nobody = connect(&proxy);
    assert_eq!(nobody.read(&mut [0]).unwrap(), 0, "closed: no server listens behind the proxy");
    second.restart();
    assert_eq!(ping(&mut connect(&proxy)).unwrap(), PONG);
}
