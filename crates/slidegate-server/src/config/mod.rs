//! Configuration file: rules, listeners and settings. The parser checks the whole text and reports every mistake at
//! once.

mod access;
mod authorize;
mod guard;
mod hot_keys;
mod limits;
mod listen;
mod load;
mod memory;
mod monitor;
mod redis;
mod reservations;
mod topology;

use std::str::FromStr;

use schemars::JsonSchema;
use serde::Serialize;
use slidegate::yaml::{Fields, Node, Reader};
use slidegate::{
    AdHocFile, Error, FailoverOptions, MemoryOptions, RuleFile, Rules, StackOptions, UnmatchedFile,
};

pub use self::access::{AccessConfig, AccessFile, TlsConfig, TlsFile};
pub(crate) use self::authorize::deny_status;
pub use self::authorize::{
    AuthorizeConfig, AuthorizeFile, BackslashFile, CaseFile, Origin, PathFile, StripFile,
};
pub use self::guard::GuardFile;
pub use self::hot_keys::HotKeysFile;
pub use self::limits::{Limits, MAX_RULES_BODY};
pub use self::listen::{LimitsFile, Listen, ListenAddress, ListenFile};
pub(crate) use self::load::{load, read_text};
pub use self::memory::{MemoryStoreFile, OnFullFile};
pub use self::monitor::{AccuracyConfig, AccuracyFile, MemoryConfig, MemoryFile, MonitorConfig, MonitorFile};
pub use self::redis::{DEFAULT_URL, RedisConfig, RedisFile, RedisModeFile, RedisTlsFile};
pub use self::reservations::{ReservationsConfig, ReservationsFile};
pub use self::topology::SentinelFile;

/// Configuration that `serve` uses without a file.
pub const DEMO: &str = include_str!("demo.yaml");

/// Kind of store that counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StoreKind {
    /// In this process.
    #[default]
    Memory,
    /// Redis at this address, or at the address in `redis`.
    Redis(Option<String>),
}

impl FromStr for StoreKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "memory" => Ok(StoreKind::Memory),
            "redis" => Ok(StoreKind::Redis(None)),
            url if redis::is_url(url) => Ok(StoreKind::Redis(Some(url.to_owned()))),
            _ => Err("the store must be `memory`, `redis`, or an address such as redis://127.0.0.1:6379"
                .to_owned()),
        }
    }
}

/// Checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Rules. Unknown if they are in Redis.
    pub rules: Rules,
    /// Addresses of the listeners. The command line takes precedence.
    pub listen: Listen,
    /// Bounds on the resources that clients can use.
    pub limits: Limits,
    /// Paths of the token files.
    pub access: AccessConfig,
    /// TLS settings, if TLS is used.
    pub tls: Option<TlsConfig>,
    /// Keys that sign reservations.
    pub reservations: ReservationsConfig,
    /// Settings of `/v1/authorize`.
    pub authorize: AuthorizeConfig,
    /// Kind of store. The command line takes precedence.
    pub store: Option<StoreKind>,
    /// Bounds of the memory store, if it is used.
    pub memory: MemoryOptions,
    /// Connection to Redis, if it is used.
    pub redis: RedisConfig,
    /// Failover when Redis does not answer.
    pub guard: FailoverOptions,
    /// Protection of Redis against hot keys.
    pub hot_keys: StackOptions,
    /// Background checks of the server.
    pub monitor: MonitorConfig,
}

impl Config {
    /// Parses a file. The error lists every mistake with its line.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let node = Node::parse(text)?;
        let mut reader = Reader::default();
        let mut known = vec![
            "listen",
            "access",
            "tls",
            "authorize",
            "store",
            "memory",
            "redis",
            "guard",
            "hot-keys",
            "monitor",
            "reservations",
        ];
        known.extend(slidegate::FILE_FIELDS);
        let fields = reader.fields(&node, "the file", &known);
        let config = fields.and_then(|fields| read(&fields, &mut reader));
        reader.finish(config)
    }

    /// Parses rules without other settings, or in the format of `GET /v1/rules`.
    pub fn parse_rules(text: &str, redis: &RedisConfig) -> Result<Rules, Error> {
        let node = Node::parse(text)?;
        let mut reader = Reader::default();
        let mut known = vec!["version", "hash", "source", "failure"];
        known.extend(slidegate::FILE_FIELDS);
        let rules =
            reader.fields(&node, "the rules", &known).and_then(|fields| Rules::read(&fields, &mut reader));
        if let Some(rules) = &rules {
            redis::check_encodings(&node, &mut reader, redis, rules);
        }
        reader.finish(rules)
    }
}

fn read(fields: &Fields<'_>, reader: &mut Reader) -> Option<Config> {
    let listen = fields.get("listen").map_or(Some(Default::default()), |node| listen::read(node, reader));
    let access =
        fields.get("access").map_or(Some(AccessConfig::default()), |node| access::read(node, reader));
    let tls = fields.get("tls").map_or(Some(None), |node| access::read_tls(node, reader).map(Some));
    let reservations = fields.get("reservations");
    let reservations =
        reservations.map_or(Some(ReservationsConfig::default()), |node| reservations::read(node, reader));
    let authorize = fields.get("authorize");
    let authorize = authorize.map_or(Some(AuthorizeConfig::default()), |node| authorize::read(node, reader));
    let store = fields.get("store").and_then(|node| read_store(node, reader));
    let memory = fields.get("memory");
    let memory = memory.map_or(Some(MemoryOptions::default()), |node| memory::read(node, reader));
    let node = fields.get("redis");
    let redis = node.map_or(Some(RedisConfig::default()), |node| redis::read(node, reader));
    let guard =
        fields.get("guard").map_or(Some(FailoverOptions::default()), |node| guard::read(node, reader));
    let hot_keys = fields.get("hot-keys");
    let hot_keys = hot_keys.map_or(Some(StackOptions::default()), |node| hot_keys::read(node, reader));
    let monitor = fields.get("monitor");
    let monitor = monitor.map_or(Some(MonitorConfig::default()), |node| monitor::read(node, reader));
    let rules = match fields.get("rules") {
        Some(node) if node.is_word("redis") => {
            if let Some(node) = fields.get("unmatched") {
                reader.problem(
                    node,
                    "`unmatched` belongs to the rules, which are in Redis: put it there with them",
                );
            }
            reader.accept(node, Rules::unknown())?
        }
        _ => Rules::read(fields, reader)?,
    };
    if let (Some(node), Some(redis)) = (node, &redis) {
        redis::check_encodings(node, reader, redis, &rules);
    }
    let authorize = authorize?;
    let (listen, limits) = listen?;
    Some(Config {
        rules: authorize.normalize_paths(rules),
        listen,
        limits,
        access: access?,
        tls: tls?,
        reservations: reservations?,
        authorize,
        store,
        memory: memory?,
        redis: redis?,
        guard: guard?,
        hot_keys: hot_keys?,
        monitor: monitor?,
    })
}

fn read_store(node: &Node, reader: &mut Reader) -> Option<StoreKind> {
    let text = reader.text(node, "store")?;
    match text.parse() {
        Ok(store) => Some(store),
        Err(message) => {
            // The value is not repeated, because it may contain a password.
            reader.problem(node, message);
            None
        }
    }
}

/// Configuration file, for `slidegate schema`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(title = "Slidegate configuration")]
pub struct ConfigFile {
    /// Addresses of the listeners.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub listen: Option<ListenFile>,
    /// Tokens for calls and for changes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub access: Option<AccessFile>,
    /// TLS on every listener.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tls: Option<TlsFile>,
    /// Keys that sign reservations.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reservations: Option<ReservationsFile>,
    /// Settings of `/v1/authorize`, which decides about the requests of a proxy.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub authorize: Option<AuthorizeFile>,
    /// Store that counts: `memory` is this process; `redis` is the server in the section `redis`; or an address,
    /// `redis://…`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub store: Option<String>,
    /// Bounds of the memory store, and its policy when it is full.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub memory: Option<MemoryStoreFile>,
    /// Connection to Redis, and storage options.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub redis: Option<RedisFile>,
    /// Failover when Redis does not answer.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub guard: Option<GuardFile>,
    /// Protection of Redis against overload by hot keys.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hot_keys: Option<HotKeysFile>,
    /// Background checks of the counts, and of Redis's memory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub monitor: Option<MonitorFile>,
    /// Bounds for requests that bring their own limit.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ad_hoc: Option<AdHocFile>,
    /// Policy for a request that no rule matches. `warn`, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unmatched: Option<UnmatchedFile>,
    /// Rules, in the order in which they are evaluated; or `redis`, if all nodes share the rules in Redis and
    /// `PUT /v1/rules` replaces them.
    pub rules: RulesFile,
}

/// Rules, or their location.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Rules")]
pub enum RulesFile {
    /// Rules in this file.
    Here(Vec<RuleFile>),
    /// Rules that all nodes share.
    There(RulesPlace),
}

/// Location of rules that are not in the file.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RulesPlace {
    /// In Redis.
    Redis,
}
