//! `slidegate acquire`: requests permits from a server, for scripts and people.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::request_args::{RequestArgs, post};
use crate::common::console::{fail, say};

/// Arguments of `slidegate acquire`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    slidegate acquire api=/login ip=1.2.3.4 user=alice\n  \
    slidegate acquire --resource user123 --limit 10 --window 1s --permits 2\n  \
    slidegate acquire api=/chat user=alice && ./chat || echo 'try later'\n\n\
    A server with tokens is shown the one in SLIDEGATE_TOKEN.")]
pub(crate) struct AcquireArgs {
    #[command(flatten)]
    request: RequestArgs,
    /// Only look: charge nothing
    #[arg(long)]
    peek: bool,
    /// Print the answer as it came
    #[arg(long)]
    json: bool,
}

/// Sends one request. Exit code 0 if it is allowed, 1 if it is denied, 2 if there was no decision.
pub(crate) fn run(args: AcquireArgs) -> ExitCode {
    let operation = if args.peek { "peek" } else { "acquire" };
    let answer = args.request.body().and_then(|body| post(&args.request.url, operation, &body));
    match answer {
        Err(message) => fail(&message),
        Ok((_, answer)) => {
            say(&if args.json { answer.to_string() } else { describe(&answer) });
            ExitCode::from(u8::from(answer["allowed"] != true))
        }
    }
}

fn describe(answer: &Value) -> String {
    let mut lines = vec![match answer["denied_by"].as_str() {
        None if answer["allowed"] == true => "allowed".to_owned(),
        None => format!("denied (code {}): no rule matches the request", answer["code"]),
        Some(rule) => {
            format!("denied by {rule} (code {}): retry in {} ms", answer["code"], answer["retry_after_ms"])
        }
    }];
    for limit in answer["limits"].as_array().into_iter().flatten() {
        let rule = limit["rule"].as_str().unwrap_or_default();
        lines.push(format!(
            "  {rule}: {} of {} used, resets in {} ms",
            limit["used"], limit["limit"], limit["reset_after_ms"]
        ));
    }
    lines.join("\n")
}
