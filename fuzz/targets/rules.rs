//! Rules files: mistakes have messages; accepted rules keep their bounds, and are the same after printing and parsing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slidegate::Rules;
use slidegate_fuzz::{bounded, yaml};

fuzz_target!(|text: &str| {
    match bounded(text.len(), 64 << 20, 1 << 10, || Rules::from_yaml(text)) {
        Ok(rules) => yaml::rules(&rules),
        Err(error) => yaml::mistakes(text, &error),
    }
});
