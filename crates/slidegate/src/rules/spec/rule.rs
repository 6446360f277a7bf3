//! Fields of a rule, and their conversion to and from a [`Rule`].

use std::collections::HashSet;
use std::num::NonZeroU32;

use super::adaptive::{AdaptiveFile, checked};
use super::overrides::{Overrides, read_overrides};
use super::quota::{AlgorithmName, read_quota};
use super::warm_up::WarmUpFile;
use crate::common::section::{Given, Kind, Section, Shown, Terms};
use crate::common::yaml::{Node, Reader};
use crate::quota::{MAX_LIMIT, MAX_SLICES, MAX_WINDOW, MIN_WINDOW};
use crate::rules::pattern::Pattern;
use crate::rules::rule::check_rule_name;
use crate::rules::selection::Kind as RuleKind;
use crate::rules::{DEFAULT_CODE, MAX_LEASE, Mode, Rule};
use crate::{Adaptive, Count, Encoding, Error, Micros, OnError, Quota};

/// Names of rules and groups.
const LABEL: &str = "^[A-Za-z0-9][A-Za-z0-9._/-]{0,63}$";

crate::section! {
    /// A rule: its conditions, its key and its limit.
    pub struct RuleFile("Rule", one_of: &[&["limit", "window"], &["unlimited"], &["blocked"]]) {
        /// Name of the rule, different from the names of all other rules. It may have letters, digits, `.`, `_`, `/`
        /// and `-`.
        name: Option<String> { required().like(LABEL).example("login-per-ip") },
        /// Attributes and the values that they must have: for each attribute a value, a list of values, or a prefix
        /// that ends in `*`.
        r#match: Vec<(String, Vec<Pattern>)> as Conditions { example("{ api: /login }") },
        /// Attributes whose values separate the counts. Each combination of values has its own count. Without a key,
        /// the rule has one count for all requests.
        key: Vec<String> { of("an attribute name").example("[ip]") },
        /// If true, the rule applies only to requests that have no other attributes than those in `match` and `key`.
        only: Option<bool> { by_default("false") },
        /// Group of the rule. If several rules of a group apply to a request, only the first of them is evaluated.
        group: Option<String> { like(LABEL).example("per-ip") },
        /// Names of other rules. If this rule applies to a request, those rules are not evaluated.
        replaces: Vec<String> { of("a rule name").example("[everybody]") },
        /// If true, the rule counts nothing and denies nothing. `limit` and `window` must then be absent.
        unlimited: Option<bool> { by_default("false") },
        /// If true, the rule counts nothing and denies every request. `limit` and `window` must then be absent.
        blocked: Option<bool> { by_default("false") },
        /// One of the attributes in `key`. All rules with this tag store the counts for one value of the attribute
        /// together: in one slot of a cluster, or on one server.
        tag: Option<String> { belongs_to("limit").example("tenant") },
        /// Number of permits in a window. With `token-bucket`: number of permits that return in a window. With
        /// `concurrency`: number of permits that can be held at the same time.
        limit: Option<u64> { belongs_to("limit").between(1, MAX_LIMIT).example("100") },
        /// Length of the window, such as `250ms`, `5s` or `1h`. With `concurrency`: time after which a permit that was
        /// neither released nor extended becomes free.
        window: Option<Micros> { belongs_to("limit").lasting(MIN_WINDOW, MAX_WINDOW).example("1m") },
        /// The counting algorithm.
        algorithm: Option<AlgorithmName> { belongs_to("limit").by_default("sliding-window") },
        /// Capacity of the bucket; only with `token-bucket`. Default: the limit.
        burst: Option<u64> { belongs_to("limit").between(1, MAX_LIMIT).example("20") },
        /// Number of slices in the window; only with `time-slice`.
        slices: Option<u32> { belongs_to("limit").between(2, MAX_SLICES as u64).by_default("10") },
        /// Requests that the rule counts.
        count: Option<Count> { belongs_to("limit").by_default("admitted") },
        /// Field `code` in the response to a request that the rule denies.
        code: Option<NonZeroU32> { by_default("429") },
        /// Effect of the rule: it enforces its limit, only observes, or is off.
        mode: Option<Mode> { by_default("enforce") },
        /// Name of another rule that this rule may replace later. The server counts the requests that this rule would
        /// decide differently. The default of `mode` is then `shadow`.
        shadow_of: Option<String> { belongs_to("limit").example("everybody") },
        /// Storage format in Redis.
        encoding: Option<Encoding> { belongs_to("limit").by_default("zset") },
        /// Decision while Redis does not answer. Default: `guard.on-error`.
        on_error: Option<OnError> { belongs_to("limit") },
        /// Permits that each node may take in advance. Only with `time-slice` and `sliding-window`; a sliding window
        /// is then counted in slices.
        lease: Option<LeaseFile> { belongs_to("limit").example("{ permits: 10, ttl: 100ms }") },
        /// Gradual rise of the limit after a cold start. Not with `token-bucket`.
        warm_up: Option<WarmUpFile> { belongs_to("limit").example("{ from: 20%, over: 30s }") },
        /// Limit that follows the load of the servers. Not with `lease`.
        adaptive: Option<Adaptive> as Option<AdaptiveFile> { belongs_to("limit").example("{}") },
        /// Other limits for some keys.
        overrides: Overrides as Overrides {
            belongs_to("limit").example("[{ key: { ip: 10.0.0.1 }, limit: 1000 }]")
        },
    }
}

crate::section! {
    /// Permits that a node may take in advance.
    pub struct LeaseFile("Lease", dotted: true) {
        /// Upper bound on the permits that one node takes at once.
        permits: u32 { required().between(2, MAX_LEASE as u64).example("10") },
        /// Time for which a node may keep these permits. The window must be a multiple of it.
        ttl: Micros { required().example("100ms") },
    }
}

/// Conditions on attributes: for each of them a pattern, or a list of patterns.
struct Conditions;

crate::field_type! {
    Conditions => Vec<(String, Vec<Pattern>)>,
    kind: |_| {
        let patterns = Kind::List(Box::new(Kind::Text), true);
        Kind::Map(Box::new(Kind::Union("Patterns", vec![Kind::Text, patterns])))
    },
    read: |node, reader, what, _| {
        let mut conditions = Vec::new();
        for (key, name, value) in reader.entries(node, what)? {
            reader.accept(key, crate::request::check_name(&name));
            let nodes = reader.one_or_more(value);
            if nodes.is_empty() {
                reader.problem(value, format!("match `{name}` is an empty list, which matches nothing"));
            }
            let mut patterns = Vec::new();
            for node in nodes {
                let Some(text) = reader.text(node, "a pattern") else { continue };
                if let Some(warning) = Pattern::warning(text) {
                    reader.warning(node, format!("match `{name}`: {warning}"));
                }
                patterns.push(Pattern::new(text));
            }
            conditions.push((name, patterns));
        }
        Some(conditions)
    },
    shown: |conditions| {
        let text = |pattern: &Pattern| Shown::Text(pattern.to_string());
        let patterns = |any: &[Pattern]| match any {
            [one] => text(one),
            several => Shown::List(several.iter().map(text).collect()),
        };
        if conditions.is_empty() {
            return Shown::Null;
        }
        Shown::Map(conditions.iter().map(|(name, any)| (name.clone(), patterns(any))).collect()).sorted()
    },
}

/// Name of another rule in a field of a rule.
pub(super) struct Reference<'n> {
    pub(super) node: &'n Node,
    pub(super) field: &'static str,
    pub(super) name: &'n str,
}

/// Reads one rule. `names` holds the names of all earlier rules, valid or not; `references` collects the names it refers to.
///
/// A mistake in one field does not prevent checks of other fields. If the rule has a mistake, the returned rule must
/// not be used.
pub(super) fn read_rule<'n>(
    node: &'n Node,
    reader: &mut Reader,
    names: &mut HashSet<String>,
    references: &mut Vec<Reference<'n>>,
) -> Option<Rule> {
    let given = RuleFile::given(node, reader, "a rule")?;
    let file = &given.value;
    let name = file.name.as_deref().and_then(|name| {
        reader.accept(given.node("name"), check_rule_name(name))?;
        if !names.insert(name.to_owned()) {
            reader.problem(given.node("name"), format!("another rule is already named `{name}`"));
        }
        Some(name)
    });
    let what = name.map_or("a rule".to_owned(), |name| format!("rule `{name}`"));
    let kind = read_kind(&given, reader);
    let limited = kind == Some(RuleKind::Limited);
    let quota = if limited { read_quota(&given, reader, &what) } else { None };

    let mut rule = Rule::named(name.unwrap_or("unnamed"), quota.unwrap_or(Quota::PLACEHOLDER));
    rule.kind = kind.unwrap_or_default();
    rule.conditions = file.r#match.clone();
    rule.only = file.only.unwrap_or_default();
    rule.on_error = file.on_error;
    rule.code = file.code.unwrap_or(DEFAULT_CODE);
    let mut set = |reader: &mut Reader, field: &str, change: &dyn Fn(Rule) -> Result<Rule, Error>| {
        let Some(changed) = reader.accept(given.node(field), change(rule.clone())) else { return false };
        rule = changed;
        true
    };
    let valid_key = set(reader, "key", &|rule| rule.per(file.key.iter().map(String::as_str)));
    if let Some(group) = &file.group {
        set(reader, "group", &|rule| rule.group(group));
    }
    if let (Some(tag), true, true) = (&file.tag, limited, valid_key) {
        set(reader, "tag", &|rule| rule.tag(tag));
    }
    // These fields are checked against the quota only if the quota is valid.
    if quota.is_some() {
        if let Some(encoding) = file.encoding {
            set(reader, "encoding", &|rule| rule.encoding(encoding));
        }
        if let Some(warm_up) = &file.warm_up {
            set(reader, "warm-up", &|rule| rule.warm_up(warm_up.terms()?));
        }
        if let Some(adaptive) = &file.adaptive {
            set(reader, "adaptive", &|rule| rule.adaptive(checked(adaptive)?));
        }
        if let Some(LeaseFile { permits, ttl }) = file.lease {
            set(reader, "lease", &|rule| rule.lease(permits, ttl.into()));
        }
    }
    if let Some(shadowed) = given.fields.get("shadow-of").and_then(Node::text) {
        let node = given.node("shadow-of");
        references.push(Reference { node, field: "shadow-of", name: shadowed });
        if file.mode == Some(Mode::Enforce) {
            reader.problem(node, "`shadow-of` needs mode: shadow or mode: off");
        } else {
            set(reader, "shadow-of", &|rule| rule.shadow_of(shadowed));
        }
    }
    rule.mode = file.mode.unwrap_or(rule.mode);
    if file.mode == Some(Mode::Shadow) && kind == Some(RuleKind::Blocked) {
        let message = "a blocked rule cannot be a shadow: mode must be enforce or off";
        reader.problem(given.node("mode"), message);
    }
    for node in given.fields.get("replaces").map_or(&[][..], Node::items) {
        let Some(name) = node.text() else { continue };
        rule = reader.accept(node, rule.clone().replaces([name])).unwrap_or(rule);
        references.push(Reference { node, field: "replaces", name });
    }
    if limited {
        read_overrides(&given, reader, &mut rule, quota.is_some(), valid_key);
    }
    Some(rule)
}

/// Reads the kind of a rule, and rejects fields that do not belong to it.
fn read_kind(given: &Given<'_, RuleFile>, reader: &mut Reader) -> Option<RuleKind> {
    let unlimited = given.or("unlimited", given.value.unlimited, false)?;
    let blocked = given.or("blocked", given.value.blocked, false)?;
    let (kind, word) = match (unlimited, blocked) {
        (false, false) => return Some(RuleKind::Limited),
        (true, false) => (RuleKind::Unlimited, "unlimited"),
        (false, true) => (RuleKind::Blocked, "blocked"),
        (true, true) => {
            return reader.reject(given.fields.node(), "a rule is `unlimited` or `blocked`, not both");
        }
    };
    // An unlimited rule never denies, so it has no code.
    let belongs_to_limit = |terms: &&Terms| {
        terms.belongs_to == Some("limit") || kind == RuleKind::Unlimited && terms.name == "code"
    };
    for Terms { name, .. } in RuleFile::TERMS.iter().filter(belongs_to_limit) {
        if let Some(node) = given.fields.get(name) {
            reader.problem(node, format!("`{name}` cannot be combined with `{word}: true`"));
        }
    }
    Some(kind)
}

impl From<&Rule> for RuleFile {
    fn from(rule: &Rule) -> Self {
        let (quota, limited) = (rule.quota, rule.is_limited());
        RuleFile {
            name: Some(rule.name.clone()),
            r#match: rule.conditions.clone(),
            key: rule.key.clone(),
            only: rule.only.then_some(true),
            group: rule.group.clone(),
            replaces: rule.replaces.clone(),
            unlimited: (rule.kind == RuleKind::Unlimited).then_some(true),
            blocked: (rule.kind == RuleKind::Blocked).then_some(true),
            tag: rule.tagged_by().map(str::to_owned),
            limit: limited.then_some(quota.limit()),
            window: limited.then_some(quota.window()),
            algorithm: limited.then_some(quota.algorithm().into()),
            burst: quota.algorithm().burst(),
            slices: quota.algorithm().slices(),
            count: limited.then_some(quota.count()),
            code: (rule.kind != RuleKind::Unlimited).then_some(rule.code),
            mode: Some(rule.mode),
            shadow_of: rule.shadow_of.clone(),
            encoding: limited.then_some(rule.encoding),
            on_error: rule.on_error.filter(|_| limited),
            lease: rule.leased().map(|(permits, ttl)| LeaseFile { permits: permits.get(), ttl }),
            warm_up: quota.warm_up().map(Into::into),
            adaptive: rule.adapts_by().cloned(),
            overrides: Overrides::from(rule),
        }
    }
}
