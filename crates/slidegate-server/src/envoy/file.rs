//! Parser of one envoyproxy/ratelimit file into a tree. Every mistake is reported with its line.

use std::collections::HashSet;
use std::time::Duration;

use slidegate::yaml::{Fields, Node, Reader};
use slidegate::{Quota, Rule, bounds::MAX_ATTRIBUTES};

const DAY: u64 = 24 * 3600;

/// Units, in seconds.
const UNITS: [(&str, u64); 7] = [
    ("second", 1),
    ("minute", 60),
    ("hour", 3600),
    ("day", DAY),
    ("week", 7 * DAY),
    ("month", 30 * DAY),
    ("year", 365 * DAY),
];

/// Content of a file: a domain and its descriptors.
pub(super) struct Domain<'n> {
    pub(super) node: &'n Node,
    pub(super) name: String,
    pub(super) descriptors: Vec<Descriptor<'n>>,
}

/// Entry of a request, the limit if it is the last entry, and the entries that may follow.
pub(super) struct Descriptor<'n> {
    pub(super) node: &'n Node,
    pub(super) key: String,
    pub(super) value: Value,
    /// True if all values share one count.
    pub(super) shared: bool,
    pub(super) limit: Option<RateLimit<'n>>,
    pub(super) descriptors: Vec<Descriptor<'n>>,
}

impl Descriptor<'_> {
    /// Returns the key and the value, joined as envoyproxy/ratelimit joins them.
    pub(super) fn composite(&self) -> String {
        match &self.value {
            Value::Is(value) => format!("{}_{value}", self.key),
            Value::StartsWith(prefix) => format!("{}_{prefix}*", self.key),
            Value::Any => self.key.clone(),
        }
    }
}

/// Condition on the value of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Is(String),
    StartsWith(String),
    Any,
}

pub(super) struct RateLimit<'n> {
    pub(super) allows: Allowance,
    pub(super) shadow: bool,
    pub(super) name: Option<String>,
    pub(super) replaces: Vec<(&'n Node, String)>,
}

#[derive(Clone, Copy)]
pub(super) enum Allowance {
    Quota(Quota),
    Everything,
    Nothing,
}

/// Text of a file, which is needed for values that mean the same with and without quotes.
#[derive(Clone, Copy)]
pub(super) struct FileText<'t>(pub(super) &'t str);

impl FileText<'_> {
    pub(super) fn domain<'n>(self, node: &'n Node, reader: &mut Reader) -> Option<Domain<'n>> {
        let fields = reader.fields(node, "the file", &["domain", "descriptors"])?;
        let name = fields.required(reader, "domain", "the file");
        let descriptors = self.descriptors(&fields, reader, 1);
        let node = name?;
        let name = self.text(node, reader, "domain")?;
        if name.is_empty() || name.ends_with('*') {
            reader.problem(node, "domain must not be empty, nor end in `*`");
        }
        Some(Domain { node, name, descriptors })
    }

    fn descriptors<'n>(self, fields: &Fields<'n>, reader: &mut Reader, depth: usize) -> Vec<Descriptor<'n>> {
        let Some(node) = fields.get("descriptors") else { return Vec::new() };
        // The domain takes one attribute.
        if depth >= MAX_ATTRIBUTES {
            reader.problem(node, format!("a descriptor may have at most {} entries", MAX_ATTRIBUTES - 1));
            return Vec::new();
        }
        let items = reader.list(node, "descriptors").unwrap_or_default();
        let (mut descriptors, mut known) = (Vec::new(), HashSet::new());
        for item in items {
            let Some(descriptor) = self.descriptor(item, reader, depth) else { continue };
            if !known.insert(descriptor.composite()) {
                reader.problem(
                    item,
                    format!("another descriptor at this level is `{}` too", descriptor.composite()),
                );
            }
            descriptors.push(descriptor);
        }
        descriptors
    }

    fn descriptor<'n>(self, node: &'n Node, reader: &mut Reader, depth: usize) -> Option<Descriptor<'n>> {
        const FIELDS: [&str; 8] = [
            "key",
            "value",
            "rate_limit",
            "descriptors",
            "shadow_mode",
            "detailed_metric",
            "value_to_metric",
            "share_threshold",
        ];
        let fields = reader.fields(node, "a descriptor", &FIELDS)?;
        let key = fields.required(reader, "key", "a descriptor").and_then(|node| {
            let key = self.text(node, reader, "key")?;
            // The key must be a valid attribute name.
            reader.accept(node, Rule::unlimited("any").and_then(|rule| rule.when(&key, ["*"])))?;
            Some(key)
        });
        let value = fields.get("value").map_or(Some(Value::Any), |node| {
            let text = self.text(node, reader, "value")?;
            Some(match text.strip_suffix('*') {
                Some(prefix) => Value::StartsWith(prefix.to_owned()),
                None if text.is_empty() => Value::Any,
                None => Value::Is(text),
            })
        });
        let shadow = flag(&fields, reader, "shadow_mode");
        // These two flags only affect metrics.
        flag(&fields, reader, "detailed_metric");
        flag(&fields, reader, "value_to_metric");
        let shared = flag(&fields, reader, "share_threshold");
        if shared && !matches!(value, Some(Value::StartsWith(_)) | None) {
            reader.problem(node, "share_threshold needs a value that ends in `*`");
        }
        let limit = fields.get("rate_limit").and_then(|node| self.rate_limit(node, reader, shadow));
        let descriptors = self.descriptors(&fields, reader, depth + 1);
        Some(Descriptor { node, key: key?, value: value?, shared, limit, descriptors })
    }

    fn rate_limit<'n>(self, node: &'n Node, reader: &mut Reader, shadow: bool) -> Option<RateLimit<'n>> {
        const FIELDS: [&str; 5] = ["unit", "requests_per_unit", "unlimited", "name", "replaces"];
        let fields = reader.fields(node, "rate_limit", &FIELDS)?;
        let name = fields.get("name").and_then(|node| self.text(node, reader, "name"));
        let mut replaces = Vec::new();
        if let Some(node) = fields.get("replaces") {
            for item in reader.list(node, "replaces").unwrap_or_default() {
                replaces.extend(self.replaced(item, reader, name.as_deref()));
            }
        }
        let allows = if flag(&fields, reader, "unlimited") {
            if let Some(node) = fields.get("unit") {
                reader.problem(node, "`unit` cannot be combined with `unlimited: true`");
            }
            Allowance::Everything
        } else {
            self.quota(&fields, reader)?
        };
        Some(RateLimit { allows, shadow, name, replaces })
    }

    fn replaced<'n>(
        self,
        node: &'n Node,
        reader: &mut Reader,
        own: Option<&str>,
    ) -> Option<(&'n Node, String)> {
        let fields = reader.fields(node, "an entry of `replaces`", &["name"])?;
        let node = fields.required(reader, "name", "an entry of `replaces`")?;
        let name = self.text(node, reader, "name")?;
        if own == Some(name.as_str()) {
            reader.problem(node, format!("`{name}` cannot replace itself"));
            return None;
        }
        Some((node, name))
    }

    fn quota(self, fields: &Fields<'_>, reader: &mut Reader) -> Option<Allowance> {
        let unit = fields.required(reader, "unit", "rate_limit").and_then(|node| {
            let text = self.text(node, reader, "unit")?;
            let unit = UNITS.iter().find(|(unit, _)| unit.eq_ignore_ascii_case(&text));
            if unit.is_none() {
                let words: Vec<&str> = UNITS.iter().map(|(unit, _)| *unit).collect();
                reader.problem(node, format!("unit must be one of {}, not \"{text}\"", words.join(", ")));
            }
            unit.map(|(_, seconds)| Duration::from_secs(*seconds))
        });
        let node = fields.required(reader, "requests_per_unit", "rate_limit")?;
        let requests = reader.whole(node, "requests_per_unit")?;
        if requests == 0 {
            return Some(Allowance::Nothing);
        }
        reader.accept(node, Quota::new(requests, unit?)).map(Allowance::Quota)
    }

    fn text(self, node: &Node, reader: &mut Reader, what: &str) -> Option<String> {
        reader.written(node, what, self.0)
    }
}

/// Reads a flag. False if it is missing.
fn flag(fields: &Fields<'_>, reader: &mut Reader, name: &str) -> bool {
    fields.get(name).and_then(|node| reader.flag(node, name)).unwrap_or_default()
}
