//! Extension of rules about paths, so that they also match normalized paths.

use std::collections::HashMap;

use super::{Pattern, Rule, Rules};
use crate::common::path_spelling::PathSpelling;

impl Rules {
    /// Extends the rules to requests whose attribute `name` is a path in this spelling. A pattern or an override with another
    /// spelling, such as `/API/*`, then also matches the normalized path. The original pattern still matches, too.
    ///
    /// A prefix that ends in a slash, such as `/docs/*`, also matches `/docs` if the spelling strips trailing slashes.
    ///
    /// ```
    /// use slidegate::http::PathSpelling;
    /// use slidegate::{Request, Rules};
    /// let rules = Rules::from_yaml("rules: [{ name: api, match: { path: /API/* }, limit: 9, window: 1s }]")?;
    /// let rules = rules.with_paths("path", PathSpelling::merged());
    /// for path in ["/api/x", "/api", "/API/x"] {
    ///     assert_eq!(rules.checks_for(&Request::new([("path", path)]))?.as_slice().len(), 1);
    /// }
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    #[must_use]
    pub fn with_paths(mut self, name: &str, spelling: PathSpelling) -> Self {
        self.rules.iter_mut().for_each(|rule| rule.normalize_paths(name, spelling));
        self
    }
}

impl Rule {
    fn normalize_paths(&mut self, name: &str, spelling: PathSpelling) {
        for (index, (attribute, patterns)) in self.conditions.iter().enumerate() {
            if attribute == name {
                self.normalized_conditions.retain(|(known, _)| *known != index);
                let more: Vec<Pattern> =
                    patterns.iter().flat_map(|pattern| normalized_patterns(pattern, spelling)).collect();
                self.normalized_conditions.extend((!more.is_empty()).then_some((index, more)));
            }
        }
        let Some(index) = self.key.iter().position(|attribute| attribute == name) else { return };
        let more: HashMap<_, _> = self
            .overrides
            .iter()
            .filter_map(|(values, quota)| {
                let path = values.get(index).filter(|value| value.starts_with('/'))?;
                let mut values = values.clone();
                values[index] = spelling.path(path.as_bytes()).into_owned();
                (!self.overrides.contains_key(&values)).then_some((values, *quota))
            })
            .collect();
        let longest = more.keys().flatten().map(String::len).max().unwrap_or_default();
        self.longest_override = self.longest_override.max(longest);
        self.normalized_overrides = more;
    }
}

/// Returns the patterns that `pattern` needs in addition to match normalized paths; empty if it needs none.
fn normalized_patterns(pattern: &Pattern, spelling: PathSpelling) -> Vec<Pattern> {
    match pattern {
        Pattern::Is(text) if text.starts_with('/') => {
            let path = spelling.path(text.as_bytes());
            if path == *text { Vec::new() } else { vec![Pattern::Is(path.into_owned())] }
        }
        Pattern::StartsWith(prefix) if prefix.starts_with('/') => {
            let last = prefix.rsplit('/').next().unwrap_or_default();
            // Normalizing would remove this `.` or `..`, which may be the start of a name such as `.well-known`.
            if matches!(last, "." | "..") {
                return Vec::new();
            }
            let start = spelling.keep_trailing_slash().path(prefix.as_bytes());
            let whole = spelling.path(prefix.as_bytes());
            let mut patterns = Vec::new();
            // The prefix ends in parameters, which the spelling strips. The path before them is then complete, not a
            // prefix.
            let ends = last.contains(';') && !start.contains(';');
            if ends || whole != start {
                patterns.push(Pattern::Is(whole.into_owned()));
            }
            if !ends && start != *prefix {
                patterns.push(Pattern::StartsWith(start.into_owned()));
            }
            patterns
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_patterns_in_another_spelling() {
        let cases: [(&str, &[&str]); 12] = [
            ("/login", &[]),
            ("/Login/", &["/login"]),
            ("/login;a", &["/login"]),
            ("/api*", &[]),
            ("/api/*", &["/api"]),
            ("/API/*", &["/api", "/api/*"]),
            ("/API*", &["/api*"]),
            ("/a;b*", &["/a"]),
            ("/*", &[]),
            ("/.*", &[]),
            ("/.well-known/*", &["/.well-known"]),
            ("Login", &[]),
        ];
        for (text, expected) in cases {
            let more = normalized_patterns(&Pattern::new(text), PathSpelling::merged());
            assert_eq!(more.iter().map(Pattern::to_string).collect::<Vec<_>>(), expected, "{text}");
        }
        assert!(normalized_patterns(&Pattern::new("/Login/*"), PathSpelling::distinct()).is_empty());
    }
}
