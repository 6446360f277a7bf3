//! Documents that derive from the declarations of rule fields and settings: the reference page `docs/reference/configuration.md` and the
//! fuzz dictionaries.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use slidegate::section::{Description, Kind, Section, Terms};
use slidegate::{Rules, rules::RulesFile};
use slidegate_server::config::{Config, ConfigSettings, variable_name};
use slidegate_testkit::documents::compare;

/// Text before the tables.
const INTRODUCTION: &str = "# Configuration

This page lists every field of the configuration file, in the order of its sections. A file needs `rules`; all other fields are optional. A
field with the value `null` counts as absent. `slidegate validate FILE` reports every mistake with its line and column. `slidegate schema`
prints the JSON Schema for editors. This page is generated from the declarations in `crates/slidegate/src/rules/spec` and
`crates/slidegate-server/src/config`; a test compares it with them.

The tables use these types, among others:

| type | value |
|---|---|
| flag | `true` or `false` |
| length of time | a number and a unit, such as `250ms`, `5s` or `1h 30m` |
| percentage | a number with a percent sign, such as `80%` |
| section | a mapping whose fields are in a table of their own, further below |

## Environment variables

Every setting has an environment variable. Its name is `SLIDEGATE_` and the path of the setting in upper case, with `_` instead of dots and
hyphens. The tables below list the variables. `SLIDEGATE_CONFIG` is the path of the configuration file. Rules have no variables. If a setting
is given in several places, a flag takes precedence over a variable, and a variable over the file.

- Write a text, a length of time and a word without quotes. Write a number and a flag as in the file.
- Write a list or a mapping as YAML or JSON. It replaces the whole list or mapping of the file:
  `SLIDEGATE_REDIS_CLUSTER='[redis://a:6379, redis://b:6379]'`.
- An empty variable is an error. To use the default, unset the variable. The message about a mistake names the variable.
- If `store` is an address, it replaces the address in the section `redis`. It is an error if two variables give an address of Redis.
- The server logs a warning for each variable whose name begins with `SLIDEGATE_` and that it does not know. Variables that Kubernetes
  sets for a service (`SLIDEGATE_SERVICE_HOST`, `SLIDEGATE_PORT`) cause no warning.

`slidegate config` prints the effective configuration with the origin of each value. It masks secrets.

```console
$ SLIDEGATE_GUARD_NODES=3 slidegate config --no-rules | grep -E 'nodes:|deadline:'
  deadline: \"50ms\"                               # default
  nodes: 3                                       # SLIDEGATE_GUARD_NODES
```

## Variables and files in values

In the settings of the file, `${NAME}` stands for the value of an environment variable. `${file:/path}` stands for the content of a file, without
the line break at its end; the file may have at most 64 KiB. `$${` stands for `${`. Inside `{ }` and `[ ]`, put such a value in quotes. If a
variable is not set, or if a file is missing or empty, the server reports an error with line and column. In a URL, special characters of a
password must be percent-encoded.

```yaml
store: redis
redis:
  url: redis://slidegate:${file:/run/secrets/redis-password}@redis.internal:6379
  connections: ${REDIS_CONNECTIONS}
```

In rules, these references are not replaced, so rules mean the same on every node, in `slidegate simulate` and in `PUT /v1/rules`.
`slidegate validate` replaces references in the same way as the server. `slidegate simulate` and `slidegate explain --config` need only the rules,
so they do not read sections that contain references.
";

/// Readable name of a field's type.
fn type_name(kind: &Kind) -> String {
    match kind {
        Kind::Flag => "flag".into(),
        Kind::Whole(..) => "whole number".into(),
        Kind::Number(..) => "number".into(),
        Kind::Text => "text".into(),
        Kind::Time(_) => "length of time".into(),
        Kind::Percent(_) => "percentage".into(),
        Kind::Words(words) => {
            let words: Vec<String> = words.words.iter().map(|(word, _)| format!("`{word}`")).collect();
            words.join(", ")
        }
        Kind::List(item, _) => format!("list: {}", type_name(item)),
        Kind::Map(value) => format!("mapping: {}", type_name(value)),
        Kind::Section(_) => "section".into(),
        Kind::Union(_, kinds) => kinds.iter().map(type_name).collect::<Vec<_>>().join("; or "),
        Kind::Any => "any".into(),
    }
}

fn bounds(kind: &Kind) -> String {
    let percent = |hundredths: &u64| format!("{}%", *hundredths as f64 / 100.0);
    match kind {
        Kind::Whole(0, u64::MAX) | Kind::Percent(None) | Kind::Time(None) => String::new(),
        Kind::Whole(min, u64::MAX) => format!("from {min}"),
        Kind::Whole(min, max) => format!("{min} to {max}"),
        Kind::Number(min, max) => format!("{} to {}", *min as f64 / 100.0, *max as f64 / 100.0),
        Kind::Time(Some((min, max))) => format!("{min} to {max}"),
        Kind::Percent(Some((min, max))) => format!("{} to {}", percent(min), percent(max)),
        _ => String::new(),
    }
}

/// Example value of a field.
fn example(terms: &Terms, kind: &Kind, default: Option<&str>) -> String {
    let given = terms.example.or(default.filter(|default| !default.is_empty()));
    given.map_or_else(
        || match kind {
            Kind::Flag => "true".into(),
            Kind::Words(words) => words.words[0].0.into(),
            Kind::Section(section) => {
                let required = section.fields.iter().filter(|(terms, ..)| terms.required);
                let fields: Vec<String> = required
                    .map(|(terms, kind, default)| {
                        format!("{}: {}", terms.name, example(terms, kind, default.as_deref()))
                    })
                    .collect();
                if fields.is_empty() { "{}".into() } else { format!("{{ {} }}", fields.join(", ")) }
            }
            Kind::Union("Rules", _) => "[{ name: all, limit: 100, window: 1m }]".into(),
            _ => panic!("`{}` needs an example", terms.name),
        },
        str::to_owned,
    )
}

/// Nested sections of a type.
fn nested(kind: &Kind) -> Vec<&Description> {
    match kind {
        Kind::Section(section) => vec![section],
        Kind::List(item, _) | Kind::Map(item) => nested(item),
        Kind::Union(_, kinds) => kinds.iter().flat_map(nested).collect(),
        _ => Vec::new(),
    }
}

fn vocabularies(kind: &Kind) -> Vec<&slidegate::section::Vocabulary> {
    match kind {
        Kind::Words(words) => vec![words],
        Kind::List(item, _) | Kind::Map(item) => vocabularies(item),
        Kind::Union(_, kinds) => kinds.iter().flat_map(vocabularies).collect(),
        _ => Vec::new(),
    }
}

fn write_section(page: &mut String, path: &str, section: &Description) {
    let heading = if path.is_empty() { "The file".to_owned() } else { format!("`{path}`") };
    writeln!(page, "\n## {heading}\n\n{}\n", section.doc.trim()).unwrap();
    let settings = ConfigSettings::describe();
    let paths: Vec<String> = settings.settings().iter().map(|setting| setting.path.join(".")).collect();
    let path_of = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    let has_variables = section.fields.iter().any(|(terms, ..)| paths.contains(&path_of(terms.name)));
    let (head, rule) = if has_variables { (" variable |", "---|") } else { ("", "") };
    writeln!(
        page,
        "| field | type | default | bounds | meaning | example |{head}\n|---|---|---|---|---|---|{rule}"
    )
    .unwrap();
    let code = |text: &str| if text.is_empty() { String::new() } else { format!("`{text}`") };
    for (terms, kind, default) in &section.fields {
        let default = match default {
            _ if terms.required => "required".to_owned(),
            default => code(default.as_deref().unwrap_or_default()),
        };
        let example = example(terms, kind, Some(default.trim_matches('`')).filter(|_| !terms.required));
        let (name, kind_name, bounds, doc) = (terms.name, type_name(kind), bounds(kind), terms.doc.trim());
        let inner = path_of(name);
        let variable = if paths.contains(&inner) {
            format!(" `{}` |", variable_name(&inner.split('.').collect::<Vec<_>>()))
        } else if has_variables {
            " |".to_owned()
        } else {
            String::new()
        };
        let row = format!(
            "| `{name}` | {kind_name} | {default} | {bounds} | {doc} | {} |{variable}",
            code(&example)
        );
        page.push_str(&row.replace("|  |", "| |").replace("|  |", "| |"));
        page.push('\n');
    }
    let words = section.fields.iter().flat_map(|(terms, kind, _)| {
        vocabularies(kind).into_iter().flat_map(|words| &words.words).map(|word| (terms.name, word))
    });
    let words: Vec<_> = words.collect();
    if !words.is_empty() {
        page.push('\n');
    }
    for (name, (word, doc)) in words {
        writeln!(page, "- `{name}: {word}`: {}", doc.trim()).unwrap();
    }
    for (terms, kind, _) in &section.fields {
        for section in nested(kind) {
            write_section(page, &path_of(terms.name), section);
        }
    }
}

#[test]
fn page_lists_every_field() {
    let mut page = INTRODUCTION.to_owned();
    write_section(&mut page, "", &Config::describe());
    compare("docs/reference/configuration.md", &page);
}

/// YAML syntax and boundary values, which no declaration contains.
const YAML_WORDS: [&str; 20] = [
    "- {",
    "\\x0a",
    "&a ",
    "*a",
    "!!str ",
    "? ",
    "<<: *a",
    "---\\x0a",
    "\\\"\\\\n\\\"",
    "\\xc2\\x85",
    "1h 30m",
    "1us",
    ".inf",
    "0x1F",
    "1_000",
    "|\\x0a  ",
    "12.5%",
    "true",
    "null",
    "[{",
];

/// Values of settings that no declaration contains.
const CONFIG_WORDS: [&str; 9] = [
    "redis://",
    "rediss://u:p@h:1/2",
    "127.0.0.1:1",
    "10.0.0.0/8",
    "::1",
    "header x-id",
    "client",
    "version: ",
    "hash: ",
];

/// Collects the names of all fields and all words of a section.
fn collect(section: &Description, words: &mut BTreeSet<String>) {
    for (terms, kind, _) in &section.fields {
        words.insert(format!("{}: ", terms.name));
        let vocabulary = vocabularies(kind).into_iter().flat_map(|words| &words.words);
        words.extend(vocabulary.map(|(word, _)| (*word).to_owned()));
        nested(kind).into_iter().for_each(|section| collect(section, words));
    }
}

fn dictionary(section: &Description, more: &[&[&str]]) -> String {
    let mut words = BTreeSet::new();
    collect(section, &mut words);
    let more = more.iter().flat_map(|words| words.iter()).map(|word| (*word).to_owned());
    let words = words.into_iter().chain(more);
    words.map(|word| format!("\"{word}\"\n")).collect()
}

#[test]
fn fuzz_dictionaries_have_every_field() {
    compare("fuzz/words/rules", &dictionary(&RulesFile::describe(), &[&YAML_WORDS]));
    compare("fuzz/words/config", &dictionary(&Config::describe(), &[&YAML_WORDS, &CONFIG_WORDS]));
}

/// Other fields that a field requires, by its path.
const COMPANIONS: [(&str, &str); 7] = [
    ("rules.burst", "algorithm: token-bucket"),
    ("rules.slices", "algorithm: time-slice"),
    ("rules.tag", "key: [tenant]"),
    ("rules.overrides", "key: [ip]"),
    ("redis.tls", "url: \"rediss://x\""),
    ("redis.tls.cert", "key: x"),
    ("redis.tls.key", "cert: x"),
];

/// Every example on the page is valid in its place.
#[test]
fn every_example_is_accepted() {
    let mut examples = 0;
    for (terms, kind, default) in Config::describe().fields {
        let default = default.as_deref();
        let (name, example) = (terms.name, example(&terms, &kind, default));
        if name == "rules" {
            let Some(rule) = nested(&kind).into_iter().next() else { panic!("rules are a section") };
            for (terms, kind, default) in &rule.fields {
                let name = terms.name;
                let value = self::example(terms, kind, default.as_deref());
                let value = if matches!(kind, Kind::Flag) { "true" } else { value.as_str() };
                let limit = match name {
                    "unlimited" | "blocked" => "",
                    "limit" => ", window: 1s",
                    "window" => ", limit: 10",
                    _ => ", limit: 10, window: 1s",
                };
                let other = COMPANIONS.iter().find(|(path, _)| *path == format!("rules.{name}"));
                let other = other.map_or(String::new(), |(_, other)| format!(", {other}"));
                let own = if name == "name" { "" } else { ", name: a" };
                let text = format!(
                    "rules: [{{ name: everybody, limit: 1, window: 1s }}, {{ {name}: {value}{own}{limit}{other} }}]"
                );
                let read = Rules::from_yaml(&text);
                assert!(read.is_ok(), "{text}: {}", read.unwrap_err());
                examples += 1;
            }
            continue;
        }
        let text = format!("{name}: {example}\nrules: []");
        assert!(Config::parse(&text).is_ok(), "{text}: {}", Config::parse(&text).unwrap_err());
        examples += accepted_in(name, &kind);
    }
    assert!(examples > 90, "{examples}");
}

/// Checks the examples of a section of settings at this path. Returns their number.
fn accepted_in(path: &str, kind: &Kind) -> usize {
    let Kind::Section(section) = kind else { return 0 };
    let mut examples = 0;
    for (terms, kind, default) in &section.fields {
        let inner = format!("{path}.{}", terms.name);
        let others = section.fields.iter().filter(|(other, ..)| other.required && other.name != terms.name);
        let others = others.map(|(terms, kind, default)| {
            format!(", {}: {}", terms.name, example(terms, kind, default.as_deref()))
        });
        let companion = COMPANIONS.iter().find(|(path, _)| *path == inner);
        let companion = companion.map(|(_, other)| format!(", {other}"));
        let others: String = others.chain(companion).collect();
        let field = format!("{}: {}{others}", terms.name, example(terms, kind, default.as_deref()));
        let nested = path.split('.').rev().fold(field, |text, name| match name {
            "tls" if path == "redis.tls" => format!("url: \"rediss://x\", tls: {{ {text} }}"),
            name => format!("{name}: {{ {text} }}"),
        });
        let text = format!("{{ {nested}, rules: [] }}");
        let read = Config::parse(&text);
        assert!(read.is_ok(), "{text}: {}", read.unwrap_err());
        examples += 1 + accepted_in(&inner, kind);
    }
    examples
}
