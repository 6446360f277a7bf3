//! Rules in a file: every field is declared once, next to the code that turns it into a [`Rule`] and back.
//!
//! Reading and its mistakes, the JSON Schema, the content of `GET /v1/rules`, the reference page `docs/reference/configuration.md` and the
//! fuzz dictionary derive from the declarations. See [`section!`](crate::section).

mod ad_hoc;
mod adaptive;
mod overrides;
mod quota;
mod rule;
mod warm_up;

use std::collections::HashSet;

pub use self::ad_hoc::AdHocFile;
pub use self::rule::RuleFile;
use self::rule::{Reference, read_rule};
use super::selection::no_such_rule;
use super::{AdHoc, MAX_RULES, Rule, Rules, Unmatched};
use crate::Error;
use crate::common::section::{Given, Ignored, Section, Shown};
use crate::common::yaml::{Fields, Node, Reader};

crate::section! {
    /// Rules, and the settings that belong to them. A file may have other fields, which the server reads.
    pub struct RulesFile("RulesFile") {
        /// Default and bounds for requests that give their own limit and window.
        ad_hoc: AdHocFile,
        /// Policy for a request that no rule matches.
        unmatched: Option<Unmatched> { by_default("warn") },
        /// Part of a response of the server. It has no effect in a file.
        edition: () as Ignored,
        /// Rules, in the order in which they are evaluated.
        rules: () as RuleList { required() },
    }
}

/// List of rules. It is read after the rest of the file, because rules refer to each other.
struct RuleList;

crate::field_type! {
    RuleList => (),
    kind: |terms| Vec::<RuleFile>::kind(terms),
    read: |_, _, _, _| Some(()),
    shown: |_| Shown::Null,
}

impl Rules {
    /// Reads a file that contains only rules. Reports all mistakes, not only the first.
    ///
    /// ```
    /// let rules = slidegate::Rules::from_yaml("
    /// rules:
    ///   - { name: api, key: [user], limit: 100, window: 1m }
    /// ")?;
    /// assert_eq!(rules.iter().count(), 1);
    ///
    /// let error = slidegate::Rules::from_yaml("rules: [{ name: api, limit: 0, windw: 1m }]").unwrap_err();
    /// assert_eq!(error.problems().len(), 3);
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    pub fn from_yaml(text: &str) -> Result<Self, Error> {
        let node = Node::parse(text)?;
        let mut reader = Reader::default();
        let fields = reader.fields(&node, "the file", &RulesFile::names());
        let rules = fields.and_then(|fields| Rules::read(fields, &mut reader));
        reader.finish(rules)
    }

    /// Reads the rules from the fields of a file, and records all mistakes.
    pub fn read(fields: Fields<'_>, reader: &mut Reader) -> Option<Self> {
        let given = RulesFile::given_from(RulesFile::default(), fields, reader, "the file");
        let AdHocFile { limit, window } = given.value.ad_hoc;
        let ad_hoc = reader.accept(given.node("ad-hoc"), AdHoc::new(limit, window));
        let rules = read_rules(&given, reader)?.with_ad_hoc(ad_hoc?);
        Some(Rules { unmatched: given.value.unmatched, ..rules })
    }
}

/// Reads the list of rules, and checks the rules against each other.
fn read_rules(given: &Given<'_, RulesFile>, reader: &mut Reader) -> Option<Rules> {
    let node = given.fields.get("rules")?;
    let before = reader.count();
    let items = reader.list(node, "rules")?;
    if items.len() > MAX_RULES {
        return reader
            .reject(node, format!("a file may have at most {MAX_RULES} rules, not {}", items.len()));
    }
    let (mut names, mut references) = (HashSet::new(), Vec::new());
    let rules: Vec<Rule> =
        items.iter().filter_map(|item| read_rule(item, reader, &mut names, &mut references)).collect();
    for Reference { node, field, name } in references.into_iter().filter(|to| !names.contains(to.name)) {
        reader.problem(node, no_such_rule(field, name).to_string());
    }
    if reader.count() > before {
        return None;
    }
    reader.accept(node, Rules::new(rules))
}

/// Serialization and JSON Schema of sections, for the API of a server.
#[cfg(feature = "schema")]
mod api {
    use std::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator};
    use serde::{Serialize, Serializer};

    use super::{AdHocFile, RuleFile, Unmatched};
    use crate::common::section::{FieldType, Section, schema, vocabulary_schema};

    macro_rules! sections {
        ($($name:ty),*) => { $(
            impl Serialize for $name {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    <$name>::show(self).serialize(serializer)
                }
            }

            impl JsonSchema for $name {
                fn schema_name() -> Cow<'static, str> {
                    <$name>::TITLE.into()
                }

                fn json_schema(generator: &mut SchemaGenerator) -> Schema {
                    schema(&<$name>::describe(), generator)
                }
            }
        )* };
    }

    sections!(RuleFile, AdHocFile);

    impl Serialize for Unmatched {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            Unmatched::shown(self).serialize(serializer)
        }
    }

    impl JsonSchema for Unmatched {
        fn schema_name() -> Cow<'static, str> {
            "Unmatched".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            vocabulary_schema::<Unmatched>()
        }
    }
}
