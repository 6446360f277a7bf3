//! The `redis` section of the file: connection to Redis, and storage options.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;
use slidegate::yaml::{Node, Reader};
use slidegate::{Encoding, RedisMode, RedisOptions, RedisTls, RedisTopology, Rules};

use super::topology::{self, SentinelFile};

/// Address of Redis, unless configured.
pub const DEFAULT_URL: &str = "redis://127.0.0.1:6379";

/// Connection to Redis. Certificates are not read yet.
#[derive(Clone, Debug)]
pub struct RedisConfig {
    options: RedisOptions,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl Default for RedisConfig {
    fn default() -> Self {
        RedisConfig { options: RedisOptions::new(DEFAULT_URL), ca: None, cert: None, key: None }
    }
}

impl RedisConfig {
    /// Returns the options of the store, with `url` instead of the configured address if it is given. Reads the
    /// certificates.
    pub fn options(&self, url: Option<&str>) -> Result<RedisOptions, String> {
        let read = |path: &Option<PathBuf>| match path {
            None => Ok(None),
            Some(path) => std::fs::read(path)
                .map(Some)
                .map_err(|error| format!("cannot read {}: {error}", path.display())),
        };
        let mut options = self.options.clone();
        options.tls = RedisTls { ca: read(&self.ca)?, cert: read(&self.cert)?, key: read(&self.key)? };
        if let Some(url) = url {
            options.topology = RedisTopology::One(url.to_owned());
        }
        Ok(options)
    }
}

const FIELDS: [&str; 17] = [
    "url",
    "cluster",
    "shards",
    "sentinel",
    "tls",
    "connections",
    "connect-timeout",
    "response-timeout",
    "keep-alive",
    "health-check",
    "max-in-flight",
    "max-wait",
    "batch-size",
    "min-expire",
    "expire-buffer",
    "mode",
    "prefix",
];

/// Returns true if a text is an address of Redis.
pub(super) fn is_url(text: &str) -> bool {
    ["redis://", "rediss://", "redis+unix://", "unix://"].iter().any(|scheme| text.starts_with(scheme))
}

pub(super) fn read(node: &Node, reader: &mut Reader) -> Option<RedisConfig> {
    let fields = reader.fields(node, "redis", &FIELDS)?;
    let mut config = RedisConfig::default();
    let options = &mut config.options;
    if let Some(topology) = topology::read(&fields, reader)? {
        options.topology = topology;
    }
    let numbers = [
        ("connections", &mut options.connections),
        ("max-in-flight", &mut options.max_in_flight),
        ("batch-size", &mut options.batch_size),
    ];
    for (name, option) in numbers {
        if let Some(number) = fields.get(name).and_then(|node| reader.whole(node, name)) {
            *option = usize::try_from(number).unwrap_or(usize::MAX);
        }
    }
    let durations = [
        ("connect-timeout", &mut options.connect_timeout),
        ("response-timeout", &mut options.response_timeout),
        ("keep-alive", &mut options.keep_alive),
        ("health-check", &mut options.health_check),
        ("max-wait", &mut options.max_wait),
        ("min-expire", &mut options.min_expire),
        ("expire-buffer", &mut options.expire_buffer),
    ];
    for (name, option) in durations {
        if let Some(duration) = fields.get(name).and_then(|node| reader.duration(node, name)) {
            *option = duration.into();
        }
    }
    if let Some(node) = fields.get("mode") {
        let words = [("script", RedisMode::Script), ("transaction", RedisMode::Transaction)];
        options.mode = reader.word(node, "mode", &words).unwrap_or_default();
    }
    if let Some(prefix) = fields.get("prefix").and_then(|node| reader.text(node, "prefix")) {
        options.prefix = prefix.to_owned();
    }
    reader.accept(node, options.check());
    if let Some(node) = fields.get("tls")
        && let Some(tls) = reader.fields(node, "tls", &["ca", "cert", "key"])
    {
        let mut path = |name: &str| tls.get(name).and_then(|node| reader.text(node, name)).map(PathBuf::from);
        (config.ca, config.cert, config.key) = (path("ca"), path("cert"), path("key"));
        if config.cert.is_some() != config.key.is_some() {
            reader.problem(node, "tls needs both `cert` and `key`, or neither");
        }
        if !config.options.topology.urls().iter().all(|url| url.starts_with("rediss://")) {
            reader.problem(node, "tls needs a url that starts with rediss://");
        }
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

/// Connection to Redis, and storage options.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "Redis")]
pub struct RedisFile {
    /// `redis://[user:password@]host:port[/db]`, or `rediss://` for TLS. redis://127.0.0.1:6379, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub url: Option<String>,
    /// Instead of `url`: a Redis Cluster, by the urls of some of its nodes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(length(min = 1))]
    pub cluster: Option<Vec<String>>,
    /// Instead of `url`: independent servers that share the keys.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(length(min = 1))]
    pub shards: Option<Vec<String>>,
    /// Instead of `url`: the primary that Redis Sentinel monitors.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sentinel: Option<SentinelFile>,
    /// Certificates, for `rediss://`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tls: Option<RedisTlsFile>,
    /// Number of connections. 2, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 1, max = 64))]
    pub connections: Option<u64>,
    /// Time limit for connecting. 1s, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub connect_timeout: Option<String>,
    /// Time limit for a response. 500ms, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub response_timeout: Option<String>,
    /// Idle time after which TCP sends keep-alive probes. 15s, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub keep_alive: Option<String>,
    /// Interval between two health checks of a connection. 5s, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub health_check: Option<String>,
    /// Upper bound on concurrent calls. 4096, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_in_flight: Option<u64>,
    /// Time that a call waits when that bound is reached. 50ms, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max_wait: Option<String>,
    /// Upper bound on requests in one call. 100, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 1, max = 1_000))]
    pub batch_size: Option<u64>,
    /// Shortest time to live of a key. 60s, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub min_expire: Option<String>,
    /// Time that a key is stored after its entries no longer count. 10s, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expire_buffer: Option<String>,
    /// Method that makes decisions atomic: `script`, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mode: Option<RedisModeFile>,
    /// Prefix of every key. sg, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub prefix: Option<String>,
}

/// PEM files with certificates.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "RedisTls")]
pub struct RedisTlsFile {
    /// Certificate authorities to trust; those of the system, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ca: Option<String>,
    /// Certificate of this client.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cert: Option<String>,
    /// Private key of `cert`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub key: Option<String>,
}

/// Method that makes decisions atomic.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "RedisMode")]
pub enum RedisModeFile {
    /// A script: one round trip.
    Script,
    /// WATCH, MULTI and EXEC, for servers without scripts.
    Transaction,
}
