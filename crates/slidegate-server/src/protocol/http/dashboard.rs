//! `GET /`: the dashboard for browsers, a short text for other clients.

use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::error::{ApiError, Code};
use super::operation::{Access, Operation};
use super::route::Route;

const INDEX: &str = "Slidegate

POST /v1/acquire        {\"attributes\":{\"api\":\"/login\",\"ip\":\"1.2.3.4\"},\"permits\":1}
POST /v1/acquire        {\"resource\":\"user123\",\"limit\":10,\"window\":\"1s\"}
POST /v1/acquire/batch  {\"requests\":[…]}
POST /v1/peek           as acquire, charges nothing
POST /v1/settle         {\"reservation\":\"…\",\"permits\":0}
POST /v1/report         {\"attributes\":{…},\"latency_ms\":87}  latency of a request, for adaptive rules
POST /v1/release        {\"reservation\":\"…\"}  releases held permits; /v1/extend holds them longer
GET  /v1/authorize      for nginx, Traefik and Caddy: attributes from headers
GET  /v1/rules  /v1/store
PUT  /v1/rules          replaces the rules (YAML or JSON); needs an admin token
GET  /v1/keys           keys, in pages of ?limit=100; ?rule=NAME, ?prefix=TEXT
GET  /v1/keys/KEY       count of a key; DELETE resets it, and needs an admin token
GET  /v1/top  /v1/live  top keys; live statistics
GET  /v1/history?rule=… last hour of a rule
GET  /v1/fleet          all nodes that share a Redis, and their sums
GET  /v1/access         rights of a token
GET  /healthz  /readyz  /metrics
GET  /openapi.json      OpenAPI description

A browser gets the dashboard at this address.
";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Embeds files of the folder `dashboard`, as pairs of name and content.
macro_rules! embedded {
    ($($name:literal,)+) => {
        &[$(($name, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/dashboard/", $name)).as_slice())),+]
    };
}

/// Files of the dashboard. A test compares the list with the folder.
const FILES: &[(&str, &[u8])] = embedded![
    "access.js",
    "address.js",
    "ahead.js",
    "api.js",
    "banner.js",
    "chart.js",
    "confirm.js",
    "diff.js",
    "dom.js",
    "editor.js",
    "events.js",
    "favicon.svg",
    "fleet.js",
    "health.js",
    "highlight.js",
    "history.js",
    "index.html",
    "inspector.js",
    "layout.js",
    "live.js",
    "main.js",
    "mode.js",
    "problems.js",
    "rule.js",
    "rules.js",
    "shortcuts.js",
    "spark.js",
    "store.js",
    "style.css",
    "theme.js",
    "timeline.js",
    "top.js",
    "try.js",
    "words.js",
];

const PAGE: &str = "index.html";

/// Content security policy: the page can load only files of this server, and cannot be embedded in another
/// page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(super) fn index_route() -> Route {
    let operation = Operation::new(
        Access::Public,
        "index",
        "Dashboard, or a list of the calls if the client is not a browser",
    )
    .answers_text("200", "HTML or plain text", &["text/plain; charset=utf-8", HTML]);
    Route::new("/").get(page, operation)
}

pub(super) fn file_route() -> Route {
    let operation = Operation::new(Access::Public, "dashboard", "File of the dashboard")
        .parameter("path", "file", "Name of the file.", json!({ "enum": files().collect::<Vec<_>>() }))
        .answers_text("200", "The file", &[CSS, SCRIPT, SVG])
        .fails(&[Code::NotFound]);
    Route::new("/dashboard/{file}").get(serve, operation)
}

/// Returns true if the client is a browser that shows a page.
fn is_browser(head: &HeaderMap) -> bool {
    let accept = head.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|kinds| kinds.contains("text/html"))
}

async fn page(head: HeaderMap) -> Response {
    let page = if is_browser(&head) { file_response(PAGE) } else { None };
    let mut response = page.unwrap_or_else(|| INDEX.into_response());
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept"));
    response
}

/// Names of the files that the page loads.
fn files() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name).filter(|name| *name != PAGE)
}

async fn serve(Path(name): Path<String>) -> Result<Response, ApiError> {
    let name = files().find(|known| *known == name);
    name.and_then(file_response)
        .ok_or_else(|| ApiError::new(Code::NotFound, "the dashboard has no such file"))
}

/// Returns the response with the file of that name.
fn file_response(name: &str) -> Option<Response> {
    let (_, content) = FILES.iter().find(|(known, _)| *known == name)?;
    let kind = match name.rsplit_once('.')?.1 {
        "html" => HTML,
        "css" => CSS,
        "js" => SCRIPT,
        "svg" => SVG,
        _ => return None,
    };
    let mut response = content.into_response();
    let headers = response.headers_mut();
    let fixed = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // Browsers must ask for the file again, because another version of the server may have another
        // dashboard.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Some(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_folder_is_embedded() {
        let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/dashboard")).unwrap();
        let mut there: Vec<_> = folder.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        there.sort();
        let embedded: Vec<_> = FILES.iter().map(|(name, _)| *name).collect();
        assert_eq!(embedded, there);
    }
}
