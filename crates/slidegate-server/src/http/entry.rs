//! Who may come in at this door, and for what.

use std::net::IpAddr;

use axum::http::{HeaderMap, Method, header};

use super::error::{ApiError, Code};
use super::{Door, Role};
use crate::access::bearer;

impl Door {
    /// Whether a request may be answered.
    pub(super) fn admits(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), ApiError> {
        let shown = headers.get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
        match path {
            "/healthz" | "/readyz" | "/" => Ok(()),
            _ if path.starts_with("/dashboard/") => Ok(()),
            _ if changes(method, path) => {
                self.admits_change(shown)?;
                // Without a token a page could ask in the name of who looks at it.
                if self.gate.access.has_admin() || !is_of_a_page(headers) { Ok(()) } else { Err(by_a_page()) }
            }
            _ => self.admits_ask(shown),
        }
    }

    /// Whether who shows this may ask.
    pub(super) fn admits_ask(&self, shown: Option<&[u8]>) -> Result<(), ApiError> {
        if self.gate.access.may_ask(shown) { Ok(()) } else { Err(no_token("ask")) }
    }

    fn admits_change(&self, shown: Option<&[u8]>) -> Result<(), ApiError> {
        let access = &self.gate.access;
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

fn by_a_page() -> ApiError {
    let message =
        "without an admin token nothing is changed for a page, or under a name with dots: use the address";
    ApiError::new(Code::ByAPage, message)
}
