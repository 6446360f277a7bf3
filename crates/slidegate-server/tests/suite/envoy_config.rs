//! Tests that configuration files of envoyproxy/ratelimit give the same decisions in Slidegate.
//!
//! The oracle is the tree search of envoyproxy/ratelimit, written again from its description. Trees and requests are
//! random.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::process::Command;

use slidegate::{Decision, Limiter, MemoryStore, Mode, Request, Rules, Source, Unmatched};
use slidegate_server::envoy::{NamedText, attributes, import, translate};
use slidegate_testkit::process;

use crate::server::{BINARY, Server};

type Entries = Vec<(&'static str, &'static str)>;

fn one(text: &str) -> Vec<NamedText> {
    vec![("limits.yaml".to_owned(), text.to_owned())]
}

fn limiter(files: &[NamedText]) -> Limiter {
    let rules = translate(files).unwrap_or_else(|mistakes| panic!("{}", mistakes.join("\n")));
    Limiter::new(MemoryStore::with_max_keys(1_000), Rules::new(rules).unwrap())
}

/// Sends all of these descriptors in one request, as Envoy does.
async fn acquire(limiter: &Limiter, domain: &str, descriptors: &[Entries]) -> Vec<Decision> {
    let attributes: Vec<_> =
        descriptors.iter().map(|entries| attributes(domain, entries.iter().copied())).collect();
    let requests: Vec<Request<'_>> = attributes
        .iter()
        .map(|attributes| Request::new(attributes.iter().map(|(name, value)| (name.as_ref(), *value))))
        .collect();
    limiter.acquire_together(&requests).await.unwrap()
}

/// Describes the decision in a word.
fn summary(decision: &Decision) -> String {
    if decision.source() == Source::Blocked && !decision.allowed() {
        return "blocked".to_owned();
    }
    let mut limits = decision.limits().map(|limit| {
        let shadow = if limit.mode() == Mode::Shadow { " shadow" } else { "" };
        format!("{}/{}{shadow}", limit.limit(), limit.quota().window())
    });
    let summary = limits.next().unwrap_or_else(|| "-".to_owned());
    assert_eq!(limits.next(), None, "at most one limit applies to a descriptor");
    summary
}

/// Examples of the README of envoyproxy/ratelimit: a configuration, and the decisions on descriptors.
#[tokio::test]
async fn examples_of_their_readme() {
    type Example = (&'static str, &'static [(&'static [(&'static str, &'static str)], &'static str)]);
    let examples: &[Example] = &[
        (
            "domain: mongo_cps
descriptors:
  - { key: database, value: users, rate_limit: { unit: second, requests_per_unit: 500 } }
  - { key: database, value: default, rate_limit: { unit: second, requests_per_unit: 400 } }",
            &[
                (&[("database", "users")], "500/1s"),
                (&[("database", "default")], "400/1s"),
                (&[("database", "other")], "-"),
            ],
        ),
        (
            "domain: messaging
descriptors:
  - key: message_type
    value: marketing
    descriptors: [{ key: to_number, rate_limit: { unit: day, requests_per_unit: 5 } }]
  - { key: to_number, rate_limit: { unit: day, requests_per_unit: 100 } }",
            &[
                (&[("message_type", "marketing"), ("to_number", "1")], "5/1d"),
                (&[("message_type", "other"), ("to_number", "1")], "-"),
                (&[("message_type", "marketing")], "-"),
                (&[("to_number", "1")], "100/1d"),
            ],
        ),
        (
            "domain: edge_proxy_per_ip
descriptors:
  - { key: remote_address, rate_limit: { unit: second, requests_per_unit: 10 } }
  - { key: remote_address, value: 50.0.0.5, rate_limit: { unit: second, requests_per_unit: 0 } }",
            &[(&[("remote_address", "50.0.0.1")], "10/1s"), (&[("remote_address", "50.0.0.5")], "blocked")],
        ),
        (
            "domain: depth
descriptors:
  - { key: key, value: value, rate_limit: { requests_per_unit: 300, unit: second } }
  - key: key
    value: deep
    descriptors: [{ key: subkey, rate_limit: { requests_per_unit: 200, unit: SECOND } }]",
            &[
                (&[("key", "value"), ("subkey", "s")], "-"),
                (&[("key", "deep"), ("subkey", "s")], "200/1s"),
                (&[("key", "value")], "300/1s"),
            ],
        ),
        (
            "domain: internal
descriptors:
  - { key: ldap, rate_limit: { unlimited: true } }
  - { key: azure, rate_limit: { unit: minute, requests_per_unit: 100 } }",
            &[(&[("ldap", "x")], "-"), (&[("azure", "x")], "100/1m")],
        ),
        (
            "domain: soft
descriptors:
  - key: service
    descriptors:
      - { key: user, value: user-a, rate_limit: { requests_per_unit: 10, unit: second }, shadow_mode: true }
      - { key: user, value: user-b, rate_limit: { requests_per_unit: 20, unit: second } }",
            &[
                (&[("service", "auth"), ("user", "user-a")], "10/1s shadow"),
                (&[("service", "auth"), ("user", "user-b")], "20/1s"),
            ],
        ),
        (
            "domain: metrics
descriptors:
  - { key: key1, detailed_metric: true, rate_limit: { unit: minute, requests_per_unit: 10 } }
  - { key: key1, value: value1, value_to_metric: true, rate_limit: { unit: minute, requests_per_unit: 20 } }",
            &[(&[("key1", "unspecified")], "10/1m"), (&[("key1", "value1")], "20/1m")],
        ),
        (
            "domain: wild
descriptors:
  - { key: key1, value: value*, rate_limit: { unit: minute, requests_per_unit: 20 } }",
            &[(&[("key1", "value1")], "20/1m"), (&[("key1", "other")], "-")],
        ),
        (
            "domain: long
descriptors:
  - { key: a, value: 5, rate_limit: { unit: week, requests_per_unit: 1 } }
  - { key: a, value: 1.10, rate_limit: { unit: Month, requests_per_unit: 2 } }
  - { key: a, value: true, rate_limit: { unit: YEAR, requests_per_unit: 3 } }
  - { key: domain, value: 010, rate_limit: { unit: hour, requests_per_unit: 4 } }",
            &[
                (&[("a", "5")], "1/7d"),
                (&[("a", "1.10")], "2/30d"),
                (&[("a", "true")], "3/365d"),
                (&[("domain", "010")], "4/1h"),
            ],
        ),
    ];
    for (text, requests) in examples {
        let limiter = limiter(&one(text));
        let domain = text.lines().next().unwrap().strip_prefix("domain: ").unwrap();
        for (entries, expected) in *requests {
            assert_eq!(
                summary(&acquire(&limiter, domain, &[entries.to_vec()]).await[0]),
                *expected,
                "{entries:?}\n{text}"
            );
            let elsewhere = acquire(&limiter, "elsewhere", &[entries.to_vec()]).await;
            assert_eq!(summary(&elsewhere[0]), "-");
        }
    }
}

#[tokio::test]
async fn replaced_limits_are_not_charged() {
    let limiter = limiter(&one("domain: d
descriptors:
  - key: key_1
    descriptors: [{ key: user, rate_limit: { name: specific, requests_per_unit: 5, unit: second } }]
  - key: key_2
    descriptors: [{ key: user, rate_limit: { replaces: [{ name: specific }], requests_per_unit: 10, unit: second } }]"));
    let (first, second) = (vec![("key_1", "v"), ("user", "u")], vec![("key_2", "v"), ("user", "u")]);
    let summaries = |decisions: Vec<Decision>| decisions.iter().map(summary).collect::<Vec<_>>();
    assert_eq!(summaries(acquire(&limiter, "d", &[first.clone(), second.clone()]).await), ["-", "10/1s"]);
    assert_eq!(summaries(acquire(&limiter, "d", std::slice::from_ref(&first)).await), ["5/1s"]);
    assert_eq!(acquire(&limiter, "d", &[first]).await[0].limits().next().unwrap().used(), 2);
}

// --- The oracle. ---

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % n
    }

    fn one_of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

/// A level of the tree: `key` or `key_value` to its descriptor, and the wildcards in the order of the file.
#[derive(Default)]
struct Level {
    descriptors: HashMap<String, Descriptor>,
    order: Vec<String>,
    wildcards: Vec<String>,
}

struct Descriptor {
    key: &'static str,
    value: &'static str,
    limit: Option<Limit>,
    shared: bool,
    below: Level,
}

#[derive(Clone)]
struct Limit {
    requests: usize,
    unlimited: bool,
    shadow: bool,
    name: Option<usize>,
    replaces: Vec<usize>,
}

/// Keys by depth, so that no two lists of keys are the same in another order.
const KEYS: [&[&str]; 4] = [&["a", "b"], &["c", "a"], &["d", "a"], &["a"]];
const VALUES: [&str; 9] = ["", "", "x", "xy", "y", "*", "x*", "xy*", "y*"];
const SENT: [&str; 7] = ["x", "xy", "xyz", "xq", "y", "yy", "z"];

fn grow(rng: &mut Rng, depth: usize, next: &mut usize) -> Level {
    let mut level = Level::default();
    for _ in 0..rng.below(6) + usize::from(depth == 0) {
        let (key, value) = (rng.one_of(KEYS[depth]), rng.one_of(&VALUES));
        let composite = if value.is_empty() { key.to_owned() } else { format!("{key}_{value}") };
        if level.descriptors.contains_key(&composite) {
            continue;
        }
        *next += 1;
        let limit = (rng.below(3) > 0).then(|| Limit {
            requests: if rng.below(8) == 0 { 0 } else { *next },
            unlimited: rng.below(8) == 0,
            shadow: rng.below(4) == 0,
            name: (rng.below(3) == 0).then(|| rng.below(3)),
            replaces: if rng.below(4) == 0 { vec![rng.below(3)] } else { Vec::new() },
        });
        let below = if depth < 2 { grow(rng, depth + 1, next) } else { Level::default() };
        let wild = value.ends_with('*');
        let shared = wild && rng.below(2) == 0;
        if wild {
            level.wildcards.push(composite.clone());
        }
        level.order.push(composite.clone());
        level.descriptors.insert(composite, Descriptor { key, value, limit, shared, below });
    }
    level
}

/// Removes `replaces` entries with names that do not exist, or with the descriptor's own name.
fn prune(level: &mut Level, names: &HashSet<usize>) {
    for descriptor in level.descriptors.values_mut() {
        if let Some(limit) = &mut descriptor.limit {
            let own = limit.name;
            limit.replaces.retain(|name| names.contains(name) && Some(*name) != own);
        }
        prune(&mut descriptor.below, names);
    }
}

fn names(level: &Level, found: &mut HashSet<usize>) {
    for descriptor in level.descriptors.values() {
        found.extend(descriptor.limit.as_ref().and_then(|limit| limit.name));
        names(&descriptor.below, found);
    }
}

fn write(level: &Level, indent: usize, text: &mut String) {
    for composite in &level.order {
        let Descriptor { key, value, limit, shared, below } = &level.descriptors[composite];
        let pad = " ".repeat(indent);
        writeln!(text, "{pad}- key: {key}\n{pad}  value: \"{value}\"\n{pad}  share_threshold: {shared}")
            .unwrap();
        if let Some(Limit { requests, unlimited, shadow, name, replaces }) = limit {
            let what = if *unlimited {
                "unlimited: true".into()
            } else {
                format!("unit: hour, requests_per_unit: {requests}")
            };
            let name = name.map_or(String::new(), |name| format!(", name: n{name}"));
            let replaces: Vec<String> = replaces.iter().map(|name| format!("{{ name: n{name} }}")).collect();
            let replaces = replaces.join(", ");
            writeln!(
                text,
                "{pad}  shadow_mode: {shadow}\n{pad}  rate_limit: {{ {what}{name}, replaces: [{replaces}] }}"
            )
            .unwrap();
        }
        if !below.order.is_empty() {
            writeln!(text, "{pad}  descriptors:").unwrap();
            write(below, indent + 2, text);
        }
    }
}

/// Reference walk: returns the limit that it finds, and its key.
fn found<'t>(root: &'t Level, entries: &Entries) -> Option<(&'t Limit, String)> {
    let (mut level, mut counter) = (root, String::new());
    for (i, (key, value)) in entries.iter().enumerate() {
        let composite = format!("{key}_{value}");
        let mut shared = None;
        let mut next = level.descriptors.get(&composite);
        if next.is_none() {
            let wildcard =
                level.wildcards.iter().find(|wild| composite.starts_with(wild.trim_end_matches('*')));
            next = wildcard.and_then(|wild| level.descriptors.get(wild));
            shared = next.filter(|next| next.shared).map(|next| next.value);
        }
        let next = next.or_else(|| level.descriptors.get(*key))?;
        write!(counter, "{key}_{}_", shared.unwrap_or(value)).unwrap();
        if i == entries.len() - 1 {
            return next.limit.as_ref().map(|limit| (limit, counter));
        }
        if next.below.order.is_empty() {
            return None;
        }
        level = &next.below;
    }
    None
}

#[tokio::test]
async fn random_trees_agree_with_the_reference_walk() {
    let mut seen: HashMap<String, usize> = HashMap::new();
    for seed in 1..=400 {
        let mut rng = Rng(0x9E37_79B9_7F4A_7C15u64.wrapping_mul(seed));
        let mut tree = grow(&mut rng, 0, &mut 0);
        let mut rule_names = HashSet::new();
        names(&tree, &mut rule_names);
        prune(&mut tree, &rule_names);
        let mut text = "domain: d\ndescriptors:\n".to_owned();
        write(&tree, 2, &mut text);
        let limiter = limiter(&one(&text));
        // Requests share a counter in envoyproxy/ratelimit if and only if they share a key in Slidegate.
        let (mut keys_by_counter, mut counters_by_key) = (HashMap::new(), HashMap::new());
        for _ in 0..40 {
            let descriptors: Vec<Entries> = (0..1 + rng.below(3))
                .map(|_| {
                    let depth = 1 + rng.below(4);
                    KEYS[..depth].iter().map(|keys| (rng.one_of(keys), rng.one_of(&SENT))).collect()
                })
                .collect();
            let limits: Vec<_> = descriptors.iter().map(|entries| found(&tree, entries)).collect();
            let replaced: HashSet<usize> =
                limits.iter().flatten().flat_map(|(limit, _)| limit.replaces.iter().copied()).collect();
            let expected: Vec<String> = limits
                .iter()
                .map(|limit| match limit {
                    Some((limit, _)) if limit.unlimited => "-".to_owned(),
                    Some((limit, _)) if limit.name.is_some_and(|name| replaced.contains(&name)) => {
                        "-".to_owned()
                    }
                    Some((Limit { requests: 0, shadow, .. }, _)) => {
                        if *shadow {
                            "-".to_owned()
                        } else {
                            "blocked".to_owned()
                        }
                    }
                    Some((limit, _)) => {
                        format!("{}/1h{}", limit.requests, if limit.shadow { " shadow" } else { "" })
                    }
                    None => "-".to_owned(),
                })
                .collect();
            let decisions = acquire(&limiter, "d", &descriptors).await;
            let blocked = expected.iter().any(|expected| expected == "blocked");
            for (n, (decision, expected)) in decisions.iter().zip(&expected).enumerate() {
                if blocked && expected != "blocked" {
                    continue;
                }
                assert_eq!(summary(decision), *expected, "{:?}\n{text}", descriptors[n]);
                let kind = expected.trim_start_matches(|c: char| c.is_ascii_digit());
                *seen.entry(kind.to_owned()).or_default() += 1;
                if let (Some(limit), Some((_, counter)), false) =
                    (decision.limits().next(), &limits[n], blocked)
                {
                    let key = limit.key().as_str().to_owned();
                    assert_eq!(
                        keys_by_counter.entry(counter.clone()).or_insert_with(|| key.clone()),
                        &key,
                        "{text}"
                    );
                    assert_eq!(
                        counters_by_key.entry(key).or_insert_with(|| counter.clone()),
                        counter,
                        "{text}"
                    );
                }
            }
        }
    }
    eprintln!("{seen:?}");
    for kind in ["-", "blocked", "/1h", "/1h shadow"] {
        assert!(seen.get(kind).is_some_and(|n| *n > 200), "{kind} in {seen:?}");
    }
}

// --- Mistakes, names and commands. ---

/// Asserts the exact messages for a file.
const BROKEN: &[(&str, &str)] = &[
    ("descriptors: []", "limits.yaml:1:1: the file needs `domain`"),
    ("domain: \"\"", "limits.yaml:1:9: domain must not be empty, nor end in `*`"),
    ("domain: d\nlimits: []", "limits.yaml:2:1: unknown field `limits` in the file: the fields are `domain`, `descriptors`"),
    (
        "domain: d
descriptors:
  - { value: x }
  - { key: \"a b\" }
  - { key: a, quota_mode: true }
  - { key: a, value: x, share_threshold: true }
  - { key: a }",
        "limits.yaml:3:5: a descriptor needs `key`
limits.yaml:4:12: an attribute name must be 1 to 64 letters, digits or any of `_-.`
limits.yaml:5:15: unknown field `quota_mode` in a descriptor: the fields are `key`, `value`, `rate_limit`, `descriptors`, `shadow_mode`, `detailed_metric`, `value_to_metric`, `share_threshold`
limits.yaml:6:5: share_threshold needs a value that ends in `*`
limits.yaml:7:5: another descriptor at this level is `a` too",
    ),
    (
        "domain: d
descriptors:
  - { key: a, rate_limit: { unit: fortnight, requests_per_unit: -1 } }
  - { key: b, rate_limit: { requests_per_unit: 5 } }
  - { key: c, rate_limit: { unit: day, unit_multiplier: 2 } }
  - { key: d, rate_limit: { unlimited: true, unit: day } }
  - { key: e, rate_limit: { unlimited: true, name: x, replaces: [{ name: x }, {}, 5] } }",
        "limits.yaml:3:35: unit must be one of second, minute, hour, day, week, month, year, not \"fortnight\"
limits.yaml:3:65: requests_per_unit must be a whole number, not -1
limits.yaml:4:27: rate_limit needs `unit`
limits.yaml:5:27: rate_limit needs `requests_per_unit`
limits.yaml:5:40: unknown field `unit_multiplier` in rate_limit: the fields are `unit`, `requests_per_unit`, `unlimited`, `name`, `replaces`
limits.yaml:6:52: `unit` cannot be combined with `unlimited: true`
limits.yaml:7:74: `x` cannot replace itself
limits.yaml:7:79: an entry of `replaces` needs `name`
limits.yaml:7:83: an entry of `replaces` must be a mapping, not 5",
    ),
    (
        r#"domain: d
descriptors:
  - { key: a, value: "\e", rate_limit: { unit: "a\nb", requests_per_unit: 1 } }
  - { key: a, value: "\e" }"#,
        r#"limits.yaml:3:48: unit must be one of second, minute, hour, day, week, month, year, not "a\nb"
limits.yaml:4:5: another descriptor at this level is `a_\u{1b}` too"#,
    ),
    (
        "domain: d
descriptors:
  - { key: a, rate_limit: { unlimited: true, replaces: [{ name: x }] } }",
        "limits.yaml:3:65: no rate_limit of this domain is named `x`",
    ),
    (
        "domain: d
descriptors:
  - { key: a, descriptors: [{ key: b, rate_limit: { unlimited: true } }] }
  - { key: b, descriptors: [{ key: a, rate_limit: { unlimited: true } }] }",
        "limits.yaml:4:29: [a, b] and [b, a] have the same attributes, which have no order: keep one of them",
    ),
];

#[test]
fn every_mistake_has_its_exact_message() {
    for (text, message) in BROKEN {
        let mistakes = translate(&one(text)).map(|rules| rules.len()).expect_err(text);
        assert_eq!(mistakes.join("\n"), *message, "{text}");
    }
    let file = |name: &str| (name.to_owned(), "domain: d".to_owned());
    let mistakes = translate(&[file("a.yaml"), file("b.yaml")]).map(|rules| rules.len()).unwrap_err();
    assert_eq!(mistakes, ["b.yaml:1:9: domain `d` is already defined in a.yaml"]);
}

const SHOP: &str = "domain: shop
descriptors:
  - { key: path, value: /cart, rate_limit: { unit: minute, requests_per_unit: 3 } }
  - { key: path, value: \"/static/*\" }
  - { key: path, rate_limit: { unit: second, requests_per_unit: 50 } }
  - key: user
    value: staff
    descriptors: [{ key: path, value: /admin, rate_limit: { unlimited: true } }]
  - key: user
    descriptors: [{ key: path, rate_limit: { unit: hour, requests_per_unit: 1000 } }]
  - { key: ip, value: 6.6.6.6, rate_limit: { unit: day, requests_per_unit: 0 } }";

#[test]
fn imported_file_is_readable_and_equivalent() {
    let text = import(&one(SHOP)).unwrap();
    assert_eq!(
        text,
        r#"unmatched: allow
rules:
  - { name: shop/path_-cart-b26ea86e, group: shop, match: { domain: shop, path: /cart }, only: true, limit: 3, window: 1m }
  - { name: shop/path_-static--//none-db817ef7, group: shop, match: { domain: shop, path: "/static/*" }, only: true, unlimited: true }
  - { name: shop/path, group: shop, match: { domain: shop }, key: [path], only: true, limit: 50, window: 1s }
  - { name: shop/user_staff/path_-admin-52f087a5, group: shop, match: { domain: shop, path: /admin, user: staff }, only: true, unlimited: true }
  - { name: shop/user_staff/path//none, group: shop, match: { domain: shop, path: "*", user: staff }, only: true, unlimited: true }
  - { name: shop/user/path, group: shop, match: { domain: shop }, key: [user, path], only: true, limit: 1000, window: 1h }
  - { name: shop/ip_6.6.6.6, group: shop, match: { domain: shop, ip: "6.6.6.6" }, only: true, blocked: true }
"#,
    );
    let translated = translate(&one(SHOP)).unwrap();
    let read = Rules::from_yaml(&text).unwrap();
    let files = |rules: &Rules| {
        serde_json::to_string(&rules.iter().map(slidegate::rules::RuleFile::from).collect::<Vec<_>>())
    };
    assert_eq!(files(&read).unwrap(), files(&Rules::new(translated).unwrap()).unwrap());
}

#[test]
fn import_without_limits_is_a_valid_file() {
    let text = import(&one("domain: d")).unwrap();
    assert_eq!(text, "unmatched: allow\nrules: []\n");
    assert_eq!(Rules::from_yaml(&text).unwrap(), Rules::new([]).unwrap().with_unmatched(Unmatched::Allow));
}

/// Counts belong to names, so a name must not depend on its neighbours in the file.
#[test]
fn rule_names_are_valid_and_stable() {
    let long = "x".repeat(200);
    let odd = format!(
        "domain: _odd*domain?
descriptors:
  - {{ key: {}, value: \"{long}\", rate_limit: {{ unit: day, requests_per_unit: 1 }} }}
  - {{ key: a, value: \"ü/{{}}\", rate_limit: {{ unit: day, requests_per_unit: 1 }} }}
  - {{ key: a, value: \"ö/{{}}\", rate_limit: {{ unit: day, requests_per_unit: 1 }} }}",
        "k".repeat(64)
    );
    let rules = translate(&one(&odd)).unwrap();
    let names: HashSet<&str> = rules.iter().map(|rule| rule.name()).collect();
    assert_eq!(names.len(), 3);
    assert!(names.iter().all(|name| name.len() <= 64 && name.starts_with("x_odd-domain-")), "{names:?}");
    let alone: Vec<&str> =
        odd.lines().enumerate().filter(|(n, _)| ![2, 3].contains(n)).map(|(_, line)| line).collect();
    assert_eq!(translate(&one(&alone.join("\n"))).unwrap()[0].name(), rules[2].name());
}

#[test]
fn import_and_serve_commands() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("shop.yaml"), SHOP).unwrap();
    std::fs::write(
        path("other.yml"),
        "domain: other\ndescriptors: [{ key: k, rate_limit: { unit: day, requests_per_unit: 1 } }]",
    )
    .unwrap();
    std::fs::write(path("README.md"), "not a file of limits").unwrap();
    std::fs::create_dir(path("old.yaml")).unwrap();
    let run = |arguments: &[&str]| process::output(Command::new(BINARY).args(arguments));
    let shop = path("shop.yaml");
    let imported = run(&["import", "envoy", shop.to_str().unwrap()]);
    assert_eq!(
        (imported.status.code(), String::from_utf8(imported.stdout).unwrap()),
        (Some(0), import(&one(SHOP)).unwrap())
    );
    assert_eq!(run(&["import", "envoy", path("none.yaml").to_str().unwrap()]).status.code(), Some(2));

    let server = Server::start(&["--envoy-config", directory.path().to_str().unwrap()]);
    assert!(!server.greeting.contains("demo"), "{}", server.greeting);
    let post = |body: &str| server.post("/v1/acquire", body).status;
    let cart = r#"{ "attributes": { "domain": "shop", "path": "/cart" }, "permits": 2 }"#;
    assert_eq!((post(cart), post(cart)), (200, 429));
    assert_eq!(post(r#"{ "attributes": { "domain": "shop", "ip": "6.6.6.6" } }"#), 429);
    assert_eq!(post(r#"{ "attributes": { "domain": "shop", "path": "/static/x" }, "permits": 1000 }"#), 200);

    std::fs::write(path("bad.yaml"), "domain: shop\ndescriptors: 5").unwrap();
    let bad = run(&["serve", "--http", "127.0.0.1:0", "--envoy-config", directory.path().to_str().unwrap()]);
    assert_eq!(bad.status.code(), Some(2));
    let stderr = String::from_utf8(bad.stderr).unwrap();
    assert!(stderr.contains("bad.yaml:2:14: descriptors must be a list, not 5"), "{stderr}");
    let imported = run(&["import", "envoy", path("bad.yaml").to_str().unwrap()]);
    assert_eq!(imported.status.code(), Some(1));
}
