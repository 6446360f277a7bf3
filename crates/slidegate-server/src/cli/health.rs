//! `slidegate health`: asks a server whether it is ready, for health checks of containers.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use clap::Args;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::settings_args::SettingsArgs;
use crate::common::console::{fail, say};
use crate::config::{ConfigSettings, Listen, ListenAddress};

/// Time limit for the whole check.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Largest response that is read, in bytes.
const MAX_ANSWER: usize = 64 << 10;

/// Arguments of `slidegate health`.
#[derive(Debug, Args)]
#[command(
    after_help = "Without --url, the command reads the same file, variables and flags as `serve`. It calls the HTTP listener, or \
    the admin listener if there is no HTTP listener. It does not verify the certificate of the server. It cannot call a server \
    with `tls.client-ca`, because it has no client certificate.\n\n\
    Examples:\n  \
    slidegate health\n  \
    slidegate health --url http://127.0.0.1:8080"
)]
pub(super) struct HealthArgs {
    /// URL of the server [default: the address in the configuration]
    #[arg(long, env = "SLIDEGATE_URL")]
    url: Option<String>,
    #[command(flatten)]
    settings: SettingsArgs,
}

/// Exit code 0 if `/readyz` answers 200, and 1 otherwise.
pub(super) fn run(args: &HealthArgs) -> ExitCode {
    match check(args) {
        Ok((url, status, body)) => {
            say(&format!("{url}: {} {}", status.as_u16(), body.trim_end()));
            ExitCode::from(u8::from(status != StatusCode::OK))
        }
        Err(message) => {
            fail(&message);
            ExitCode::FAILURE
        }
    }
}

fn check(args: &HealthArgs) -> Result<(String, StatusCode, String), String> {
    let url = match &args.url {
        Some(url) => url.clone(),
        None => configured_url(&args.settings.files(args.settings.inputs()).settings()?)?,
    };
    let url = format!("{}/readyz", url.trim_end_matches('/'));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    let answer = runtime.block_on(async { tokio::time::timeout(TIMEOUT, request(&url)).await });
    let answer = answer.unwrap_or_else(|_| Err(format!("no response within {} s", TIMEOUT.as_secs())));
    let (status, body) = answer.map_err(|error| format!("no answer from {url}: {error}"))?;
    Ok((url, status, body))
}

/// Returns the URL of the HTTP listener, or of the admin listener if there is no other.
fn configured_url(settings: &ConfigSettings) -> Result<String, String> {
    let listen = settings.listen.addresses.or(Listen::DEFAULT);
    let address = [listen.http, listen.admin].into_iter().find_map(|address| match address {
        Some(ListenAddress::At(address)) => Some(address),
        _ => None,
    });
    let mut address = address.ok_or("the HTTP listeners are off: there is nothing to ask")?;
    if address.port() == 0 {
        return Err("the server chooses its port when it starts: use --url".to_owned());
    }
    if address.ip().is_unspecified() {
        match address {
            SocketAddr::V4(_) => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            SocketAddr::V6(_) => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        }
    }
    Ok(format!("{}://{address}", if settings.tls.is_some() { "https" } else { "http" }))
}

async fn request(url: &str) -> Result<(StatusCode, String), String> {
    let bad = || "it is not an address such as http://127.0.0.1:8080".to_owned();
    let uri: Uri = url.parse().map_err(|_| bad())?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else { return Err(bad()) };
    let is_tls = match scheme {
        "http" => false,
        "https" => true,
        _ => return Err(bad()),
    };
    let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let host = authority.host().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, port)).await.map_err(|error| error.to_string())?;
    if !is_tls {
        return send(stream, &uri, authority.as_str()).await;
    }
    let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
    let stream = TlsConnector::from(Arc::new(tls_config()?)).connect(name, stream).await;
    send(stream.map_err(|error| error.to_string())?, &uri, authority.as_str()).await
}

async fn send<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    uri: &Uri,
    host: &str,
) -> Result<(StatusCode, String), String> {
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    // The sender reports the errors of the connection.
    tokio::spawn(connection);
    let mut request = hyper::Request::new(String::new());
    *request.uri_mut() = uri.path().parse().map_err(|_| "the path is not valid".to_owned())?;
    let host = HeaderValue::from_str(host).map_err(|error| error.to_string())?;
    request.headers_mut().insert(header::HOST, host);
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    let status = response.status();
    let body = axum::body::to_bytes(Body::new(response.into_body()), MAX_ANSWER).await;
    let body = body.map_err(|error| error.to_string())?;
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

fn tls_config() -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?;
    let verifier = Arc::new(AnyCertificate(provider));
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// Accepts every certificate: the request contains no secret, and the certificate of a server is for the name that its clients
/// use, not for this address.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
