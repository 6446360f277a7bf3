//! The real binary, on a free port, killed on drop.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_slidegate");

pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
    pub(crate) greeting: String,
}

impl Server {
    /// With the demo rules.
    pub(crate) fn demo() -> Self {
        Self::start(&[])
    }

    /// With these rules.
    pub(crate) fn with_rules(rules: &str) -> Self {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(rules.as_bytes()).unwrap();
        Self::start(&["--config", file.path().to_str().unwrap()])
    }

    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(BINARY);
        command.args(["serve", "--http", "127.0.0.1:0"]).args(arguments).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut greeting = String::new();
        let mut address = None;
        // The greeting ends with the second example.
        while greeting.matches("curl").count() < 2 {
            let line = lines.next().expect("the server starts").unwrap();
            if let Some(rest) = line.strip_prefix("listening on http://") {
                address = Some(rest.to_owned());
            }
            greeting += &(line + "\n");
        }
        Server { child, address: address.expect("it says where it listens"), greeting }
    }

    /// Sends SIGTERM, as an orchestrator does.
    pub(crate) fn terminate(&self) {
        let killed = Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        assert!(killed.success());
    }

    pub(crate) fn wait(&mut self) -> std::process::ExitStatus {
        self.child.wait().unwrap()
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> Answer {
        self.send("POST", path, &[("content-type", "application/json")], body)
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], "")
    }

    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut stream = self.connect();
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += &format!("content-length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).unwrap();
        // The server may answer before it has read all, and close.
        let _ = stream.write_all(body.as_bytes());
        Answer::read(stream)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    /// Runs the client against this server.
    pub(crate) fn acquire(&self, arguments: &[&str]) -> Output {
        let url = format!("http://{}", self.address);
        Command::new(BINARY).args(["acquire", "--url", &url]).args(arguments).output().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn read(mut stream: impl Read) -> Self {
        let mut bytes = Vec::new();
        // A reset after the answer, because not all of a large body was read, loses nothing of it.
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.body))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .find_map(|line| line.split_once(": ").filter(|(known, _)| *known == name))
            .map(|(_, v)| v)
    }
}
