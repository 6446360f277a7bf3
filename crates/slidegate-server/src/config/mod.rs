//! The configuration file: rules, and where to listen. Raw text in, checked values out, every mistake at once.

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

/// The file that `serve` uses when it is given none.
pub const DEMO: &str = include_str!("demo.yaml");

/// Where counts are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StoreKind {
    /// In this process.
    #[default]
    Memory,
    /// In Redis: at this address, or at that of `redis`.
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

/// A checked file.
#[derive(Clone, Debug)]
pub struct Config {
    /// The rules; unknown if they are in Redis.
    pub rules: Rules,
    /// Where to listen; the command line beats it.
    pub listen: Listen,
    /// What clients may take of the server.
    pub limits: Limits,
    /// Who may ask.
    pub access: AccessConfig,
    /// How it is encrypted, if it is.
    pub tls: Option<TlsConfig>,
    /// How reservations are signed.
    pub reservations: ReservationsConfig,
    /// What `/v1/authorize` goes by.
    pub authorize: AuthorizeConfig,
    /// Where to count; the command line beats it.
    pub store: Option<StoreKind>,
    /// Bounds of the memory store, if that is where.
    pub memory: MemoryOptions,
    /// How to reach Redis, if that is where.
    pub redis: RedisConfig,
    /// What happens when it does not answer.
    pub guard: FailoverOptions,
    /// What is done for hot keys there.
    pub hot_keys: StackOptions,
    /// How the server checks itself.
    pub monitor: MonitorConfig,
}

impl Config {
    /// Checks a file. Reports every mistake, each with its line.
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

    /// Checks rules that come alone, or as `GET /v1/rules` shows them.
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
        rules: authorize.spell(rules),
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
            // What was written may hold a password, so it is not repeated.
            reader.problem(node, message);
            None
        }
    }
}

/// The file, for `slidegate schema`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(title = "Slidegate configuration")]
pub struct ConfigFile {
    /// Where to listen.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub listen: Option<ListenFile>,
    /// Who may ask, and who may change things.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub access: Option<AccessFile>,
    /// Encrypts every door.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tls: Option<TlsFile>,
    /// How reservations are signed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reservations: Option<ReservationsFile>,
    /// What `/v1/authorize` makes of what a proxy says.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub authorize: Option<AuthorizeFile>,
    /// Where to count: `memory` is this process; `redis` is where `redis` says; or an address, `redis://…`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub store: Option<String>,
    /// Bounds of the memory store, and what happens when it is full.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub memory: Option<MemoryStoreFile>,
    /// How to reach Redis, and what to store there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub redis: Option<RedisFile>,
    /// What happens when Redis does not answer.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub guard: Option<GuardFile>,
    /// What is done so that one key cannot wear Redis out.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hot_keys: Option<HotKeysFile>,
    /// How the server checks its own counts, and Redis's memory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub monitor: Option<MonitorFile>,
    /// The bounds that requests which name their own limit must keep.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ad_hoc: Option<AdHocFile>,
    /// What becomes of a request that no rule matches. `warn`, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unmatched: Option<UnmatchedFile>,
    /// The rules, in the order in which they are judged; or `redis`, where every node finds them and `PUT /v1/rules`
    /// puts them.
    pub rules: RulesFile,
}

/// The rules, or where they are.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Rules")]
pub enum RulesFile {
    /// In this file.
    Here(Vec<RuleFile>),
    /// Shared by all nodes.
    There(RulesPlace),
}

/// Where rules are that are not in the file.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RulesPlace {
    /// In Redis.
    Redis,
}
