//! Maps the fields of a line to the attributes of a request.

use std::collections::BTreeSet;
use std::str::FromStr;

use slidegate::Rules;

/// Option of the form `NAME=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) name: String,
    pub(crate) value: String,
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() && !value.is_empty() => {
                Ok(Pair { name: name.to_owned(), value: value.to_owned() })
            }
            _ => Err("must be NAME=VALUE, such as api=path".to_owned()),
        }
    }
}

/// Sources of the attributes that rules use: each is a field of the line, or a constant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields {
    /// Attributes that are fields of the line.
    pub(super) attributes: Vec<AttributeField>,
    /// Attributes with the same value for every request.
    pub(super) constants: Vec<Pair>,
    /// Field with the time, if the options name one.
    pub(super) time: Option<String>,
    /// Field with the number of permits, if the options name one.
    pub(super) permits: Option<String>,
}

/// An attribute and its field. `explicit` is true if the options name the field; otherwise it has the attribute's name.
#[derive(Clone, Debug)]
pub(super) struct AttributeField {
    pub(super) attribute: String,
    pub(super) field: String,
    pub(super) explicit: bool,
}

impl Fields {
    /// Maps every name to the field of that name, unless it is explicit or constant.
    pub(crate) fn new(attribute_names: &BTreeSet<String>, explicit: &[Pair], constants: &[Pair]) -> Self {
        let mut attributes: Vec<AttributeField> = explicit
            .iter()
            .map(|Pair { name, value }| AttributeField {
                attribute: name.clone(),
                field: value.clone(),
                explicit: true,
            })
            .collect();
        for name in attribute_names {
            let known = explicit.iter().chain(constants).any(|pair| pair.name == *name);
            if !known {
                attributes.push(AttributeField {
                    attribute: name.clone(),
                    field: name.clone(),
                    explicit: false,
                });
            }
        }
        Fields { attributes, constants: constants.to_vec(), ..Fields::default() }
    }

    pub(crate) fn time(mut self, field: Option<String>) -> Self {
        self.time = field;
        self
    }

    pub(crate) fn permits(mut self, field: Option<String>) -> Self {
        self.permits = field;
        self
    }

    /// Returns true if there are options that a format with fixed fields cannot follow.
    pub(super) fn has_explicit(&self) -> bool {
        let explicit = self.attributes.iter().any(|named| named.explicit);
        explicit || !self.constants.is_empty() || self.time.is_some() || self.permits.is_some()
    }

    /// Returns the constants as attributes.
    pub(super) fn constants(&self) -> impl Iterator<Item = (&str, &str)> {
        self.constants.iter().map(|pair| (pair.name.as_str(), pair.value.as_str()))
    }

    /// Returns each attribute with the index of its field in `known`. A field that the options name must be there.
    pub(super) fn indices(&self, known: &[&str], what: &str) -> Result<Vec<(usize, String)>, String> {
        let mut indices = Vec::new();
        for AttributeField { attribute, field, explicit } in &self.attributes {
            match known.iter().position(|known| known == field) {
                Some(index) => indices.push((index, attribute.clone())),
                None if *explicit => return Err(unknown_field_error("--attribute", field, known, what)),
                None => {}
            }
        }
        Ok(indices)
    }

    /// Returns the attributes with a field that is not in `known`.
    pub(super) fn missing(&self, known: &[&str]) -> Vec<String> {
        let missing = self.attributes.iter().filter(|named| !known.contains(&named.field.as_str()));
        missing.map(|named| named.attribute.clone()).collect()
    }
}

pub(super) fn unknown_field_error(flag: &str, field: &str, known: &[&str], what: &str) -> String {
    let known: Vec<String> = known.iter().map(|known| format!("`{known}`")).collect();
    format!("{flag} names the field `{field}`, which {what} does not have: it has {}", known.join(", "))
}

/// Returns a note for the report about fields that no line had.
pub(super) fn unseen_fields_note<'f>(fields: impl Iterator<Item = (&'f str, bool)>) -> Option<String> {
    let unseen: Vec<&str> = fields.filter(|(_, seen)| !seen).map(|(field, _)| field).collect();
    (!unseen.is_empty()).then(|| format!("no line has the field `{}`", unseen.join("`, `")))
}

/// Returns the names of the attributes that rules use.
pub(crate) fn attribute_names(rules: &Rules) -> BTreeSet<String> {
    let named = rules.iter().flat_map(|rule| rule.conditions().map(|(name, _)| name).chain(rule.key()));
    named.map(str::to_owned).collect()
}
