//! Helper: the real binary on a free port, killed on drop.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use slidegate_testkit::{eventually, process};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_slidegate");

pub(crate) struct Server {
    /// `None` if another process started the server.
    child: Option<Child>,
    /// Address of the HTTP listener.
    pub(crate) address: String,
    pub(crate) greeting: String,
    /// Configuration file. It is kept, because the server reads it again.
    config: Option<tempfile::NamedTempFile>,
}

impl Server {
    /// Starts a server with the demo rules.
    pub(crate) fn demo() -> Self {
        Self::start(&[])
    }

    /// Starts a server with these rules.
    pub(crate) fn with_rules(rules: &str) -> Self {
        Self::with_env(&[], rules, &[])
    }

    /// Starts a server with these rules, environment variables and arguments.
    pub(crate) fn with_env(variables: &[(&str, &str)], rules: &str, arguments: &[&str]) -> Self {
        Self::with_log(None, variables, rules, arguments)
    }

    /// Starts a server like `with_env`, with its logs in a file.
    pub(crate) fn logging_to(
        log: &File,
        variables: &[(&str, &str)],
        rules: &str,
        arguments: &[&str],
    ) -> Self {
        Self::with_log(Some(log), variables, rules, arguments)
    }

    fn with_log(log: Option<&File>, variables: &[(&str, &str)], rules: &str, arguments: &[&str]) -> Self {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(rules.as_bytes()).unwrap();
        let config = ["--config", file.path().to_str().unwrap()];
        let mut server = Self::launch(log, variables, &[&config, arguments].concat());
        server.config = Some(file);
        server
    }

    /// Returns the path of the configuration file.
    pub(crate) fn config(&self) -> &Path {
        self.config.as_ref().expect("the server has a configuration file").path()
    }

    /// Returns a client of a server that already runs, by the address of its HTTP listener.
    pub(crate) fn at(address: &str) -> Self {
        Server { child: None, address: address.to_owned(), greeting: String::new(), config: None }
    }

    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::launch(None, &[], arguments)
    }

    /// Starts a server with these environment variables.
    pub(crate) fn start_with(variables: &[(&str, &str)], arguments: &[&str]) -> Self {
        Self::launch(None, variables, arguments)
    }

    fn launch(log: Option<&File>, variables: &[(&str, &str)], arguments: &[&str]) -> Self {
        let mut command = Command::new(BINARY);
        command.envs(variables.iter().copied());
        let any = "127.0.0.1:0";
        command
            .args(["serve", "--http", any, "--grpc", any, "--resp", any])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(log.map_or_else(Stdio::inherit, |log| log.try_clone().unwrap().into()));
        let mut child = command.spawn().unwrap();
        let lines = process::Lines::of(child.stdout.take().unwrap());
        // From here on, drop kills the child, even if the server does not start.
        let mut server =
            Server { child: Some(child), address: String::new(), greeting: String::new(), config: None };
        if arguments.contains(&"json") || variables.contains(&("SLIDEGATE_LOG", "json")) {
            let log = log.expect("a JSON log has the addresses");
            eventually("the server has started", || {
                server.greeting = logged_greeting(log);
                is_started(&server.greeting)
            });
        }
        while !is_started(&server.greeting) {
            let line = lines.next("the server is ready").expect("the server starts");
            server.greeting += &(line + "\n");
        }
        let scheme = if server.greeting.contains("https://") { "https" } else { "http" };
        server.address = server.listener_address(scheme).to_owned();
        server
    }

    /// Returns the address of a listener: `http`, `grpc`, `redis` or `admin http`.
    pub(crate) fn listener_address(&self, scheme: &str) -> &str {
        let start = format!("listening on {scheme}://");
        let mut lines = self.greeting.lines();
        lines.find_map(|line| line.strip_prefix(&start)).expect("the server prints its address")
    }

    /// Sends SIGTERM, as an orchestrator does.
    pub(crate) fn terminate(&self) {
        self.signal("TERM");
    }

    pub(crate) fn signal(&self, name: &str) {
        let child = self.child.as_ref().expect("the server was started here");
        let exit_status =
            Command::new("kill").args(["-s", name]).arg(child.id().to_string()).status().unwrap();
        assert!(exit_status.success());
    }

    /// Returns the resident memory in bytes.
    pub(crate) fn resident(&self) -> u64 {
        let child = self.child.as_ref().expect("the server was started here");
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// Waits until the process has exited.
    pub(crate) fn wait(&mut self) -> std::process::ExitStatus {
        process::exit(self.child.as_mut().expect("the server was started here"), "the server")
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
        // The server may answer and close before it has read the whole body.
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
        process::output(Command::new(BINARY).args(["acquire", "--url", &url]).args(arguments))
    }
}

/// Returns true if the last line says that the server is ready, or why it is not.
pub(crate) fn is_started(greeting: &str) -> bool {
    greeting.lines().last().is_some_and(|line| line == "ready" || line.starts_with("not ready: "))
}

/// Returns the messages of the start in a JSON log, which has no greeting.
fn logged_greeting(log: &File) -> String {
    let mut bytes = vec![0; log.metadata().unwrap().len() as usize];
    // The server appends at the position of the file that both processes share, so that must not change.
    log.read_exact_at(&mut bytes, 0).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let mut greeting = String::new();
    for event in text.lines().map_while(|line| serde_json::from_str::<Value>(line).ok()) {
        greeting += &format!("{}\n", event["message"].as_str().unwrap());
        if is_started(&greeting) {
            break;
        }
    }
    greeting
}

/// Returns the messages of a text log. Every line but continuation lines must start with its time and its level.
pub(crate) fn messages(log: &str) -> String {
    let message = |line: &str| {
        if line.starts_with("  ") {
            return format!("{line}\n");
        }
        let (time, rest) = line.split_once(' ').unwrap_or_else(|| panic!("{line:?}"));
        assert!(time.len() == "2026-01-02T03:04:05.000006Z".len() && time.ends_with('Z'), "{line:?}");
        let (level, message) = rest.trim_start().split_once(' ').unwrap_or_else(|| panic!("{line:?}"));
        assert!(["ERROR", "WARN", "INFO", "DEBUG"].contains(&level), "{line:?}");
        format!("{message}\n")
    };
    log.lines().map(message).collect()
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
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
        if let Err(error) = stream.read_to_end(&mut bytes) {
            // A reset after the response (the server did not read all of a large body) does not lose the response.
            let text = String::from_utf8_lossy(&bytes);
            assert_ne!(error.kind(), ErrorKind::WouldBlock, "the connection is still open after {text:?}");
        }
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.body))
    }

    /// Returns a header by its name in any case: a proxy may change the case.
    pub(crate) fn header_in_any_case(&self, name: &str) -> Option<&str> {
        let mut pairs = self.head.lines().filter_map(|line| line.split_once(": "));
        pairs.find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .find_map(|line| line.split_once(": ").filter(|(other, _)| *other == name))
            .map(|(_, v)| v)
    }
}
