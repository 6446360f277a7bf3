//! Tests that the fast path and hyper give the same responses, in order, on one connection.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use crate::invalid_input::REQUESTS;
use crate::server::{Answer, Server};

/// Header that bypasses the fast path: only hyper handles a request with it.
pub(crate) const TO_HYPER: &str = "upgrade: none\r\n";

pub(crate) fn request(path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
}

/// Keep-alive connection that reads one response at a time.
pub(crate) struct KeepAlive(BufReader<TcpStream>);

impl KeepAlive {
    pub(crate) fn new(server: &Server) -> Self {
        KeepAlive(BufReader::new(server.connect()))
    }

    fn send(&mut self, bytes: &str) {
        self.0.get_mut().write_all(bytes.as_bytes()).unwrap();
    }

    fn read(&mut self) -> Answer {
        let mut bytes = String::new();
        while !bytes.ends_with("\r\n\r\n") {
            assert!(self.0.read_line(&mut bytes).unwrap() > 0, "no answer after {bytes:?}");
        }
        let length = Answer::read(bytes.as_bytes()).header("content-length").unwrap().parse().unwrap();
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        Answer::read(&[bytes.as_bytes(), &body].concat()[..])
    }

    pub(crate) fn call(&mut self, bytes: &str) -> Answer {
        self.send(bytes);
        self.read()
    }
}

/// Status, head and body without the parts that differ between requests: times and values that contain them, the order
/// of headers, and the name of the resource.
fn alike(answer: &Answer) -> (u16, Vec<String>, Value) {
    let (date, lines): (Vec<&str>, Vec<&str>) =
        answer.head.lines().partition(|line| line.starts_with("date: "));
    assert!(date.len() == 1 && date[0].ends_with(" GMT"), "{}", answer.head);
    let header = |line: &str| match line.split_once(": ") {
        Some((name @ ("content-length" | "retry-after" | "x-ratelimit-reset"), value)) => {
            assert!(value.parse::<u64>().is_ok(), "{line}");
            name.to_owned()
        }
        Some(("ratelimit", value)) => value.split(";t=").next().unwrap().to_owned(),
        _ => line.to_owned(),
    };
    let mut head: Vec<String> = lines.into_iter().map(header).collect();
    head.sort();
    let mut body = answer.json();
    if let Some(decision) = body.as_object_mut().filter(|body| body.contains_key("allowed")) {
        let waits = decision["limits"].as_array_mut().unwrap().iter_mut().flat_map(|limit| {
            limit["key"] = limit["key"].as_str().unwrap().replace("=r2", "=r1").into();
            limit.as_object_mut().unwrap().iter_mut().filter(|(name, _)| name.ends_with("_after_ms"))
        });
        waits.for_each(|(_, wait)| *wait = wait.is_u64().into());
        for (name, value) in decision.iter_mut() {
            match name.as_str() {
                "retry_after_ms" => *value = (value.as_u64() > Some(0)).into(),
                "reservation" => *value = value.is_string().into(),
                _ => {}
            }
        }
    }
    (answer.status, head, body)
}

#[test]
fn fast_path_and_hyper_answer_alike() {
    let server = Server::demo();
    let (mut short, mut hyper) = (KeepAlive::new(&server), KeepAlive::new(&server));
    let mut compare = |path: &str, here: &str, there: &str| {
        let answers = (short.call(&request(path, "", here)), hyper.call(&request(path, TO_HYPER, there)));
        assert_eq!(alike(&answers.0), alike(&answers.1), "{path} {here}");
    };
    for path in ["/v1/acquire", "/v1/acquire?headers=x-ratelimit", "/v1/peek", "/v1/acquire?x=%7B#y"] {
        for rest in ["", r#","permits":2"#, r#","permits":0"#, r#","id":"a""#] {
            let body = |name: &str| format!(r#"{{"resource":"{name}","limit":2,"window":"1h"{rest}}}"#);
            compare(path, &body("r1"), &body("r2"));
        }
    }
    // All other requests move the connection to hyper, so they come last.
    for usual in [true, false] {
        for (path, body, ..) in REQUESTS.iter().filter(|(path, ..)| (*path == "/v1/acquire") == usual) {
            compare(path, body, body);
        }
    }
}

/// Many requests in one write. Some of them are not for the fast path.
#[test]
fn pipelined_responses_are_in_order() {
    let server = Server::demo();
    let mut connection = KeepAlive::new(&server);
    let one = request("/v1/acquire", "", r#"{"resource":"r","limit":100,"window":"1h"}"#);
    let keep_alive = one.replace("host: x", "Host: x\r\nConnection: Keep-Alive");
    let healthz = "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
    // The last request is sent in two parts.
    let (first, rest) = one.split_at(one.len() - 10);
    connection.send(&[&one, &keep_alive, &one, healthz, &one, first].concat());
    let used = |connection: &mut KeepAlive| connection.read().json()["limits"][0]["used"].as_u64();
    assert_eq!([(); 3].map(|()| used(&mut connection)), [Some(1), Some(2), Some(3)]);
    assert_eq!(connection.read().body, r#"{"status":"ok"}"#);
    assert_eq!(used(&mut connection), Some(4));
    connection.send(rest);
    assert_eq!(used(&mut connection), Some(5));
}

/// A client may close its sending side at once, such as `nc -N`.
#[test]
fn half_closed_client_gets_its_response() {
    let server = Server::demo();
    for headers in ["", TO_HYPER] {
        let mut connection = KeepAlive::new(&server);
        connection.send(&request("/v1/acquire", headers, r#"{"resource":"r"}"#).repeat(3));
        connection.0.get_mut().shutdown(std::net::Shutdown::Write).unwrap();
        let mut answers = String::new();
        connection.0.read_to_string(&mut answers).unwrap();
        assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 3, "{headers} {answers}");
    }
}

/// A length that two parsers could read differently is rejected.
#[test]
fn ambiguous_lengths_are_rejected() {
    let server = Server::demo();
    let good = request("/v1/acquire", "", r#"{"resource":"doubt","limit":9}"#);
    for header in ["content-length: 5\r\n", "content-length: +30\r\n", "transfer-encoding: gzip\r\n"] {
        let mut connection = KeepAlive::new(&server);
        connection.send(&good.replace("content-type", &format!("{header}content-type")));
        let mut answer = String::new();
        let _ = connection.0.read_to_string(&mut answer);
        assert!(answer.starts_with("HTTP/1.1 400 "), "{header} {answer}");
    }
    let peek = server.post("/v1/peek", r#"{"resource":"doubt","limit":9}"#);
    assert_eq!(peek.json()["limits"][0]["used"], 0, "and nothing was charged");
}
