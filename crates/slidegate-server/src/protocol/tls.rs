//! TLS for all listeners, with certificates that are reloaded when their files change.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::common::console::warn;
use crate::common::file_watch::{FileWatch, POLL_INTERVAL};
use crate::common::protocol::Protocol;
use crate::config::TlsConfig;

/// TLS configurations of all protocols, and the files that they are read from.
pub struct Tls {
    files: TlsConfig,
    watch: Mutex<FileWatch>,
    current: ArcSwap<Configs>,
}

/// One configuration for each protocol, in the order of [`Protocol::ALL`].
type Configs = [Arc<ServerConfig>; Protocol::ALL.len()];

impl Tls {
    /// Reads the certificate, key and client CA files.
    pub fn new(files: TlsConfig) -> Result<Self, String> {
        let watch = Mutex::new(FileWatch::new(paths(&files)));
        let current = ArcSwap::from_pointee(read(&files)?);
        Ok(Tls { files, watch, current })
    }

    pub(crate) fn accept(
        &self,
        protocol: Protocol,
        stream: TcpStream,
    ) -> impl Future<Output = io::Result<TlsStream<TcpStream>>> + Send + use<> {
        TlsAcceptor::from(Arc::clone(&self.current.load()[protocol as usize])).accept(stream)
    }

    /// Reloads the files whenever they change. Open connections keep the certificate that they began with.
    ///
    /// The files are checked and read on a blocking thread: a file system that does not respond delays only
    /// this task.
    pub(crate) async fn reload_on_change(self: Arc<Self>) {
        let mut reported = None;
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let tls = Arc::clone(&self);
            let read = spawn_blocking(move || tls.reload_if_changed()).await;
            match read.unwrap_or_else(|_| Some(Err("tls: reading the files failed".to_owned()))) {
                Some(Ok(configs)) => {
                    self.current.store(Arc::new(configs));
                    tracing::info!("tls: reloaded the certificates");
                    reported = None;
                }
                // A certificate and its key are two files and may change one after the other, so the files
                // are read again until they match.
                Some(Err(message)) if reported.as_ref() != Some(&message) => {
                    warn(&format!("the new certificates are not used: {message}"));
                    reported = Some(message);
                }
                Some(Err(_)) | None => {}
            }
        }
    }

    /// Reads the files if they have changed. Returns `None` if they have not, or if they change while they
    /// are read.
    ///
    /// Blocks for as long as the file system does.
    fn reload_if_changed(&self) -> Option<Result<Configs, String>> {
        let mut watch = self.watch.lock();
        if !watch.changed(paths(&self.files)) {
            return None;
        }
        match read(&self.files) {
            Ok(configs) => watch.confirm(paths(&self.files)).then_some(Ok(configs)),
            Err(message) => Some(Err(message)),
        }
    }
}

fn paths(files: &TlsConfig) -> Vec<PathBuf> {
    let TlsConfig { certificate, key, client_ca } = files;
    [certificate, key].into_iter().chain(client_ca).cloned().collect()
}

fn read(files: &TlsConfig) -> Result<Configs, String> {
    let TlsConfig { certificate, key, client_ca } = files;
    let file_error = |path: &std::path::Path, error: &dyn std::fmt::Display| {
        format!("tls: cannot use {}: {error}", path.display())
    };
    let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|error| file_error(certificate, &error))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| file_error(key, &error))?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("tls: {error}"))?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            let certificates =
                CertificateDer::pem_file_iter(path).map_err(|error| file_error(path, &error))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| file_error(path, &error))?;
                roots.add(certificate).map_err(|error| file_error(path, &error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| file_error(path, &error))?)
        }
    };
    let config = builder.with_single_cert(chain, private).map_err(|error| file_error(certificate, &error))?;
    Ok(Protocol::ALL.map(|protocol| {
        let mut config = config.clone();
        config.alpn_protocols = match protocol {
            Protocol::Http => vec![b"http/1.1".to_vec()],
            Protocol::Grpc => vec![b"h2".to_vec()],
            Protocol::Resp => Vec::new(),
        };
        Arc::new(config)
    }))
}
