//! Authorization of HTTP requests: tokens, and protection against requests that a browser sends for a web page.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName, header};

use super::error::{ApiError, Code};
use super::operation::{Access, Charge, Endpoint};
use super::{ConnectionHandler, Role};
use crate::app::auth::{Auth, bearer};
use crate::config::Origin;

impl ConnectionHandler {
    /// Checks that a request may be answered. `endpoint` is `None` for an unknown path.
    pub(super) fn authorize(&self, endpoint: Option<Endpoint>, headers: &HeaderMap) -> Result<(), ApiError> {
        if headers.get_all(header::AUTHORIZATION).iter().nth(1).is_some() {
            // A proxy on the way and this server could each use a different one of the two headers.
            let message = "`authorization` is given twice: send one header";
            return Err(ApiError::new(Code::InvalidRequest, message));
        }
        let token = bearer_token(headers);
        let (access, charge) =
            endpoint.map_or((Access::Api, Charge::None), |endpoint| (endpoint.access, endpoint.charge));
        match access {
            Access::Public => Ok(()),
            Access::Admin => authorize_change(self.role, &self.app.settings.access, headers),
            Access::Api => {
                self.authorize_api(token)?;
                // A web page does not know the token, so it can charge only where no token is required.
                if self.app.settings.access.is_open() && self.is_cross_site(charge, headers) {
                    Err(cross_site_charge_error(charge))
                } else {
                    Ok(())
                }
            }
        }
    }

    /// Returns true if a web page of another site may have made a browser send a request that charges.
    fn is_cross_site(&self, charge: Charge, headers: &HeaderMap) -> bool {
        match charge {
            Charge::None => false,
            Charge::Sender => is_cross_origin(headers),
            Charge::Forwarded => is_from_browser(headers) && !self.has_proxy_header(headers),
        }
    }

    /// Returns true if a request to `/v1/authorize` has a header in which a proxy describes the request of its
    /// client.
    ///
    /// Proxies also forward the headers that a browser has added, so these headers do not prove that a browser
    /// called this server. A web page cannot send any of the proxy's headers: the browser would first send a
    /// preflight request to this server, which does not allow them.
    fn has_proxy_header(&self, headers: &HeaderMap) -> bool {
        let describes_other_request = |name: &HeaderName| {
            PROXY_HEADERS.contains(&name.as_str())
                || PROXY_HEADER_PREFIXES.iter().any(|prefix| name.as_str().starts_with(prefix))
                || self.app.settings.authorize.attributes.iter().any(|(_, origin)| match origin {
                    Origin::Header(known) => known == name && !BROWSER_HEADERS.contains(&name.as_str()),
                    _ => false,
                })
        };
        headers.keys().any(describes_other_request)
    }

    /// Checks that `token` allows decisions and reads, which change nothing except counts.
    pub(super) fn authorize_api(&self, token: Option<&[u8]>) -> Result<(), ApiError> {
        if self.app.settings.access.may_call(token) { Ok(()) } else { Err(token_error(token, "a token")) }
    }
}

/// Returns the bearer token of a request.
pub(super) fn bearer_token(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes()))
}

/// Checks that a request to a listener with `role` may change rules and counts.
pub(super) fn authorize_change(role: Role, access: &Auth, headers: &HeaderMap) -> Result<(), ApiError> {
    let forbidden = |message: &str| Err(ApiError::new(Code::Forbidden, message));
    match role {
        Role::Admin if !access.has_admin() => {}
        Role::Api { allows_changes: false } => {
            return forbidden("this listener does not accept changes: use the address of --admin");
        }
        Role::Api { .. } if !access.has_admin() => {
            return forbidden(
                "changes are disabled: start the server with SLIDEGATE_ADMIN_TOKEN, or with --admin ADDR",
            );
        }
        _ if access.may_change(bearer_token(headers)) => {}
        _ => return Err(token_error(bearer_token(headers), "an administrator's token")),
    }
    // If no token is required, a web page could make changes through the browser of its visitor.
    if access.has_admin() || !may_be_from_web_page(headers) { Ok(()) } else { Err(cross_site_change_error()) }
}

/// Headers in which proxies describe the request of their client.
const PROXY_HEADERS: [&str; 2] = ["forwarded", "x-real-ip"];
const PROXY_HEADER_PREFIXES: [&str; 2] = ["x-forwarded-", "x-original-"];

/// Headers that browsers send to other sites without a preflight. If an attribute is read from such a header,
/// the header does not prove that a proxy sent the request.
const BROWSER_HEADERS: [&str; 12] = [
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

/// Returns the error of a call that requires `needed`, but has no token or a token that is not valid for it.
fn token_error(token: Option<&[u8]>, needed: &str) -> ApiError {
    let message = match token {
        None => format!("the call has no token and needs {needed}: send `authorization: Bearer TOKEN`"),
        Some(_) => format!("the token of the call is not valid: this needs {needed}"),
    };
    ApiError::new(Code::Unauthorized, message)
}

/// Returns true if a browser may have sent the request for a web page: a page of another origin, or a page
/// whose host name was made to resolve to this server (DNS rebinding).
fn may_be_from_web_page(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    headers.contains_key(header::ORIGIN) || !is_address && name.contains('.')
}

/// Returns true if a browser sent the request, or a proxy forwards a browser's request.
fn is_from_browser(headers: &HeaderMap) -> bool {
    let agent = headers.get(header::USER_AGENT).map_or(&b""[..], |agent| agent.as_bytes());
    headers.contains_key(header::ORIGIN)
        || headers.contains_key(header::REFERER)
        || headers.keys().any(|name| name.as_str().starts_with("sec-fetch-"))
        || agent.starts_with(b"Mozilla/")
}

/// Returns true if the browser's headers say that a page of another origin sent the request.
fn is_cross_origin(headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return !matches!(site.as_bytes(), b"same-origin" | b"none");
    }
    let Some(origin) = headers.get(header::ORIGIN) else { return false };
    let host = headers.get(header::HOST).map(|host| host.as_bytes());
    let origin_host = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, name)| name);
    !matches!((origin_host, host), (Some(origin_host), Some(host)) if origin_host.as_bytes().eq_ignore_ascii_case(host))
}

fn cross_site_charge_error(charge: Charge) -> ApiError {
    let message = match charge {
        Charge::Forwarded => {
            "a browser request needs a token: configure one, or let the proxy send a header such as X-Forwarded-Uri"
        }
        _ => "a page of another site may not charge: configure a token for the server",
    };
    ApiError::new(Code::CrossOrigin, message)
}

fn cross_site_change_error() -> ApiError {
    let message = "without an admin token, changes from a web page or under a host name with dots are rejected: use the IP address";
    ApiError::new(Code::CrossOrigin, message)
}
