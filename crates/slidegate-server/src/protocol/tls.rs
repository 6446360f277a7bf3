//! Encrypted connections, by certificates that may change while the server runs.

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

/// Certificates, and what is done with them.
pub struct Tls {
    files: TlsConfig,
    watch: Mutex<FileWatch>,
    current: ArcSwap<Configs>,
}

struct Configs {
    http: Arc<ServerConfig>,
    grpc: Arc<ServerConfig>,
    resp: Arc<ServerConfig>,
}

impl Tls {
    /// Reads the files.
    pub fn new(files: TlsConfig) -> Result<Self, String> {
        let watch = Mutex::new(FileWatch::new(paths(&files)));
        let current = ArcSwap::from_pointee(Configs::read(&files)?);
        Ok(Tls { files, watch, current })
    }

    pub(crate) fn accept(
        &self,
        protocol: Protocol,
        stream: TcpStream,
    ) -> impl Future<Output = io::Result<TlsStream<TcpStream>>> + Send + use<> {
        let configs = self.current.load();
        let config = match protocol {
            Protocol::Http => &configs.http,
            Protocol::Grpc => &configs.grpc,
            Protocol::Resp => &configs.resp,
        };
        TlsAcceptor::from(Arc::clone(config)).accept(stream)
    }

    /// Reads the files again whenever they change. Open connections keep the certificate that they began with.
    ///
    /// Files are looked at and read on a blocking thread: a file system that does not answer delays only this task.
    pub(crate) async fn follow(self: Arc<Self>) {
        let mut told = None;
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let tls = Arc::clone(&self);
            let read = spawn_blocking(move || tls.read_again()).await;
            match read.unwrap_or_else(|_| Some(Err("tls: reading the files failed".to_owned()))) {
                Some(Ok(configs)) => {
                    self.current.store(Arc::new(configs));
                    tracing::info!("tls: the certificates were read again");
                    told = None;
                }
                // The files are read again until they are right: a certificate and its key are two files.
                Some(Err(message)) if told.as_ref() != Some(&message) => {
                    warn(&format!("the certificates stay as they are: {message}"));
                    told = Some(message);
                }
                Some(Err(_)) | None => {}
            }
        }
    }

    /// Reads the files if they have changed; none if they have not, or change while they are read.
    ///
    /// Blocks for as long as the file system does.
    fn read_again(&self) -> Option<Result<Configs, String>> {
        let mut watch = self.watch.lock();
        if !watch.changed(paths(&self.files)) {
            return None;
        }
        match Configs::read(&self.files) {
            Ok(configs) => watch.confirm(paths(&self.files)).then_some(Ok(configs)),
            Err(message) => Some(Err(message)),
        }
    }
}

fn paths(files: &TlsConfig) -> Vec<PathBuf> {
    let TlsConfig { certificate, key, client_ca } = files;
    [certificate, key].into_iter().chain(client_ca).cloned().collect()
}

impl Configs {
    fn read(files: &TlsConfig) -> Result<Self, String> {
        let TlsConfig { certificate, key, client_ca } = files;
        let cannot = |path: &std::path::Path, error: &dyn std::fmt::Display| {
            format!("tls: cannot use {}: {error}", path.display())
        };
        let chain =
            CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let chain = chain.map_err(|error| cannot(certificate, &error))?;
        let private = PrivateKeyDer::from_pem_file(key).map_err(|error| cannot(key, &error))?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("tls: {error}"))?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                let certificates =
                    CertificateDer::pem_file_iter(path).map_err(|error| cannot(path, &error))?;
                for certificate in certificates {
                    let certificate = certificate.map_err(|error| cannot(path, &error))?;
                    roots.add(certificate).map_err(|error| cannot(path, &error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| cannot(path, &error))?)
            }
        };
        let config = builder.with_single_cert(chain, private).map_err(|error| cannot(certificate, &error))?;
        let speaking = |protocols: &[&str]| {
            let mut config = config.clone();
            config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
            Arc::new(config)
        };
        Ok(Configs { http: speaking(&["http/1.1"]), grpc: speaking(&["h2"]), resp: speaking(&[]) })
    }
}
