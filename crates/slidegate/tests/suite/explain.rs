//! Tests explanations of rule matching, which must agree with the checks of a decision.

use std::time::Duration;

use proptest::prelude::*;
use slidegate::{MismatchReason, Mode, Quota, Request, Rule, RuleMatch, Rules};

const NAMES: [&str; 4] = ["api", "ip", "user", "plan"];
const VALUES: [&str; 4] = ["/a", "/a/b", "x", "y"];
const PATTERNS: [&str; 5] = ["/a", "/a/b", "/a*", "x", "*"];

/// Settings of a random rule, as numbers.
#[derive(Clone, Debug)]
struct RuleSpec {
    conditions: Vec<(usize, Vec<usize>)>,
    key: Vec<usize>,
    kind: u8,
    mode: u8,
    group: Option<u8>,
    only: bool,
    replaces: Option<usize>,
}

fn rule_spec() -> impl Strategy<Value = RuleSpec> {
    let conditions = prop::collection::vec((0..4usize, prop::collection::vec(0..5usize, 1..3)), 0..3);
    let key = prop::sample::subsequence(vec![0, 1, 2, 3], 0..3);
    let replaces = prop::option::weighted(0.3, 0..8usize);
    let group = prop::option::weighted(0.4, 0..2u8);
    (conditions, key, 0..8u8, 0..6u8, group, prop::bool::weighted(0.2), replaces).prop_map(
        |(conditions, key, kind, mode, group, only, replaces)| RuleSpec {
            conditions,
            key,
            kind,
            mode,
            group,
            only,
            replaces,
        },
    )
}

fn rule(spec: &RuleSpec, number: usize, of: usize) -> Rule {
    let name = format!("r{number}");
    let mut rule = match spec.kind {
        0 => Rule::unlimited(&name).unwrap(),
        1 => Rule::blocked(&name).unwrap(),
        _ => Rule::new(&name, Quota::new(5, Duration::from_secs(1)).unwrap()).unwrap(),
    };
    for (attribute, patterns) in &spec.conditions {
        rule = rule.when(NAMES[*attribute], patterns.iter().map(|i| PATTERNS[*i])).unwrap();
    }
    rule = rule.per(spec.key.iter().map(|i| NAMES[*i])).unwrap();
    rule = rule.mode(match spec.mode {
        0 => Mode::Off,
        1 => Mode::Shadow,
        _ => Mode::Enforce,
    });
    if let Some(group) = spec.group {
        rule = rule.group(&format!("g{group}")).unwrap();
    }
    if spec.only {
        rule = rule.only();
    }
    if let Some(other) = spec.replaces.map(|other| other % of).filter(|other| *other != number) {
        rule = rule.replaces([format!("r{other}").as_str()]).unwrap();
    }
    rule
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Explained checks are the checks of a decision, and rules that are explained as missed are not checked.
    #[test]
    fn explanation_agrees_with_the_checks(
        all in prop::collection::vec(rule_spec(), 0..8),
        values in prop::collection::vec(prop::option::weighted(0.6, 0..4usize), 4),
    ) {
        let of = all.len();
        let rules = Rules::new(all.iter().enumerate().map(|(n, spec)| rule(spec, n, of))).unwrap();
        let attributes = NAMES.iter().zip(&values).filter_map(|(name, value)| Some((*name, VALUES[(*value)?])));
        let request = Request::new(attributes);
        let request_checks = rules.checks_for(&request).unwrap();
        let explained = rules.explain(&request).unwrap();
        prop_assert_eq!(explained.len(), of);
        let mut checks = request_checks.as_slice().iter();
        for explanation in &explained {
            let applies = match &explanation.rule_match {
                RuleMatch::Checked(check) => {
                    let expected = checks.next().unwrap();
                    prop_assert_eq!(
                        (&check.key, check.quota, check.cost, check.enforced, check.rule),
                        (&expected.key, expected.quota, expected.cost, expected.enforced, expected.rule)
                    );
                    true
                }
                RuleMatch::Blocked => {
                    if explanation.rule.in_mode() == Mode::Enforce {
                        prop_assert_eq!(checks.next().unwrap().key.rule(), explanation.rule.name());
                    }
                    true
                }
                RuleMatch::Unlimited | RuleMatch::Preceded { .. } | RuleMatch::Replaced { .. } => true,
                RuleMatch::Missed(_) => false,
            };
            // A single rule is checked if and only if it matches.
            let spec = &all[explained.iter().position(|other| std::ptr::eq(other, explanation)).unwrap()];
            let limited = RuleSpec { kind: 2, group: None, replaces: None, ..spec.clone() };
            let alone = Rules::new([rule(&limited, 0, 1)]).unwrap().checks_for(&request).unwrap();
            prop_assert_eq!(applies, !alone.as_slice().is_empty(), "{:?}", explanation);
        }
        prop_assert!(checks.next().is_none(), "every check is explained");
    }
}

const RULES: &str = "
rules:
  - { name: off, mode: off, limit: 1, window: 1s }
  - { name: api, match: { api: [/login, /v1/*] }, limit: 1, window: 1s }
  - { name: plan, match: { plan: free }, limit: 1, window: 1s }
  - { name: ip, key: [user, ip], limit: 1, window: 1s }
  - { name: only, match: { api: '*' }, only: true, limit: 1, window: 1s }
  - { name: staff, group: g, match: { user: bob }, unlimited: true, replaces: [last] }
  - { name: others, group: g, key: [user], limit: 1, window: 1s }
  - { name: closed, blocked: true }
  - { name: last, limit: 1, window: 1s }
";

#[test]
fn every_mismatch_reason_has_a_text() {
    let rules = Rules::from_yaml(RULES).unwrap();
    let request = Request::new([("api", "/x"), ("user", "bob")]);
    let texts: Vec<(&str, String)> = rules
        .explain(&request)
        .unwrap()
        .into_iter()
        .map(|explanation| {
            let text = match explanation.rule_match {
                RuleMatch::Checked(check) => format!("checks {}", check.key),
                RuleMatch::Unlimited => "unlimited".to_owned(),
                RuleMatch::Blocked => "blocked".to_owned(),
                RuleMatch::Missed(miss) => miss.to_string(),
                RuleMatch::Preceded { group, by } => format!("{by} is first of {group}"),
                RuleMatch::Replaced { by } => format!("replaced by {by}"),
            };
            (explanation.rule.name(), text)
        })
        .collect();
    let expected = [
        ("off", "it is off"),
        ("api", "`match` needs `api` to be /login or /v1/*, but it is /x"),
        ("plan", "`match` needs `plan` to be free, but the request has none"),
        ("ip", "the key needs `ip`, but the request has none"),
        ("only", "`only` excludes requests with `user`"),
        ("staff", "unlimited"),
        ("others", "staff is first of g"),
        ("closed", "blocked"),
        ("last", "replaced by staff"),
    ];
    assert_eq!(texts, expected.map(|(rule, text)| (rule, text.to_owned())));
}

#[test]
fn ad_hoc_request_matches_no_rule() {
    let rules = Rules::from_yaml(RULES).unwrap();
    let request = Request::resource("r").limit(5);
    let explained = rules.explain(&request).unwrap();
    let [only] = &explained[..] else { panic!("{explained:?}") };
    let RuleMatch::Checked(check) = &only.rule_match else { panic!("{only:?}") };
    assert_eq!((only.rule.name(), check.key.as_str()), ("ad-hoc", "ad-hoc:resource=r:window=1m"));
    let bad = Request::new([("api", "")]);
    assert_eq!(rules.explain(&bad).unwrap_err(), rules.checks_for(&bad).unwrap_err());
    let bad = Request::resource("r").limit(0);
    assert_eq!(rules.explain(&bad).unwrap_err(), rules.checks_for(&bad).unwrap_err());
    assert!(rules.explain(&Request::new([]).permits(u64::MAX)).is_err());
    let unknown = Rules::unknown().unwrap();
    assert!(unknown.explain(&Request::new([])).unwrap_err().is_unavailable());
    assert_eq!(MismatchReason::Off.to_string(), "it is off");
}
