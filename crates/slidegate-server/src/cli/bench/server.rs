//! HTTP server as a target: one persistent connection for each caller.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, StatusCode, Uri};
use hyper::client::conn::http1::SendRequest;
use serde::Deserialize;
use serde_json::Value;
use slidegate::Micros;

use super::counts::Outcome;
use super::options::RequestTemplate;
use crate::cli::client;

/// Largest response that is read, in bytes.
const MAX_ANSWER: usize = 64 << 10;

/// Server, and the parts that all requests to it have in common.
pub(super) struct Server {
    pub(super) url: String,
    server: client::Server,
    acquire: Uri,
    peek: Uri,
    timeout: Duration,
    /// Body before and after the number of the key.
    body: (String, String),
}

impl Server {
    /// Resolves the host of `url`.
    pub(super) async fn find(url: &str, timeout: Micros, template: &RequestTemplate) -> Result<Self, String> {
        let server = client::Server::find(url).await?;
        Ok(Server {
            url: url.to_owned(),
            acquire: server.operation("acquire")?,
            peek: server.operation("peek")?,
            server,
            timeout: timeout.into(),
            body: body(template)?,
        })
    }
}

/// Returns the JSON body before and after the number of the key.
fn body(template: &RequestTemplate) -> Result<(String, String), String> {
    let RequestTemplate { resource, limit, window, permits } = template;
    let name = serde_json::to_string(resource).map_err(|error| error.to_string())?;
    // Strip only the closing quote: the name itself may end in one.
    let name = name.strip_suffix('"').unwrap_or(&name);
    let rest = format!(r#"","limit":{limit},"window":"{window}","permits":{permits}}}"#);
    Ok((format!(r#"{{"resource":{name}-"#), rest))
}

/// Connection of one caller.
pub(super) struct Connection {
    server: Arc<Server>,
    sender: Option<SendRequest<String>>,
}

impl Connection {
    /// Connects in advance, so that no request waits for it.
    pub(super) async fn open(server: Arc<Server>) -> Result<Self, String> {
        let connected = tokio::time::timeout(server.timeout, server.server.connect()).await;
        let connected = connected.unwrap_or_else(|_| Err("the server does not answer".to_owned()));
        let sender = connected.map_err(|error| format!("cannot reach {}: {error}", server.url))?;
        Ok(Connection { server, sender: Some(sender) })
    }

    /// Requests permits for a key.
    pub(super) async fn acquire(&mut self, key: u64) -> Result<Outcome, String> {
        let uri = self.server.acquire.clone();
        self.exchange(uri, key).await
    }

    /// Same as [`Connection::acquire`], but charges nothing.
    pub(super) async fn peek(&mut self, key: u64) -> Result<Outcome, String> {
        let uri = self.server.peek.clone();
        self.exchange(uri, key).await
    }

    async fn exchange(&mut self, uri: Uri, key: u64) -> Result<Outcome, String> {
        let (before, after) = &self.server.body;
        let mut request = hyper::Request::new(format!("{before}{key}{after}"));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri;
        *request.headers_mut() = self.server.server.headers.clone();
        let timeout = self.server.timeout;
        let answered = tokio::time::timeout(timeout, self.send(request)).await;
        let (status, bytes) =
            answered.map_err(|_| format!("no answer within {}", Micros::from(timeout)))??;
        read(status, &bytes)
    }

    /// Sends a request. After an error, or if the future is dropped, the connection is closed: a late response would be
    /// mistaken for the next one.
    async fn send(
        &mut self,
        request: hyper::Request<String>,
    ) -> Result<(StatusCode, axum::body::Bytes), String> {
        let mut sender = match self.sender.take() {
            Some(mut sender) => match sender.ready().await {
                Ok(()) => sender,
                // The server closed the connection while it was idle.
                Err(_) => self.reconnect().await?,
            },
            None => self.reconnect().await?,
        };
        let no_answer = |error: &dyn std::fmt::Display| format!("no answer: {error}");
        let response = sender.send_request(request).await.map_err(|error| no_answer(&error))?;
        let (head, body) = response.into_parts();
        let bytes =
            axum::body::to_bytes(Body::new(body), MAX_ANSWER).await.map_err(|error| no_answer(&error))?;
        self.sender = Some(sender);
        Ok((head.status, bytes))
    }

    async fn reconnect(&self) -> Result<SendRequest<String>, String> {
        self.server.server.connect().await.map_err(|error| format!("no connection: {error}"))
    }
}

#[derive(Deserialize)]
struct AnswerBody<'a> {
    allowed: bool,
    #[serde(borrow, default)]
    source: Cow<'a, str>,
}

fn read(status: StatusCode, bytes: &[u8]) -> Result<Outcome, String> {
    if let StatusCode::OK | StatusCode::TOO_MANY_REQUESTS = status
        && let Ok(AnswerBody { allowed, source }) = serde_json::from_slice(bytes)
    {
        return Ok(Outcome { allowed, source: Cow::Owned(source.into_owned()) });
    }
    let body: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let message = body["error"]["message"].as_str().unwrap_or("not a response of Slidegate");
    Err(format!("{}: {message}", status.as_u16()))
}
