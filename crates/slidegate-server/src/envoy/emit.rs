//! YAML output of rules, one per line, as a person would write them.

use serde_json::Value;
use slidegate::{Rule, RuleFile};

/// Fields that are written first; all others follow.
const ORDER: [&str; 11] =
    ["name", "group", "match", "key", "only", "limit", "window", "unlimited", "blocked", "mode", "replaces"];

/// Returns a file with these rules. Like envoyproxy/ratelimit, it allows a descriptor that no rule matches.
pub(super) fn yaml(rules: &[Rule]) -> Result<String, serde_json::Error> {
    let mut text = String::from("unmatched: allow\n");
    text.push_str(if rules.is_empty() { "rules: []\n" } else { "rules:\n" });
    for rule in rules {
        let Value::Object(mut fields) = serde_json::to_value(RuleFile::from(rule).brief())? else { continue };
        let first = ORDER.iter().filter_map(|name| fields.remove_entry(*name));
        let ordered: Vec<(String, Value)> = first.collect::<Vec<_>>().into_iter().chain(fields).collect();
        let fields: Vec<String> = ordered.iter().map(|(name, value)| field(name, value)).collect();
        text.push_str(&format!("  - {{ {} }}\n", fields.join(", ")));
    }
    Ok(text)
}

fn field(name: &str, value: &Value) -> String {
    format!("{}: {}", scalar(name), flow(value))
}

fn flow(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields: Vec<String> = fields.iter().map(|(name, value)| field(name, value)).collect();
            format!("{{ {} }}", fields.join(", "))
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(flow).collect();
            format!("[{}]", items.join(", "))
        }
        Value::String(text) => scalar(text),
        other => other.to_string(),
    }
}

/// Returns a YAML scalar: quoted, unless it is plainly a word or a duration.
fn scalar(text: &str) -> String {
    const RESERVED: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_./-".contains(&b))
        && !RESERVED.iter().any(|reserved| reserved.eq_ignore_ascii_case(text));
    let is_duration = text
        .strip_suffix(['s', 'm', 'h', 'd'])
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()));
    if is_word || is_duration { text.to_owned() } else { Value::from(text).to_string() }
}
