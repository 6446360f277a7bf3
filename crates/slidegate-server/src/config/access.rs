//! The `access` and `tls` sections of the file: token files, and certificates.

use std::path::PathBuf;

slidegate::section! {
    /// Tokens for calls and for changes. The tokens are in separate files, so that the file with the rules contains
    /// no secrets.
    pub struct AccessConfig("Access") {
        /// File of tokens, one per line. Only clients with one of these tokens may call the API. Default: any client.
        /// Like all files with secrets, it is read again when it changes.
        tokens_file: Option<PathBuf> { example("/etc/slidegate/tokens") },
        /// File of tokens, one per line. Clients with one of these tokens may change rules and counts. The token in
        /// `SLIDEGATE_ADMIN_TOKEN` is valid, too.
        admin_tokens_file: Option<PathBuf> { example("/etc/slidegate/admin-tokens") },
    }
}

slidegate::section! {
    /// TLS on every listener. The files have the PEM format. The server reads them again when they change.
    pub struct TlsConfig("Tls") {
        /// Certificate of the server, and its intermediate certificates.
        certificate: PathBuf { required().example("/etc/slidegate/tls.crt") },
        /// Private key of the certificate.
        key: PathBuf { required().example("/etc/slidegate/tls.key") },
        /// Certificates of the authorities that sign the certificates of clients. Without this field, clients need no
        /// certificate.
        client_ca: Option<PathBuf> { example("/etc/slidegate/ca.crt") },
    }
}
