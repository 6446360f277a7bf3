//! References in the settings of a file: `${NAME}` is a variable, `${file:/path}` the content of a file, `$${` is `${`.
//!
//! Rules have no references: they mean the same on every node, in `slidegate simulate` and in `PUT /v1/rules`.

use std::path::Path;

use slidegate::section::{Description, Kind};
use slidegate::yaml::{Node, Reader};

use super::inputs::Environment;
use crate::common::secret_file;

/// Replaces references, and collects the names of the variables in them.
pub(super) struct Expander<'e> {
    environment: &'e Environment,
    referenced: Vec<String>,
}

impl<'e> Expander<'e> {
    /// Replaces all references in the settings of `file`. Returns the names of the variables.
    pub(super) fn expand(
        file: &mut Node,
        settings: &Description,
        environment: &'e Environment,
        reader: &mut Reader,
    ) -> Vec<String> {
        let mut expander = Expander { environment, referenced: Vec::new() };
        expander.expand_section(file, settings, reader);
        expander.referenced
    }

    fn expand_section(&mut self, node: &mut Node, section: &Description, reader: &mut Reader) {
        for (terms, kind, _) in &section.fields {
            if let Some(field) = node.field_mut(terms.name) {
                self.expand_node(field, kind, reader);
            }
        }
    }

    fn expand_node(&mut self, node: &mut Node, kind: &Kind, reader: &mut Reader) {
        match (node.text(), kind) {
            (_, Kind::Section(section)) => self.expand_section(node, section, reader),
            (Some(text), _) if text.contains("${") => {
                let expanded = self.expand_text(text).and_then(|text| {
                    kind.node(&text).map_err(|_| "the value is not a list or a mapping in YAML".to_owned())
                });
                *node = match expanded {
                    Ok(expanded) => expanded.with_position_of(node),
                    Err(message) => {
                        reader.problem(node, message);
                        // Not given, so that it is not reported once more.
                        Node::from_scalar("")
                    }
                };
            }
            (None, Kind::List(item, _) | Kind::Map(item)) => {
                node.children_mut().into_iter().for_each(|child| self.expand_node(child, item, reader));
            }
            _ => {}
        }
    }

    fn expand_text(&mut self, text: &str) -> Result<String, String> {
        let (mut expanded, mut rest) = (String::new(), text);
        while let Some(at) = rest.find("${") {
            let (before, after) = (&rest[..at], &rest[at + 2..]);
            if let Some(before) = before.strip_suffix('$') {
                expanded += before;
                expanded += "${";
                rest = after;
                continue;
            }
            let (name, after) =
                after.split_once('}').ok_or("`${` has no `}`: write `$${` for `${` itself")?;
            expanded += before;
            expanded += &self.value_of(name)?;
            rest = after;
        }
        Ok(expanded + rest)
    }

    fn value_of(&mut self, name: &str) -> Result<String, String> {
        if let Some(path) = name.strip_prefix("file:") {
            return secret_file::read(Path::new(path));
        }
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !is_name {
            return Err(
                "`${…}` must have the name of a variable, or `file:` and a path; write `$${` for `${` itself"
                    .to_owned(),
            );
        }
        self.referenced.push(name.to_owned());
        match self.environment.get(name) {
            Some(text) => text.map(str::to_owned),
            None => Err(format!("the variable {name} is not set")),
        }
    }
}
