//! Tests the examples of docs/how-to/clients.md in every language: each is allowed once and denied once.

use std::path::Path;
use std::process::Command;

use slidegate_testkit::process;

use crate::server::Server;

const CLIENTS: &str = include_str!("../../../../docs/how-to/clients.md");

/// Runs the n-th block of a language with the addresses of this test and returns its output.
fn run(heading: &str, n: usize, program: &str, arguments: &[&str], file: &str) -> String {
    let server = Server::demo();
    let (_, section) = CLIENTS.split_once(&format!("\n## {heading}\n")).unwrap();
    let block = section.split("```").nth(2 * n + 1).unwrap();
    let (_, text) = block.split_once('\n').unwrap();
    let (host, port) = server.listener_address("redis").split_once(':').unwrap();
    let text = text
        .replace("127.0.0.1:8080", &server.address)
        .replace("-h 127.0.0.1 -p 6380", &format!("-h {host} -p {port}"))
        .replace("port=6380", &format!("port={port}"));
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(file), text).unwrap();
    let output = process::output(
        Command::new(program)
            .args(arguments)
            .arg(file)
            .current_dir(folder.path())
            .env("GOCACHE", Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/go-cache"))
            .env("GOFLAGS", "-mod=mod")
            .env("NO_PROXY", "127.0.0.1")
            .env("no_proxy", "127.0.0.1"),
    );
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

const TWICE: &str = "allowed\ndenied\n";

fn python() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin/python");
    path.to_str().unwrap().to_owned()
}

#[test]
fn curl() {
    assert_eq!(run("curl", 0, "sh", &[], "ask.sh"), "200\n429\n");
}

#[test]
fn redis_cli() {
    assert_eq!(run("redis-cli", 0, "sh", &[], "ask.sh"), "1\n0\n");
}

#[test]
fn python_by_http() {
    assert_eq!(run("Python", 0, &python(), &[], "ask.py"), TWICE);
}

#[test]
fn python_by_redis() {
    assert_eq!(run("Python", 1, &python(), &[], "ask.py"), TWICE);
}

#[test]
fn go() {
    assert_eq!(run("Go", 0, "go", &["run"], "ask.go"), TWICE);
}

#[test]
fn node() {
    assert_eq!(run("Node", 0, "node", &[], "ask.js"), TWICE);
}

#[test]
fn java() {
    assert_eq!(run("Java", 0, "java", &[], "Client.java"), TWICE);
}
