//! HTTP client for the commands that call a Slidegate server.

use std::net::SocketAddr;

use axum::http::{HeaderMap, HeaderValue, Uri, header};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::app::auth;

/// Server at a URL, and the headers of every request to it.
pub(crate) struct Server {
    addresses: Vec<SocketAddr>,
    path: String,
    pub(crate) headers: HeaderMap,
}

impl Server {
    /// Resolves the host of `url`.
    pub(crate) async fn find(url: &str) -> Result<Self, String> {
        let bad = || bad_url(url);
        let uri: Uri = url.parse().map_err(|_| bad())?;
        if uri.scheme_str() != Some("http") || uri.query().is_some() {
            return Err(bad());
        }
        let authority =
            uri.authority().filter(|authority| !authority.as_str().contains('@')).ok_or_else(bad)?;
        let host = match authority.port_u16() {
            Some(_) => authority.to_string(),
            None => format!("{authority}:80"),
        };
        let found = tokio::net::lookup_host(&host).await;
        let addresses = found.map_err(|error| format!("cannot find {url}: {error}"))?.collect();
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_str(authority.as_str()).map_err(|_| bad())?);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(authorization) = auth::authorization_header() {
            let mut authorization = HeaderValue::from_str(&authorization)
                .map_err(|_| "SLIDEGATE_TOKEN has characters that a header cannot contain".to_owned())?;
            authorization.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, authorization);
        }
        Ok(Server { addresses, path: uri.path().trim_end_matches('/').to_owned(), headers })
    }

    /// Target of a request for the operation `name`, such as `acquire`.
    pub(crate) fn operation(&self, name: &str) -> Result<Uri, String> {
        let path = format!("{}/v1/{name}", self.path);
        path.parse().map_err(|_| bad_url(&path))
    }

    /// Opens a connection.
    pub(crate) async fn connect(&self) -> Result<SendRequest<String>, String> {
        let stream =
            TcpStream::connect(self.addresses.as_slice()).await.map_err(|error| error.to_string())?;
        // A request is small and complete: there is nothing to wait for.
        let _ = stream.set_nodelay(true);
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        // The sender reports the errors of the connection.
        tokio::spawn(connection);
        sender.ready().await.map_err(|error| error.to_string())?;
        Ok(sender)
    }
}

fn bad_url(url: &str) -> String {
    format!("`{url}` is not an address such as http://127.0.0.1:8080")
}
