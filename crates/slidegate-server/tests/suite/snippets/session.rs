//! Runs the commands of one page in their own folder, with servers on free ports.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use regex::{Captures, Regex};
use slidegate_testkit::upstream::Upstream;
use slidegate_testkit::{lasting_port, process};

use super::expected;
use super::page::{Block, Step, steps};
use crate::server::{BINARY, is_started};

/// Port on which the application of a page answers, unless the page starts one.
const APPLICATION: u16 = 9000;
/// Ports that pages may use. Each stands for a free port of this run.
const PORTS: [u16; 11] = [8080, 8081, 8082, 6380, 6379, 8000, 10_000, APPLICATION, 18_080, 18_081, 16_380];

/// A program in the background.
struct Background {
    child: Child,
    /// Port of HTTP, if it is a server of Slidegate.
    node: Option<u16>,
}

impl Drop for Background {
    /// Ends the program and its children: first with SIGTERM, then with SIGKILL.
    fn drop(&mut self) {
        let group = format!("-{}", self.child.id());
        let signal =
            |name: &str| Command::new("kill").args(["-s", name, "--", &group]).stderr(Stdio::null()).status();
        let _ = signal("TERM");
        for _ in 0..500 {
            if self.child.try_wait().is_ok_and(|status| status.is_some()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = signal("KILL");
        let _ = self.child.wait();
    }
}

/// State of a page while its commands run.
pub(super) struct Session {
    // Programs end before their folder is removed.
    background: Vec<Background>,
    folder: tempfile::TempDir,
    /// Variables and working folder of the shell between commands.
    shell: tempfile::NamedTempFile,
    log: tempfile::NamedTempFile,
    /// Ports of this run, by the ports that pages use.
    ports: BTreeMap<u16, u16>,
    _application: Upstream,
    /// False after the page has started or stopped a server.
    starts_demo: bool,
}

impl Session {
    pub(super) fn new() -> Self {
        let application = Upstream::start("hello\n");
        let mut ports: BTreeMap<u16, u16> = PORTS.iter().map(|port| (*port, lasting_port())).collect();
        let (_, port) = application.address.rsplit_once(':').unwrap();
        ports.insert(APPLICATION, port.parse().unwrap());
        Session {
            background: Vec::new(),
            folder: tempfile::tempdir().unwrap(),
            shell: tempfile::NamedTempFile::new().unwrap(),
            log: tempfile::NamedTempFile::new().unwrap(),
            ports,
            _application: application,
            starts_demo: true,
        }
    }

    /// Writes the file of a block and runs its commands. Returns the failures.
    pub(super) fn run(&mut self, block: &Block) -> Vec<String> {
        if let Some(name) = block.value("file") {
            let path = self.folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let mut text = self.with_free_ports(&block.text);
            let has = |field: &str| text.lines().any(|line| line.starts_with(field));
            if block.language == "yaml" && has("rules:") && !has("guard:") {
                // On a busy machine, Redis may need longer than the deadline of production.
                text += "guard: { deadline: 2s }\n";
            }
            std::fs::write(path, text).unwrap();
        }
        if block.language != "console" {
            return Vec::new();
        }
        let steps = match steps(&block.text) {
            Ok(steps) => steps,
            Err(problem) => return vec![format!("{}: {problem}", block.place())],
        };
        let mut failures = Vec::new();
        for step in steps {
            let result = match &step {
                Step::Run { command, output } => {
                    self.command(command, output).map_err(|problem| format!("$ {command}\n{problem}"))
                }
                Step::Stop => {
                    self.starts_demo = false;
                    self.background.pop().map(drop).ok_or_else(|| "^C, but nothing runs".to_owned())
                }
            };
            failures.extend(result.err().map(|problem| format!("{}: {problem}", block.place())));
        }
        failures
    }

    fn command(&mut self, command: &str, shown: &[String]) -> Result<(), String> {
        if is_serve(command) {
            return self.serve(command, shown);
        }
        if let Some(command) = command.strip_suffix('&') {
            return self.start(command);
        }
        let needs_server =
            ["8080", "8081", "6380", "slidegate acquire", "slidegate explain", "slidegate bench"];
        if self.starts_demo && needs_server.iter().any(|word| command.contains(word)) {
            self.serve("slidegate serve", &[])?;
        }
        let script = format!(
            "exec 2>&1\n{}\nstatus=$?\nexport -p >'{}'\nexit $status",
            self.with_free_ports(command),
            self.shell()
        );
        let output = process::output(&mut self.sh(&script));
        let text = self.with_documented_ports(&String::from_utf8_lossy(&output.stdout));
        if shown.is_empty() && !output.status.success() {
            return Err(format!("{}:\n{text}", output.status));
        }
        compare(shown, &text)
    }

    fn shell(&self) -> &str {
        self.shell.path().to_str().unwrap()
    }

    /// A shell in the folder of the page, with the variables of the commands before.
    fn sh(&self, script: &str) -> Command {
        let programs = Path::new(BINARY).parent().unwrap();
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("set -a\n. '{}'\ncd \"$PWD\"\n{script}", self.shell())])
            .current_dir(&self.folder)
            .env_remove("PWD")
            .env("PATH", format!("{}:{}:{path}", programs.display(), tools.display()))
            .env("SLIDEGATE_URL", format!("http://127.0.0.1:{}", self.ports[&8080]))
            .env("NO_PROXY", "127.0.0.1")
            .env("no_proxy", "127.0.0.1");
        command
    }

    /// Starts a server of Slidegate, and ends the one that had its port before.
    fn serve(&mut self, command: &str, shown: &[String]) -> Result<(), String> {
        self.starts_demo = false;
        let node = if command.contains(":18080") { 18_080 } else { 8080 };
        self.background.retain(|program| program.node != Some(node));
        let mut script = format!("exec env {}", self.with_free_ports(command));
        // Only the file of a page may set where to listen.
        let listens = |name: &str| {
            std::fs::read_to_string(self.folder.path().join(name))
                .is_ok_and(|text| text.contains("\nlisten:") || text.starts_with("listen:"))
        };
        let is_configured = command.split_whitespace().any(listens);
        for (flag, port) in [("--http", 8080), ("--grpc", 8081), ("--resp", 6380)] {
            if !command.contains(flag) && !is_configured {
                script += &format!(" {flag} 127.0.0.1:{}", self.ports[&port]);
            }
        }
        let log = self.log.reopen().unwrap();
        let mut command = self.sh(&script);
        let mut child = command.process_group(0).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let lines = process::Lines::of(child.stdout.take().unwrap());
        self.background.push(Background { child, node: Some(node) });
        let mut greeting = String::new();
        while !is_started(&greeting) {
            let Some(line) = lines.next("the server is ready") else {
                let log = std::fs::read_to_string(self.log.path()).unwrap_or_default();
                return Err(format!("the server does not start:\n{greeting}{log}"));
            };
            greeting += &(line + "\n");
        }
        compare(shown, &self.with_documented_ports(&greeting))
    }

    /// Starts another program, and waits until it listens on a port of the page.
    fn start(&mut self, command: &str) -> Result<(), String> {
        let closed: Vec<u16> = self.ports.values().copied().filter(|port| !listens(*port)).collect();
        let log = self.log.reopen().unwrap();
        let mut command = self.sh(&format!("exec {}", self.with_free_ports(command)));
        let child =
            command.process_group(0).stdin(Stdio::null()).stdout(clone(&log)).stderr(log).spawn().unwrap();
        self.background.push(Background { child, node: None });
        for _ in 0..3_000 {
            if closed.iter().any(|port| listens(*port)) {
                return Ok(());
            }
            let program = self.background.last_mut().unwrap();
            if program.child.try_wait().unwrap().is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let log = std::fs::read_to_string(self.log.path()).unwrap_or_default();
        Err(format!("the program does not listen on a port of the page:\n{log}"))
    }

    /// Replaces the ports that pages use by those of this run.
    fn with_free_ports(&self, text: &str) -> String {
        let port = Regex::new(r"(:|-p |--port |listen |[Pp]ort ?[=:] ?|port_value: )(\d{4,5})\b").unwrap();
        let replace = |found: &Captures| {
            let free = found[2].parse().ok().and_then(|port: u16| self.ports.get(&port));
            free.map_or_else(|| found[0].to_owned(), |free| format!("{}{free}", &found[1]))
        };
        port.replace_all(text, replace).into_owned()
    }

    fn with_documented_ports(&self, text: &str) -> String {
        self.ports.iter().fold(text.to_owned(), |text, (documented, free)| {
            text.replace(&format!(":{free}"), &format!(":{documented}"))
        })
    }
}

fn clone(file: &File) -> File {
    file.try_clone().unwrap()
}

fn listens(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// Returns true for `slidegate` and `slidegate serve …`, also after assignments of variables.
fn is_serve(command: &str) -> bool {
    let assignments = Regex::new(r"^([A-Za-z_]+=(\$\([^)]*\)|'[^']*'|\S*)\s+)*").unwrap();
    let command = assignments.replace(command, "");
    let mut words = command.split_whitespace();
    words.next() == Some("slidegate")
        && words.next().is_none_or(|word| {
            word == "serve" || (word.starts_with("--") && !["--help", "--version"].contains(&word))
        })
}

fn compare(shown: &[String], output: &str) -> Result<(), String> {
    if shown.is_empty() || expected::matches(shown, output) {
        return Ok(());
    }
    Err(format!("printed\n{output}\nbut the page shows\n{}", shown.join("\n")))
}

#[test]
fn servers_are_recognised() {
    for command in
        ["slidegate", "slidegate serve --config a", "A=b C=$(d e) slidegate serve", "slidegate --config a"]
    {
        assert!(is_serve(command), "{command}");
    }
    for command in ["slidegate acquire a=b", "curl x", "a=b slidegate explain", "slidegate --help"] {
        assert!(!is_serve(command), "{command}");
    }
}
