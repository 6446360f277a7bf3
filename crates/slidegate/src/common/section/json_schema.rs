//! JSON Schema of a section.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::{Description, Kind, Terms, Vocabulary};
use crate::words::Words;

/// Returns the schema of a section. The schemas of nested sections and of words go to the definitions of `generator`.
pub fn schema(section: &Description, generator: &mut SchemaGenerator) -> Schema {
    let mut properties = Map::new();
    for (terms, kind, default) in &section.fields {
        properties.insert(terms.name.to_owned(), property(terms, kind, default.as_deref(), generator));
    }
    let required = section.fields.iter().filter(|(terms, ..)| terms.required).map(|(terms, ..)| terms.name);
    let mut schema = json_schema!({
        "type": "object",
        "description": section.doc.trim(),
        "properties": properties,
        "required": required.collect::<Vec<_>>(),
        "additionalProperties": false,
    });
    if !section.one_of.is_empty() {
        let alternatives = section.one_of.iter().map(|names| alternative(section, names));
        schema.insert("oneOf".to_owned(), alternatives.collect());
    }
    schema
}

/// Returns the schema of a whole file.
pub fn root_schema(section: &Description) -> Schema {
    let mut generator = SchemaGenerator::default();
    let mut root =
        json_schema!({ "$schema": "https://json-schema.org/draft/2020-12/schema", "title": section.title });
    let section = schema(section, &mut generator);
    if let (Some(root), Value::Object(section)) = (root.as_object_mut(), section.to_value()) {
        root.extend(section);
        root.insert("$defs".to_owned(), Value::Object(generator.take_definitions(true)));
    }
    root
}

/// Returns a schema that requires these fields. The flags among them must also be true.
fn alternative(section: &Description, names: &[&str]) -> Value {
    let is_flag = |name: &str| {
        section.fields.iter().any(|(terms, kind, _)| terms.name == name && matches!(kind, Kind::Flag))
    };
    let flags = names.iter().filter(|name| is_flag(name));
    let flags: Map<_, _> = flags.map(|name| ((*name).to_owned(), json!({ "const": true }))).collect();
    json!({ "required": names, "properties": flags })
}

fn property(terms: &Terms, kind: &Kind, default: Option<&str>, generator: &mut SchemaGenerator) -> Value {
    let mut schema = of_kind(terms, kind, generator);
    // An optional field may be null, which counts as not given.
    if !terms.required {
        if let Some(name) = schema.get("type").cloned() {
            schema["type"] = json!([name, "null"]);
        } else if !matches!(kind, Kind::Any) {
            schema = json!({ "anyOf": [schema, { "type": "null" }] });
        }
    }
    let mut doc = terms.doc.trim().to_owned();
    if let Some(default) = default.filter(|default| !default.is_empty()) {
        doc.push_str(&format!(" Default: {default}."));
    }
    schema["description"] = doc.into();
    schema
}

fn of_kind(terms: &Terms, kind: &Kind, generator: &mut SchemaGenerator) -> Value {
    match kind {
        Kind::Any => json!({}),
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Whole(min, u64::MAX) => json!({ "type": "integer", "minimum": min }),
        Kind::Whole(min, max) => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Number(min, max) => {
            json!({ "type": "number", "minimum": *min as f64 / 100.0, "maximum": *max as f64 / 100.0 })
        }
        Kind::Text | Kind::Time(_) | Kind::Percent(_) => {
            let mut schema = json!({ "type": "string" });
            if let Some(pattern) = terms.pattern {
                schema["pattern"] = pattern.into();
            }
            if terms.nonempty {
                schema["minLength"] = 1.into();
            }
            schema
        }
        Kind::Words(words) => define(words.name, generator, |_| words_schema(words)),
        Kind::List(item, nonempty) => {
            let item = of_kind(&Terms { nonempty: false, ..*terms }, item, generator);
            let mut schema = json!({ "type": "array", "items": item });
            if *nonempty {
                schema["minItems"] = 1.into();
            }
            schema
        }
        Kind::Map(value) => {
            let value = of_kind(terms, value, generator);
            json!({ "type": "object", "additionalProperties": value })
        }
        Kind::Section(section) => {
            define(section.title, generator, |generator| schema(section, generator).to_value())
        }
        Kind::Union(name, kinds) => define(
            name,
            generator,
            |generator| json!({ "anyOf": kinds.iter().map(|kind| of_kind(terms, kind, generator)).collect::<Vec<_>>() }),
        ),
    }
}

fn words_schema(words: &Vocabulary) -> Value {
    let schema =
        |(word, doc): &(&str, &str)| json!({ "type": "string", "const": word, "description": doc.trim() });
    let one_of: Vec<Value> = words.words.iter().map(schema).collect();
    json!({ "description": words.doc.trim(), "oneOf": one_of })
}

/// Returns the schema of an enum.
pub fn vocabulary_schema<T: Words>() -> Schema {
    Schema::try_from(words_schema(&Vocabulary::of::<T>())).unwrap_or_default()
}

/// Adds a definition, and returns a reference to it.
fn define(
    name: &str,
    generator: &mut SchemaGenerator,
    schema: impl FnOnce(&mut SchemaGenerator) -> Value,
) -> Value {
    if !generator.definitions().contains_key(name) {
        let schema = schema(generator);
        generator.definitions_mut().insert(name.to_owned(), schema);
    }
    let path = generator.settings().definitions_path.trim_end_matches('/');
    json!({ "$ref": format!("#{path}/{name}") })
}
