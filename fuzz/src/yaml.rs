//! Properties of configuration files that the targets assert, for valid and invalid files.

use slidegate::{bounds::{MAX_LIMIT, MAX_RULES, MAX_SLICES, MAX_WINDOW, MIN_WINDOW}, Algorithm, Error, Rules};
use slidegate_server::{Config, RedisConfig};
use slidegate_server::fuzzing::rules_json;

/// Asserts that every mistake has a place in the file, in order, and a message of one line.
#[track_caller]
pub fn mistakes(text: &str, error: &Error) {
    let problems = error.problems();
    assert!(!problems.is_empty(), "the file is rejected without a mistake");
    assert!(problems.is_sorted(), "mistakes are in the order of their lines");
    // A mistake may be after the last line, because a file may end too early, and YAML has several kinds of line ends.
    let lines = 2 + text.matches(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']).count() as u64;
    for problem in problems {
        crate::assert_plain_line(&problem.message);
        assert!((1..=lines).contains(&problem.line), "{problem} of {lines} lines");
        assert!(problem.column >= 1);
    }
}

/// Asserts that rules are within their bounds, and that printing and parsing gives the same rules.
#[track_caller]
pub fn rules(rules: &Rules) {
    assert!(rules.iter().count() <= MAX_RULES);
    for rule in rules.iter() {
        let quota = rule.quota();
        assert!((1..=MAX_LIMIT).contains(&quota.limit()) && (1..=MAX_LIMIT).contains(&quota.capacity()));
        assert!((MIN_WINDOW..=MAX_WINDOW).contains(&quota.window()));
        if let Algorithm::TimeSlice { slices } = quota.algorithm() {
            assert!((2..=MAX_SLICES).contains(&slices));
        }
        assert!(rule.tagged_by().is_none_or(|tag| rule.key().any(|name| name == tag)));
        assert!(rule.name().len() <= 64 && rule.name().bytes().all(|b| b.is_ascii_graphic()));
    }
    let shown = rules_json(rules);
    match Config::parse_rules(&shown, &RedisConfig::default()) {
        Ok(read) => same(&read, rules),
        Err(error) => panic!("{error} in what is shown: {shown}"),
    }
}

/// The rules are equal, except for the order of attributes in a `match`.
#[track_caller]
pub fn same(read: &Rules, rules: &Rules) {
    assert_eq!(rules_json(read), rules_json(rules));
    for (read, rule) in read.iter().zip(rules.iter()) {
        assert_eq!(read.quota(), rule.quota());
        assert!(read.key().eq(rule.key()) && read.tagged_by() == rule.tagged_by());
        assert!(read.stored_as() == rule.stored_as() && read.leased() == rule.leased());
    }
}
