//! Rules files: mistakes are told; what is accepted keeps its bounds, and shown and read again is the same.
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
