//! Redis clients from urls and certificates.

use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use redis::{RedisError, TlsCertificates};

use super::{RedisOptions, RedisPassword, RedisTls};
use crate::Error;

/// Parses a url and adds the TCP and client settings.
pub(super) fn info(url: &str, options: &RedisOptions) -> Result<ConnectionInfo, Error> {
    let info = url.into_connection_info().map_err(|error| bad_url(&error))?;
    let keep_alive = TcpKeepalive::new().with_time(options.keep_alive).with_interval(options.keep_alive);
    let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keep_alive);
    let redis = info.redis_settings().clone().set_lib_name("slidegate", env!("CARGO_PKG_VERSION"));
    Ok(info.set_tcp_settings(tcp).set_redis_settings(redis))
}

/// Returns connection settings for another address, with the same user, password and kind of connection (TCP or TLS).
pub(super) fn info_at(like: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let host = host.to_owned();
    let addr = match like.addr() {
        ConnectionAddr::TcpTls { insecure, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: None }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    like.clone().set_addr(addr)
}

pub(super) fn client(info: ConnectionInfo, options: &RedisOptions) -> Result<Client, Error> {
    let tls = &options.tls;
    if *tls == RedisTls::default() {
        return Client::open(info).map_err(|error| bad_url(&error));
    }
    let is_tls = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
    ensure!(is_tls, "redis.tls needs a url that starts with rediss://");
    ensure!(tls.cert.is_some() == tls.key.is_some(), "redis.tls needs both `cert` and `key`, or neither");
    let client_tls = tls.cert.clone().zip(tls.key.clone());
    let client_tls = client_tls.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    let certificates = TlsCertificates { client_tls, root_cert: tls.ca.clone() };
    Client::build_with_tls(info, certificates).map_err(|error| bad_url(&error))
}

/// Returns a client with the newest password, if the password can change.
pub(super) fn with_password(client: &Client, password: Option<&RedisPassword>) -> Result<Client, Error> {
    let Some(password) = password else { return Ok(client.clone()) };
    let info = client.get_connection_info().clone();
    let redis = info.redis_settings().clone().set_password(password.current().as_str());
    Client::open(info.set_redis_settings(redis)).map_err(|error| bad_url(&error))
}

/// The message never repeats the url: it may contain a password.
fn bad_url(error: &RedisError) -> Error {
    let detail = error.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
    Error::invalid(format!(
        "the redis url must look like redis://[user:password@]host:port[/db], or rediss:// for TLS{detail}"
    ))
}
