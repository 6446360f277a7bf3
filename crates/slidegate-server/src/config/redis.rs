//! The `redis` section of the file: connection to Redis, and storage options.

use std::path::{Path, PathBuf};
use std::time::Duration;

use slidegate::section::{Given, Section};
use slidegate::yaml::{Node, Reader};
use slidegate::{
    Encoding, Micros, Rules,
    redis::{MAX_BATCH_SIZE, RedisMode, RedisOptions, RedisPassword, RedisSentinel, RedisTls, RedisTopology},
};

use super::topology::{Sentinel, Url, topology};
use crate::common::secret_file;

/// Default address of Redis.
pub const DEFAULT_URL: &str = "redis://127.0.0.1:6379";

/// Connection to Redis. Certificates and the password are not read yet.
#[derive(Clone, Debug)]
pub struct RedisConfig {
    options: RedisOptions,
    password_file: Option<PathBuf>,
    tls: RedisTlsFiles,
}

impl Default for RedisConfig {
    fn default() -> Self {
        let options = RedisOptions::new(DEFAULT_URL);
        RedisConfig { options, password_file: None, tls: RedisTlsFiles::default() }
    }
}

impl RedisConfig {
    /// Returns the file with the password, if there is one.
    pub(crate) fn password_file(&self) -> Option<&Path> {
        self.password_file.as_deref()
    }

    /// Returns the options of the store, with `url` instead of the configured address if it is given. Reads the
    /// certificates and the password.
    pub fn options(&self, url: Option<&str>) -> Result<RedisOptions, String> {
        let read = |path: &Option<PathBuf>| match path {
            None => Ok(None),
            Some(path) => std::fs::read(path)
                .map(Some)
                .map_err(|error| format!("cannot read {}: {error}", path.display())),
        };
        let mut options = self.options.clone();
        let RedisTlsFiles { ca, cert, key } = &self.tls;
        options.tls = RedisTls { ca: read(ca)?, cert: read(cert)?, key: read(key)? };
        if let Some(url) = url {
            options.topology = RedisTopology::One(url.to_owned());
        }
        if let Some(path) = &self.password_file {
            if has_password(&options.topology) {
                return Err("the password of Redis is in `redis.password-file` and in its address: remove one of them".to_owned());
            }
            options.password = Some(RedisPassword::new(secret_file::read(path)?));
        }
        Ok(options)
    }
}

/// Returns true if a password is in the urls, or with sentinels beside them. The urls of sentinels have passwords of their own.
fn has_password(topology: &RedisTopology) -> bool {
    let in_url = |url: &String| {
        let user = url.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@'));
        user.is_some_and(|(user, _)| user.contains(':'))
    };
    match topology {
        RedisTopology::Sentinel(sentinel) => sentinel.password.is_some(),
        topology => topology.urls().iter().any(in_url),
    }
}

/// Returns true if a text is an address of Redis.
pub(super) fn is_url(text: &str) -> bool {
    ["redis://", "rediss://", "redis+unix://", "unix://"].iter().any(|scheme| text.starts_with(scheme))
}

const MILLISECOND: Micros = Micros::from_millis(1);
const MINUTE: Micros = Micros::from_secs(60);
const DAY: Micros = Micros::from_secs(86_400);
const YEAR: Micros = Micros::from_secs(366 * 86_400);

/// Fields of the section as they are written: of the first four, at most one is given.
#[derive(Default)]
pub(super) struct Written {
    pub(super) url: Option<String>,
    pub(super) cluster: Option<Vec<String>>,
    pub(super) shards: Option<Vec<String>>,
    pub(super) sentinel: Option<RedisSentinel>,
    config: RedisConfig,
}

slidegate::section! {
    /// Connection to Redis, and storage options.
    pub(super) struct RedisSection("Redis", base: Written::default()) for Written {
        /// `redis://[user:password@]host:port[/db]`, or `rediss://` for TLS.
        url: Option<Url> { by_default("redis://127.0.0.1:6379").secret() },
        /// Redis Cluster, instead of `url`: the URLs of some of its nodes.
        cluster: Option<Vec<Url>> { nonempty().of("url").example("[redis://a:6379, redis://b:6379]").secret() },
        /// Independent servers, instead of `url`. Each key is on one of them.
        shards: Option<Vec<Url>> { nonempty().of("url").example("[redis://a:6379, redis://b:6379]").secret() },
        /// Primary that Redis Sentinel monitors, instead of `url`.
        sentinel: Option<Sentinel> { example("{ master: main, nodes: [redis://a:26379] }") },
        /// File with the password. The URL then contains none. With `sentinel`, this is the password of the primary.
        /// The server reads the file again when it changes, and new connections use the new password.
        [config] password_file: Option<PathBuf> { example("/run/secrets/redis-password") },
        /// Certificates for `rediss://` URLs.
        [config] tls: RedisTlsFiles { example("{ ca: /etc/redis/ca.crt }") },
        /// Number of connections to each server.
        [config.options] connections: usize { between(1, 64) },
        /// Time limit for connecting.
        [config.options] connect_timeout: Duration { lasting(MILLISECOND, MINUTE) },
        /// Time limit for a response of Redis. After it, the outcome of the call is unknown.
        [config.options] response_timeout: Duration { lasting(MILLISECOND, MINUTE) },
        /// Idle time after which TCP sends keep-alive probes.
        [config.options] keep_alive: Duration { lasting(Micros::from_secs(1), DAY) },
        /// Interval between two health checks of a connection.
        [config.options] health_check: Duration { lasting(Micros::from_millis(100), DAY) },
        /// Upper bound on the calls in flight.
        [config.options] max_in_flight: usize { between(1, 1_000_000) },
        /// Upper bound on the time that a call waits while `max-in-flight` calls are in flight.
        [config.options] max_wait: Duration { lasting(Micros::ZERO, MINUTE) },
        /// Upper bound on the requests that one call decides.
        [config.options] batch_size: usize { between(1, MAX_BATCH_SIZE as u64) },
        /// Shortest time to live of a key.
        [config.options] min_expire: Duration { lasting(Micros::ZERO, YEAR) },
        /// Time for which Redis keeps a key after its entries no longer count.
        [config.options] expire_buffer: Duration { lasting(Micros::ZERO, YEAR) },
        /// Redis commands that make a decision atomic.
        [config.options] mode: RedisMode,
        /// Prefix of every key.
        [config.options] prefix: String,
    }
}

slidegate::section! {
    /// Certificates for connections with TLS. The files have the PEM format.
    pub(super) struct RedisTlsFiles("RedisTls") {
        /// Certificates of the authorities to trust. Default: the authorities of the system.
        ca: Option<PathBuf> { example("/etc/redis/ca.crt") },
        /// Certificate of this client.
        cert: Option<PathBuf> { example("/etc/redis/client.crt") },
        /// Private key of `cert`.
        key: Option<PathBuf> { example("/etc/redis/client.key") },
    }
}

/// Field `redis` of the file.
pub(super) struct Redis;

slidegate::field_type! {
    Redis => RedisConfig,
    kind: |terms| RedisSection::kind(terms),
    read: |node, reader, what, _| checked(RedisSection::given(node, reader, what)?, reader),
    shown: |config| RedisSection::show(&Written { config: config.clone(), ..Written::default() }),
}

/// Checks the fields against each other.
fn checked(mut given: Given<'_, Written>, reader: &mut Reader) -> Option<RedisConfig> {
    let tls = given.fields.get("tls");
    if let Some(node) = tls
        && given.value.config.tls.cert.is_some() != given.value.config.tls.key.is_some()
    {
        reader.problem(node, "tls needs both `cert` and `key`, or neither");
    }
    let topology = topology(&mut given, reader)?;
    let mut config = given.value.config;
    config.options.topology = topology.unwrap_or(config.options.topology);
    if given.valid {
        reader.accept(given.fields.node(), config.options.check());
    }
    if let Some(node) = tls
        && !config.options.topology.urls().iter().all(|url| url.starts_with("rediss://"))
    {
        reader.problem(node, "tls needs a url that starts with rediss://");
    }
    Some(config)
}

/// Checks that the mode supports the encodings of the rules: packed logs are read and written by scripts only.
pub(super) fn check_encodings(node: &Node, reader: &mut Reader, config: &RedisConfig, rules: &Rules) {
    let packed = rules.iter().find(|rule| rule.stored_as() == Encoding::Packed);
    if let (RedisMode::Transaction, Some(rule)) = (config.options.mode, packed) {
        reader.problem(
            node,
            format!("mode: transaction cannot store rule `{}`, which has encoding: packed", rule.name()),
        );
    }
}
