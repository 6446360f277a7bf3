//! `GET /openapi.json`: OpenAPI description of the API, generated from the routes themselves.

use std::sync::LazyLock;

use axum::http::header;
use axum::response::IntoResponse;
use bytes::Bytes;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::operation::{Access, Operation, Schemas, headers};
use super::route::Route;
use super::routes;

/// The document is the same for all clients and never changes, so it is generated once.
static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| document().to_string().into());

pub(super) fn route() -> Route {
    let operation = Operation::new(Access::Api, "openapi", "OpenAPI document of this API")
        .answers::<Map<String, Value>>("200", "OpenAPI 3.1", &[]);
    Route::new("/openapi.json").get(show, operation)
}

async fn show() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.clone())
}

fn document() -> Value {
    let settings =
        || SchemaSettings::draft2020_12().with(|it| it.definitions_path = "/components/schemas".into());
    let mut schemas =
        Schemas { read: settings().into_generator(), written: settings().for_serialize().into_generator() };
    let mut paths = Map::new();
    for Route { path, operations, .. } in routes() {
        let has_many_methods = operations.len() > 4;
        let operations = operations.iter().map(|(method, operation)| {
            ((*method).to_owned(), operation.describe(method, has_many_methods, &mut schemas))
        });
        // A `{*key}` parameter may contain slashes, which OpenAPI cannot express.
        paths.insert(path.replace("{*", "{"), operations.collect());
    }
    let mut definitions = schemas.written.take_definitions(true);
    definitions.extend(schemas.read.take_definitions(true));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Slidegate",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            "description": "Exact, atomic, explainable rate limiting. Unknown paths answer 404 `not_found`. Unknown \
                methods of a path answer 405 `method_not_allowed` with `Allow`.",
        },
        "paths": paths,
        "components": {
            "schemas": definitions,
            "headers": headers(),
            "securitySchemes": { "token": {
                "type": "http",
                "scheme": "bearer",
                "description": "Calls need a token if the server has tokens. Changes need an admin token; on the \
                    --admin listener only if the server has admin tokens.",
            } },
        },
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::body::Body;
    use axum::http::{Request, StatusCode};
    use hyper::service::Service as _;
    use hyper_util::service::TowerToHyperService;
    use slidegate::{MemoryStore, Rules};

    use super::*;
    use crate::app::state::AppState;
    use crate::protocol::http::forward_auth::Peer;
    use crate::protocol::http::router;
    use crate::store::AnyStore;

    /// A path accepts the methods that the document describes, and no others.
    #[tokio::test]
    async fn describes_exactly_the_routes() {
        let store = AnyStore::Memory(MemoryStore::new());
        let app = AppState::new(store, Rules::new([]).unwrap(), "a test");
        let router = TowerToHyperService::new(router(routes(), Arc::new(app)));
        let document = document();
        let paths = document["paths"].as_object().unwrap();
        assert_eq!(paths.len(), routes().len());
        for (path, operations) in paths {
            for method in ["get", "put", "post", "delete", "options", "patch", "trace"] {
                let name = method.to_uppercase();
                let request = Request::builder()
                    .method(name.as_str())
                    .uri(path.replace("{key}", "a:b=c/d"))
                    .extension(Peer(([127, 0, 0, 1], 1).into()));
                let answer = router.call(request.body(Body::empty()).unwrap()).await.unwrap();
                let taken = answer.status() != StatusCode::METHOD_NOT_ALLOWED;
                assert_eq!(taken, operations.get(method).is_some(), "{method} {path}");
                if !taken {
                    let allowed = answer.headers()["allow"].to_str().unwrap();
                    let described =
                        |name: &&str| operations.get(name.to_lowercase()).is_some() || *name == "HEAD";
                    assert!(allowed.split(',').all(|name| described(&name)), "{path} {allowed}");
                }
            }
        }
    }

    /// Collects every example with its schema.
    fn examples(value: &Value, found: &mut Vec<(Value, Value)>) {
        if let (Some(schema), Some(examples)) = (value.get("schema"), value.get("examples")) {
            let examples = examples.as_object().unwrap().values();
            found.extend(examples.map(|example| (schema.clone(), example["value"].clone())));
        }
        match value {
            Value::Object(fields) => fields.values().for_each(|value| examples(value, found)),
            Value::Array(items) => items.iter().for_each(|value| examples(value, found)),
            _ => {}
        }
    }

    #[test]
    fn examples_match_their_schemas() {
        let document = document();
        let mut found = Vec::new();
        examples(&document["paths"], &mut found);
        assert!(found.len() > 15, "{}", found.len());
        for (mut schema, example) in found {
            schema["components"] = document["components"].clone();
            let validator = jsonschema::validator_for(&schema).unwrap();
            assert!(validator.is_valid(&example), "{example}: {:?}", validator.validate(&example));
        }
    }

    /// Every reference resolves, for request and response schemas alike.
    #[test]
    fn references_resolve() {
        let document = document();
        let text = document.to_string();
        let references: Vec<&str> = text.split("\"$ref\":\"#").skip(1).collect();
        assert!(references.len() > 20, "{}", references.len());
        for reference in references {
            let pointer = reference.split('"').next().unwrap();
            assert!(document.pointer(pointer).is_some(), "{pointer}");
        }
    }
}
