//! Tests MULTI, EXEC and DISCARD around decisions.

use std::time::Duration;

use slidegate_server::Limits;
use slidegate_testkit::eventually;

use super::raw_client::{RespServer, Value, Wire, bulk, encode, simple};

const ACQUIRE: &str = "SG.ACQUIRE t 2 60000";

/// Returns the charged permits of the key of [`ACQUIRE`].
fn used(client: &mut Wire) -> i64 {
    2 - client.call("SG.PEEK ACQUIRE t 2 60000").numbers()[2]
}

fn array(answer: Value) -> Vec<Value> {
    let Value::Array(answers) = answer else { panic!("not an array: {answer:?}") };
    answers
}

/// Bytes as redis-py's `pipeline()` sends them, in both versions of the protocol.
#[test]
fn exec_decides_queued_commands_in_order() {
    for version in [2, 3] {
        let server = RespServer::open();
        let mut client = server.client();
        client.call(&format!("HELLO {version}"));
        let commands = [
            "MULTI",
            ACQUIRE,
            "CL.THROTTLE c 0 1 60",
            ACQUIRE,
            "ECHO x",
            "SG.PEEK ACQUIRE t 2 60000",
            ACQUIRE,
            "EXEC",
        ];
        client.send(&commands.map(encode).concat());
        assert_eq!(client.read(), Some(simple("OK")));
        for _ in 0..6 {
            assert_eq!(client.read(), Some(simple("QUEUED")));
        }
        let answers = array(client.read().unwrap());
        let numbers = |i: usize| answers[i].numbers()[..3].to_vec();
        assert_eq!([numbers(0), numbers(2), numbers(5)], [[1, 2, 1], [1, 2, 0], [0, 2, 0]]);
        assert_eq!(numbers(1), [0, 1, 0], "0 means allowed in replies of redis-cell");
        assert_eq!(answers[3], bulk("x"));
        assert_eq!(answers[4].numbers()[0], 0, "a peek sees earlier charges of its transaction");
        assert_eq!(client.call("PING"), simple("PONG"));
        // An empty transaction is an empty array.
        assert_eq!(client.call("MULTI"), simple("OK"));
        assert_eq!(client.call("EXEC"), Value::Array(vec![]));
    }
}

#[test]
fn nothing_is_charged_before_exec() {
    let server = RespServer::open();
    let mut other = server.client();
    for end in ["DISCARD", "RESET", "QUIT", ""] {
        let mut client = server.client();
        assert_eq!(client.call("multi"), simple("OK"));
        assert_eq!(client.call(ACQUIRE), simple("QUEUED"));
        assert_eq!(used(&mut other), 0);
        match end {
            "" => drop(client),
            _ => assert!(matches!(client.call(end), Value::Simple(_)), "{end}"),
        }
        assert_eq!(used(&mut other), 0, "{end}");
    }
}

#[test]
fn invalid_command_aborts_the_transaction() {
    let server = RespServer::open();
    for (bad, message) in [
        ("SG.ACQUIRE t 2", "ERR wrong number of arguments: SG.ACQUIRE"),
        ("SG.CHECK api", "ERR wrong number of arguments: SG.CHECK"),
        ("SG.SETTLE x", "ERR wrong number of arguments: SG.SETTLE"),
        ("NOSUCH", "ERR unknown command 'NOSUCH'"),
        ("WATCH k", "ERR WATCH inside MULTI is not allowed"),
        ("UNWATCH", "ERR UNWATCH inside MULTI is not allowed"),
        ("AUTH x", "ERR AUTH cannot be queued in a transaction with these arguments"),
        ("ECHO", "ERR ECHO cannot be queued in a transaction with these arguments"),
    ] {
        let mut client = server.client();
        client.send(&["MULTI", ACQUIRE, bad, ACQUIRE, "EXEC", "EXEC"].map(encode).concat());
        let mut read = || client.read().unwrap();
        assert_eq!([read(), read()], [simple("OK"), simple("QUEUED")]);
        assert!(read().error().starts_with(message), "{bad}");
        assert_eq!(read(), simple("QUEUED"));
        assert_eq!(read().error(), "EXECABORT Transaction discarded because of previous errors.");
        assert_eq!(read().error(), "ERR EXEC without MULTI");
        assert_eq!(used(&mut client), 0, "{bad}");
    }
}

#[test]
fn misplaced_multi_and_exec_are_rejected() {
    let server = RespServer::open();
    let mut client = server.client();
    assert_eq!(client.call("EXEC").error(), "ERR EXEC without MULTI");
    assert_eq!(client.call("DISCARD").error(), "ERR DISCARD without MULTI");
    assert_eq!(client.call("MULTI x").error(), "ERR wrong number of arguments for 'multi' command");
    for command in ["WATCH k", "UNWATCH"] {
        let message = client.call(command);
        assert!(
            message.error().contains("is not supported: decisions between MULTI and EXEC"),
            "{message:?}"
        );
    }
    assert_eq!(client.call("MULTI"), simple("OK"));
    assert_eq!(client.call("MULTI").error(), "ERR MULTI calls can not be nested");
    assert_eq!(client.call(ACQUIRE), simple("QUEUED"), "the first transaction continues");
    assert_eq!(array(client.call("EXEC")).len(), 1);
    // A client without a token cannot begin a transaction.
    let server = RespServer::locked("secret");
    let mut unauthenticated = server.client();
    for command in ["MULTI", ACQUIRE, "EXEC", "WATCH x"] {
        assert_eq!(unauthenticated.call(command).error(), "NOAUTH Authentication required.");
    }
}

#[test]
fn transaction_size_is_bounded() {
    let server = RespServer::open();
    let mut client = server.client();
    client.send(&encode("MULTI"));
    client.send(&encode(ACQUIRE).repeat(1_001));
    client.send(&encode("EXEC"));
    assert_eq!(client.read(), Some(simple("OK")));
    for _ in 0..1_000 {
        assert_eq!(client.read(), Some(simple("QUEUED")));
    }
    assert!(client.read().unwrap().error().starts_with("ERR a transaction may have at most 1000 commands"));
    assert!(client.read().unwrap().error().starts_with("EXECABORT"));
    assert_eq!(used(&mut client), 0);

    let echo = encode(&format!("ECHO {}", "x".repeat(60_000)));
    client.send(&encode("MULTI"));
    client.send(&echo.repeat(18));
    client.send(&encode("EXEC"));
    assert_eq!(client.read(), Some(simple("OK")));
    let answers: Vec<Value> = (0..18).map(|_| client.read().unwrap()).collect();
    let denied = answers.iter().filter(|answer| **answer != simple("QUEUED")).count();
    assert_eq!(denied, 1, "{:?}", answers.last());
    assert!(client.read().unwrap().error().starts_with("EXECABORT"));
    // A transaction with the maximum number of commands is decided.
    client.send(&encode("MULTI"));
    client.send(&encode(ACQUIRE).repeat(1_000));
    client.send(&encode("EXEC"));
    let answers: Vec<Value> = (0..1_002).map(|_| client.read().unwrap()).collect();
    let allowed = array(answers[1_001].clone()).iter().filter(|one| one.numbers()[0] == 1).count();
    assert_eq!(allowed, 2);
}

/// A transaction must be complete within the timeout of a command, even if the client keeps sending.
#[test]
fn transaction_has_the_timeout_of_a_command() {
    let limits = Limits { request: Duration::from_secs(2), ..Limits::default() };
    let server = RespServer::impatient(limits);
    let mut client = server.client();
    client.send(&encode("MULTI"));
    eventually("the transaction is given up", || !client.try_send(&encode("PING")));
    // Each of several transactions in a row has the full timeout.
    let mut client = server.client();
    for _ in 0..20 {
        client.send(&["MULTI", "PING", "EXEC", "MULTI"].map(encode).concat());
        std::thread::sleep(Duration::from_millis(120));
        client.send(&["EXEC"].map(encode).concat());
        let answers: Vec<Value> = (0..5).map(|_| client.read().expect("the connection stays open")).collect();
        assert_eq!(answers[4], Value::Array(vec![]));
    }
}
