//! OpenAPI operation of a route: required access, parameters, request body and all responses.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Value, json};

use super::error::{Code, ErrorBody};

const JSON: &str = "application/json";

/// Access that an operation requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Public,
    /// A token is required if API tokens are configured.
    Api,
    /// An admin token is required.
    Admin,
}

/// Client that an operation charges. The recognition of requests from web pages depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Charge {
    /// The operation charges nothing.
    None,
    /// The operation charges, corrects or reports for the client that sends it.
    Sender,
    /// The operation charges the client whose request a proxy describes.
    Forwarded,
}

/// Part of an operation that is needed before its handler runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Endpoint {
    pub(super) access: Access,
    pub(super) charge: Charge,
    /// True if the response lasts for as long as the client reads it.
    pub(super) streams: bool,
}

#[derive(Clone)]
pub(super) struct Operation {
    id: &'static str,
    summary: &'static str,
    pub(super) endpoint: Endpoint,
    parameters: Vec<Value>,
    body: Option<Content>,
    responses: Vec<ResponseSpec>,
    denial: Option<SchemaFn>,
    errors: Vec<Code>,
}

/// Schema generators for request and response bodies. A type may have fewer required fields in a request than
/// in a response.
pub(super) struct Schemas {
    pub(super) read: SchemaGenerator,
    pub(super) written: SchemaGenerator,
}

type SchemaFn = fn(&mut SchemaGenerator) -> Schema;

#[derive(Clone)]
struct ResponseSpec {
    status: &'static str,
    description: &'static str,
    headers: Vec<&'static str>,
    content: Vec<Content>,
}

#[derive(Clone)]
struct Content {
    content_types: &'static [&'static str],
    schema: SchemaFn,
    examples: Vec<&'static str>,
}

impl Content {
    fn new<T: JsonSchema>(content_types: &'static [&'static str], examples: &[&'static str]) -> Self {
        Content { content_types, schema: SchemaGenerator::subschema_for::<T>, examples: examples.to_vec() }
    }

    /// Adds the content to the description of a request body or a response.
    fn add_to(&self, described: &mut Value, generator: &mut SchemaGenerator) {
        let mut media_type = json!({ "schema": (self.schema)(generator) });
        for (n, text) in self.examples.iter().enumerate() {
            // An example that is not JSON is plain text.
            let value = serde_json::from_str(text).unwrap_or_else(|_| Value::from(*text));
            media_type["examples"][(n + 1).to_string()] = json!({ "value": value });
        }
        for content_type in self.content_types {
            described["content"][*content_type] = media_type.clone();
        }
    }
}

impl Operation {
    pub(super) fn new(access: Access, id: &'static str, summary: &'static str) -> Self {
        let (parameters, responses, errors) = (Vec::new(), Vec::new(), Vec::new());
        let endpoint = Endpoint { access, charge: Charge::None, streams: false };
        Operation { id, summary, endpoint, parameters, body: None, responses, denial: None, errors }
    }

    /// Sets the client that the operation charges.
    pub(super) fn charges(mut self, charge: Charge) -> Self {
        self.endpoint.charge = charge;
        self
    }

    /// Declares that the response lasts for as long as the client reads it.
    pub(super) fn streams(mut self) -> Self {
        self.endpoint.streams = true;
        self
    }

    /// Adds a parameter. `location` is `path`, `query` or `header`; path parameters are required.
    pub(super) fn parameter(mut self, location: &str, name: &str, description: &str, schema: Value) -> Self {
        let required = location == "path";
        self.parameters.push(json!({
            "in": location, "name": name, "required": required, "description": description, "schema": schema,
        }));
        self
    }

    pub(super) fn text_parameter(self, location: &str, name: &str, description: &str) -> Self {
        self.parameter(location, name, description, json!({ "type": "string" }))
    }

    /// Sets a JSON request body.
    pub(super) fn takes<T: JsonSchema>(self, examples: &[&'static str]) -> Self {
        self.takes_any_of::<T>(&[JSON], examples)
    }

    pub(super) fn takes_any_of<T: JsonSchema>(
        mut self,
        content_types: &'static [&'static str],
        examples: &[&'static str],
    ) -> Self {
        self.body = Some(Content::new::<T>(content_types, examples));
        self
    }

    /// Adds a JSON response.
    pub(super) fn answers<T: JsonSchema>(
        self,
        status: &'static str,
        description: &'static str,
        examples: &[&'static str],
    ) -> Self {
        self.with(status, description, [Content::new::<T>(&[JSON], examples)])
    }

    /// Adds a text response with one of these content types.
    pub(super) fn answers_text(
        self,
        status: &'static str,
        description: &'static str,
        content_types: &'static [&'static str],
    ) -> Self {
        self.with(status, description, [Content::new::<String>(content_types, &[])])
    }

    /// Adds a response with server-sent events of type `T`.
    pub(super) fn answers_events<T: JsonSchema>(
        self,
        status: &'static str,
        description: &'static str,
    ) -> Self {
        self.with(status, description, [Content::new::<T>(&["text/event-stream"], &[])])
    }

    pub(super) fn answers_without_body(self, status: &'static str, description: &'static str) -> Self {
        self.with(status, description, [])
    }

    fn with<const N: usize>(
        mut self,
        status: &'static str,
        description: &'static str,
        content: [Content; N],
    ) -> Self {
        let content = content.into();
        self.responses.push(ResponseSpec { status, description, headers: Vec::new(), content });
        self
    }

    /// Adds content types that a client can request for the last response.
    pub(super) fn or_as<T: JsonSchema>(mut self, content_types: &'static [&'static str]) -> Self {
        if let Some(response) = self.responses.last_mut() {
            response.content.push(Content::new::<T>(content_types, &[]));
        }
        self
    }

    /// Adds headers to the last response; see [`headers`].
    pub(super) fn with_headers(mut self, names: &[&'static str]) -> Self {
        if let Some(response) = self.responses.last_mut() {
            response.headers.extend(names);
        }
        self
    }

    /// Declares that a denial may have any 4xx or 5xx status, so that the body does not follow from the
    /// status.
    pub(super) fn denies_with_any_status<T: JsonSchema>(mut self) -> Self {
        self.denial = Some(SchemaGenerator::subschema_for::<T>);
        self
    }

    /// Adds error codes, besides those that follow from [`Access`].
    pub(super) fn fails(mut self, codes: &[Code]) -> Self {
        self.errors.extend(codes);
        self
    }

    /// Returns the OpenAPI operation object.
    pub(super) fn describe(&self, method: &str, has_many_methods: bool, schemas: &mut Schemas) -> Value {
        let id = if has_many_methods { format!("{}-{method}", self.id) } else { self.id.to_owned() };
        let mut operation = json!({ "operationId": id, "summary": self.summary });
        operation["security"] = match self.endpoint.access {
            Access::Public => json!([]),
            Access::Api => json!([{}, { "token": [] }]),
            Access::Admin => json!([{ "token": [] }]),
        };
        if !self.parameters.is_empty() {
            operation["parameters"] = self.parameters.clone().into();
        }
        if let Some(body) = &self.body {
            operation["requestBody"] = json!({ "required": true });
            body.add_to(&mut operation["requestBody"], &mut schemas.read);
        }
        let mut responses = self.error_responses(&mut schemas.written);
        for ResponseSpec { status, description, headers, content } in &self.responses {
            let mut response = json!({ "description": description });
            content.iter().for_each(|content| content.add_to(&mut response, &mut schemas.written));
            for name in headers {
                response["headers"][*name] = json!({ "$ref": format!("#/components/headers/{name}") });
            }
            responses.insert((*status).to_owned(), response);
        }
        if method == "head" {
            // Responses to HEAD have no body.
            for response in responses.values_mut() {
                response.as_object_mut().map(|response| response.remove("content"));
            }
        }
        operation["responses"] = Value::from_iter(responses);
        operation
    }

    fn error_responses(&self, generator: &mut SchemaGenerator) -> BTreeMap<String, Value> {
        let access_errors: &[Code] = match self.endpoint.access {
            Access::Public => &[],
            Access::Api => &[Code::Unauthorized, Code::InvalidRequest, Code::CrossOrigin],
            Access::Admin => &[Code::Unauthorized, Code::InvalidRequest, Code::Forbidden, Code::CrossOrigin],
        };
        let mut descriptions: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let access_errors = access_errors.iter().filter(|code| !self.errors.contains(code));
        for code in self.errors.iter().chain(access_errors) {
            let (status, description) = code.status_and_description();
            let line = format!("`{}`: {description}", json!(code).as_str().unwrap_or_default());
            descriptions.entry(status.as_str().to_owned()).or_default().push(line);
        }
        let mut schema = generator.subschema_for::<ErrorBody>().to_value();
        if let Some(denial) = &self.denial {
            schema = json!({ "anyOf": [schema, denial(generator)] });
            for range in ["4XX", "5XX"] {
                descriptions
                    .insert(range.to_owned(), vec!["Denied, with the status that `deny` sets".to_owned()]);
            }
        }
        let response = |(status, lines): (String, Vec<String>)| {
            let mut response = json!({
                "description": lines.join("; "),
                "content": { JSON: { "schema": schema } },
            });
            if status == "401" {
                response["headers"] =
                    json!({ "WWW-Authenticate": { "$ref": "#/components/headers/WWW-Authenticate" } });
            }
            (status, response)
        };
        descriptions.into_iter().map(response).collect()
    }
}

/// Returns the OpenAPI definitions of all response headers.
pub(super) fn headers() -> Value {
    let text = |description: &str, example: &str| json!({ "description": description, "schema": { "type": "string" }, "example": example });
    let number = |description: &str| json!({ "description": description, "schema": { "type": "integer", "minimum": 0 } });
    json!({
        "RateLimit-Policy": text("Limits, one item per rule: `q` permits in `w` seconds.", "\"login-per-ip\";q=3;w=5"),
        "RateLimit": text("Remaining permits, one item per rule: `r` permits; all permits are available after `t` seconds.", "\"login-per-ip\";r=2;t=5"),
        "Retry-After": number("Seconds until the request could be allowed."),
        "X-RateLimit-Limit": number("Limit of the tightest rule, with `?headers=x-ratelimit`."),
        "X-RateLimit-Remaining": number("Remaining permits of that rule."),
        "X-RateLimit-Reset": number("Seconds until all permits of that rule are available."),
        "ETag": text("Hash of the rules in force, for `If-Match`.", "\"9a3c5d0f11e2b746\""),
        "WWW-Authenticate": { "description": "Authentication scheme for the token.", "schema": { "const": "Bearer" }, "example": "Bearer" },
    })
}

/// Headers of a decision. A denial also has `Retry-After`.
pub(super) const DECISION_HEADERS: [&str; 5] =
    ["RateLimit-Policy", "RateLimit", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"];
