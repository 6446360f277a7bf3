//! Comparison of a translated page with its original: `PAGE.zh-CN.md` is the Chinese translation of `PAGE.md`.

use std::collections::BTreeSet;

use super::page::{self, Block};

/// Returns the original of a translated page, or `None` if the page is no translation.
pub(super) fn original(page: &str) -> Option<String> {
    page.strip_suffix(".zh-CN.md").map(|start| format!("{start}.md"))
}

/// Returns the differences of a translation from its original, apart from its words. Each page is a path and a text.
pub(super) fn differences(original: (&str, &str), translation: (&str, &str)) -> Vec<String> {
    let (original_page, original_text) = original;
    let (page, text) = translation;
    let mut found: Vec<String> = block_difference(original, translation).into_iter().collect();
    for level in 1..=6 {
        let (expected, present) = (headings(original_text, level), headings(text, level));
        if present != expected {
            found.push(format!(
                "{page}: {present} headings of level {level}, but {original_page} has {expected}"
            ));
        }
    }
    let (expected, present) = (table_rows(original_text), table_rows(text));
    if present != expected {
        found.push(format!("{page}: {present} table rows, but {original_page} has {expected}"));
    }
    let (expected, present) = (names(original_text), names(text));
    for name in expected.difference(&present) {
        found.push(format!("{page}: `{name}` is missing, but {original_page} has it"));
    }
    for name in present.difference(&expected) {
        found.push(format!("{page}: `{name}` is not in {original_page}"));
    }
    for ((from, from_text), (to, _)) in [(original, translation), (translation, original)] {
        let file = to.rsplit('/').next().unwrap_or(to);
        if !from_text.contains(&format!("]({file})")) {
            found.push(format!("{from}: no link to {file}"));
        }
    }
    found
}

/// States the first difference of the fenced blocks.
fn block_difference(original: (&str, &str), translation: (&str, &str)) -> Option<String> {
    let expected = page::blocks(original.0, original.1);
    let present = page::blocks(translation.0, translation.1);
    for n in 0..expected.len().max(present.len()) {
        let number = n + 1;
        match (expected.get(n), present.get(n)) {
            (Some(expected), Some(present)) => {
                if let Some(difference) = difference(expected, present) {
                    let (place, original) = (present.place(), expected.place());
                    return Some(format!("{place}: block {number} differs from {original}: {difference}"));
                }
            }
            (Some(expected), None) => {
                return Some(format!("{}: block {number} of {} is missing", translation.0, expected.place()));
            }
            (None, Some(present)) => {
                return Some(format!("{}: block {number} is not in {}", present.place(), original.0));
            }
            (None, None) => {}
        }
    }
    None
}

fn difference(expected: &Block, present: &Block) -> Option<String> {
    if (&expected.language, &expected.words) != (&present.language, &present.words) {
        return Some("another info string".into());
    }
    let (mut expected, mut present) = (expected.text.lines(), present.text.lines());
    loop {
        match (expected.next(), present.next()) {
            (None, None) => return None,
            (Some(line), None) => return Some(format!("`{line}` is missing")),
            (None, Some(line)) => return Some(format!("`{line}` is added")),
            (Some(expected), Some(present)) if expected != present => {
                return Some(format!("`{present}` instead of `{expected}`"));
            }
            _ => {}
        }
    }
}

/// Lines outside of fenced blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

fn headings(text: &str, level: usize) -> usize {
    let start = "#".repeat(level) + " ";
    prose(text).filter(|line| line.starts_with(&start)).count()
}

fn table_rows(text: &str) -> usize {
    prose(text).filter(|line| line.trim_start().starts_with('|')).count()
}

/// Texts in backticks: fields, commands, values.
fn names(text: &str) -> BTreeSet<&str> {
    prose(text).flat_map(|line| line.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn every_difference_is_named() {
    let original = "# A\n\n[zh](a.zh-CN.md)\n\nThe field `limit`.\n\n```yaml rule\nlimit: 1\nwindow: 1s\n```\n\n## B\n\n\
                    | x |\n\n```sh\n# C\n```\n";
    let compare =
        |translation: &str| differences(("docs/a.md", original), ("docs/a.zh-CN.md", translation)).join("; ");
    let same = original.replace("The field", "字段").replace("a.zh-CN.md", "a.md").replace("## B", "## 乙");
    assert_eq!(compare(&same), "");
    let cases = [
        (
            "limit: 1\n",
            "limit: 2\n",
            "docs/a.zh-CN.md:8: block 1 differs from docs/a.md:8: `limit: 2` instead of `limit: 1`",
        ),
        ("window: 1s\n", "", "docs/a.zh-CN.md:8: block 1 differs from docs/a.md:8: `window: 1s` is missing"),
        ("1s\n", "1s\nb\n", "docs/a.zh-CN.md:8: block 1 differs from docs/a.md:8: `b` is added"),
        ("yaml rule", "yaml", "docs/a.zh-CN.md:8: block 1 differs from docs/a.md:8: another info string"),
        ("```sh\n# C\n```\n", "", "docs/a.zh-CN.md: block 2 of docs/a.md:17 is missing"),
        ("# C\n```\n", "# C\n```\n\n```\nx\n```\n", "docs/a.zh-CN.md:21: block 3 is not in docs/a.md"),
        ("## 乙", "乙", "docs/a.zh-CN.md: 0 headings of level 2, but docs/a.md has 1"),
        ("| x |", "", "docs/a.zh-CN.md: 0 table rows, but docs/a.md has 1"),
        ("`limit`", "上限", "docs/a.zh-CN.md: `limit` is missing, but docs/a.md has it"),
        ("字段", "`count`", "docs/a.zh-CN.md: `count` is not in docs/a.md"),
        ("[zh](a.md)", "", "docs/a.zh-CN.md: no link to a.md"),
    ];
    for (from, to, expected) in cases {
        assert_eq!(compare(&same.replacen(from, to, 1)), expected);
    }
}
