//! Conversion of envoyproxy/ratelimit configuration into rules.
//!
//! A request of Envoy is a domain and descriptors, each a list of entries. A descriptor becomes one
//! [`slidegate::Request`] whose [`attributes`] are the domain and the entries. All rules of a domain form one group,
//! and each has `only`, so that at most one of them applies: the one that envoyproxy/ratelimit would have found, see
//! `flatten.rs`. Requests that share a count in envoyproxy/ratelimit also share it in Slidegate. The window is the
//! exact sliding window.

mod emit;
mod file;
mod flatten;
mod name;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path as FilePath, PathBuf};

use slidegate::yaml::{Node, Reader};
use slidegate::{Error, Mode, Rule};

use self::file::{Allowance, Domain, FileText, Value};
use self::flatten::Path;

/// Name of the attribute with the domain.
pub const DOMAIN: &str = "domain";

/// Returns the attributes of a descriptor: its domain, and its entries. The second entry with the same key is `key.2`,
/// the third `key.3`; `domain` is taken already, so the first entry with that key is `domain.2`.
pub fn attributes<'a>(
    domain: &'a str,
    entries: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Vec<(Cow<'a, str>, &'a str)> {
    let mut attributes = vec![(Cow::Borrowed(DOMAIN), domain)];
    let mut keys = vec![DOMAIN];
    for (key, value) in entries {
        let before = keys.iter().filter(|known| **known == key).count();
        keys.push(key);
        let name = if before == 0 { Cow::Borrowed(key) } else { Cow::Owned(format!("{key}.{}", before + 1)) };
        attributes.push((name, value));
    }
    attributes
}

/// Name and text of a file.
pub type NamedText = (String, String);

/// Converts files into rules, in order. The error lists every mistake with its file and line.
pub fn translate(files: &[NamedText]) -> Result<Vec<Rule>, Vec<String>> {
    let (mut rules, mut mistakes) = (Vec::new(), Vec::new());
    let mut domains: HashMap<String, &str> = HashMap::new();
    for (name, text) in files {
        match translate_file(name, text, &mut domains) {
            Ok(more) => rules.extend(more),
            Err(error) => mistakes.extend(error.problems().iter().map(|problem| format!("{name}:{problem}"))),
        }
    }
    if mistakes.is_empty() { Ok(rules) } else { Err(mistakes) }
}

fn translate_file<'f>(
    file: &'f str,
    text: &str,
    domains: &mut HashMap<String, &'f str>,
) -> Result<Vec<Rule>, Error> {
    let node = Node::parse(text)?;
    let mut reader = Reader::default();
    let domain = FileText(text).domain(&node, &mut reader);
    if let Some(domain) = &domain
        && let Some(other) = domains.insert(domain.name.clone(), file)
    {
        reader.problem(domain.node, format!("domain `{}` is already defined in {other}", domain.name));
    }
    let domain = reader.finish(domain)?;
    let mut reader = Reader::default();
    let rules = translate_domain(&domain, &mut reader);
    reader.finish(Some(rules))
}

fn translate_domain(domain: &Domain<'_>, reader: &mut Reader) -> Vec<Rule> {
    let mut rules: Vec<(Rule, Path<'_, '_>)> = Vec::new();
    let mut orders: BTreeMap<Vec<String>, Vec<&str>> = BTreeMap::new();
    for keys in self::flatten::key_lists(domain) {
        let names: Vec<String> = attributes("", keys.iter().map(|key| (*key, "")))
            .into_iter()
            .map(|(name, _)| name.into_owned())
            .skip(1)
            .collect();
        let paths = self::flatten::paths(domain, &keys);
        let Some(at) = paths.first().and_then(|path| path.descriptors.last()) else { continue };
        let mut sorted = names.clone();
        sorted.sort_unstable();
        if let Some(other) = orders.insert(sorted, keys.clone()) {
            reader.problem(
                at.node,
                format!(
                    "[{}] and [{}] have the same attributes, which have no order: keep one of them",
                    other.join(", "),
                    keys.join(", ")
                ),
            );
            continue;
        }
        for path in paths {
            let at = path.descriptors.last().map_or(domain.node, |descriptor| descriptor.node);
            if let Some(rule) = reader.accept(at, rule(domain, &keys, &names, &path)) {
                rules.push((rule, path));
            }
        }
    }
    apply_replaces(rules, reader)
}

/// Returns the rule of one path.
fn rule(domain: &Domain<'_>, keys: &[&str], names: &[String], path: &Path<'_, '_>) -> Result<Rule, Error> {
    let mut parts: Vec<String> = path.descriptors.iter().map(|descriptor| descriptor.composite()).collect();
    parts.extend(keys[parts.len()..].iter().map(|key| (*key).to_owned()));
    if path.limit.is_none() {
        // No key is empty, so no other path is named like this.
        parts.extend([String::new(), "none".to_owned()]);
    }
    let name = name::label(&domain.name, parts.iter().map(String::as_str));
    let shadow = path.limit.is_some_and(|limit| limit.shadow);
    let mut rule = match path.limit.map(|limit| limit.allows) {
        Some(Allowance::Quota(quota)) => Rule::new(&name, quota)?,
        Some(Allowance::Nothing) if !shadow => Rule::blocked(&name)?,
        _ => Rule::unlimited(&name)?,
    };
    rule = rule.group(&name::label(&domain.name, []))?.when(DOMAIN, [domain.name.as_str()])?.only();
    let counts = rule.is_limited();
    for (level, name) in names.iter().enumerate() {
        let shared = path.descriptors.get(level).is_some_and(|descriptor| descriptor.shared);
        rule = match path.value(level) {
            Value::Is(value) => rule.when(name, [value.as_str()])?,
            Value::StartsWith(prefix) => {
                let rule = rule.when(name, [format!("{prefix}*").as_str()])?;
                if counts && !shared { rule.per([name.as_str()])? } else { rule }
            }
            Value::Any if counts => rule.per([name.as_str()])?,
            Value::Any => rule.when(name, ["*"])?,
        };
    }
    Ok(if counts && shadow { rule.mode(Mode::Shadow) } else { rule })
}

/// Applies `replaces`. Its names are names of limits, which need not be unique; they are translated into names of
/// rules.
fn apply_replaces(rules: Vec<(Rule, Path<'_, '_>)>, reader: &mut Reader) -> Vec<Rule> {
    let mut named: HashMap<&str, Vec<String>> = HashMap::new();
    for (rule, path) in &rules {
        if let Some(name) = path.limit.and_then(|limit| limit.name.as_deref()) {
            named.entry(name).or_default().push(rule.name().to_owned());
        }
    }
    let mut replacing = Vec::new();
    for (mut rule, path) in rules {
        for (node, name) in path.limit.map_or(&[][..], |limit| &limit.replaces) {
            let replaced = named.get(name.as_str()).map_or(&[][..], Vec::as_slice);
            if replaced.is_empty() {
                reader.problem(node, format!("no rate_limit of this domain is named `{name}`"));
            }
            let names = replaced.iter().map(String::as_str);
            rule = reader.accept(node, rule.clone().replaces(names)).unwrap_or(rule);
        }
        replacing.push(rule);
    }
    replacing
}

/// Converts files into one of our configuration files.
pub fn import(files: &[NamedText]) -> Result<String, Vec<String>> {
    let rules = translate(files)?;
    let messages = |error: &dyn std::fmt::Display| vec![error.to_string()];
    // Limits on the number of rules and duplicate names are checked here, not only where the result is used.
    slidegate::Rules::new(rules.iter().cloned()).map_err(|error| messages(&error))?;
    Ok(self::emit::yaml(&rules))
}

/// Returns the files of a directory: every `*.yaml` and `*.yml`, sorted by name.
pub(crate) fn files(directory: &FilePath) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(directory).map_err(|error| cannot_read(directory, &error))?;
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| cannot_read(directory, &error))?.path();
        if path.extension().is_some_and(|end| end == "yaml" || end == "yml") && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort_unstable();
    Ok(paths)
}

fn cannot_read(path: &FilePath, error: &std::io::Error) -> String {
    format!("cannot read {}: {error}", path.display())
}

/// Reads the files of a directory.
pub fn read_dir(directory: &FilePath) -> Result<Vec<NamedText>, String> {
    let paths = files(directory)?;
    if paths.is_empty() {
        return Err(format!("found no *.yaml or *.yml in {}", directory.display()));
    }
    let text = |path: &PathBuf| std::fs::read_to_string(path).map_err(|error| cannot_read(path, &error));
    paths.iter().map(|path| Ok((path.display().to_string(), text(path)?))).collect()
}

/// Loads the rules of a directory. The error lists every mistake.
pub fn load(directory: &FilePath) -> Result<Vec<Rule>, String> {
    translate(&read_dir(directory)?).map_err(|mistakes| {
        let name = directory.display();
        format!("{name} has mistakes:\n  {}", mistakes.join("\n  "))
    })
}
