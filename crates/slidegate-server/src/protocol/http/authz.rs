//! Who may come in at this door, and for what.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName, Method, header};

use super::error::{ApiError, Code};
use super::{ConnectionHandler, Role};
use crate::app::auth::bearer;
use crate::config::Origin;

impl ConnectionHandler {
    /// Whether a request may be answered.
    pub(super) fn admits(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), ApiError> {
        if headers.get_all(header::AUTHORIZATION).iter().nth(1).is_some() {
            // Programs on the way could each go by another one.
            let message = "`authorization` is given twice: send one";
            return Err(ApiError::new(Code::InvalidRequest, message));
        }
        let shown = headers.get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
        match path {
            "/healthz" | "/readyz" | "/" => Ok(()),
            _ if path.starts_with("/dashboard/") => Ok(()),
            _ if changes(method, path) => {
                self.admits_change(shown)?;
                // Without a token a page could ask in the name of who looks at it.
                if self.gate.settings.access.has_admin() || !is_of_a_page(headers) {
                    Ok(())
                } else {
                    Err(by_a_page())
                }
            }
            _ => {
                self.admits_ask(shown)?;
                // A page does not know the token, so it is only where there is none that it could charge.
                if self.gate.settings.access.is_open() && self.is_charged_by_a_page(path, headers) {
                    Err(charged_by_a_page(path))
                } else {
                    Ok(())
                }
            }
        }
    }

    /// Whether a page of another site makes a browser send what is charged.
    fn is_charged_by_a_page(&self, path: &str, headers: &HeaderMap) -> bool {
        match path {
            AUTHORIZE => is_of_a_browser(headers) && !self.is_of_a_proxy(headers),
            _ => CHARGES.contains(&path) && is_cross_origin(headers),
        }
    }

    /// Whether a request to `/v1/authorize` has a header that says something about another request. Proxies pass on the headers of
    /// that request, also those which browsers add, so these alone say nothing. A page cannot send any of these: a browser
    /// asks the server first, which does not agree.
    fn is_of_a_proxy(&self, headers: &HeaderMap) -> bool {
        let said = |name: &HeaderName| {
            PROXY.contains(&name.as_str())
                || PROXY_PREFIXES.iter().any(|prefix| name.as_str().starts_with(prefix))
                || self.gate.settings.authorize.attributes.iter().any(|(_, origin)| match origin {
                    Origin::Header(known) => known == name && !SENT_BY_BROWSERS.contains(&name.as_str()),
                    _ => false,
                })
        };
        headers.keys().any(said)
    }

    /// Whether who shows this may ask.
    pub(super) fn admits_ask(&self, shown: Option<&[u8]>) -> Result<(), ApiError> {
        if self.gate.settings.access.may_call(shown) { Ok(()) } else { Err(no_token("ask")) }
    }

    fn admits_change(&self, shown: Option<&[u8]>) -> Result<(), ApiError> {
        let access = &self.gate.settings.access;
        match self.role {
            Role::Admin if !access.has_admin() => Ok(()),
            Role::Asking { may_change: false } => Err(ApiError::new(
                Code::NotHere,
                "nothing is changed at this door: there is another for that",
            )),
            Role::Asking { .. } if !access.has_admin() => Err(ApiError::new(
                Code::Closed,
                "nobody may change anything: start the server with SLIDEGATE_ADMIN_TOKEN, or with --admin ADDR",
            )),
            _ if access.may_change(shown) => Ok(()),
            _ => Err(no_token("change anything")),
        }
    }
}

const AUTHORIZE: &str = "/v1/authorize";

/// Paths of what is charged, corrected or reported, besides `/v1/authorize`.
const CHARGES: [&str; 6] =
    ["/v1/acquire", "/v1/acquire/batch", "/v1/settle", "/v1/release", "/v1/extend", "/v1/report"];

/// Headers in which proxies describe the request that they ask about.
const PROXY: [&str; 2] = ["forwarded", "x-real-ip"];
const PROXY_PREFIXES: [&str; 2] = ["x-forwarded-", "x-original-"];

/// Headers that browsers send to other sites without asking, or that a page can set: as an attribute they say nothing of who sends
/// them.
const SENT_BY_BROWSERS: [&str; 12] = [
    "accept",
    "accept-encoding",
    "accept-language",
    "connection",
    "content-language",
    "content-length",
    "content-type",
    "cookie",
    "host",
    "origin",
    "referer",
    "user-agent",
];

/// Whether it changes something, or tells what others ask.
fn changes(method: &Method, path: &str) -> bool {
    let looks = method == Method::GET || method == Method::HEAD;
    path.starts_with("/v1/keys/") && !looks
        || path == "/v1/rules" && method == Method::PUT
        || path == "/v1/record" && method == Method::POST
}

fn no_token(what: &str) -> ApiError {
    let message = format!("who may {what} shows it: send `authorization: Bearer TOKEN`");
    ApiError::new(Code::Unauthorized, message)
}

/// Whether a browser may have sent it for a page: from elsewhere, or under a name that was made to stand for us.
fn is_of_a_page(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    headers.contains_key(header::ORIGIN) || !address && name.contains('.')
}

/// Whether a browser sent it, or a proxy passes on what a browser sent.
fn is_of_a_browser(headers: &HeaderMap) -> bool {
    let agent = headers.get(header::USER_AGENT).map_or(&b""[..], |agent| agent.as_bytes());
    headers.contains_key(header::ORIGIN)
        || headers.contains_key(header::REFERER)
        || headers.keys().any(|name| name.as_str().starts_with("sec-fetch-"))
        || agent.starts_with(b"Mozilla/")
}

/// Whether a browser says that a page of another site asks.
fn is_cross_origin(headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return !matches!(site.as_bytes(), b"same-origin" | b"none");
    }
    let Some(origin) = headers.get(header::ORIGIN) else { return false };
    let host = headers.get(header::HOST).map(|host| host.as_bytes());
    let named = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, name)| name);
    !matches!((named, host), (Some(named), Some(host)) if named.as_bytes().eq_ignore_ascii_case(host))
}

fn charged_by_a_page(path: &str) -> ApiError {
    let message = match path {
        AUTHORIZE => {
            "without a token nothing is charged for a page: a proxy says what is asked for, such as by X-Forwarded-Uri"
        }
        _ => "without a token nothing is charged for a page of another site: give the server a token",
    };
    ApiError::new(Code::ByAPage, message)
}

fn by_a_page() -> ApiError {
    let message =
        "without an admin token nothing is changed for a page, or under a name with dots: use the address";
    ApiError::new(Code::ByAPage, message)
}
