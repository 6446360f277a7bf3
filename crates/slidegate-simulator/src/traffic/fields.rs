//! Maps the fields of a line to the attributes of a request.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use slidegate::Rules;

/// Names that logs have for the same field. If a trace has no field with the name of an attribute, the attribute uses the first
/// other name of its group that the trace has.
const SYNONYMS: [&[&str]; 7] = [
    &["api", "path", "uri"],
    &["ip", "client_ip", "remote_ip", "remote_addr", "request.client_ip", "request.remote_ip"],
    &["user", "user_id", "username"],
    &["method", "request_method", "request.method"],
    &["host", "http_host", "request.host"],
    &["user-agent", "user_agent", "http_user_agent"],
    &["referer", "http_referer"],
];

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
    /// Fields to use if the trace does not have `field`; none if the field is explicit.
    pub(super) synonyms: Vec<&'static str>,
    pub(super) explicit: bool,
}

/// An attribute that uses a field of another name, because the trace has no field of its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct MappedAttribute {
    pub(crate) attribute: String,
    pub(crate) field: String,
}

impl fmt::Display for MappedAttribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MappedAttribute { attribute, field } = self;
        write!(
            f,
            "`{attribute}` is the field `{field}`, because the trace has no `{attribute}`; --attribute names another"
        )
    }
}

/// Fields of the attributes in a trace with known field names.
#[derive(Debug, Default)]
pub(super) struct ResolvedFields {
    /// Each attribute that has a field, with the index of the field.
    pub(super) indices: Vec<(usize, String)>,
    pub(super) mapped: Vec<MappedAttribute>,
    /// Attributes that have no field.
    pub(super) missing: Vec<String>,
}

impl Fields {
    /// Maps every name to the field of that name, unless it is explicit or constant.
    pub(crate) fn new(attribute_names: &BTreeSet<String>, explicit: &[Pair], constants: &[Pair]) -> Self {
        let mut attributes: Vec<AttributeField> = explicit
            .iter()
            .map(|Pair { name, value }| AttributeField {
                attribute: name.clone(),
                field: value.clone(),
                synonyms: Vec::new(),
                explicit: true,
            })
            .collect();
        let is_option = |name: &str| explicit.iter().chain(constants).any(|pair| pair.name == name);
        // A name that the rules use for another attribute has another meaning there.
        let is_free = |name: &&str| !attribute_names.contains(*name) && !is_option(name);
        for name in attribute_names.iter().filter(|name| !is_option(name)) {
            let synonyms = SYNONYMS.iter().find(|group| group.contains(&name.as_str()));
            let synonyms = synonyms.into_iter().flat_map(|group| group.iter().copied());
            attributes.push(AttributeField {
                attribute: name.clone(),
                field: name.clone(),
                synonyms: synonyms.filter(is_free).collect(),
                explicit: false,
            });
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

    /// Finds the fields of all attributes in `known`. A field that the options name must be there.
    pub(super) fn resolve(&self, known: &[&str], what: &str) -> Result<ResolvedFields, String> {
        let mut resolved = ResolvedFields::default();
        let index = |field: &str| known.iter().position(|known| *known == field);
        for AttributeField { attribute, field, synonyms, explicit } in &self.attributes {
            let synonym = || synonyms.iter().find_map(|synonym| Some((index(synonym)?, *synonym)));
            if let Some(index) = index(field) {
                resolved.indices.push((index, attribute.clone()));
            } else if *explicit {
                return Err(unknown_field_error("--attribute", field, known, what));
            } else if let Some((index, synonym)) = synonym() {
                resolved.indices.push((index, attribute.clone()));
                resolved
                    .mapped
                    .push(MappedAttribute { attribute: attribute.clone(), field: synonym.to_owned() });
            } else {
                resolved.missing.push(attribute.clone());
            }
        }
        Ok(resolved)
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
