//! The command line. Flags come in as text and go on as checked values.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use slidegate::{Limiter, MemoryStore};
use tokio::net::TcpListener;

use crate::acquire::AcquireArgs;
use crate::config::{Config, ConfigFile, DEFAULT_HTTP, DEMO, StoreKind};
use crate::store::AnyStore;
use crate::{acquire, serve};

/// How long the other processes may take to be told that this one stops.
const GOODBYE: Duration = Duration::from_secs(1);

/// Exact, atomic, explainable rate limiting: at most `limit` permits in any interval of length `window`.
///
/// Without a command it serves, and without a file it serves demo rules from memory.
#[derive(Debug, Parser)]
#[command(name = "slidegate", version, args_conflicts_with_subcommands = true)]
#[command(
    after_help = "Start it and try it:\n  slidegate\n  slidegate acquire api=/login ip=1.2.3.4 user=alice"
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: ServeArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answer requests (what `slidegate` does when it is given no command)
    Serve(ServeArgs),
    /// Check a file and list every mistake with its line; exit code 0 if there is none, 1 if there is
    Validate {
        /// The file, or - for standard input
        file: PathBuf,
    },
    /// Print the JSON Schema of the configuration file, for editors and checks
    Schema,
    /// Ask a running server for permits; exit code 0 allowed, 1 denied, 2 error
    Acquire(AcquireArgs),
}

#[derive(Debug, Args)]
struct ServeArgs {
    /// Rules and settings; demo rules without it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where to count: `memory` is this process, and goes with it; `redis`, or an address such as
    /// redis://user:password@host:6379, is shared by all that count there [default: memory]
    #[arg(long, value_name = "STORE", env = "SLIDEGATE_STORE", hide_env_values = true)]
    store: Option<StoreKind>,
    /// Where HTTP listens [default: 127.0.0.1:8080]; port 0 picks a free one and prints it
    #[arg(long, value_name = "ADDR")]
    http: Option<SocketAddr>,
}

/// Runs the command line of this process.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        None => serve_command(cli.serve),
        Some(Command::Serve(args)) => serve_command(args),
        Some(Command::Validate { file }) => return validate(&file),
        Some(Command::Schema) => schema(),
        Some(Command::Acquire(args)) => return acquire::run(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => fail(&message),
    }
}

/// Says what went wrong; exit code 2.
pub(crate) fn fail(message: &str) -> ExitCode {
    // Nothing is left to do if even that cannot be said.
    let _ = writeln!(io::stderr(), "slidegate: {message}");
    ExitCode::from(2)
}

/// What a person should know, while it goes on.
pub(crate) fn warn(message: &str) {
    let _ = writeln!(io::stderr(), "slidegate: {message}");
}

/// A closed pipe, such as `slidegate schema | head`, is not an error.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

fn serve_command(args: ServeArgs) -> Result<(), String> {
    let (config, rules) = match &args.config {
        Some(path) => (load(path)?, path.display().to_string()),
        None => (
            Config::parse(DEMO).map_err(|error| format!("the demo rules: {error}"))?,
            "demo rules".to_owned(),
        ),
    };
    let address = args.http.or(config.http).unwrap_or(DEFAULT_HTTP);
    let store = args.store.or(config.store).unwrap_or_default();
    let runtime = tokio::runtime::Runtime::new().map_err(|error| format!("cannot start: {error}"))?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address).await.map_err(|error| cannot_listen(address, &error))?;
        let address = listener.local_addr().map_err(|error| cannot_listen(address, &error))?;
        let store = match store {
            StoreKind::Memory => AnyStore::Memory(MemoryStore::new()),
            StoreKind::Redis(url) => {
                let options = config.redis.options(url.as_deref())?;
                AnyStore::redis(&options, &config.guard).map_err(|error| error.to_string())?
            }
        };
        greet(address, &store, &rules, args.config.is_none());
        tokio::spawn(store.clone().introduce());
        let limiter = Arc::new(Limiter::new(store.clone(), config.rules));
        let served = serve::run(listener, limiter, serve::Limits::default(), serve::signalled()).await;
        // Whoever cannot be told will find out.
        let _ = tokio::time::timeout(GOODBYE, store.leave()).await;
        served.map_err(|error| format!("stopped: {error}"))
    })
}

fn cannot_listen(address: SocketAddr, error: &io::Error) -> String {
    format!("cannot listen on {address}: {error}; choose another with --http, or port 0 for a free one")
}

fn load(path: &Path) -> Result<Config, String> {
    let name = path.display();
    let text = read(path).map_err(|error| format!("cannot read {name}: {error}"))?;
    Config::parse(&text).map_err(|error| {
        let problems: Vec<String> =
            error.problems().iter().map(|problem| format!("  {name}:{problem}")).collect();
        format!("{name} has mistakes, so nothing was started:\n{}", problems.join("\n"))
    })
}

fn read(path: &Path) -> io::Result<String> {
    if path == Path::new("-") { io::read_to_string(io::stdin()) } else { std::fs::read_to_string(path) }
}

fn greet(address: SocketAddr, store: &AnyStore, rules: &str, demo: bool) {
    let version = env!("CARGO_PKG_VERSION");
    say(&format!("slidegate {version}  rules: {rules}  store: {}", store.place()));
    say(&format!("listening on http://{address}"));
    let post = format!("curl -s http://{address}/v1/acquire -H 'content-type: application/json' -d");
    if demo {
        say("\ntry the login guard (the fourth within five seconds is refused):");
        say(&format!(
            "  {post} '{{\"attributes\":{{\"api\":\"/login\",\"ip\":\"1.2.3.4\",\"user\":\"alice\"}}}}'"
        ));
    } else {
        say("\ntry it:");
        say(&format!("  curl -s http://{address}/v1/rules"));
    }
    say("or bring your own limit:");
    say(&format!("  {post} '{{\"resource\":\"user123\",\"limit\":10,\"window\":\"1s\"}}'"));
}

fn validate(path: &Path) -> ExitCode {
    let name = path.display();
    let text = match read(path) {
        Ok(text) => text,
        Err(error) => return fail(&format!("cannot read {name}: {error}")),
    };
    match Config::parse(&text) {
        Ok(config) => {
            let n = config.rules.iter().count();
            say(&format!("{name}: ok, {n} {}", if n == 1 { "rule" } else { "rules" }));
            ExitCode::SUCCESS
        }
        Err(error) => {
            for problem in error.problems() {
                let _ = writeln!(io::stderr(), "{name}:{problem}");
            }
            ExitCode::from(1)
        }
    }
}

fn schema() -> Result<(), String> {
    let schema = schemars::schema_for!(ConfigFile);
    say(&serde_json::to_string_pretty(&schema).map_err(|error| error.to_string())?);
    Ok(())
}
