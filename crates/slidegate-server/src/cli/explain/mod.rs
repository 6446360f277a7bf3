//! `slidegate explain`: explains, rule by rule, why a request would be allowed or denied.

mod text;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use slidegate::{Limiter, MemoryStore};

use super::request_args::{RequestArgs, post};
use crate::app::explain::dto::ExplanationBody;
use crate::app::explain::explain;
use crate::common::console::finish;
use crate::config::{Inputs, load};
use crate::store::AnyStore;

/// Arguments of `slidegate explain`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    slidegate explain api=/login ip=1.2.3.4 user=alice\n  \
    slidegate explain --config rules.yaml api=/login ip=1.2.3.4\n\n\
    This command charges nothing. If the server requires a token, set it in SLIDEGATE_TOKEN.")]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    request: RequestArgs,
    /// Call no server. Use the rules of this file with empty counts
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the explanation as JSON
    #[arg(long)]
    json: bool,
}

/// Explains one request. Exit code 0 if it would be allowed, 1 if it would be denied, 2 if that is unknown.
pub(crate) fn run(args: ExplainArgs) -> ExitCode {
    let explained = match &args.config {
        Some(file) => by_file(file, &args.request),
        None => by_server(&args.request),
    };
    let printed = explained.and_then(|explained| {
        let text = if args.json { serde_json::to_string(&explained) } else { Ok(text::text(&explained)) };
        Ok((text.map_err(|error| error.to_string())?, explained.outcome.allowed))
    });
    finish(printed)
}

fn by_server(request: &RequestArgs) -> Result<ExplanationBody, String> {
    post(&request.url, "explain", &request.body()?).map(|(_, explained)| explained)
}

fn by_file(file: &std::path::Path, request: &RequestArgs) -> Result<ExplanationBody, String> {
    let rules = load(file, &Inputs::default())?.rules;
    if !rules.is_known() {
        return Err(format!("the rules of {} are in Redis: use --url to call a server", file.display()));
    }
    let limiter = Limiter::new(AnyStore::Memory(MemoryStore::new()), rules);
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    runtime.block_on(explain(&limiter, &request.request()?)).map_err(|error| error.to_string())
}
