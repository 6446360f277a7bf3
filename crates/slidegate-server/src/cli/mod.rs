//! Command line: parses flags into checked values, and runs one subcommand.

mod acquire;
mod announce;
mod bench;
mod client;
mod completions;
mod config;
mod explain;
mod health;
mod import;
mod man;
mod request_args;
mod schema;
mod serve;
mod settings_args;
mod simulate;
mod validate;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use slidegate_simulator::SimulateArgs;

use self::acquire::AcquireArgs;
use self::bench::BenchArgs;
use self::config::ConfigArgs;
use self::explain::ExplainArgs;
use self::health::HealthArgs;
use self::serve::ServeArgs;
use self::validate::ValidateArgs;
use crate::common::console::fail;
use crate::telemetry::log;

/// Exact, atomic, explainable rate limiting: at most `limit` permits in any interval of length `window`.
///
/// Without a command, `slidegate` starts the server. Without a file, the server uses demo rules and the memory store.
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

/// Text below the flags of `serve`.
const SETTINGS_HELP: &str = "Every setting of the configuration file has an environment variable, such as SLIDEGATE_REDIS_URL for \
    redis.url. A flag takes precedence over a variable, and a variable over the file. `slidegate config` \
    prints all settings with their origins.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Start the server. This is the default command
    #[command(after_help = SETTINGS_HELP)]
    Serve(ServeArgs),
    /// Check configuration files and list every mistake with its line. Exit code: 0 if all files are valid, 1 if a
    /// file has mistakes, 2 if a file cannot be read
    Validate(ValidateArgs),
    /// Print the effective configuration with the origin of each value. Secrets are masked. Exit code: 0, or 2 after
    /// an error
    Config(ConfigArgs),
    /// Ask a server whether it is ready. Exit code: 0 if it is ready, 1 otherwise
    Health(HealthArgs),
    /// Print the JSON Schema of the configuration file, for editors and other tools
    Schema,
    /// Convert the files of another rate limiter to Slidegate rules, and print the rules. Exit code: 0, or 1 if the
    /// files have mistakes
    #[command(subcommand)]
    Import(Import),
    /// Request permits from a running server. Exit code: 0 if allowed, 1 if denied, 2 after an error
    Acquire(AcquireArgs),
    /// Explain for each rule why it would allow or deny a request. Exit code: 0 if the request would be allowed, 1 if
    /// denied, 2 after an error
    Explain(ExplainArgs),
    /// Send requests and print their rate and their latency. Exit code: 0 if there were decisions, 1 if there were
    /// none, 2 after an error
    Bench(BenchArgs),
    /// Apply rules to recorded or generated traffic and report the decisions. Exit code: 0, or 2 after an error
    Simulate(SimulateArgs),
    /// Print a completion script for a shell
    Completions {
        /// Shell
        shell: Shell,
    },
    /// Write the manual pages of all commands into a directory, or print the page of slidegate
    Man {
        /// Directory for the manual pages. The command creates it. Without a directory, the command prints the page
        /// of slidegate
        #[arg(value_name = "DIR")]
        directory: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
enum Import {
    /// Convert files of envoyproxy/ratelimit, each with one domain and its descriptors
    Envoy {
        /// Files to convert, or - for standard input
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

/// Returns the declaration of the command line. The page `docs/reference/cli.md` derives from it.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command line of this process.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    let command = cli.command.unwrap_or(Command::Serve(cli.serve));
    if !matches!(command, Command::Serve(_)) {
        log::init_plain();
    }
    let done = match command {
        Command::Serve(args) => serve::run(args),
        Command::Validate(args) => return validate::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Health(args) => return health::run(&args),
        Command::Completions { shell } => {
            completions::run(shell);
            Ok(())
        }
        Command::Man { directory } => man::run(directory.as_deref()),
        Command::Schema => schema::run(),
        Command::Import(Import::Envoy { files }) => return import::envoy(&files),
        Command::Acquire(args) => return acquire::run(args),
        Command::Explain(args) => return explain::run(args),
        Command::Bench(args) => return bench::run(args),
        Command::Simulate(args) => return simulate::run(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => fail(&message),
    }
}
