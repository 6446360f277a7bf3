//! Authorization of clients and administrators by bearer tokens, compared in constant time.

use std::sync::Arc;

use arc_swap::ArcSwap;
use schemars::JsonSchema;
use serde::Serialize;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

/// Access token. Only its digest is stored: the token cannot be printed, and a comparison always takes the same time.
#[derive(Clone)]
pub struct Token([u8; 32]);

impl Token {
    /// Stores the digest of `secret`.
    pub fn new(secret: &[u8]) -> Self {
        Token(Sha256::digest(secret).into())
    }
}

/// Kind of the token that a client sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenKind {
    /// The client sent no token.
    None,
    /// The client may make calls for decisions.
    Client,
    /// The client may make all calls, including changes of rules and counts.
    Admin,
    /// The server does not know the token.
    Wrong,
}

/// Access tokens of a server, which can be replaced while it runs.
#[derive(Clone, Default)]
pub struct Auth {
    tokens: Arc<ArcSwap<Tokens>>,
}

#[derive(Default)]
struct Tokens {
    /// Tokens of clients. If there are none, any client may call the API.
    data: Vec<Token>,
    /// Tokens of administrators. If there are none, no client may change rules or counts.
    admin: Vec<Token>,
}

impl Auth {
    /// Clients with a `data` token may call the API, or any client if `data` is empty. Clients with an `admin` token
    /// may also change rules and counts.
    pub fn new(data: Vec<Token>, admin: Vec<Token>) -> Self {
        Auth { tokens: Arc::new(ArcSwap::from_pointee(Tokens { data, admin })) }
    }

    /// Replaces the tokens by those of `other`.
    pub(crate) fn replace(&self, other: &Auth) {
        self.tokens.store(other.tokens.load_full());
    }

    /// Returns true if any client may call the API without a token.
    pub fn is_open(&self) -> bool {
        self.tokens.load().data.is_empty()
    }

    /// Returns true if there is an administrator token.
    pub fn has_admin(&self) -> bool {
        !self.tokens.load().admin.is_empty()
    }

    /// Returns true if a client with this token may call the API.
    pub fn may_call(&self, token: Option<&[u8]>) -> bool {
        let tokens = self.tokens.load();
        let Tokens { data, admin } = &**tokens;
        data.is_empty() || token.is_some_and(|token| bool::from(matches(data, token) | matches(admin, token)))
    }

    /// Returns the kind of a token.
    pub fn kind(&self, token: Option<&[u8]>) -> TokenKind {
        let Some(token) = token else { return TokenKind::None };
        // Both lists are always searched, so the time does not depend on the list that has the token.
        let tokens = self.tokens.load();
        let (client, admin) = (matches(&tokens.data, token), matches(&tokens.admin, token));
        match (bool::from(admin), bool::from(client)) {
            (true, _) => TokenKind::Admin,
            (false, true) => TokenKind::Client,
            (false, false) => TokenKind::Wrong,
        }
    }

    /// Returns true if a client with this token may change rules and counts.
    pub fn may_change(&self, token: Option<&[u8]>) -> bool {
        token.is_some_and(|token| matches(&self.tokens.load().admin, token).into())
    }
}

/// Compares `token` with all `tokens`, also after a match.
fn matches(tokens: &[Token], token: &[u8]) -> Choice {
    let Token(digest) = Token::new(token);
    tokens.iter().fold(Choice::from(0), |found, Token(known)| found | known.ct_eq(&digest))
}

/// Environment variable with a client token, for servers and for the commands that call a server.
pub(crate) const TOKEN_VARIABLE: &str = "SLIDEGATE_TOKEN";

/// Returns the `Authorization` header of our own commands, `Bearer …`, if the environment has a token.
pub(crate) fn authorization_header() -> Option<String> {
    let token = std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty());
    token.map(|token| format!("Bearer {token}"))
}

/// Returns the token of an `Authorization: Bearer …` header.
pub(crate) fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = header.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token.trim_ascii())
}
