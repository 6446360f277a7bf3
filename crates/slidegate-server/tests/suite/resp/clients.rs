//! Tests that client libraries of Redis connect and call without special settings.

use std::path::Path;
use std::process::{Command, Output};

use slidegate_testkit::process;

use super::raw_client::{RespServer, Wire};
use crate::server::Server;

fn run(program: &str, address: &str, arguments: &[&str]) -> String {
    let (host, port) = address.split_once(':').unwrap();
    let Output { status, stdout, stderr } =
        process::output(Command::new(program).args(["-h", host, "-p", port]).args(arguments));
    let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert!(status.success(), "{stdout}{stderr}");
    stdout
}

#[test]
fn redis_cli() {
    let server = Server::demo();
    let address = server.listener_address("redis");
    assert_eq!(run("redis-cli", address, &["PING"]), "PONG\n");
    assert_eq!(run("redis-cli", address, &["SG.ACQUIRE", "u", "10", "1000"]), "1\n10\n9\n0\n1000\n");
    assert_eq!(
        run("redis-cli", address, &["-3", "CL.THROTTLE", "u", "15", "30", "60"]),
        "0\n16\n15\n-1\n2\n"
    );
    assert_eq!(run("redis-cli", address, &["GET", "x"]), "ERR unknown command 'GET'\n\n");
    let server = RespServer::locked("secret");
    let output = run("redis-cli", &server.address, &["--user", "any", "--pass", "secret", "PING"]);
    assert_eq!(output, "PONG\n");
}

#[test]
fn redis_benchmark() {
    let server = RespServer::open();
    let quick = ["-q", "-n", "2000", "-c", "8"];
    for more in [
        &["-t", "ping_inline,ping_mbulk"][..],
        &["-P", "16", "SG.ACQUIRE", "key:__rand_int__", "10", "1000"],
        &["-P", "16", "-r", "10", "CL.THROTTLE", "key:__rand_int__", "15", "30", "60"],
    ] {
        let output = run("redis-benchmark", &server.address, &[&quick[..], more].concat());
        assert!(output.contains("requests per second"), "{output}");
    }
}

#[test]
fn redis_rs() {
    let server = RespServer::locked("secret");
    for protocol in ["", "?protocol=resp3"] {
        let url = format!("redis://:secret@{}/0{protocol}", server.address);
        let client = ::redis::Client::open(url).unwrap();
        let mut connection = client.get_connection().unwrap();
        let mut pipe = ::redis::pipe();
        for _ in 0..3 {
            pipe.cmd("SG.ACQUIRE").arg(format!("u{protocol}")).arg(2).arg(60_000);
        }
        let answers: Vec<Vec<i64>> = pipe.query(&mut connection).unwrap();
        assert_eq!(answers.iter().map(|numbers| numbers[0]).collect::<Vec<_>>(), [1, 1, 0]);
        let reserve = ::redis::cmd("SG.ACQUIRE").arg(&["llm", "10", "60000", "8", "RESERVE"]).query::<(
            i64,
            i64,
            i64,
            i64,
            i64,
            Option<String>,
        )>(
            &mut connection,
        );
        let (.., reservation) = reserve.unwrap();
        let settled: String =
            ::redis::cmd("SG.SETTLE").arg(reservation).arg(0).query(&mut connection).unwrap();
        assert_eq!(settled, "done");
        let error = ::redis::cmd("SG.ACQUIRE").arg("u").query::<Vec<i64>>(&mut connection).unwrap_err();
        assert!(error.to_string().contains("wrong number of arguments"), "{error}");
    }
}

#[test]
fn redis_py() {
    let server = RespServer::locked("secret");
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin/python");
    let (host, port) = server.address.split_once(':').unwrap();
    let script = r#"
import sys, redis
for protocol in (2, 3):
    r = redis.Redis(sys.argv[1], int(sys.argv[2]), password="secret", protocol=protocol, decode_responses=True,
                    client_name="test")
    assert r.ping()
    assert r.client_getname() == "test"
    assert r.info()["loading"] == 0
    key = f"user{protocol}"
    allowed, limit, remaining, retry_after_ms, reset_after_ms = r.execute_command("SG.ACQUIRE", key, 2, 60000)
    assert (allowed, limit, remaining, retry_after_ms) == (1, 2, 1, 0)
    with r.pipeline(transaction=False) as pipe:
        for _ in range(100):
            pipe.execute_command("SG.ACQUIRE", key, 2, 60000)
        assert sum(answer[0] for answer in pipe.execute()) == 1
    # The default is a transaction: MULTI, the commands, EXEC.
    with r.pipeline() as pipe:
        for _ in range(3):
            pipe.execute_command("SG.ACQUIRE", f"multi{protocol}", 2, 60000)
        pipe.ping()
        *answers, pong = pipe.execute()
        assert [answer[0] for answer in answers] == [1, 1, 0] and pong, answers
    with r.pipeline() as pipe:
        pipe.execute_command("SG.ACQUIRE", f"aborted{protocol}", 2, 60000)
        pipe.execute_command("SG.ACQUIRE", f"aborted{protocol}", 2)
        try:
            pipe.execute()
            raise SystemExit("the second command is wrong")
        except redis.ResponseError as error:
            assert "wrong number of arguments" in str(error), error
    left = r.execute_command("SG.PEEK", "ACQUIRE", f"aborted{protocol}", 2, 60000)[2]
    assert left == 2, "discarded commands were not charged"
    try:
        with r.pipeline() as pipe:
            pipe.watch("key")
        raise SystemExit("WATCH is not supported")
    except redis.ResponseError as error:
        assert "WATCH is not supported" in str(error), error
    *_, reservation = r.execute_command("SG.ACQUIRE", f"llm{protocol}", 1000, 60000, 800, "RESERVE")
    assert r.execute_command("SG.SETTLE", reservation, 350) == "done"
    assert r.execute_command("CL.THROTTLE", key, 15, 30, 60) == [0, 16, 15, -1, 2]
    try:
        r.get("x")
        raise SystemExit("GET is not a command")
    except redis.ResponseError as error:
        assert str(error) == "unknown command 'GET'", error
"#;
    let output = process::output(Command::new(&python).args(["-c", script, host, port]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Commands of Redis that Slidegate does not have are rejected, and the connection stays usable.
#[test]
fn unknown_commands_keep_the_connection() {
    let server = RespServer::open();
    let mut client = Wire::connect(&server.address);
    for command in ["CLUSTER NODES", "SENTINEL MASTERS", "CLIENT TRACKING ON", "SUBSCRIBE x", "EVAL x 0"] {
        assert!(client.call(command).error().starts_with("ERR unknown "), "{command}");
    }
}
