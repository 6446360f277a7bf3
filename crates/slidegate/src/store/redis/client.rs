//! Redis clients from urls and certificates.

use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use redis::{RedisError, TlsCertificates};

use super::{RedisOptions, RedisPassword};
use crate::Error;

/// Parses a url and adds the TCP and client settings.
pub(super) fn info(url: &str, options: &RedisOptions) -> Result<ConnectionInfo, Error> {
    let info = url.into_connection_info().map_err(|error| bad_url(&error))?;
    let keep_alive = TcpKeepalive::new().with_time(options.keep_alive).with_interval(options.keep_alive);
    let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keep_alive);
    let redis = info.redis_settings().clone().set_lib_name("slidegate", env!("CARGO_PKG_VERSION"));
    Ok(info.set_tcp_settings(tcp).set_redis_settings(redis))
}

/// Returns the same user, password and kind of connection at another address.
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
    let client = match (matches!(info.addr(), ConnectionAddr::TcpTls { .. }), tls.is_default()) {
        (false, false) => {
            return Err(Error::invalid("redis.tls needs a url that starts with rediss://"));
        }
        (_, true) => Client::open(info),
        (true, false) => {
            let client_tls = match (&tls.cert, &tls.key) {
                (Some(cert), Some(key)) => {
                    Some(ClientTlsConfig { client_cert: cert.clone(), client_key: key.clone() })
                }
                (None, None) => None,
                _ => return Err(Error::invalid("redis.tls needs both `cert` and `key`, or neither")),
            };
            Client::build_with_tls(info, TlsCertificates { client_tls, root_cert: tls.ca.clone() })
        }
    };
    client.map_err(|error| bad_url(&error))
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
