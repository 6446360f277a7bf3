//! The `access` and `tls` parts of the file: who may ask, and how it is encrypted.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;
use slidegate::yaml::{Node, Reader};

/// Where the tokens are. Files, so that they need not stand among the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessConfig {
    /// Tokens that let ask, one a line.
    pub tokens: Option<PathBuf>,
    /// Tokens that let change, one a line.
    pub admin_tokens: Option<PathBuf>,
}

/// Where the certificates are: PEM files, read again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// The server's certificate, and those between it and its root.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Who signs the certificates that clients must show; none need show one without it.
    pub client_ca: Option<PathBuf>,
}

pub(super) fn read(node: &Node, reader: &mut Reader) -> Option<AccessConfig> {
    let fields = reader.fields(node, "access", &["tokens-file", "admin-tokens-file"])?;
    let mut path = |name| fields.get(name).and_then(|node| reader.text(node, name)).map(PathBuf::from);
    Some(AccessConfig { tokens: path("tokens-file"), admin_tokens: path("admin-tokens-file") })
}

pub(super) fn read_tls(node: &Node, reader: &mut Reader) -> Option<TlsConfig> {
    let fields = reader.fields(node, "tls", &["certificate", "key", "client-ca"])?;
    let certificate = fields.required(reader, "certificate", "tls");
    let key = fields.required(reader, "key", "tls");
    let mut path = |node, name| reader.text(node, name).map(PathBuf::from);
    let client_ca = fields.get("client-ca").map_or(Some(None), |node| path(node, "client-ca").map(Some));
    Some(TlsConfig {
        certificate: path(certificate?, "certificate")?,
        key: path(key?, "key")?,
        client_ca: client_ca?,
    })
}

/// Who may ask, and who may change things.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "Access")]
pub struct AccessFile {
    /// A file of tokens, one a line: only who shows one may ask. Everybody may, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tokens_file: Option<String>,
    /// A file of tokens, one a line, that let change rules and counts. `SLIDEGATE_ADMIN_TOKEN` is one as well.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub admin_tokens_file: Option<String>,
}

/// Encrypts every door. The files are PEM, and read again when they change.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "Tls")]
pub struct TlsFile {
    /// The server's certificate, and those between it and its root.
    pub certificate: String,
    /// Its private key.
    pub key: String,
    /// Certificates that must have signed the client's: without it, clients need not show one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub client_ca: Option<String>,
}
