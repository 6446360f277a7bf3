//! Tests that no dependency needs a newer Rust than the declared `rust-version`.

use std::process::Command;

use serde_json::Value;
use slidegate_testkit::process;

fn version(text: &str) -> Vec<u64> {
    let mut parts: Vec<u64> = text.split('.').map(|part| part.parse().unwrap()).collect();
    parts.resize(3, 0);
    parts
}

#[test]
fn no_dependency_needs_a_newer_rust() {
    let output = process::output(Command::new(env!("CARGO")).args([
        "metadata",
        "--format-version",
        "1",
        "--locked",
        "--manifest-path",
        concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
    ]));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let msrv = version(env!("CARGO_PKG_RUST_VERSION"));
    let packages = metadata["packages"].as_array().unwrap();
    let newer: Vec<&Value> = packages
        .iter()
        .filter(|package| package["rust_version"].as_str().is_some_and(|needs| version(needs) > msrv))
        .map(|package| &package["id"])
        .collect();
    assert!(packages.len() > 50);
    assert!(newer.is_empty(), "{newer:?}");
}
