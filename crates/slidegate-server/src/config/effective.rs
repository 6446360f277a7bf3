//! Effective settings and the origin of each value, for `slidegate config`.

use std::fmt::Write as _;

use slidegate::section::{Section, Setting, Shown};
use slidegate::yaml::Node;

use super::ConfigSettings;
use super::topology::KINDS;

/// Width of a line before its comment.
const COMMENT_COLUMN: usize = 48;

/// Text in place of a secret.
const MASK: &str = "********";

/// Returns the settings as YAML, each with its origin as a comment. `file` is the name of the file, and `given` its content with
/// the values of variables and flags.
pub(super) fn yaml(settings: &ConfigSettings, given: &Node, file: &str) -> String {
    let (section, shown) = (ConfigSettings::describe(), ConfigSettings::show(settings));
    let mut yaml = String::new();
    let mut open: Vec<&str> = Vec::new();
    for setting in section.settings() {
        let Some((value, origin)) = value_and_origin(&setting, given, &shown, file) else { continue };
        let Some((name, sections)) = setting.path.split_last() else { continue };
        let known = open.iter().zip(sections).take_while(|(open, section)| open == section).count();
        for (depth, section) in sections.iter().enumerate().skip(known) {
            let _ = writeln!(yaml, "{}{section}:", "  ".repeat(depth));
        }
        open = sections.to_vec();
        let line = format!("{}{name}: {value}", "  ".repeat(sections.len()));
        let _ = writeln!(yaml, "{line:<COMMENT_COLUMN$} # {origin}");
    }
    yaml
}

/// Returns the value of a setting as YAML on one line, and its origin. None if it is not set and has no default.
fn value_and_origin(
    setting: &Setting<'_>,
    given: &Node,
    shown: &Shown,
    file: &str,
) -> Option<(String, String)> {
    let path = &setting.path;
    let Some(node) = find(given, path) else {
        let elsewhere = |kind: &&str| find(given, &["redis", *kind]).is_some();
        if path == &["redis", "url"] && KINDS.iter().any(elsewhere) {
            return None;
        }
        // Written as a value of the file would be.
        let default = Node::parse(setting.default?).ok()?;
        return Some((Shown::from(&default).to_string(), "default".to_owned()));
    };
    let origin = node.source().map_or_else(|| format!("{file}:{}", node.line()), str::to_owned);
    let value = match setting.terms.secret {
        true => mask(Shown::from(node)),
        // The checked value, unless the section does not show it.
        false => find_shown(shown, path).cloned().unwrap_or_else(|| Shown::from(node)),
    };
    Some((value.to_string(), origin))
}

fn find<'n>(node: &'n Node, path: &[&str]) -> Option<&'n Node> {
    path.iter().try_fold(node, |node, name| node.field(name)).filter(|node| !node.is_null())
}

fn find_shown<'s>(shown: &'s Shown, path: &[&str]) -> Option<&'s Shown> {
    path.iter().try_fold(shown, |shown, name| {
        let Shown::Map(fields) = shown else { return None };
        fields.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    })
}

/// Replaces passwords: in a URL only the password, otherwise the whole text.
fn mask(shown: Shown) -> Shown {
    match shown {
        Shown::List(items) => Shown::List(items.into_iter().map(mask).collect()),
        Shown::Text(text) => Shown::Text(mask_text(&text)),
        _ => Shown::Text(MASK.to_owned()),
    }
}

fn mask_text(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        // The words for a store are not secrets.
        return if ["memory", "redis"].contains(&text) { text.to_owned() } else { MASK.to_owned() };
    };
    // A password may contain `@` and `/` by mistake, so the last `@` ends it.
    match rest.rsplit_once('@') {
        None => text.to_owned(),
        Some((user, host)) => match user.split_once(':') {
            Some((user, _)) => format!("{scheme}://{user}:{MASK}@{host}"),
            None => format!("{scheme}://{user}@{host}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_masked() {
        for (text, masked) in [
            ("redis://host:6379", "redis://host:6379"),
            ("redis://user@host", "redis://user@host"),
            ("redis://:hush@host", "redis://:********@host"),
            ("rediss://user:hu@sh/x@host:1/2", "rediss://user:********@host:1/2"),
            ("hush", "********"),
            ("memory", "memory"),
        ] {
            assert_eq!(mask_text(text), masked, "{text}");
        }
    }
}
