//! YAML output of rules, one per line, as a person would write them.

use slidegate::section::{Section, Shown};
use slidegate::{Rule, rules::RuleFile};

/// Fields that are written first; all others follow in alphabetical order.
const ORDER: [&str; 11] =
    ["name", "group", "match", "key", "only", "limit", "window", "unlimited", "blocked", "mode", "replaces"];

/// Returns a file with these rules. Like envoyproxy/ratelimit, it allows a descriptor that no rule matches.
pub(super) fn yaml(rules: &[Rule]) -> String {
    let mut text = String::from("unmatched: allow\n");
    text.push_str(if rules.is_empty() { "rules: []\n" } else { "rules:\n" });
    let section = RuleFile::describe();
    for rule in rules {
        let Shown::Map(mut fields) = section.without_defaults(RuleFile::show(&rule.into())) else { continue };
        let place = |name: &str| ORDER.iter().position(|first| *first == name).unwrap_or(ORDER.len());
        fields.sort_by(|(a, _), (b, _)| (place(a), a).cmp(&(place(b), b)));
        text.push_str(&format!("  - {}\n", Shown::Map(fields)));
    }
    text
}
