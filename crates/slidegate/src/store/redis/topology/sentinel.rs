//! Sentinel topology: asks the sentinels in turn for the address of the current primary.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, Value};

use crate::store::redis::client::{client, info, info_at, with_password};
use crate::store::redis::error_map::explain;
use crate::store::redis::options::address_of;
use crate::store::redis::{RedisOptions, RedisSentinel};
use crate::{Error, Fault};

pub(crate) struct Sentinel {
    master: String,
    nodes: Vec<(Client, String)>,
    config: AsyncConnectionConfig,
    /// Connection settings of the primary, except its address.
    template: ConnectionInfo,
    options: RedisOptions,
}

impl Sentinel {
    pub(crate) fn new(sentinel: &RedisSentinel, options: &RedisOptions) -> Result<Self, Error> {
        let mut nodes = Vec::new();
        for url in &sentinel.nodes {
            nodes.push((client(info(url, options)?, options)?, address_of(url)));
        }
        let first = sentinel.nodes.first().map_or("", String::as_str);
        let template = info(first, options)?;
        // The sentinels' own user and password are not used for the primary.
        let mut redis = redis::RedisConnectionInfo::default()
            .set_protocol(template.redis_settings().protocol())
            .set_lib_name("slidegate", env!("CARGO_PKG_VERSION"));
        if let Some(username) = &sentinel.username {
            redis = redis.set_username(username);
        }
        if let Some(password) = &sentinel.password {
            redis = redis.set_password(password);
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(options.connect_timeout))
            .set_response_timeout(Some(options.response_timeout));
        let master = sentinel.master.clone();
        Ok(Sentinel {
            master,
            nodes,
            config,
            template: template.set_redis_settings(redis),
            options: options.clone(),
        })
    }

    /// Returns the primary, according to the first sentinel that knows it.
    pub(crate) async fn find_primary(&self) -> Result<(Client, Arc<str>), Error> {
        let (host, port) = self.query().await?;
        let client = client(info_at(&self.template, &host, port), &self.options)?;
        let client = with_password(&client, self.options.password.as_ref())?;
        Ok((client, format!("{host}:{port}").into()))
    }

    /// Returns true if the sentinels say that the primary is no longer at `address`; false if none answers.
    pub(crate) async fn has_moved_from(&self, address: &str) -> bool {
        self.query().await.is_ok_and(|(host, port)| address != format!("{host}:{port}"))
    }

    async fn query(&self) -> Result<(String, u16), Error> {
        let mut last = None;
        for (client, address) in &self.nodes {
            match self.query_one(client).await {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => {
                    let master = &self.master;
                    let message = format!(
                        "the sentinel at {address} does not know `{master}`: correct sentinel.master"
                    );
                    last = Some(Error::store(Fault::Unreachable, message));
                }
                Err(error) => {
                    let error = explain(&error, address);
                    let message = format!("no sentinel answers; the last error: {error}");
                    last.get_or_insert(Error::store(Fault::Unreachable, message));
                }
            }
        }
        Err(last.unwrap_or_else(|| Error::invalid("sentinel.nodes is empty")))
    }

    async fn query_one(&self, client: &Client) -> redis::RedisResult<Option<(String, u16)>> {
        let mut connection = client.get_multiplexed_async_connection_with_config(&self.config).await?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master).query_async(&mut connection).await
    }
}

/// Fails unless the server is a primary: it may have been demoted, and its sentinels may not know yet.
pub(crate) async fn check_role(connection: &mut MultiplexedConnection, address: &str) -> Result<(), Error> {
    let answer = redis::cmd("ROLE").query_async::<Vec<Value>>(connection).await;
    let role = answer.map_err(|error| explain(&error, address))?.into_iter().next();
    match role.and_then(|role| redis::from_redis_value::<String>(role).ok()).as_deref() {
        Some("master") => Ok(()),
        _ => Err(Error::store(
            Fault::ReadOnly,
            format!(
                "Redis at {address} is not a primary, although the sentinels report it: waiting for them"
            ),
        )),
    }
}
