//! One real Redis or Valkey server for a test: on a free port, in a temporary folder, killed on drop.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Program and version of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Redis 6.2, the oldest supported version.
    Redis62,
    /// Redis 7, the version of Debian.
    Redis7,
    /// Valkey 9.
    Valkey9,
}

impl Flavour {
    /// Every supported server.
    pub const ALL: [Flavour; 3] = [Flavour::Redis62, Flavour::Redis7, Flavour::Valkey9];

    fn program(self) -> PathBuf {
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin");
        match self {
            Flavour::Redis62 => tools.join("redis-server-6.2"),
            Flavour::Redis7 => "redis-server".into(),
            Flavour::Valkey9 => tools.join("valkey-server"),
        }
    }
}

/// Real server, killed on drop. Drop panics if a key is left without a time to live.
pub struct RedisServer {
    process: Mutex<Process>,
    /// Port on 127.0.0.1.
    pub port: u16,
    /// Working folder of the server.
    pub dir: tempfile::TempDir,
    /// If true, drop asserts that every key has a time to live.
    check_ttl: bool,
}

struct Process {
    start: Command,
    /// `None` after `kill`.
    child: Option<Child>,
}

impl RedisServer {
    /// Starts a server on a free port.
    pub fn start(flavour: Flavour) -> Self {
        Self::with(flavour, &[], &[])
    }

    /// Starts a server on a port that the caller has reserved with [`lasting_port`].
    pub fn at(flavour: Flavour, port: u16) -> Self {
        Self::at_with(flavour, port, &[])
    }

    /// Starts a server on a reserved port with further arguments. With arguments, drop does not check times to live.
    pub fn at_with(flavour: Flavour, port: u16, arguments: &[&str]) -> Self {
        let mut server = Self::with_port(flavour, Some(port), arguments, &[]);
        // The server may need a password, which the check does not have.
        server.check_ttl = arguments.is_empty();
        server
    }

    /// Starts a server on a free port with further arguments and environment variables.
    pub fn with(flavour: Flavour, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::with_port(flavour, None, arguments, environment)
    }

    fn with_port(
        flavour: Flavour,
        chosen: Option<u16>,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let program = flavour.program();
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..10 {
            // A program outside the tests may take the port before the server binds it. The server then exits, and the
            // loop tries the next port.
            let port = chosen.unwrap_or_else(lasting_port);
            let mut start = Command::new(&program);
            if arguments.contains(&"--sentinel") {
                // A sentinel writes its state into a file, which has to be the first argument.
                let file = dir.path().join("sentinel.conf");
                std::fs::write(&file, "").unwrap();
                start.arg(file);
            }
            start
                .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
                .args(["--save", "", "--appendonly", "no"])
                .arg("--dir")
                .arg(dir.path())
                .args(arguments)
                .envs(environment.iter().copied())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            if let Some(child) = listening(&mut start, port) {
                let process = Mutex::new(Process { start, child: Some(child) });
                return RedisServer { process, port, dir, check_ttl: true };
            }
        }
        panic!("{} does not start", program.display());
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills the server with SIGKILL. The process has exited when this returns; its folder stays.
    pub fn kill(&self) {
        if let Some(mut child) = self.process().child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Returns true after `kill`, until `restart`.
    pub fn is_killed(&self) -> bool {
        self.process().child.is_none()
    }

    /// Starts the server again with the same port, arguments and folder, without its keys. Kills it first if it runs.
    pub fn restart(&self) {
        self.kill();
        let mut process = self.process();
        let child = listening(&mut process.start, self.port);
        process.child = Some(child.expect("the server was started here before"));
    }

    /// Disables the check on drop, for tests that write their own keys or leave the server unable to answer.
    pub fn without_ttl_check(mut self) -> Self {
        self.check_ttl = false;
        self
    }

    /// Returns the URL for clients.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the socket address.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Returns a plain connection as soon as the server answers. An error such as BUSY counts as an answer.
    pub fn client(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).unwrap();
        let answers =
            |connection: &mut redis::Connection| match redis::cmd("PING").query::<String>(connection) {
                Ok(_) => true,
                Err(error) => error.code().is_some_and(|code| code != "LOADING"),
            };
        let mut connection = None;
        eventually(&format!("the server on port {} answers PING", self.port), || {
            connection = client.get_connection().ok();
            connection.as_mut().is_some_and(answers)
        });
        connection.unwrap()
    }

    /// Runs a command, whose words are separated by single spaces. Panics on an error.
    pub fn run(&self, line: &str) -> redis::Value {
        self.try_run(line).unwrap()
    }

    /// Runs a command like [`run`](Self::run), and returns errors. A server closes its connections when it changes its role.
    pub fn try_run(&self, line: &str) -> redis::RedisResult<redis::Value> {
        let mut words = line.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        words.for_each(|word| {
            command.arg(word);
        });
        command.query(&mut self.client())
    }

    /// Sends a signal, such as `-STOP` and `-CONT` to stop the process for a while as a busy machine would.
    pub fn signal(&self, signal: &str) {
        let id = self.process().child.as_ref().expect("the server was killed").id();
        let killed = Command::new("kill").args([signal, &id.to_string()]).status().unwrap();
        assert!(killed.success());
    }

    /// Asserts that every key has a time to live.
    pub fn assert_ttls(&self) {
        let mut connection = self.client();
        let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
        for key in keys {
            let ttl: i64 = redis::cmd("PTTL").arg(&key).query(&mut connection).unwrap();
            let name = String::from_utf8_lossy(&key).into_owned();
            // PTTL: -1 if the key never expires, -2 if it does not exist, 0 if it expires within this millisecond.
            assert_ne!(ttl, -1, "{name} has no time to live");
        }
    }
}

/// Longest wait of a test for a condition. The machine may be very busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// Blocks until `holds` returns true. Panics with `what` if it does not within a minute.
#[expect(clippy::disallowed_methods, reason = "the limit is on real time")]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    // The first pauses are short, because most conditions hold within a few milliseconds.
    let mut pause = Duration::from_millis(2);
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "not in {PATIENCE:?}: {what}");
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Reserves a port for as long as this process lives, also while no server listens on it.
///
/// The ports are below those that the system hands out to clients. The port 10,000 above, where the nodes of a cluster
/// talk to each other, is reserved with it. Tests run as processes at the same time, so each port has a lock file in the
/// temporary folder; the system releases the lock when the process ends.
pub fn lasting_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    static LOCKS: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let folder = std::env::temp_dir().join("slidegate-test-ports");
    std::fs::create_dir_all(&folder).unwrap();
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let reserve = |port: u16| {
        let file = File::create(folder.join(port.to_string())).unwrap();
        // A server that a killed test left behind still has its port, but not the lock.
        let reserved = file.try_lock().is_ok() && is_free(port) && is_free(port + 10_000);
        if reserved {
            LOCKS.lock().unwrap_or_else(PoisonError::into_inner).push(file);
        }
        reserved
    };
    // Each process starts at a different port, so that two processes rarely try the same one.
    let first = std::process::id().wrapping_mul(61) % 10_000;
    let mut ports =
        (0..10_000).map(|_| 12_000 + ((first + NEXT.fetch_add(1, Ordering::SeqCst)) % 10_000) as u16);
    ports.find(|port| reserve(*port)).expect("a free port, with the port 10,000 above it free too")
}

/// Starts the process and waits until it accepts connections. Returns `None` if it exits instead.
fn listening(start: &mut Command, port: u16) -> Option<Child> {
    let mut child = start.spawn().unwrap_or_else(|error| {
        panic!("{}: {error}; run scripts/tools.sh", start.get_program().display());
    });
    let mut exited = false;
    eventually(&format!("a server listens on port {port}"), || {
        exited = child.try_wait().unwrap().is_some();
        exited || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    (!exited).then_some(child)
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let checked = self.check_ttl && !self.is_killed() && !std::thread::panicking();
        let outcome =
            checked.then(|| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.assert_ttls())));
        self.kill();
        if let Some(Err(panic)) = outcome {
            std::panic::resume_unwind(panic);
        }
    }
}
