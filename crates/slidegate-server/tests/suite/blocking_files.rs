//! Tests that decisions continue while the server reads a file that does not answer, as on a network mount whose server
//! is gone.
//!
//! The file is a named pipe. To open it for writing blocks until the server opens it for reading; then the server's read
//! blocks for as long as the test holds the pipe and writes nothing. The server has one worker thread: if the worker
//! read the file, no request would be answered.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use slidegate_testkit::{certificates, eventually};

use crate::server::Server;

const ONE_WORKER: (&str, &str) = ("TOKIO_WORKER_THREADS", "1");

const BODY: &str = r#"{"attributes":{"user":"a"}}"#;

fn rules(limit: u64) -> String {
    format!("rules: [{{ name: one, key: [user], limit: {limit}, window: 1h }}]")
}

/// Puts a pipe in place of the file, and returns its end for writing once the server reads from it.
fn block(file: &Path) -> File {
    let pipe = file.with_extension("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::fs::rename(&pipe, file).unwrap();
    let (opened, open) = mpsc::channel();
    let path = file.to_owned();
    std::thread::spawn(move || opened.send(OpenOptions::new().write(true).open(path)));
    open.recv_timeout(Duration::from_secs(60)).expect("the server reads the file within 60 s").unwrap()
}

/// Puts another file in place of the pipe, and lets the server's read end.
fn unblock(file: &Path, pipe: File, text: &[u8]) {
    let next = file.with_extension("next");
    std::fs::write(&next, text).unwrap();
    std::fs::rename(&next, file).unwrap();
    drop(pipe);
}

#[test]
fn decisions_continue_while_a_rules_file_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    std::fs::write(&file, rules(100)).unwrap();
    let server = Server::start_with(&[ONE_WORKER], &["--config", file.to_str().unwrap()]);
    let pipe = block(&file);
    for used in 1..=20 {
        assert_eq!(server.post("/v1/acquire", BODY).json()["limits"][0]["used"], used);
    }
    assert!(server.get("/metrics").body.contains("slidegate_rules_version 1\n"));
    unblock(&file, pipe, rules(7).as_bytes());
    eventually("the rules of the next file are in force", || {
        server.get("/v1/rules").json()["rules"][0]["limit"] == 7
    });
}

#[test]
fn decisions_continue_while_a_certificate_is_read() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    certificates(dir.path());
    certificates(other.path());
    let path = |name: &str| dir.path().join(name);
    let tls = format!("tls: {{ certificate: {0}/server.pem, key: {0}/server.key }}\n", dir.path().display());
    let server = Server::with_env(&[ONE_WORKER], &(tls + &rules(100)), &[]);
    let url = format!("https://{}/v1/acquire", server.address);
    let post = |authority: &Path| {
        let mut command = Command::new("curl");
        command.args(["-sS", "--noproxy", "*", "--max-time", "30", "--cacert"]).arg(authority.join("ca.pem"));
        let output =
            command.args(["-H", "content-type: application/json", "-d", BODY, &url]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let pipe = block(&path("server.pem"));
    for used in 1..=5 {
        let answer = post(dir.path());
        assert!(answer.contains(&format!(r#""used":{used},"#)), "{used}: {answer:?}");
    }
    assert_eq!(post(other.path()), "", "the old certificate is still served");
    std::fs::copy(other.path().join("server.key"), path("server.key")).unwrap();
    unblock(&path("server.pem"), pipe, &std::fs::read(other.path().join("server.pem")).unwrap());
    eventually("the next certificate is served", || post(other.path()).contains(r#""allowed":true"#));
}

#[test]
fn server_stops_while_a_file_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    std::fs::write(&file, rules(100)).unwrap();
    let mut server = Server::start_with(&[ONE_WORKER], &["--config", file.to_str().unwrap()]);
    let mut pipe = block(&file);
    server.terminate();
    eventually("the server ends, and with it the other end of the pipe", || {
        pipe.write_all(b"#").is_err_and(|error| error.kind() == ErrorKind::BrokenPipe)
    });
    assert!(server.wait().success());
}
