//! Tests that every example runs to its end without an error.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Names of the files in `examples/`.
fn names() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut names: Vec<String> =
        files.map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// Compiled example: `cargo test` puts examples beside the folder of this binary.
fn program(name: &str) -> PathBuf {
    let binary = std::env::current_exe().unwrap();
    binary.parent().and_then(Path::parent).unwrap().join("examples").join(name)
}

/// Runs a compiled example to its end. Returns the lines that it prints.
pub(crate) fn lines(name: &str) -> Vec<String> {
    let program = program(name);
    let output = Command::new(&program).output().unwrap_or_else(|error| {
        panic!("{}: {error}; run `cargo build -p slidegate --all-features --examples`", program.display())
    });
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {errors}");
    assert!(!output.stdout.is_empty(), "{name} printed nothing: {errors}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn every_example_succeeds() {
    let names = names();
    assert!(names.contains(&"api_quota".to_owned()), "{names:?}");
    for name in names {
        lines(&name);
    }
}
