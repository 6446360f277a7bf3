//! What a call says about itself in `/openapi.json`: who may make it, what it takes, and everything it may answer.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::error::{Code, ErrorBody};

const JSON: &str = "application/json";

/// What metrics are written in.
pub(super) const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Who may make a call.
#[derive(Clone, Copy)]
pub(super) enum Who {
    Everybody,
    /// Whoever shows a token, if there are any.
    Asking,
    /// Whoever shows a token that lets change.
    Changing,
}

#[derive(Clone)]
pub(super) struct Call {
    id: &'static str,
    summary: &'static str,
    who: Who,
    parameters: Vec<Value>,
    body: Option<Content>,
    answers: Vec<Answer>,
    denial: Option<Content>,
    errors: Vec<Code>,
}

/// Generators for what is read and what is written: the same type may need less when it is read.
pub(super) struct Schemas {
    pub(super) read: SchemaGenerator,
    pub(super) written: SchemaGenerator,
}

#[derive(Clone)]
struct Answer {
    status: &'static str,
    description: &'static str,
    headers: Vec<&'static str>,
    content: Option<Content>,
    /// The same in another way.
    other: Option<Content>,
}

#[derive(Clone)]
struct Content {
    kinds: &'static [&'static str],
    schema: fn(&mut SchemaGenerator) -> Schema,
    examples: Vec<&'static str>,
}

impl Content {
    fn new<T: JsonSchema>(kinds: &'static [&'static str], examples: &[&'static str]) -> Self {
        Content { kinds, schema: SchemaGenerator::subschema_for::<T>, examples: examples.to_vec() }
    }

    fn describe(&self, generator: &mut SchemaGenerator) -> Value {
        let mut one = Map::new();
        one.insert("schema".to_owned(), (self.schema)(generator).to_value());
        let examples = self.examples.iter().enumerate().map(|(n, text)| {
            // Text is an example of itself.
            let value = serde_json::from_str(text).unwrap_or_else(|_| Value::from(*text));
            ((n + 1).to_string(), json!({ "value": value }))
        });
        let examples: Map<String, Value> = examples.collect();
        if !examples.is_empty() {
            one.insert("examples".to_owned(), examples.into());
        }
        self.kinds.iter().map(|kind| ((*kind).to_owned(), Value::from(one.clone()))).collect()
    }
}

impl Call {
    pub(super) fn new(who: Who, id: &'static str, summary: &'static str) -> Self {
        let (parameters, answers, errors) = (Vec::new(), Vec::new(), Vec::new());
        Call { id, summary, who, parameters, body: None, answers, denial: None, errors }
    }

    /// `place` is `path`, `query` or `header`; what is in a path is required.
    pub(super) fn parameter(mut self, place: &str, name: &str, description: &str, schema: Value) -> Self {
        let required = place == "path";
        self.parameters.push(json!({
            "in": place, "name": name, "required": required, "description": description, "schema": schema,
        }));
        self
    }

    /// Takes JSON.
    pub(super) fn takes<T: JsonSchema>(self, examples: &[&'static str]) -> Self {
        self.takes_any_of::<T>(&[JSON], examples)
    }

    pub(super) fn takes_any_of<T: JsonSchema>(
        mut self,
        kinds: &'static [&'static str],
        examples: &[&'static str],
    ) -> Self {
        self.body = Some(Content::new::<T>(kinds, examples));
        self
    }

    /// Answers with JSON.
    pub(super) fn answers<T: JsonSchema>(
        self,
        status: &'static str,
        description: &'static str,
        examples: &[&'static str],
    ) -> Self {
        self.with(status, description, Some(Content::new::<T>(&[JSON], examples)))
    }

    /// Answers with text of one of these kinds.
    pub(super) fn answers_text(
        self,
        status: &'static str,
        description: &'static str,
        kinds: &'static [&'static str],
    ) -> Self {
        self.with(status, description, Some(Content::new::<String>(kinds, &[])))
    }

    /// Answers with server-sent events like these.
    pub(super) fn answers_events<T: JsonSchema>(
        self,
        status: &'static str,
        description: &'static str,
    ) -> Self {
        self.with(status, description, Some(Content::new::<T>(&["text/event-stream"], &[])))
    }

    pub(super) fn answers_metrics(self, status: &'static str, description: &'static str) -> Self {
        self.with(status, description, Some(Content::new::<String>(&[METRICS], &[])))
    }

    pub(super) fn answers_without_body(self, status: &'static str, description: &'static str) -> Self {
        self.with(status, description, None)
    }

    fn with(mut self, status: &'static str, description: &'static str, content: Option<Content>) -> Self {
        self.answers.push(Answer { status, description, headers: Vec::new(), content, other: None });
        self
    }

    /// What was described last may come in these kinds as well, if they are asked for.
    pub(super) fn or_as<T: JsonSchema>(mut self, kinds: &'static [&'static str]) -> Self {
        if let Some(Answer { other, .. }) = self.answers.last_mut() {
            *other = Some(Content::new::<T>(kinds, &[]));
        }
        self
    }

    /// What was described last has these headers; see [`headers`].
    pub(super) fn headed(mut self, names: &[&'static str]) -> Self {
        if let Some(answer) = self.answers.last_mut() {
            answer.headers.extend(names);
        }
        self
    }

    /// Denies with whatever status it is asked to, so that a body does not follow from a status.
    pub(super) fn denies_with_any_status<T: JsonSchema>(mut self) -> Self {
        self.denial = Some(Content::new::<T>(&[JSON], &[]));
        self
    }

    /// What may go wrong, besides what [`Who`] says.
    pub(super) fn fails(mut self, codes: &[Code]) -> Self {
        self.errors.extend(codes);
        self
    }

    /// As an OpenAPI operation.
    pub(super) fn describe(&self, method: &str, several: bool, schemas: &mut Schemas) -> Value {
        let id = if several { format!("{}-{method}", self.id) } else { self.id.to_owned() };
        let mut call = json!({ "operationId": id, "summary": self.summary });
        call["security"] = match self.who {
            Who::Everybody => json!([]),
            Who::Asking => json!([{}, { "token": [] }]),
            Who::Changing => json!([{ "token": [] }]),
        };
        if !self.parameters.is_empty() {
            call["parameters"] = self.parameters.clone().into();
        }
        if let Some(body) = &self.body {
            call["requestBody"] = json!({ "required": true, "content": body.describe(&mut schemas.read) });
        }
        let mut responses = self.failures(&mut schemas.written);
        for Answer { status, description, headers, content, other } in &self.answers {
            let mut answer = json!({ "description": description });
            if let Some(content) = content {
                answer["content"] = content.describe(&mut schemas.written);
            }
            if let Some(Value::Object(other)) =
                other.as_ref().map(|other| other.describe(&mut schemas.written))
            {
                for (kind, content) in other {
                    answer["content"][kind] = content;
                }
            }
            for name in headers {
                answer["headers"][*name] = json!({ "$ref": format!("#/components/headers/{name}") });
            }
            responses.insert((*status).to_owned(), answer);
        }
        if method == "head" {
            // Its answers are without a body.
            for answer in responses.values_mut() {
                answer.as_object_mut().map(|answer| answer.remove("content"));
            }
        }
        call["responses"] = Value::from_iter(responses);
        call
    }

    fn failures(&self, generator: &mut SchemaGenerator) -> BTreeMap<String, Value> {
        let by_who: &[Code] = match self.who {
            Who::Everybody => &[],
            Who::Asking => &[Code::Unauthorized, Code::InvalidRequest, Code::CrossOrigin],
            Who::Changing => {
                &[Code::Unauthorized, Code::InvalidRequest, Code::Forbidden, Code::CrossOrigin]
            }
        };
        let mut meanings: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let by_who = by_who.iter().filter(|code| !self.errors.contains(code));
        for code in self.errors.iter().chain(by_who) {
            let (status, meaning) = code.meaning();
            let line = format!("`{}`: {meaning}", json!(code).as_str().unwrap_or_default());
            meanings.entry(status.as_str().to_owned()).or_default().push(line);
        }
        let mut schema = generator.subschema_for::<ErrorBody>().to_value();
        if let Some(denial) = &self.denial {
            let denial = (denial.schema)(generator).to_value();
            schema = json!({ "anyOf": [schema, denial] });
            for range in ["4XX", "5XX"] {
                meanings.insert(range.to_owned(), vec!["Denied, with the status of `deny`".to_owned()]);
            }
        }
        let answer = |(status, lines): (String, Vec<String>)| {
            let mut answer = json!({
                "description": lines.join("; "),
                "content": { JSON: { "schema": schema } },
            });
            if status == "401" {
                answer["headers"] =
                    json!({ "WWW-Authenticate": { "$ref": "#/components/headers/WWW-Authenticate" } });
            }
            (status, answer)
        };
        meanings.into_iter().map(answer).collect()
    }
}

/// The headers of answers.
pub(super) fn headers() -> Value {
    let text = |description: &str, example: &str| json!({ "description": description, "schema": { "type": "string" }, "example": example });
    let number = |description: &str| json!({ "description": description, "schema": { "type": "integer", "minimum": 0 } });
    json!({
        "RateLimit-Policy": text("What is allowed, an item a rule: `q` permits in `w` seconds.", "\"login-per-ip\";q=3;w=5"),
        "RateLimit": text("What is left, an item a rule: `r` permits, all of them again after `t` seconds.", "\"login-per-ip\";r=2;t=5"),
        "Retry-After": number("After how many seconds it could be allowed."),
        "X-RateLimit-Limit": number("The limit of the tightest rule, with `?headers=x-ratelimit`."),
        "X-RateLimit-Remaining": number("What is left of it."),
        "X-RateLimit-Reset": number("After how many seconds all of it is there again."),
        "WWW-Authenticate": { "description": "How to show a token.", "schema": { "const": "Bearer" }, "example": "Bearer" },
    })
}

/// Those of an answer that allows.
pub(super) const ALLOWED: [&str; 5] =
    ["RateLimit-Policy", "RateLimit", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"];

/// And of one that denies, as well.
pub(super) const DENIED: [&str; 6] = [
    "RateLimit-Policy",
    "RateLimit",
    "Retry-After",
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
];
