//! Sections of a file, declared once.
//!
//! `section!` declares the fields of one mapping: name, type, bounds, default, one line of documentation.
//! Everything else derives from the declaration: reading with all mistakes at once, the JSON Schema, the content of
//! `GET /v1/rules`, the reference page in `docs/` and the fuzz dictionary.
//!
//! A [`FieldType`] reads one value from a file and shows it again. A [`Section`] is a list of fields that are read into a
//! struct. [`Kind`] describes a type as data.

mod field_types;
#[cfg(feature = "schema")]
mod json_schema;
mod shown;

pub use self::field_types::{Hundredths, Ignored, Percent, WholePercent};
#[cfg(feature = "schema")]
pub use self::json_schema::{root_schema, schema, vocabulary_schema};
pub use self::shown::Shown;
use crate::common::words::Words;
use crate::common::yaml::{Fields, Node, Reader};
use crate::{Error, Micros};

/// Type of a field in a file.
pub trait FieldType {
    /// Value that the field has in the program.
    type Value;

    /// Describes the type, with the bounds of the field.
    fn kind(terms: &Terms) -> Kind;

    /// Reads a value, and records every mistake. `what` names the field in messages.
    fn read(node: &Node, reader: &mut Reader, what: &str, terms: &Terms) -> Option<Self::Value>;

    /// Returns the value as a file has it.
    fn shown(value: &Self::Value) -> Shown;
}

/// Declaration of one field, without its type.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Name in the file.
    pub name: &'static str,
    /// One line of documentation.
    pub doc: &'static str,
    /// True if the section is invalid without the field.
    pub required: bool,
    /// Smallest and largest value: microseconds of a length of time, hundredths of a percentage or a number.
    pub bounds: Option<(u64, u64)>,
    /// Regular expression of a text.
    pub pattern: Option<&'static str>,
    /// True if a text or a list must not be empty.
    pub nonempty: bool,
    /// Name of one item of a list in messages.
    pub item: Option<&'static str>,
    /// Default as the file would have it, if the default of the struct does not show it.
    pub default: Option<&'static str>,
    /// Another field, without which this one has no meaning.
    pub belongs_to: Option<&'static str>,
    /// Value for the reference page.
    pub example: Option<&'static str>,
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
        let (required, nonempty) = (false, false);
        Terms { name, doc, required, bounds, pattern, nonempty, item, default, belongs_to, example }
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
    }
}

/// Type of a field, as data.
#[derive(Clone, Debug)]
pub enum Kind {
    /// `true` or `false`.
    Flag,
    /// A whole number and its bounds.
    Whole(u64, u64),
    /// A number in hundredths, and its bounds.
    Number(u64, u64),
    /// A text.
    Text,
    /// A length of time, and its bounds.
    Time(Option<(Micros, Micros)>),
    /// A percentage in hundredths, and its bounds.
    Percent(Option<(u64, u64)>),
    /// One of several words.
    Words(Vocabulary),
    /// A list; true if it must not be empty.
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
    /// Sets of fields, of which exactly one is given.
    pub one_of: &'static [&'static [&'static str]],
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
    /// Sets of fields, of which exactly one is given.
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

    /// Reads a section and records all mistakes, except those between fields. `what` names it in messages.
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

    /// Returns the section as a file has it.
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

/// Length of the name of a field in a file.
#[doc(hidden)]
pub const fn name_len(ident: &str) -> usize {
    if matches!(ident.as_bytes(), [b'r', b'#', ..]) { ident.len() - 2 } else { ident.len() }
}

/// Returns the name of a field in a file: `warm-up` for `warm_up`, `match` for `r#match`.
#[doc(hidden)]
pub const fn name_bytes<const N: usize>(ident: &str) -> [u8; N] {
    let (mut name, mut i) = ([0; N], 0);
    while i < N {
        let byte = ident.as_bytes()[ident.len() - N + i];
        name[i] = if byte == b'_' { b'-' } else { byte };
        i += 1;
    }
    name
}

/// Implements [`FieldType`] for a type, given the type of its value.
#[doc(hidden)]
#[macro_export]
macro_rules! field_type {
    (
        $name:ty => $value:ty,
        kind: |$kind_terms:pat_param| $kind:expr,
        read: |$node:pat_param, $reader:pat_param, $what:pat_param, $terms:pat_param| $read:expr,
        shown: |$shown_value:pat_param| $shown:expr,
    ) => {
        impl $crate::section::FieldType for $name {
            type Value = $value;

            fn kind($kind_terms: &$crate::section::Terms) -> $crate::section::Kind {
                $kind
            }

            fn read(
                $node: &$crate::yaml::Node,
                $reader: &mut $crate::yaml::Reader,
                $what: &str,
                $terms: &$crate::section::Terms,
            ) -> Option<$value> {
                $read
            }

            fn shown($shown_value: &$value) -> $crate::section::Shown {
                $shown
            }
        }
    };
}

/// Declares the fields of a section, either of a new struct with defaults, or of another struct:
///
/// ```text
/// section! {
///     /// Permits that a node may take in advance.
///     pub struct Lease("Lease") {
///         /// The most permits that one node takes at once.
///         permits: u32 { required().between(2, 10_000) },
///     }
/// }
/// section! {
///     /// Failover when Redis does not answer.
///     struct Guard("Guard", base: FailoverOptions::default(), check: FailoverOptions::check) for FailoverOptions {
///         /// Longest time that a decision waits for Redis.
///         deadline: Duration,
///     }
/// }
/// ```
///
/// `field: Type as OtherType` reads and shows the field by another [`FieldType`]. `[owner] field` is a field of `target.owner`.
#[doc(hidden)]
#[macro_export]
macro_rules! section {
    (
        $(#[doc = $doc:literal])*
        $visibility:vis struct $name:ident (
            $title:literal $(, dotted: $dotted:literal)? $(, one_of: $one_of:expr)? $(, check: $check:path)?
        ) {
            $(
                $(#[doc = $field_doc:literal])*
                $field:ident : $type:ty $(as $field_type:ty)? $({ $($option:tt)+ })? $(= $default:expr)?,
            )*
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug)]
        #[allow(unreachable_pub, reason = "the section itself may be private")]
        $visibility struct $name {
            $( $(#[doc = $field_doc])* pub $field: $type, )*
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $( $field: $crate::section!(@default $($default)?), )* }
            }
        }

        $crate::section! {
            @section $name, $name, [$name::default()], [$($doc)*], $title, [$($dotted)?], [$($one_of)?], [$($check)?],
            $( [$($field_doc)*] [] $field [$type $(, $field_type)?] [$(. $($option)+)?], )*
        }
    };
    (
        $(#[doc = $doc:literal])*
        $visibility:vis struct $name:ident (
            $title:literal $(, dotted: $dotted:literal)?, base: $base:expr $(, check: $check:path)?
        ) for $target:ty {
            $(
                $(#[doc = $field_doc:literal])*
                $([$($owner:ident).+])? $field:ident : $type:ty $({ $($option:tt)+ })?,
            )*
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug)]
        $visibility struct $name;

        $crate::section! {
            @section $name, $target, [$base], [$($doc)*], $title, [$($dotted)?], [], [$($check)?],
            $( [$($field_doc)*] [$($($owner)+)?] $field [$type] [$(. $($option)+)?], )*
        }
    };
    (
        @section $name:ident, $target:ty, [$base:expr], [$($doc:literal)*], $title:literal,
        [$($dotted:literal)?], [$($one_of:expr)?], [$($check:path)?],
        $(
            [$($field_doc:literal)*] [$($owner:ident)*] $field:ident [$($type:ty),+] [$($option:tt)*],
        )*
    ) => {
        impl $crate::section::Section for $name {
            type Target = $target;
            const TITLE: &'static str = $title;
            const DOC: &'static str = concat!("" $(, $doc)*);
            const TERMS: &'static [$crate::section::Terms] = &[$(
                $crate::section::Terms::new(
                    {
                        const IDENT: &str = stringify!($field);
                        const NAME: [u8; $crate::section::name_len(IDENT)] = $crate::section::name_bytes(IDENT);
                        match ::core::str::from_utf8(&NAME) {
                            Ok(name) => name,
                            Err(_) => IDENT,
                        }
                    },
                    concat!("" $(, $field_doc)*),
                ) $($option)*,
            )*];
            const DOTTED: bool = false $(|| $dotted)?;
            const ONE_OF: &'static [&'static [&'static str]] = $crate::section!(@one_of $($one_of)?);

            fn base() -> $target {
                $base
            }

            fn read_into(target: &mut $target, values: &mut $crate::section::Values<'_, '_>) {
                $(
                    if let Some(value) = values.read_next::<$crate::section!(@type $($type),+)>() {
                        target $(.$owner)* .$field = value;
                    }
                )*
            }

            fn kinds() -> Vec<$crate::section::Kind> {
                use $crate::section::{FieldType, Section};
                let mut terms = <$name as Section>::TERMS.iter();
                let mut kinds = Vec::new();
                $( kinds.extend(terms.next().map(<$crate::section!(@type $($type),+) as FieldType>::kind)); )*
                kinds
            }

            fn values(target: &$target) -> Vec<$crate::section::Shown> {
                vec![$(
                    <$crate::section!(@type $($type),+) as $crate::section::FieldType>::shown(
                        &target $(.$owner)* .$field
                    ),
                )*]
            }

            fn check(target: &$target) -> Result<(), $crate::Error> {
                let _ = target;
                $( $check(target)?; )?
                Ok(())
            }
        }

        $crate::field_type! {
            $name => $target,
            kind: |_| $crate::section::Kind::Section(<$name as $crate::section::Section>::describe()),
            read: |node, reader, what, _| <$name as $crate::section::Section>::read_whole(node, reader, what),
            shown: |value| <$name as $crate::section::Section>::show(value),
        }
    };
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
    (@one_of) => { &[] };
    (@one_of $one_of:expr) => { $one_of };
    (@type $type:ty) => { $type };
    (@type $type:ty, $field_type:ty) => { $field_type };
}
