//! Text of the rules within a configuration file, with its comments.

use slidegate::rules::RulesFile;
use slidegate::section::Section;

/// Returns the part of a file that has the rules: their top-level fields, with the comments inside and directly above
/// them. Returns `None` if the file is not in block style, or has no such part.
///
/// Other fields are left out: they may contain secrets, such as the password of Redis.
pub(crate) fn rules_part(text: &str) -> Option<String> {
    let names = RulesFile::names();
    let mut part = String::new();
    // Comments and empty lines since the last line with content.
    let mut pending: Vec<&str> = Vec::new();
    // `Some(true)` in a field of the rules, `Some(false)` in another field, `None` before the first field.
    let mut inside: Option<bool> = None;
    for line in text.lines() {
        let content = line.trim();
        let first = line.chars().next().unwrap_or(' ');
        if content.is_empty() || content.starts_with('#') {
            pending.push(line);
            continue;
        }
        if content == "---" && inside.is_none() {
            continue;
        }
        let continues = first.is_whitespace() || matches!(first, '-' | '[' | ']' | '{' | '}');
        if !continues {
            let (name, _) = line.split_once(':')?;
            let belongs = names.contains(&name.trim_matches(['"', '\'']));
            if inside == Some(false) || !belongs {
                // Comments above an empty line belong to the field before.
                let last = pending.iter().rposition(|line| line.trim().is_empty());
                pending.drain(..last.map_or(0, |last| last + 1));
            }
            inside = Some(belongs);
        }
        if inside? {
            for line in pending.drain(..).chain([line]) {
                part.push_str(line);
                part.push('\n');
            }
        }
        pending.clear();
    }
    if inside? {
        // Comments at the end of the file.
        part.extend(pending.into_iter().flat_map(|line| [line, "\n"]));
    }
    (!part.is_empty()).then_some(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_comments_of_the_rules_and_no_other_field() {
        let file = "# A shop.\n\n# Limits.\nrules:\n  # Login.\n  - name: a   # first\n    limit: 1\n    window: 1s\n\n\
                    # Second.\n- { name: b, limit: 1, window: 1s }\n# Old: redis://:secret@host\nredis:\n  url: redis://:secret@host\n\
                    # Also old: secret\n\n# Unmatched requests.\nunmatched: deny\n# secret\nlisten: {}\n";
        let expected = "# A shop.\n\n# Limits.\nrules:\n  # Login.\n  - name: a   # first\n    limit: 1\n    window: 1s\n\n\
                        # Second.\n- { name: b, limit: 1, window: 1s }\n# Unmatched requests.\nunmatched: deny\n";
        assert_eq!(rules_part(file).as_deref(), Some(expected));
    }

    #[test]
    fn knows_no_part_in_other_styles() {
        for text in ["{ rules: [] }", "[]", "redis: { url: x }", "", "? rules\n: []", "text"] {
            assert_eq!(rules_part(text), None, "{text}");
        }
        let part = "rules: [\n{ name: a, limit: 1, window: 1s }\n]\n";
        assert_eq!(rules_part(part).as_deref(), Some(part));
        assert_eq!(rules_part("---\nrules: []").as_deref(), Some("rules: []\n"));
    }
}
