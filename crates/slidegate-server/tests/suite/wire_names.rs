//! Names on the wire: one word per idea. docs/explanation/glossary.md lists the words that are not used; none of them is in the API description, the
//! metrics, the command line's help, the dashboard or the error codes.

use std::path::Path;
use std::process::Command;

use crate::server::{BINARY, Server};
use slidegate_testkit::process;

/// Words of the table "Words that are not used". A word that ends in `*` stands for all words that begin so.
fn unused_words() -> Vec<String> {
    let glossary = include_str!("../../../../docs/explanation/glossary.md");
    let table = glossary.split("## Words that are not used").nth(1).expect("the glossary has the table");
    let table = table.split("\n## ").next().unwrap_or_default();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let words = rows.flat_map(|row| row.split('|').nth(1).unwrap().split(','));
    let words: Vec<String> = words.map(|word| word.trim().trim_matches('`').to_lowercase()).collect();
    assert!(words.contains(&"refus*".to_owned()), "{words:?}");
    words
}

/// Words of a text, in lower case. `would_deny` and `wouldDeny` are two words each.
fn words(text: &str) -> impl Iterator<Item = String> {
    let mut apart = String::with_capacity(text.len() + 100);
    let mut before = ' ';
    for letter in text.chars() {
        if letter.is_uppercase() && before.is_lowercase() {
            apart.push(' ');
        }
        apart.push(letter);
        before = letter;
    }
    let words: Vec<String> = apart.split(|c: char| !c.is_alphabetic()).map(str::to_lowercase).collect();
    words.into_iter()
}

fn help(arguments: &[&str]) -> String {
    let output = process::output(Command::new(BINARY).args(arguments).arg("--help"));
    assert!(output.status.success(), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_idea_has_one_word() {
    let server = Server::with_rules("rules: [{ name: all, limit: 1, window: 1m }]");
    for _ in 0..2 {
        server.post("/v1/acquire", r#"{"attributes":{}}"#);
    }
    let mut texts = vec![
        ("openapi.json".to_owned(), server.get("/openapi.json").body),
        ("metrics".to_owned(), server.get("/metrics").body),
    ];
    let commands: [&[&str]; 10] = [
        &[],
        &["serve"],
        &["validate"],
        &["schema"],
        &["import"],
        &["import", "envoy"],
        &["acquire"],
        &["explain"],
        &["bench"],
        &["simulate"],
    ];
    texts.extend(commands.map(|command| (format!("slidegate {command:?} --help"), help(command))));
    let dashboard = Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboard");
    for entry in std::fs::read_dir(dashboard).unwrap() {
        let path = entry.unwrap().path();
        if let Ok(text) = std::fs::read_to_string(&path) {
            texts.push((format!("dashboard: {}", path.file_name().unwrap().display()), text));
        }
    }
    assert!(texts.iter().any(|(name, _)| name.ends_with("index.html")));
    let unused = unused_words();
    let mut found = Vec::new();
    for (name, text) in &texts {
        assert!(!text.is_empty(), "{name}");
        for word in words(text) {
            let is_unused = |unused: &String| match unused.strip_suffix('*') {
                Some(start) => word.starts_with(start),
                None => word == *unused,
            };
            if unused.iter().any(is_unused) {
                found.push(format!("{name}: {word}"));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
    // Names in JSON are in snake case; those of a configuration file, which rules in JSON share, are in kebab case.
    let openapi = server.get("/openapi.json").json();
    let codes = openapi["components"]["schemas"]["ErrorCode"]["enum"].as_array().unwrap().clone();
    assert!(codes.len() > 10, "{codes:?}");
    for code in codes {
        let code = code.as_str().unwrap();
        assert!(code.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{code}");
    }
}
