//! Who may ask, and who may change things: by tokens, compared without telling how much of one was right.

use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

/// A token, of which only the digest is kept: it cannot be printed, and comparing takes the same time for all.
#[derive(Clone)]
pub struct Token([u8; 32]);

impl Token {
    /// Keeps the digest of `secret`.
    pub fn new(secret: &[u8]) -> Self {
        Token(Sha256::digest(secret).into())
    }
}

/// The tokens that open the doors.
#[derive(Clone, Default)]
pub struct Auth {
    /// One of these lets ask; if there are none, everybody may.
    data: Vec<Token>,
    /// One of these lets change; if there are none, nobody may.
    admin: Vec<Token>,
}

impl Auth {
    /// Whoever has one of `data` may ask, everybody if there are none; whoever has one of `admin` may also change.
    pub fn new(data: Vec<Token>, admin: Vec<Token>) -> Self {
        Auth { data, admin }
    }

    /// Whether everybody may ask.
    pub fn is_open(&self) -> bool {
        self.data.is_empty()
    }

    /// Whether there is a token that lets change anything.
    pub fn has_admin(&self) -> bool {
        !self.admin.is_empty()
    }

    /// Whether who shows this may ask.
    pub fn may_ask(&self, shown: Option<&[u8]>) -> bool {
        self.is_open()
            || shown.is_some_and(|shown| bool::from(any(&self.data, shown) | any(&self.admin, shown)))
    }

    /// Whether who shows this may change anything.
    pub fn may_change(&self, shown: Option<&[u8]>) -> bool {
        shown.is_some_and(|shown| any(&self.admin, shown).into())
    }
}

fn any(tokens: &[Token], shown: &[u8]) -> Choice {
    let Token(shown) = Token::new(shown);
    tokens.iter().fold(Choice::from(0), |found, Token(token)| found | token.ct_eq(&shown))
}

/// The variable with a token that lets ask, for servers and their clients.
pub const TOKEN_VARIABLE: &str = "SLIDEGATE_TOKEN";

/// What a client of ours shows: `Bearer …`, if it has a token.
pub(crate) fn shown() -> Option<String> {
    let token = std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty());
    token.map(|token| format!("Bearer {token}"))
}

/// What a header `Authorization: Bearer …` shows.
pub fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = header.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token.trim_ascii())
}
