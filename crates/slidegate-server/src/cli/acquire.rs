//! `slidegate acquire`: requests permits from a server, for scripts and people.

use std::process::ExitCode;

use clap::Args;

use super::request_args::{RequestArgs, post};
use crate::app::decision_body::{LimitBody, OutcomeBody, ReceivedDecision, UsageBody};
use crate::common::console::{finish, warn};

/// Arguments of `slidegate acquire`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    slidegate acquire api=/login ip=1.2.3.4 user=alice\n  \
    slidegate acquire --resource user123 --limit 10 --window 1s --permits 2\n  \
    slidegate acquire api=/chat user=alice && ./chat || echo 'try later'\n\n\
    If the server requires a token, set it in SLIDEGATE_TOKEN.")]
pub(crate) struct AcquireArgs {
    #[command(flatten)]
    request: RequestArgs,
    /// Only read the decision, and charge nothing
    #[arg(long)]
    peek: bool,
    /// Print the response as JSON
    #[arg(long)]
    json: bool,
}

/// Sends one request. Exit code 0 if it is allowed, 1 if it is denied, 2 if there was no decision.
pub(crate) fn run(args: AcquireArgs) -> ExitCode {
    let operation = if args.peek { "peek" } else { "acquire" };
    let answer =
        args.request.body().and_then(|body| post::<ReceivedDecision>(&args.request.url, operation, &body));
    finish(answer.map(|(answer, decision)| {
        if let Some(note) = args.request.default_note() {
            warn(&note);
        }
        (if args.json { answer.to_string() } else { describe(&decision) }, decision.outcome.allowed)
    }))
}

fn describe(decision: &ReceivedDecision) -> String {
    let OutcomeBody { allowed, code, denied_by, retry_after_ms, .. } = &decision.outcome;
    let mut lines = vec![match denied_by {
        None if *allowed => "allowed".to_owned(),
        None => format!("denied (code {code}): no rule matches the request"),
        Some(rule) => format!("denied by {rule} (code {code}): retry in {retry_after_ms} ms"),
    }];
    for LimitBody { rule, limit, usage: UsageBody { used, reset_after_ms, .. }, .. } in &decision.limits {
        lines.push(format!("  {rule}: {used} of {limit} used, resets in {reset_after_ms} ms"));
    }
    lines.join("\n")
}
