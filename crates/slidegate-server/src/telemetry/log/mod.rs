//! Logs of the server on standard error. With text logs, the greeting on standard output is not part of the logs. With
//! JSON logs, there is no greeting, and every message is a log line.
//!
//! Everything logged is an event or a span of `tracing`, written by `format`. Keys contain names and addresses of
//! people, so they are logged as [digests](display_key) unless plain text is requested. Tokens are never given to
//! `tracing`.

mod format;

use std::borrow::Cow;

use clap::{Args, ValueEnum};
use sha2::{Digest, Sha256};
use slidegate::Key;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;

use self::format::LineWriter;
#[cfg(feature = "otel")]
use super::trace::{ExportArgs, ExportHandle};

/// Prefix of our own targets. Events of libraries are not logged.
const TARGET_PREFIX: &str = "slidegate";

#[derive(Debug, Args)]
#[command(next_help_heading = "Logs")]
pub(crate) struct LogArgs {
    /// Format of the logs on standard error: `text` for people, or `json` (one object per line) for programs. With
    /// `json`, the server prints no greeting on standard output
    #[arg(long, value_name = "FORMAT", default_value = "text", env = "SLIDEGATE_LOG")]
    log: Format,
    /// Lowest level that is logged. `debug` logs every decision
    #[arg(long, value_name = "LEVEL", default_value = "info", env = "SLIDEGATE_LOG_LEVEL")]
    log_level: Severity,
    /// Log full keys such as login:ip=1.2.3.4, instead of their digests such as login:#45b3aab71090eb3f
    #[arg(long)]
    pub(crate) log_keys: bool,
    #[cfg(feature = "otel")]
    #[command(flatten)]
    export: ExportArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Lines without time and level, for commands that a person waits for.
    #[value(skip)]
    Plain,
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Severity {
    Error,
    Warn,
    Info,
    Debug,
}

impl From<Severity> for LevelFilter {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Error => LevelFilter::ERROR,
            Severity::Warn => LevelFilter::WARN,
            Severity::Info => LevelFilter::INFO,
            Severity::Debug => LevelFilter::DEBUG,
        }
    }
}

/// Handle of the running logs, to be finished when the server stops.
pub(crate) struct Logging {
    #[cfg(feature = "otel")]
    exporting: Option<ExportHandle>,
}

impl LogArgs {
    /// Returns true if everything that the server prints is JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.log == Format::Json
    }

    /// Starts the logs without an exporter, which needs a runtime.
    pub(crate) fn start_lines(&self) {
        install(vec![self.lines()]);
    }

    fn lines(&self) -> BoxLayer {
        if self.is_json() {
            log_panics();
        }
        lines(self.log, self.log_level)
    }

    /// Starts the logs, which then run as long as the process. Must be called in a runtime. If an exporter cannot
    /// start, the logs run without it, and the error is returned.
    pub(crate) fn start(&self) -> Result<Logging, String> {
        let lines = self.lines();
        #[cfg(not(feature = "otel"))]
        {
            install(vec![lines]);
            Ok(Logging {})
        }
        #[cfg(feature = "otel")]
        match self.export.start() {
            Ok(Some((spans, exporting))) => {
                install(vec![lines, spans]);
                Ok(Logging { exporting: Some(exporting) })
            }
            Ok(None) => {
                install(vec![lines]);
                Ok(Logging { exporting: None })
            }
            Err(message) => {
                install(vec![lines]);
                Err(message)
            }
        }
    }
}

impl Logging {
    /// Sends the queued spans, and blocks until they are sent or a time limit expires.
    pub(crate) fn finish(self) {
        #[cfg(feature = "otel")]
        if let Some(exporting) = self.exporting {
            exporting.finish();
        }
    }
}

/// Starts plain text logs, for all commands except `serve`.
pub(crate) fn init_plain() {
    install(vec![lines(Format::Plain, Severity::Info)]);
}

pub(crate) type BoxLayer = Box<dyn Layer<Registry> + Send + Sync>;

fn lines(format: Format, least: Severity) -> BoxLayer {
    let filter = Targets::new().with_target(TARGET_PREFIX, LevelFilter::from(least));
    LineWriter::new(format).with_filter(filter).boxed()
}

fn install(layers: Vec<BoxLayer>) {
    // A program that embeds this crate may have installed a subscriber already. That subscriber stays.
    let _ = tracing::subscriber::set_global_default(Registry::default().with(layers));
}

/// Logs a panic as an event, instead of the lines that the standard library prints.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        let payload = panic.payload();
        let message = payload.downcast_ref::<&str>().copied();
        let message = message.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let message = message.unwrap_or("unknown reason");
        tracing::error!(event = "panic", place, "internal error: {message}");
    }));
}

/// Returns a key as it may be logged: unchanged if `plain`, otherwise the name of its rule and a digest.
///
/// `printf %s KEY | sha256sum | cut -c 1-16` prints the same digest.
pub(crate) fn display_key(key: &Key, plain: bool) -> Cow<'_, str> {
    if plain {
        return Cow::Borrowed(key.as_str());
    }
    let digest = Sha256::digest(key.as_str());
    let start = format!("{}:#", key.rule());
    digest[..8].iter().fold(start, |text, byte| text + &format!("{byte:02x}")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_logged_as_digests() {
        let key = Key::tagged(("tenant", "acme"), "login", [("ip", "1.2.3.4")]);
        assert_eq!(display_key(&key, true), "{tenant=acme}login:ip=1.2.3.4");
        // printf %s '{tenant=acme}login:ip=1.2.3.4' | sha256sum | cut -c 1-16
        assert_eq!(display_key(&key, false), "login:#43001476825609ac");
    }
}
