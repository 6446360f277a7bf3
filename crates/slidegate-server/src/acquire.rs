//! `slidegate acquire`: a client for scripts and people.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value, json};
use slidegate::MAX_LIMIT;

use crate::access;
use crate::cli::{fail, say};

const TIMEOUT: Duration = Duration::from_secs(10);

/// What to ask, and whom.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    slidegate acquire api=/login ip=1.2.3.4 user=alice\n  \
    slidegate acquire --resource user123 --limit 10 --window 1s --permits 2\n  \
    slidegate acquire api=/chat user=alice && ./chat || echo 'try later'\n\n\
    A server with tokens is shown the one in SLIDEGATE_TOKEN.")]
pub struct AcquireArgs {
    /// Attributes of the request, such as ip=1.2.3.4
    #[arg(value_name = "NAME=VALUE", required_unless_present = "resource")]
    attributes: Vec<String>,
    /// The server
    #[arg(long, default_value = "http://127.0.0.1:8080", env = "SLIDEGATE_URL")]
    url: String,
    /// How many permits; 0 only looks
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(0..=MAX_LIMIT))]
    permits: u64,
    /// A name under which to ask again without being charged twice
    #[arg(long)]
    id: Option<String>,
    /// Ask for a limit of your own instead of by rules
    #[arg(long, conflicts_with = "attributes")]
    resource: Option<String>,
    /// The limit of that resource
    #[arg(long)]
    limit: Option<u64>,
    /// The window of that resource, such as 1s
    #[arg(long)]
    window: Option<String>,
    /// Only look: charge nothing
    #[arg(long)]
    peek: bool,
    /// Print the answer as it came
    #[arg(long)]
    json: bool,
}

/// Asks once. Exit code 0 if it is allowed, 1 if it is denied, 2 if there was no decision.
pub fn run(args: AcquireArgs) -> ExitCode {
    let answer = body(&args).and_then(|body| post(&args, &body));
    match answer {
        Err(message) => fail(&message),
        Ok(answer) => {
            say(&if args.json { answer.to_string() } else { describe(&answer) });
            ExitCode::from(u8::from(answer["allowed"] != true))
        }
    }
}

fn body(args: &AcquireArgs) -> Result<Value, String> {
    let mut body = Map::new();
    match &args.resource {
        Some(resource) => {
            body.insert("resource".into(), json!(resource));
            body.extend(args.limit.map(|limit| ("limit".into(), json!(limit))));
            body.extend(args.window.as_ref().map(|window| ("window".into(), json!(window))));
        }
        None => {
            if args.limit.is_some() || args.window.is_some() {
                return Err(
                    "--limit and --window go with --resource; the server's rules limit attributes".to_owned()
                );
            }
            let mut attributes = Map::new();
            for text in &args.attributes {
                let (name, value) =
                    text.split_once('=').ok_or_else(|| format!("`{text}` is not NAME=VALUE"))?;
                if attributes.insert(name.to_owned(), json!(value)).is_some() {
                    return Err(format!("`{name}` is given twice"));
                }
            }
            body.insert("attributes".into(), Value::Object(attributes));
        }
    }
    body.insert("permits".into(), json!(args.permits));
    body.extend(args.id.as_ref().map(|id| ("id".into(), json!(id))));
    Ok(Value::Object(body))
}

fn post(args: &AcquireArgs, body: &Value) -> Result<Value, String> {
    let call = if args.peek { "peek" } else { "acquire" };
    if !args.url.starts_with("http://") {
        return Err(format!("`{}` is not an address such as http://127.0.0.1:8080", args.url));
    }
    let url = format!("{}/v1/{call}", args.url.trim_end_matches('/'));
    let config =
        ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(TIMEOUT)).build();
    let mut request =
        ureq::Agent::new_with_config(config).post(&url).header("content-type", "application/json");
    if let Some(shown) = access::shown() {
        request = request.header("authorization", shown);
    }
    let sent = request.send(body.to_string());
    let mut response = sent.map_err(|error| format!("no answer from {url}: {error}"))?;
    let text =
        response.body_mut().read_to_string().map_err(|error| format!("no answer from {url}: {error}"))?;
    let answer: Value =
        serde_json::from_str(&text).map_err(|_| format!("{url} is not a Slidegate server"))?;
    if let Some(message) = answer["error"]["message"].as_str() {
        return Err(message.to_owned());
    }
    if !answer["allowed"].is_boolean() {
        return Err(format!("{url} is not a Slidegate server"));
    }
    Ok(answer)
}

fn describe(answer: &Value) -> String {
    let mut lines = vec![match answer["denied_by"].as_str() {
        None => "allowed".to_owned(),
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
