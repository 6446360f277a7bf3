//! Sections of a file, declared once.
//!
//! `section!` declares the fields of one mapping: name, type, bounds, default, one line of documentation.
//! Everything else derives from the declaration: reading with all mistakes at once, the JSON Schema, the content of
//! `GET /v1/rules`, the reference page in `docs/` and the fuzz dictionary.
//!
//! A [`FieldType`] reads one value from a file and shows it again. A [`Section`] is a list of fields that are read into a
//! struct. [`Kind`] describes a type as data.

mod declare;
mod description;
mod field_types;
#[cfg(feature = "schema")]
mod json_schema;
mod shown;

pub use self::declare::{name_bytes, name_len};
pub use self::description::{Description, Kind, Setting, Terms, Vocabulary};
pub use self::field_types::{Hundredths, Ignored, Percent, WholePercent};
#[cfg(feature = "schema")]
pub use self::json_schema::{root_schema, schema, vocabulary_schema};
pub use self::shown::Shown;
use crate::Error;
use crate::common::yaml::{Fields, Node, Reader};

/// Type of a field in a file.
pub trait FieldType {
    /// Value that the field has in the program.
    type Value;

    /// Describes the type, with the bounds of the field.
    fn kind(terms: &Terms) -> Kind;

    /// Reads a value, and records every mistake. `what` names the field in messages.
    fn read(node: &Node, reader: &mut Reader, what: &str, terms: &Terms) -> Option<Self::Value>;

    /// Returns the value as written in a file.
    fn shown(value: &Self::Value) -> Shown;
}

/// Values of a section and their positions.
#[derive(Debug)]
pub struct Given<'n, T> {
    /// Values; the default where a field is not given or invalid.
    pub value: T,
    /// Fields in the file.
    pub fields: Fields<'n>,
    /// False if a field is invalid or missing.
    pub valid: bool,
}

impl<'n, T> Given<'n, T> {
    /// Returns the position of a field, or of the section if the field is not given.
    pub fn node(&self, name: &str) -> &'n Node {
        self.fields.get(name).unwrap_or(self.fields.node())
    }

    /// Returns a value; the default if the field is not given; `None` if it is invalid.
    pub fn or<V>(&self, name: &str, value: Option<V>, default: V) -> Option<V> {
        if self.fields.get(name).is_none() { Some(default) } else { value }
    }
}

/// Mapping with known fields, declared by `section!`.
pub trait Section {
    /// Struct that the fields are read into.
    type Target;
    /// Name in the JSON Schema.
    const TITLE: &'static str;
    /// Documentation.
    const DOC: &'static str;
    /// Fields, in order.
    const TERMS: &'static [Terms];
    /// True if messages name a field together with its section: `lease.ttl`.
    const DOTTED: bool;
    /// Sets of fields: a file must give exactly one of the sets.
    const ONE_OF: &'static [&'static [&'static str]];

    /// Returns the struct with all defaults.
    fn base() -> Self::Target;

    /// Reads every field that is given into `target`.
    fn read_into(target: &mut Self::Target, values: &mut Values<'_, '_>);

    /// Returns the type of each field.
    fn kinds() -> Vec<Kind>;

    /// Returns the value of each field.
    fn values(target: &Self::Target) -> Vec<Shown>;

    /// Checks values against each other.
    fn check(target: &Self::Target) -> Result<(), Error>;

    /// Returns the names of the fields.
    fn names() -> Vec<&'static str> {
        Self::TERMS.iter().map(|terms| terms.name).collect()
    }

    /// Reads a section and records all mistakes, except conflicts between fields. `what` names the section in messages.
    fn given<'n>(node: &'n Node, reader: &mut Reader, what: &str) -> Option<Given<'n, Self::Target>> {
        let fields = reader.fields(node, what, &Self::names())?;
        Some(Self::given_from(Self::base(), fields, reader, what))
    }

    /// Reads the fields of a section into `value`.
    fn given_from<'n>(
        mut value: Self::Target,
        fields: Fields<'n>,
        reader: &mut Reader,
        what: &str,
    ) -> Given<'n, Self::Target> {
        let before = reader.count();
        let terms = Self::TERMS.iter();
        Self::read_into(
            &mut value,
            &mut Values { terms, fields: &fields, reader, what, dotted: Self::DOTTED },
        );
        Given { value, valid: reader.count() == before, fields }
    }

    /// Reads and checks a section.
    fn read_whole(node: &Node, reader: &mut Reader, what: &str) -> Option<Self::Target> {
        let given = Self::given(node, reader, what)?;
        if !given.valid {
            return None;
        }
        reader.accept(node, Self::check(&given.value))?;
        Some(given.value)
    }

    /// Returns the section as written in a file.
    fn show(target: &Self::Target) -> Shown {
        let names = Self::TERMS.iter().map(|terms| terms.name.to_owned());
        Shown::Map(names.zip(Self::values(target)).filter(|(_, value)| *value != Shown::Null).collect())
    }

    /// Describes the section as data.
    fn describe() -> Description {
        let defaults = Self::values(&Self::base()).into_iter().map(|value| match value {
            Shown::Null => None,
            value => Some(value.to_string()),
        });
        let fields = Self::TERMS.iter().zip(Self::kinds().into_iter().zip(defaults));
        let fields = fields.map(|(terms, (kind, default))| {
            let has_default = !terms.required && !matches!(kind, Kind::Section(_));
            let default = terms.default.map(str::to_owned).or(default).filter(|_| has_default);
            (*terms, kind, default)
        });
        Description { title: Self::TITLE, doc: Self::DOC, fields: fields.collect(), one_of: Self::ONE_OF }
    }
}

/// Values of the fields of a section, taken in the order of the declaration.
pub struct Values<'r, 'n> {
    terms: std::slice::Iter<'static, Terms>,
    fields: &'r Fields<'n>,
    reader: &'r mut Reader,
    what: &'r str,
    dotted: bool,
}

impl Values<'_, '_> {
    /// Reads the next field, if it is given.
    pub fn read_next<T: FieldType>(&mut self) -> Option<T::Value> {
        let terms = self.terms.next()?;
        let node = match terms.required {
            true => self.fields.required(self.reader, terms.name, self.what)?,
            false => self.fields.get(terms.name)?,
        };
        if !self.dotted {
            return T::read(node, self.reader, terms.name, terms);
        }
        T::read(node, self.reader, &format!("{}.{}", self.what, terms.name), terms)
    }
}
