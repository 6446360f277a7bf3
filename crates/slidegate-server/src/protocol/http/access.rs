//! `GET /v1/access`: rights of the client that sends the request.
//!
//! The dashboard sends this request before all others. The server always answers it, also without a token.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::{Extension, Json};
use schemars::JsonSchema;
use serde::Serialize;

use super::authz::{authorize_change, bearer_token};
use super::error::Detail;
use super::operation::{Access, Operation};
use super::route::Route;
use super::{Role, Shared};
use crate::app::auth::TokenKind;

/// Rights of a client.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Access")]
struct AccessBody {
    /// Kind of the token that the client sent.
    token: TokenKind,
    /// True if the client may call the API.
    may_call: bool,
    /// True if the client may change rules and counts on this listener.
    may_change: bool,
    /// Error that the server would return for a change, if the client may not change anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    change_error: Option<Detail>,
}

pub(super) fn route() -> Route {
    let operation = Operation::new(Access::Public, "access", "Rights of the client that sends the request")
        .answers::<AccessBody>("200", "The rights", &[
            r#"{"token":"admin","may_call":true,"may_change":true}"#,
            r#"{"token":"none","may_call":true,"may_change":false,"change_error":{"code":"forbidden","message":"changes are disabled: start the server with SLIDEGATE_ADMIN_TOKEN, or with --admin ADDR"}}"#,
        ]);
    Route::new("/v1/access").get(access, operation)
}

async fn access(
    State(app): State<Shared>,
    Extension(role): Extension<Role>,
    headers: HeaderMap,
) -> Json<AccessBody> {
    let (tokens, token) = (&app.settings.access, bearer_token(&headers));
    let change = authorize_change(role, tokens, &headers);
    Json(AccessBody {
        token: tokens.kind(token),
        may_call: tokens.may_call(token),
        may_change: change.is_ok(),
        change_error: change.err().map(|error| error.body.error),
    })
}
