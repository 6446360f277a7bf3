//! Files of envoyproxy/ratelimit, several between lines of `===`: mistakes have messages, and `import` prints the rules
//! that `translate` returns.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slidegate::{Rules, Unmatched};
use slidegate_fuzz::{assert_plain_line, bounded, yaml};
use slidegate_server::envoy::{NamedText, import, translate};

fuzz_target!(|text: &str| {
    let named = |(n, text): (usize, &str)| (format!("{n}.yaml"), text.to_owned());
    let files: Vec<NamedText> = text.split("\n===\n").enumerate().map(named).collect();
    let rules = match bounded(text.len(), 64 << 20, 4 << 10, || translate(&files)) {
        Ok(rules) => rules,
        Err(mistakes) => {
            assert!(!mistakes.is_empty());
            return mistakes.iter().for_each(|mistake| assert_plain_line(mistake));
        }
    };
    let rules = Rules::new(rules).map(|rules| rules.with_unmatched(Unmatched::Allow));
    match (import(&files), rules) {
        (Ok(printed), Ok(rules)) => {
            yaml::rules(&rules);
            let read = Rules::from_yaml(&printed);
            yaml::same(&read.unwrap_or_else(|error| panic!("{error} in {printed}")), &rules);
        }
        (Err(mistakes), Err(_)) => mistakes.iter().for_each(|mistake| assert_plain_line(mistake)),
        (printed, rules) => panic!("{printed:?} of {rules:?}"),
    }
});
