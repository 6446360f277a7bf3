//! Who asks in a pattern: clients by number, with the attributes that the rules look at.

use std::collections::BTreeSet;
use std::fmt::Write;

use slidegate::{Pattern, Rules};

use super::fields::Pair;

/// The attributes of the n-th client.
#[derive(Debug)]
pub(crate) struct SyntheticClients {
    attributes: Vec<(String, Value)>,
}

#[derive(Debug)]
enum Value {
    /// The same for all.
    Constant(String),
    /// So, and the client's number after it.
    Numbered(String),
}

impl SyntheticClients {
    /// What rules are keyed by differs from client to client; what they match is what the first of them asks for.
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

    /// Writes the attributes of client `n` into `values`, which has room for them.
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
                    // Writing to a text does not fail.
                    let _ = write!(text, "{prefix}{n}");
                }
            }
        }
        self.attributes.iter().map(|(name, _)| name.as_str()).zip(values.iter().map(String::as_str))
    }

    /// What all requests have, for people.
    pub(crate) fn note(&self) -> Option<String> {
        let constants = self.attributes.iter().filter_map(|(name, value)| match value {
            Value::Constant(value) => Some(format!("{name}={value}")),
            Value::Numbered(_) => None,
        });
        let constants: Vec<String> = constants.collect();
        (!constants.is_empty())
            .then(|| format!("every request has {}: --constant says otherwise", constants.join(", ")))
    }
}

fn add(attributes: &mut Vec<(String, Value)>, name: &str, value: Value) {
    if attributes.iter().all(|(known, _)| known != name) {
        attributes.push((name.to_owned(), value));
    }
}
