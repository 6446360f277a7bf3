//! Configuration files: mistakes have messages, and accepted files keep their bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slidegate_fuzz::{bounded, yaml};
use slidegate_server::Config;

fuzz_target!(|text: &str| {
    match bounded(text.len(), 64 << 20, 1 << 10, || Config::parse(text)) {
        Ok(config) => yaml::rules(&config.rules),
        Err(error) => yaml::mistakes(text, &error),
    }
});
