//! `docs/reference/http-api.md`, from the OpenAPI document that the server answers.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;
use slidegate_testkit::documents::compare;

use super::cell;
use crate::server::Server;

const INTRODUCTION: &str = "# HTTP API

This page lists every operation of the HTTP API with its parameters, bodies and responses. It is generated from the OpenAPI document,
which a running server returns at `GET /openapi.json`; a test compares them. [HTTP](http.md) explains how to use the API, and
[Error codes](errors.md) lists the codes of all errors.
";

/// Name of a schema that a `$ref` refers to.
fn reference(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.rsplit('/').next()
}

/// Type of a schema, with links to the schemas that have a name. Collects these names.
fn type_name(schema: &Value, used: &mut BTreeSet<String>) -> String {
    if let Some(name) = reference(schema) {
        used.insert(name.to_owned());
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(value) = schema.get("const") {
        return format!("`{value}`");
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
    }
    if let Some(kinds) =
        schema["anyOf"].as_array().or(schema["oneOf"].as_array()).filter(|_| schema["type"].is_null())
    {
        return kinds.iter().map(|kind| type_name(kind, used)).collect::<Vec<_>>().join(" or ");
    }
    let name = |kind: &str, used: &mut BTreeSet<String>| match kind {
        "array" => format!("array of {}", type_name(&schema["items"], used)),
        "object" if schema["additionalProperties"].is_object() => {
            format!("object of {}", type_name(&schema["additionalProperties"], used))
        }
        kind => kind.to_owned(),
    };
    match &schema["type"] {
        Value::String(kind) => name(kind, used),
        Value::Array(kinds) => {
            let kinds = kinds.iter().filter_map(Value::as_str);
            kinds.map(|kind| name(kind, used)).collect::<Vec<_>>().join(" or ")
        }
        _ => "any".to_owned(),
    }
}

fn write_fields(page: &mut String, schema: &Value, used: &mut BTreeSet<String>) {
    let Some(fields) = schema["properties"].as_object().filter(|fields| !fields.is_empty()) else { return };
    page.push_str("\n| field | type | required | meaning |\n|---|---|---|---|\n");
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in fields {
        let is_required = if required.contains(&name.as_str()) { "yes" } else { "no" };
        let kind = type_name(field, used);
        let meaning = cell(field["description"].as_str().unwrap_or_default());
        writeln!(page, "| `{name}` | {kind} | {is_required} | {meaning} |").unwrap();
    }
}

/// Writes a schema that has a name: its fields, its variants, or its values.
fn write_schema(page: &mut String, name: &str, schema: &Value, used: &mut BTreeSet<String>) {
    writeln!(page, "\n### {name}").unwrap();
    if let Some(description) = schema["description"].as_str() {
        writeln!(page, "\n{}", description.replace('\n', " ")).unwrap();
    }
    write_fields(page, schema, used);
    if schema["properties"].is_object() {
        return;
    }
    let variants = schema["oneOf"].as_array().or(schema["anyOf"].as_array());
    if variants.is_none() {
        writeln!(page, "\nType: {}.", type_name(schema, used)).unwrap();
    }
    for (n, variant) in variants.into_iter().flatten().enumerate() {
        let description =
            variant["description"].as_str().map(|text| format!(": {}", cell(text))).unwrap_or_default();
        let kind = type_name(variant, used);
        let line = format!("{}- {kind}{description}", if n == 0 { "\n" } else { "" });
        writeln!(page, "{line}").unwrap();
        write_fields(page, variant, used);
    }
}

/// Types of the content of a body, by content type.
fn content(body: &Value, used: &mut BTreeSet<String>) -> String {
    let kinds = body["content"].as_object().into_iter().flatten().map(|(content_type, media)| {
        let kind = type_name(&media["schema"], used);
        if content_type == "application/json" { kind } else { format!("{kind} as `{content_type}`") }
    });
    kinds.collect::<Vec<_>>().join(" or ")
}

fn write_example(page: &mut String, title: &str, body: &Value) {
    let media = body["content"].as_object().into_iter().flatten().next();
    let example = media.and_then(|(_, media)| media["examples"].as_object()?.values().next());
    match example.map(|example| &example["value"]) {
        Some(Value::String(text)) => {
            writeln!(page, "\n{title}:\n\n```text\n{}\n```", text.trim_end()).unwrap()
        }
        Some(value) => writeln!(page, "\n{title}:\n\n```json\n{value:#}\n```").unwrap(),
        None => {}
    }
}

fn write_operation(page: &mut String, operation: &Value, used: &mut BTreeSet<String>) {
    let access = match operation["security"].as_array().map(Vec::as_slice) {
        Some([]) => "needs no token.",
        Some([_]) => "needs an admin token.",
        _ => "needs a token if the server has tokens.",
    };
    writeln!(page, "\n{}.\n\nAccess: {access}", operation["summary"].as_str().unwrap()).unwrap();
    if let Some(parameters) = operation["parameters"].as_array() {
        page.push_str("\n| parameter | in | type | meaning |\n|---|---|---|---|\n");
        for parameter in parameters {
            let text = |field: &str| parameter[field].as_str().unwrap_or_default();
            let kind = type_name(&parameter["schema"], used);
            writeln!(
                page,
                "| `{}` | {} | {kind} | {} |",
                text("name"),
                text("in"),
                cell(text("description"))
            )
            .unwrap();
        }
    }
    let body = &operation["requestBody"];
    if body.is_object() {
        writeln!(page, "\nBody: {}.", content(body, used)).unwrap();
        write_example(page, "Example", body);
    }
    page.push_str("\n| status | body | meaning |\n|---|---|---|\n");
    let responses = operation["responses"].as_object().unwrap();
    for (status, response) in responses {
        let body = content(response, used);
        let meaning = cell(response["description"].as_str().unwrap_or_default());
        writeln!(page, "| {status} | {body} | {meaning} |").unwrap();
    }
    for (status, response) in responses {
        write_example(page, &format!("Response {status}"), response);
    }
}

#[test]
fn page_lists_every_operation() {
    let document = Server::demo().get("/openapi.json").json();
    let mut used = BTreeSet::new();
    let mut page = INTRODUCTION.to_owned();
    let mut paths: Vec<_> = document["paths"].as_object().unwrap().iter().collect();
    // Decisions come first. The files of the dashboard are not part of the API.
    paths.retain(|(path, _)| *path != "/dashboard/{file}");
    paths.sort_by_key(|(path, _)| !path.starts_with("/v1/"));
    for (path, operations) in paths {
        let operations = operations.as_object().unwrap();
        let first = operations.get("get").or(operations.values().next()).unwrap();
        if operations.values().all(|operation| operation["summary"] == first["summary"]) {
            let method = operations.keys().next().unwrap().to_uppercase();
            let method = if operations.len() == 1 { method.as_str() } else { "Any method," };
            // The path is formatted as code, because mdBook reads `{key}` at the end of a heading as an attribute.
            writeln!(page, "\n## {method} `{path}`").unwrap();
            write_operation(&mut page, first, &mut used);
            continue;
        }
        for (method, operation) in operations {
            writeln!(page, "\n## {} `{path}`", method.to_uppercase()).unwrap();
            write_operation(&mut page, operation, &mut used);
        }
    }
    page.push_str("\n## Types\n");
    let schemas = &document["components"]["schemas"];
    let mut written: BTreeSet<String> = BTreeSet::new();
    let mut types: Vec<(String, String)> = Vec::new();
    while let Some(name) = used.iter().find(|name| !written.contains(*name)).cloned() {
        let mut text = String::new();
        write_schema(&mut text, &name, &schemas[&name], &mut used);
        written.insert(name.clone());
        types.push((name, text));
    }
    types.sort();
    types.iter().for_each(|(_, text)| page.push_str(text));
    compare("docs/reference/http-api.md", &page.replace("|  |", "| |").replace("|  |", "| |"));
}
