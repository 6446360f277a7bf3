//! Generates the clients of a pattern, by number, with the attributes that the rules use.

use std::collections::BTreeSet;
use std::fmt::Write;

use slidegate::{Pattern, Rules};

use super::fields::Pair;

/// Attributes of the clients of a pattern.
#[derive(Debug)]
pub(crate) struct SyntheticClients {
    attributes: Vec<(String, Value)>,
}

#[derive(Debug)]
enum Value {
    /// The same value for all clients.
    Constant(String),
    /// A prefix, followed by the number of the client.
    Numbered(String),
}

impl SyntheticClients {
    /// Creates clients with attributes that match the rules. If several rules have conditions on an attribute, its value
    /// matches the first pattern of the first of them. Attributes of a rule's `key` differ from client to client, unless a
    /// condition or a constant fixes them.
    pub(crate) fn new(rules: &Rules, constants: &[Pair]) -> Self {
        let keys: BTreeSet<&str> = rules.iter().flat_map(|rule| rule.key()).collect();
        let mut attributes: Vec<(String, Value)> =
            constants.iter().map(|pair| (pair.name.clone(), Value::Constant(pair.value.clone()))).collect();
        for rule in rules.iter() {
            for (name, patterns) in rule.conditions() {
                let value = match patterns.first() {
                    Some(Pattern::Is(text)) => Value::Constant(text.clone()),
                    Some(Pattern::StartsWith(text)) => Value::Numbered(text.clone()),
                    None => continue,
                };
                add(&mut attributes, name, value);
            }
        }
        for key in keys {
            add(&mut attributes, key, Value::Numbered(format!("{key}-")));
        }
        SyntheticClients { attributes }
    }

    /// Returns the attributes of client `n`. Their values are written into `values`, which is reused between calls.
    pub(super) fn attributes_of<'a>(
        &'a self,
        n: u64,
        values: &'a mut Vec<String>,
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        values.resize(self.attributes.len(), String::new());
        for ((_, value), text) in self.attributes.iter().zip(&mut *values) {
            text.clear();
            match value {
                Value::Constant(value) => text.push_str(value),
                Value::Numbered(prefix) => {
                    // Writing to a string does not fail.
                    let _ = write!(text, "{prefix}{n}");
                }
            }
        }
        self.attributes.iter().map(|(name, _)| name.as_str()).zip(values.iter().map(String::as_str))
    }

    /// Returns a note for the report about attributes that are the same for all requests.
    pub(crate) fn note(&self) -> Option<String> {
        let constants = self.attributes.iter().filter_map(|(name, value)| match value {
            Value::Constant(value) => Some(format!("{name}={value}")),
            Value::Numbered(_) => None,
        });
        let constants: Vec<String> = constants.collect();
        (!constants.is_empty())
            .then(|| format!("every request has {}: use --constant to change it", constants.join(", ")))
    }
}

fn add(attributes: &mut Vec<(String, Value)>, name: &str, value: Value) {
    if attributes.iter().all(|(known, _)| known != name) {
        attributes.push((name.to_owned(), value));
    }
}
