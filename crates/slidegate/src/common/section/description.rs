//! Sections, fields and their types as data: for schemas, messages and the reference page.

use crate::common::yaml::Node;
use crate::words::Words;
use crate::{Error, Micros};

/// Declaration of one field, without its type.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Name in the file.
    pub name: &'static str,
    /// One line of documentation.
    pub doc: &'static str,
    /// True if the section is invalid without the field.
    pub required: bool,
    /// Smallest and largest value: in microseconds for a length of time, in hundredths of a percent for `Percent`, in
    /// percent for `WholePercent`, in hundredths for `Hundredths`.
    pub bounds: Option<(u64, u64)>,
    /// Regular expression of a text.
    pub pattern: Option<&'static str>,
    /// True if a text or a list must not be empty.
    pub nonempty: bool,
    /// Name of one item of a list in messages.
    pub item: Option<&'static str>,
    /// Default as written in a file; needed only if the default of the struct does not show it.
    pub default: Option<&'static str>,
    /// Another field, without which this one has no meaning.
    pub belongs_to: Option<&'static str>,
    /// Value for the reference page.
    pub example: Option<&'static str>,
    /// True if the value is or contains a password, which is never printed.
    pub secret: bool,
}

/// Methods that set one field of [`Terms`].
macro_rules! setters {
    ($($method:ident($($argument:ident: $type:ty),*) sets $field:ident to $value:expr;)*) => { $(
        #[allow(missing_docs, reason = "the field has the documentation")]
        pub const fn $method(self $(, $argument: $type)*) -> Self {
            Terms { $field: $value, ..self }
        }
    )* };
}

impl Terms {
    /// Creates the terms of an optional field.
    pub const fn new(name: &'static str, doc: &'static str) -> Self {
        let (bounds, pattern, item, default, belongs_to, example) = (None, None, None, None, None, None);
        let (required, nonempty, secret) = (false, false, false);
        Terms { name, doc, required, bounds, pattern, nonempty, item, default, belongs_to, example, secret }
    }

    setters! {
        required() sets required to true;
        between(min: u64, max: u64) sets bounds to Some((min, max));
        lasting(min: Micros, max: Micros) sets bounds to Some((min.get(), max.get()));
        like(pattern: &'static str) sets pattern to Some(pattern);
        nonempty() sets nonempty to true;
        of(item: &'static str) sets item to Some(item);
        by_default(text: &'static str) sets default to Some(text);
        belongs_to(field: &'static str) sets belongs_to to Some(field);
        example(text: &'static str) sets example to Some(text);
        secret() sets secret to true;
    }
}

/// Type of a field, as data.
#[derive(Clone, Debug)]
pub enum Kind {
    /// `true` or `false`.
    Flag,
    /// A whole number and its bounds.
    Whole(u64, u64),
    /// A number, and its bounds in hundredths.
    Number(u64, u64),
    /// A text.
    Text,
    /// A length of time, and its bounds.
    Time(Option<(Micros, Micros)>),
    /// A percentage, and its bounds in hundredths of a percent.
    Percent(Option<(u64, u64)>),
    /// One of several words.
    Words(Vocabulary),
    /// A list: the type of its items, and true if the list must not be empty.
    List(Box<Kind>, bool),
    /// A mapping with names that the user chooses.
    Map(Box<Kind>),
    /// A mapping with known fields.
    Section(Description),
    /// One of several types, with the name of the union.
    Union(&'static str, Vec<Kind>),
    /// A value that is not read.
    Any,
}

impl Kind {
    /// Converts a text from outside of the file, such as the value of a variable, into a value of this type: a number
    /// or a flag is read as YAML without quotes, a list or a mapping as YAML or JSON, and any other text is used
    /// unchanged. The value is not validated.
    pub fn node(&self, text: &str) -> Result<Node, Error> {
        match self {
            Kind::Flag | Kind::Whole(..) | Kind::Number(..) => {
                let node = Node::from_scalar(text.trim());
                // Use the text instead of a null value, because null would count as not given.
                Ok(if node.is_null() { Node::from_text(text) } else { node })
            }
            Kind::List(..) | Kind::Map(_) => match Node::parse(text)? {
                node if node.is_null() => Ok(Node::from_text(text)),
                node => Ok(node),
            },
            _ => Ok(Node::from_text(text)),
        }
    }
}

/// Words and their meaning.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    /// Name of the type.
    pub name: &'static str,
    /// One line of documentation.
    pub doc: &'static str,
    /// Each word, and one line of documentation.
    pub words: Vec<(&'static str, &'static str)>,
}

impl Vocabulary {
    /// Returns the words of an enum.
    pub fn of<T: Words>() -> Self {
        let words = T::WORDS.iter().map(|(word, _, doc)| (*word, *doc)).collect();
        Vocabulary { name: T::NAME, doc: T::DOC, words }
    }
}

/// Section as data.
#[derive(Clone, Debug)]
pub struct Description {
    /// Name of the section in the JSON Schema.
    pub title: &'static str,
    /// Documentation.
    pub doc: &'static str,
    /// Fields, their types and defaults.
    pub fields: Vec<(Terms, Kind, Option<String>)>,
    /// Sets of fields: a file must give exactly one of the sets.
    pub one_of: &'static [&'static [&'static str]],
}

/// One setting of a section, or of a section inside it. A section itself is not a setting.
#[derive(Clone, Debug)]
pub struct Setting<'d> {
    /// Names of the sections that contain the setting, outermost first, then the name of the setting.
    pub path: Vec<&'static str>,
    /// Declaration.
    pub terms: &'d Terms,
    /// Type.
    pub kind: &'d Kind,
    /// Default.
    pub default: Option<&'d str>,
}

impl Description {
    /// Returns all settings, those of nested sections included, in the order of their declaration.
    pub fn settings(&self) -> Vec<Setting<'_>> {
        let mut settings = Vec::new();
        self.collect_settings(&[], &mut settings);
        settings
    }

    fn collect_settings<'d>(&'d self, outer: &[&'static str], settings: &mut Vec<Setting<'d>>) {
        for (terms, kind, default) in &self.fields {
            let path = [outer, &[terms.name]].concat();
            match kind {
                Kind::Section(section) => section.collect_settings(&path, settings),
                kind => settings.push(Setting { path, terms, kind, default: default.as_deref() }),
            }
        }
    }
}
