//! Parsing of rules from a YAML file.

use std::collections::HashSet;
use std::num::NonZeroU32;

use super::parse_adaptive::read_adaptive;
use super::parse_warm_up::read_warm_up;
use super::pattern::Pattern;
use super::rule::{Mode, Rule, check_held};
use super::selection::{Kind, no_such_rule};
use super::{AdHoc, Bounds, MAX_RULES, Rules};
use super::{shadow, unmatched};
use crate::common::yaml::{Fields, Node, Reader};
use crate::quota::{MAX_WINDOW, check_limit, check_slices, check_window};
use crate::{Algorithm, Count, Encoding, Error, Micros, OnError, Quota};

/// Top-level fields of a file that belong to the rules. A file may have other fields, which the server reads. `edition` is
/// part of a server's reply and has no effect in a file.
pub const FILE_FIELDS: [&str; 4] = ["rules", "ad-hoc", "unmatched", "edition"];

const RULE_FIELDS: [&str; 24] = [
    "name",
    "match",
    "key",
    "only",
    "group",
    "replaces",
    "tag",
    "limit",
    "window",
    "unlimited",
    "blocked",
    "algorithm",
    "burst",
    "slices",
    "count",
    "code",
    "mode",
    "shadow-of",
    "encoding",
    "on-error",
    "lease",
    "warm-up",
    "adaptive",
    "overrides",
];

/// Fields about counting, which only limited rules may have.
const COUNTING_FIELDS: [&str; 14] = [
    "tag",
    "limit",
    "window",
    "algorithm",
    "burst",
    "slices",
    "count",
    "shadow-of",
    "encoding",
    "on-error",
    "lease",
    "warm-up",
    "adaptive",
    "overrides",
];

const DEFAULT_SLICES: u32 = 10;

/// Name of an algorithm; its parameter comes from another field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AlgorithmName {
    SlidingWindow,
    FixedWindow,
    TimeSlice,
    TokenBucket,
    Concurrency,
}

impl Rules {
    /// Reads a file that contains only rules. Reports all mistakes, not only the first.
    ///
    /// ```
    /// let rules = slidegate::Rules::from_yaml("
    /// rules:
    ///   - { name: api, key: [user], limit: 100, window: 1m }
    /// ")?;
    /// assert_eq!(rules.iter().count(), 1);
    ///
    /// let error = slidegate::Rules::from_yaml("rules: [{ name: api, limit: 0, windw: 1m }]").unwrap_err();
    /// assert_eq!(error.problems().len(), 3);
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    pub fn from_yaml(text: &str) -> Result<Self, Error> {
        let node = Node::parse(text)?;
        let mut reader = Reader::default();
        let rules = match reader.fields(&node, "the file", &FILE_FIELDS) {
            Some(fields) => Rules::read(&fields, &mut reader),
            None => None,
        };
        reader.finish(rules)
    }

    /// Reads the rules from the fields of a file, and records all mistakes.
    pub fn read(fields: &Fields<'_>, reader: &mut Reader) -> Option<Self> {
        let ad_hoc = match fields.get("ad-hoc") {
            Some(node) => read_ad_hoc(node, reader),
            None => Some(AdHoc::default()),
        };
        let unmatched = fields.get("unmatched").map(|node| unmatched::read(node, reader));
        let (mut rules, mut names, mut references) = (Vec::new(), HashSet::new(), References::default());
        if let Some(node) = fields.required(reader, "rules", "the file") {
            let items = reader.list(node, "rules")?;
            if items.len() > MAX_RULES {
                reader.problem(node, format!("a file may have {MAX_RULES} rules, not {}", items.len()));
                return None;
            }
            for item in items {
                rules.extend(read_rule(item, reader, &mut names, &mut references));
            }
            for (node, name) in references.replaced.into_iter().filter(|(_, name)| !names.contains(name)) {
                reader.problem(node, no_such_rule(name).to_string());
            }
            for (node, name) in references.shadowed.into_iter().filter(|(_, name)| !names.contains(name)) {
                reader.problem(node, shadow::no_such_rule(name).to_string());
            }
        }
        let rules = Rules::new(rules).ok()?.with_ad_hoc(ad_hoc?);
        Some(match unmatched {
            Some(unmatched) => rules.with_unmatched(unmatched?),
            None => rules,
        })
    }
}

/// Names of other rules that rules refer to, with their positions.
#[derive(Default)]
struct References<'n> {
    replaced: Vec<(&'n Node, &'n str)>,
    shadowed: Vec<(&'n Node, &'n str)>,
}

/// Reads one rule. `names` holds the names of all earlier rules, valid or not; `references` collects the names it refers to.
fn read_rule<'n>(
    node: &'n Node,
    reader: &mut Reader,
    names: &mut HashSet<&'n str>,
    references: &mut References<'n>,
) -> Option<Rule> {
    let fields = reader.fields(node, "a rule", &RULE_FIELDS)?;
    let name = read_name(&fields, reader, names);
    let what = name.map_or("a rule".to_owned(), |name| format!("rule `{name}`"));
    let kind = read_kind(&fields, reader);
    let limited = kind == Some(Kind::Limited);
    let quota = if limited { read_quota(&fields, reader, &what) } else { None };
    let conditions = read_match(&fields, reader);
    let key = read_key(&fields, reader);
    let mode = fields.get("mode").map(|node| read_mode(node, reader, kind));
    let code = fields.get("code").map_or(Some(super::DEFAULT_CODE), |node| read_code(node, reader));
    // A mistake so far must not prevent checks of the remaining fields.
    let mut rule = Rule::named(name.unwrap_or("unnamed"), quota.unwrap_or(Quota::PLACEHOLDER));
    let mut valid = name.is_some() && (quota.is_some() || !limited);
    let mut valid_key = true;
    if let Some((node, names)) = key {
        match rule.clone().per(names) {
            Ok(keyed) => rule = keyed,
            Err(error) => {
                reader.problem(node, error.to_string());
                valid_key = false;
            }
        }
    }
    if limited {
        valid &= read_tag(&fields, reader, &mut rule, valid_key);
        valid &= read_encoding(&fields, reader, &mut rule, quota.is_some());
        valid &= read_warm_up(&fields, reader, &mut rule, quota.is_some());
        valid &= read_adaptive(&fields, reader, &mut rule, quota.is_some());
        valid &= read_lease(&fields, reader, &mut rule, quota.is_some());
        read_overrides(&fields, reader, &mut rule, quota.is_some(), valid_key);
        if let Some(node) = fields.get("on-error") {
            rule.on_error = read_on_error(node, reader);
        }
    }
    rule = read_selection(&fields, reader, rule, &mut references.replaced)?;
    rule = shadow::read(&fields, reader, rule, mode.flatten(), &mut references.shadowed)?;
    valid &= mode != Some(None);
    rule.conditions = conditions;
    rule.kind = kind?;
    valid.then_some(rule.code(code?))
}

/// Reads the kind of a rule, and rejects fields that do not belong to it.
fn read_kind(fields: &Fields<'_>, reader: &mut Reader) -> Option<Kind> {
    let unlimited = read_flag(fields, reader, "unlimited");
    let blocked = read_flag(fields, reader, "blocked");
    let (kind, word) = match (unlimited?, blocked?) {
        (false, false) => return Some(Kind::Limited),
        (true, false) => (Kind::Unlimited, "unlimited"),
        (false, true) => (Kind::Blocked, "blocked"),
        (true, true) => {
            reader.problem(fields.node(), "a rule is `unlimited` or `blocked`, not both");
            return None;
        }
    };
    // An unlimited rule never denies, so it has no code.
    let code = (kind == Kind::Unlimited).then_some("code");
    for name in COUNTING_FIELDS.into_iter().chain(code) {
        if let Some(node) = fields.get(name) {
            reader.problem(node, format!("`{name}` does not go with `{word}: true`"));
        }
    }
    Some(kind)
}

/// Reads a flag; false if it is not given.
fn read_flag(fields: &Fields<'_>, reader: &mut Reader, name: &str) -> Option<bool> {
    fields.get(name).map_or(Some(false), |node| reader.flag(node, name))
}

/// Reads the fields that select among applicable rules. `replaces` is checked when all names are known.
fn read_selection<'n>(
    fields: &Fields<'n>,
    reader: &mut Reader,
    mut rule: Rule,
    replaced: &mut Vec<(&'n Node, &'n str)>,
) -> Option<Rule> {
    rule.only = read_flag(fields, reader, "only").unwrap_or_default();
    if let Some(node) = fields.get("group")
        && let Some(name) = reader.text(node, "group")
    {
        rule = reader.accept(node, rule.clone().group(name)).unwrap_or(rule);
    }
    let Some(node) = fields.get("replaces") else { return Some(rule) };
    for node in reader.list(node, "replaces").unwrap_or_default() {
        let Some(name) = reader.text(node, "a rule name") else { continue };
        rule = reader.accept(node, rule.replaces([name]))?;
        replaced.push((node, name));
    }
    Some(rule)
}

fn read_name<'n>(fields: &Fields<'n>, reader: &mut Reader, names: &mut HashSet<&'n str>) -> Option<&'n str> {
    let node = fields.required(reader, "name", "a rule")?;
    let name = reader.text(node, "name")?;
    reader.accept(node, super::rule::check_rule_name(name))?;
    if !names.insert(name) {
        reader.problem(node, format!("another rule is named `{name}` already"));
        return None;
    }
    Some(name)
}

fn read_quota(fields: &Fields<'_>, reader: &mut Reader, what: &str) -> Option<Quota> {
    let limit = fields.required(reader, "limit", what).and_then(|node| read_limit(node, reader, "limit"));
    let window = fields.required(reader, "window", what).and_then(|node| read_window(node, reader));
    let algorithm = fields.get("algorithm").map_or(Some(AlgorithmName::SlidingWindow), |node| {
        let words = [
            ("sliding-window", AlgorithmName::SlidingWindow),
            ("fixed-window", AlgorithmName::FixedWindow),
            ("time-slice", AlgorithmName::TimeSlice),
            ("token-bucket", AlgorithmName::TokenBucket),
            ("concurrency", AlgorithmName::Concurrency),
        ];
        reader.word(node, "algorithm", &words)
    });
    let slices = parameter(fields, reader, algorithm, "slices", AlgorithmName::TimeSlice);
    let burst = parameter(fields, reader, algorithm, "burst", AlgorithmName::TokenBucket);
    let burst_limit = burst.map(|node| read_limit(node, reader, "burst"));
    let count = fields.get("count").map_or(Some(Count::Admitted), |node| {
        reader.word(node, "count", &[("admitted", Count::Admitted), ("attempts", Count::Attempts)])
    });
    let slices = read_slices(slices, reader, window.unwrap_or(MAX_WINDOW));
    let (limit, window) = (limit?, window?);
    let algorithm = match algorithm? {
        AlgorithmName::SlidingWindow => Algorithm::SlidingWindow,
        AlgorithmName::FixedWindow => Algorithm::FixedWindow,
        AlgorithmName::TimeSlice => Algorithm::TimeSlice { slices: slices? },
        AlgorithmName::TokenBucket => Algorithm::TokenBucket { burst: burst_limit.unwrap_or(Some(limit))? },
        AlgorithmName::Concurrency => Algorithm::Concurrency,
    };
    let quota = Quota::new(limit, window.into()).and_then(|quota| quota.with_algorithm(algorithm));
    let quota = reader.accept(burst.unwrap_or(fields.node()), quota)?.with_count(count?);
    reader.accept(fields.get("count").unwrap_or(fields.node()), check_held(&quota))?;
    Some(quota)
}

/// Reads a field that belongs to one algorithm.
fn parameter<'n>(
    fields: &Fields<'n>,
    reader: &mut Reader,
    algorithm: Option<AlgorithmName>,
    name: &str,
    owner: AlgorithmName,
) -> Option<&'n Node> {
    let node = fields.get(name)?;
    if algorithm.is_some_and(|algorithm| algorithm != owner) {
        let owner = if owner == AlgorithmName::TimeSlice { "time-slice" } else { "token-bucket" };
        reader.problem(node, format!("`{name}` belongs to algorithm: {owner}"));
    }
    Some(node)
}

fn read_limit(node: &Node, reader: &mut Reader, name: &str) -> Option<u64> {
    let limit = reader.whole(node, name)?;
    reader.accept(node, check_limit(name, limit))?;
    Some(limit)
}

fn read_window(node: &Node, reader: &mut Reader) -> Option<Micros> {
    let window = reader.duration(node, "window")?;
    reader.accept(node, check_window(window))?;
    Some(window)
}

fn read_slices(node: Option<&Node>, reader: &mut Reader, window: Micros) -> Option<u32> {
    let Some(node) = node else { return Some(DEFAULT_SLICES) };
    let slices = u32::try_from(reader.whole(node, "slices")?).unwrap_or(u32::MAX);
    reader.accept(node, check_slices(slices, window))?;
    Some(slices)
}

/// Reads a failure policy.
pub fn read_on_error(node: &Node, reader: &mut Reader) -> Option<OnError> {
    let words = [("local", OnError::Local), ("open", OnError::Open), ("closed", OnError::Closed)];
    reader.word(node, "on-error", &words)
}

fn read_mode(node: &Node, reader: &mut Reader, kind: Option<Kind>) -> Option<Mode> {
    let words = [("enforce", Mode::Enforce), ("shadow", Mode::Shadow), ("off", Mode::Off)];
    let mode = reader.word(node, "mode", &words)?;
    if mode == Mode::Shadow && kind == Some(Kind::Blocked) {
        reader.problem(
            node,
            "a blocked rule counts nothing that a shadow could show: mode must be enforce or off",
        );
    }
    Some(mode)
}

/// Returns false if the field is invalid. The combination with the algorithm is checked only if the quota is valid.
fn read_encoding(fields: &Fields<'_>, reader: &mut Reader, rule: &mut Rule, valid_quota: bool) -> bool {
    let Some(node) = fields.get("encoding") else { return true };
    let words = [("zset", Encoding::Zset), ("packed", Encoding::Packed)];
    let Some(encoding) = reader.word(node, "encoding", &words) else { return false };
    if !valid_quota {
        return true;
    }
    match reader.accept(node, rule.clone().encoding(encoding)) {
        Some(encoded) => *rule = encoded,
        None => return false,
    }
    true
}

/// Returns false if the field is invalid. The combination with the quota is checked only if the quota is valid.
fn read_lease(fields: &Fields<'_>, reader: &mut Reader, rule: &mut Rule, valid_quota: bool) -> bool {
    let Some(node) = fields.get("lease") else { return true };
    let Some(terms) = reader.fields(node, "lease", &["permits", "ttl"]) else { return false };
    let permits =
        terms.required(reader, "permits", "lease").and_then(|node| reader.whole(node, "lease.permits"));
    let ttl = terms.required(reader, "ttl", "lease").and_then(|node| reader.duration(node, "lease.ttl"));
    let (Some(permits), Some(ttl)) = (permits, ttl) else { return false };
    if !valid_quota {
        return true;
    }
    match reader.accept(node, rule.clone().lease(u32::try_from(permits).unwrap_or(u32::MAX), ttl.into())) {
        Some(leased) => *rule = leased,
        None => return false,
    }
    true
}

fn read_code(node: &Node, reader: &mut Reader) -> Option<NonZeroU32> {
    let code = reader.whole(node, "code")?;
    if let Some(code) = u32::try_from(code).ok().and_then(NonZeroU32::new) {
        return Some(code);
    }
    reader.problem(node, format!("code must be between 1 and {}, not {code}", u32::MAX));
    None
}

fn read_match(fields: &Fields<'_>, reader: &mut Reader) -> Vec<(String, Vec<Pattern>)> {
    let Some(entries) = fields.get("match").and_then(|node| reader.entries(node, "match")) else {
        return Vec::new();
    };
    let mut conditions = Vec::new();
    for (key, name, value) in entries {
        reader.accept(key, crate::request::check_name(&name));
        let nodes = reader.one_or_more(value);
        if nodes.is_empty() {
            reader.problem(value, format!("match `{name}` is an empty list, which nothing matches"));
        }
        let texts: Vec<&str> = nodes.iter().filter_map(|node| reader.text(node, "a pattern")).collect();
        conditions.push((name, texts.into_iter().map(Pattern::new).collect()));
    }
    conditions
}

fn read_key<'n>(fields: &Fields<'n>, reader: &mut Reader) -> Option<(&'n Node, Vec<&'n str>)> {
    let node = fields.get("key")?;
    let items = reader.list(node, "key")?;
    Some((node, items.iter().filter_map(|item| reader.text(item, "an attribute name")).collect()))
}

/// Returns false if the field is invalid. The tag must be in the key, which is checked only if the key is valid.
fn read_tag(fields: &Fields<'_>, reader: &mut Reader, rule: &mut Rule, valid_key: bool) -> bool {
    let Some(node) = fields.get("tag") else { return true };
    let Some(tag) = reader.text(node, "tag") else { return false };
    if !valid_key {
        return true;
    }
    match reader.accept(node, rule.clone().tag(tag)) {
        Some(tagged) => *rule = tagged,
        None => return false,
    }
    true
}

/// Reads the overrides. Their quotas and keys are checked against those of the rule only if those are valid.
fn read_overrides(
    fields: &Fields<'_>,
    reader: &mut Reader,
    rule: &mut Rule,
    valid_quota: bool,
    valid_key: bool,
) {
    let Some(node) = fields.get("overrides") else { return };
    for item in reader.list(node, "overrides").unwrap_or_default() {
        let Some(fields) = reader.fields(item, "an override", &["key", "limit", "burst"]) else { continue };
        let values = if valid_key { read_override_key(&fields, reader, rule) } else { None };
        let quota = read_override_quota(&fields, reader, rule.quota, valid_quota);
        if let (Some(values), Some(quota)) = (values, quota) {
            reader.accept(item, rule.add_override(values, quota));
        }
    }
}

fn read_override_quota(fields: &Fields<'_>, reader: &mut Reader, base: Quota, valid: bool) -> Option<Quota> {
    let limit = fields.get("limit").map(|node| read_limit(node, reader, "limit"));
    let burst = fields.get("burst").map(|node| read_limit(node, reader, "burst"));
    if limit.is_none() && burst.is_none() {
        reader.problem(fields.node(), "an override needs `limit` or `burst`");
    }
    let bucket = matches!(base.algorithm(), Algorithm::TokenBucket { .. });
    if valid && burst.is_some() && !bucket {
        reader.problem(fields.node(), "`burst` belongs to algorithm: token-bucket");
    }
    if !valid || limit.is_none() && burst.is_none() || burst.is_some() && !bucket {
        return None;
    }
    let algorithm = match burst {
        Some(burst) => Algorithm::TokenBucket { burst: burst? },
        None => base.algorithm(),
    };
    let limit = limit.unwrap_or(Some(base.limit()))?;
    let quota = Quota::new(limit, base.window().into()).and_then(|quota| quota.with_algorithm(algorithm));
    Some(reader.accept(fields.node(), quota)?.with_count(base.count()))
}

/// Reads the values of the key attributes, in the order of the rule.
fn read_override_key<'n>(fields: &Fields<'n>, reader: &mut Reader, rule: &Rule) -> Option<Vec<&'n str>> {
    let node = fields.required(reader, "key", "an override")?;
    let known: Vec<&str> = rule.key().collect();
    let entries = reader.fields(node, "the key of an override", &known)?;
    let values = known.iter().map(|name| {
        let node = entries.required(reader, name, "the key of an override")?;
        reader.text(node, name)
    });
    let values: Vec<Option<&str>> = values.collect();
    values.into_iter().collect()
}

fn read_ad_hoc(node: &Node, reader: &mut Reader) -> Option<AdHoc> {
    let fields = reader.fields(node, "ad-hoc", &["limit", "window"])?;
    let base = AdHoc::default();
    let limit =
        read_bounds(&fields, reader, "limit", base.limit(), |reader, node, name| reader.whole(node, name));
    let window = read_bounds(&fields, reader, "window", base.window(), |reader, node, name| {
        reader.duration(node, name)
    });
    reader.accept(node, AdHoc::new(limit?, window?))
}

fn read_bounds<T: Copy>(
    fields: &Fields<'_>,
    reader: &mut Reader,
    name: &str,
    base: Bounds<T>,
    read: impl Fn(&mut Reader, &Node, &str) -> Option<T>,
) -> Option<Bounds<T>> {
    let Some(node) = fields.get(name) else { return Some(base) };
    let bounds = reader.fields(node, name, &["default", "min", "max"])?;
    let mut one = |name: &str, base: T| bounds.get(name).map_or(Some(base), |node| read(reader, node, name));
    let (default, min, max) = (one("default", base.default), one("min", base.min), one("max", base.max));
    Some(Bounds { default: default?, min: min?, max: max? })
}
