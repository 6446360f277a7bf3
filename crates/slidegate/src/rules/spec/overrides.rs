//! Overrides of a rule: other limits for single keys.

use std::collections::BTreeMap;

use super::rule::RuleFile;
use crate::Quota;
use crate::common::section::{Given, Kind, Section, Shown};
use crate::common::yaml::Reader;
use crate::quota::MAX_LIMIT;
use crate::rules::Rule;

crate::section! {
    /// Another limit for one key.
    pub struct OverrideFile("Override") {
        /// Value of each attribute in the `key` of the rule.
        key: BTreeMap<String, String> as KeyValues { required().example("{ ip: 10.0.0.1 }") },
        /// Limit of this key. Default: the limit of the rule.
        limit: Option<u64> { between(1, MAX_LIMIT).example("1000") },
        /// Burst of this key. Default: the burst of the rule.
        burst: Option<u64> { between(1, MAX_LIMIT).example("20") },
    }
}

/// Values of the key attributes. They are read when the key of the rule is known.
struct KeyValues;

crate::field_type! {
    KeyValues => BTreeMap<String, String>,
    kind: |_| Kind::Map(Box::new(Kind::Text)),
    read: |_, _, _, _| Some(BTreeMap::new()),
    shown: |values| Shown::Map(values.iter().map(|(name, value)| (name.clone(), Shown::Text(value.clone()))).collect()),
}

/// Overrides, in the order of their keys. They are read when the key and the quota of the rule are known.
#[derive(Clone, Debug, Default)]
pub struct Overrides(Vec<OverrideFile>);

crate::field_type! {
    Overrides => Overrides,
    kind: |terms| Vec::<OverrideFile>::kind(terms),
    read: |_, _, _, _| Some(Overrides::default()),
    shown: |overrides| Vec::<OverrideFile>::shown(&overrides.0),
}

impl From<&Rule> for Overrides {
    fn from(rule: &Rule) -> Self {
        let overrides = rule.overrides.iter().map(|(values, quota)| OverrideFile {
            key: rule.key.iter().cloned().zip(values.iter().cloned()).collect(),
            limit: Some(quota.limit()),
            burst: quota.algorithm().burst(),
        });
        let mut overrides: Vec<OverrideFile> = overrides.collect();
        overrides.sort_by(|a, b| a.key.cmp(&b.key));
        Overrides(overrides)
    }
}

/// Reads the overrides. Their quotas and keys are checked against the rule only if its own quota and key are valid.
pub(super) fn read_overrides(
    given: &Given<'_, RuleFile>,
    reader: &mut Reader,
    rule: &mut Rule,
    valid_quota: bool,
    valid_key: bool,
) {
    let Some(node) = given.fields.get("overrides") else { return };
    for item in reader.list(node, "overrides").unwrap_or_default() {
        let Some(given) = OverrideFile::given(item, reader, "an override") else { continue };
        let values = if valid_key { read_key(&given, reader, rule) } else { None };
        let quota = read_quota(&given, reader, rule.quota, valid_quota);
        if let (Some(values), Some(quota)) = (values, quota) {
            reader.accept(item, rule.add_override(values, quota));
        }
    }
}

fn read_quota(
    given: &Given<'_, OverrideFile>,
    reader: &mut Reader,
    base: Quota,
    valid_base: bool,
) -> Option<Quota> {
    let (has_limit, has_burst) = (given.fields.get("limit").is_some(), given.fields.get("burst").is_some());
    let bucket = base.algorithm().refills();
    if !has_limit && !has_burst {
        return reader.reject(given.fields.node(), "an override needs `limit` or `burst`");
    }
    if !valid_base {
        return None;
    }
    if has_burst && !bucket {
        return reader.reject(given.fields.node(), "`burst` needs algorithm: token-bucket");
    }
    let limit = given.or("limit", given.value.limit, base.limit())?;
    let algorithm = match has_burst {
        true => base.algorithm().with_burst(given.value.burst?),
        false => base.algorithm(),
    };
    let quota = Quota::new(limit, base.window().into()).and_then(|quota| quota.with_algorithm(algorithm));
    Some(reader.accept(given.fields.node(), quota)?.with_count(base.count()))
}

/// Reads the values of the key attributes, in the order of the rule.
fn read_key<'n>(given: &Given<'n, OverrideFile>, reader: &mut Reader, rule: &Rule) -> Option<Vec<&'n str>> {
    let node = given.fields.get("key")?;
    let known: Vec<&str> = rule.key().collect();
    let entries = reader.fields(node, "the key of an override", &known)?;
    let values = known.iter().map(|name| {
        let node = entries.required(reader, name, "the key of an override")?;
        reader.text(node, name)
    });
    let values: Vec<Option<&str>> = values.collect();
    values.into_iter().collect()
}
