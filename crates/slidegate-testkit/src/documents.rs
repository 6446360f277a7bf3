//! Files of the repository that derive from declarations in the code.

use std::path::Path;

/// Compares a file of the repository with the text that it must have. With `SLIDEGATE_WRITE=1`, writes the text first.
#[track_caller]
pub fn compare(path: &str, expected: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    if std::env::var_os("SLIDEGATE_WRITE").is_some() {
        std::fs::write(&file, expected).unwrap();
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    let difference = found.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
    assert!(
        found == expected,
        "{path} is out of date: {difference:?}. Write it with\n\
         SLIDEGATE_WRITE=1 cargo nextest run --workspace --all-features -E 'test(/^reference::|reference_page/)'"
    );
}
