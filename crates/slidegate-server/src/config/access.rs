//! The `access` and `tls` sections of the file: token files, and certificates.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;
use slidegate::yaml::{Node, Reader};

/// Paths of the token files. They are separate files, so that secrets need not be beside the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessConfig {
    /// Tokens that allow calls, one per line.
    pub tokens: Option<PathBuf>,
    /// Tokens that allow changes of rules and counts, one per line.
    pub admin_tokens: Option<PathBuf>,
}

/// Paths of the certificates: PEM files, read again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// Certificate of the server, and its intermediate certificates.
    pub certificate: PathBuf,
    /// Private key of the certificate.
    pub key: PathBuf,
    /// Authority that must have signed the certificates of clients. Without it, clients need no certificate.
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

/// Tokens for calls and for changes.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "Access")]
pub struct AccessFile {
    /// File of tokens, one per line. Only clients with such a token may call the API. Any client may, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tokens_file: Option<String>,
    /// File of tokens, one per line, that allow changes of rules and counts. `SLIDEGATE_ADMIN_TOKEN` is one as well.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub admin_tokens_file: Option<String>,
}

/// TLS on every listener. The files are PEM, and read again when they change.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "Tls")]
pub struct TlsFile {
    /// Certificate of the server, and its intermediate certificates.
    pub certificate: String,
    /// Private key of the certificate.
    pub key: String,
    /// Certificates of the authorities that must have signed those of clients. Without it, clients need no certificate.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub client_ca: Option<String>,
}
