//! Arguments that describe a request, and the call to a server.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::Method;
use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use slidegate::{AdHocLimit, Micros, Request, RequestId, bounds::MAX_LIMIT};
use tokio::runtime::Builder;
use tokio::time::timeout;

use super::client::Server;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Largest response that is read, in bytes.
const MAX_ANSWER: usize = 10 << 20;

/// Request, and the server that decides.
#[derive(Debug, Args)]
pub(crate) struct RequestArgs {
    /// Attributes of the request, such as ip=1.2.3.4
    #[arg(value_name = "NAME=VALUE", required_unless_present = "resource")]
    attributes: Vec<String>,
    /// URL of the server
    #[arg(long, alias = "server", default_value = "http://127.0.0.1:8080", env = "SLIDEGATE_URL")]
    pub(crate) url: String,
    /// Number of permits. 0 is a peek
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(0..=MAX_LIMIT))]
    permits: u64,
    /// Id of the request. A retry with the same id is not charged again
    #[arg(long)]
    id: Option<String>,
    /// Name of a resource. The server then uses --limit and --window instead of the rules
    #[arg(long, conflicts_with = "attributes")]
    resource: Option<String>,
    ///     Limit of the resource [default: the default of the server]
    #[arg(long)]
    limit: Option<u64>,
    ///     Window of the resource, such as 1s [default: the default of the server]
    #[arg(long)]
    window: Option<String>,
}

impl RequestArgs {
    fn attributes(&self) -> Result<Vec<(&str, &str)>, String> {
        if self.limit.is_some() || self.window.is_some() {
            return Err("--limit and --window need --resource; attributes are limited by the server's rules"
                .to_owned());
        }
        let mut attributes: Vec<(&str, &str)> = Vec::new();
        for text in &self.attributes {
            let (name, value) = text.split_once('=').ok_or_else(|| format!("`{text}` is not NAME=VALUE"))?;
            if attributes.iter().any(|(known, _)| *known == name) {
                return Err(format!("`{name}` is given twice"));
            }
            attributes.push((name, value));
        }
        Ok(attributes)
    }

    /// Returns a note about the part of a resource's limit that is not given, for which the server has a default.
    pub(crate) fn default_note(&self) -> Option<String> {
        let missing = match (&self.resource, self.limit, &self.window) {
            (Some(_), None, None) => "--limit and --window",
            (Some(_), None, Some(_)) => "--limit",
            (Some(_), Some(_), None) => "--window",
            _ => return None,
        };
        Some(format!("without {missing} the server uses its default: `ad-hoc` in its configuration"))
    }

    /// Returns the request as the JSON body of a call.
    pub(crate) fn body(&self) -> Result<Value, String> {
        let mut body = json!({
            "resource": self.resource, "limit": self.limit, "window": self.window,
            "permits": self.permits, "id": self.id,
        });
        if self.resource.is_none() {
            body["attributes"] = self.attributes()?.into_iter().collect();
        }
        if let Value::Object(fields) = &mut body {
            fields.retain(|_, value| !value.is_null());
        }
        Ok(body)
    }

    /// Returns the request for a limiter in this process.
    pub(crate) fn request(&self) -> Result<Request<'_>, String> {
        let mut request = match &self.resource {
            Some(resource) => {
                let window = self.window.as_ref().map(|window| window.parse::<Micros>()).transpose();
                let window = window.map_err(|error| format!("--window is {error}"))?;
                Request::resource(resource).with_own_limit(AdHocLimit {
                    limit: self.limit,
                    window,
                    burst: None,
                })
            }
            None => Request::new(self.attributes()?),
        };
        if let Some(id) = &self.id {
            request = request.id(RequestId::new(id).map_err(|error| error.to_string())?);
        }
        request = request.permits(self.permits);
        Ok(request)
    }
}

/// Calls an operation of the server at `url`. Returns the response as it came, and as a `T`.
pub(crate) fn post<T: DeserializeOwned>(
    url: &str,
    operation: &str,
    body: &Value,
) -> Result<(Value, T), String> {
    if !url.starts_with("http://") {
        return Err(format!("`{url}` is not an address such as http://127.0.0.1:8080"));
    }
    let target = format!("{}/v1/{operation}", url.trim_end_matches('/'));
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    let response = runtime.block_on(async { timeout(TIMEOUT, send(url, operation, body)).await });
    let response = response.unwrap_or_else(|_| Err(format!("no response within {} s", TIMEOUT.as_secs())));
    let bytes = response.map_err(|error| format!("no answer from {target}: {error}"))?;
    let not_slidegate = |_| format!("{target} is not a Slidegate server");
    let answer: Value = serde_json::from_slice(&bytes).map_err(not_slidegate)?;
    if let Some(message) = answer["error"]["message"].as_str() {
        return Err(message.to_owned());
    }
    let body = T::deserialize(&answer).map_err(not_slidegate)?;
    Ok((answer, body))
}

/// Sends one request and returns the body of the response.
async fn send(url: &str, operation: &str, body: &Value) -> Result<Bytes, String> {
    let server = Server::find(url).await?;
    let mut request = hyper::Request::new(body.to_string());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = server.operation(operation)?;
    *request.headers_mut() = server.headers.clone();
    let response = server.connect().await?.send_request(request).await.map_err(|error| error.to_string())?;
    let body = Body::new(response.into_body());
    axum::body::to_bytes(body, MAX_ANSWER).await.map_err(|error| error.to_string())
}
