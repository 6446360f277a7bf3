//! The configuration file: rules, and where to listen. Raw text in, checked values out, every mistake at once.

mod guard;
mod redis;
mod topology;

use std::net::SocketAddr;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::Serialize;
use slidegate::yaml::{Fields, Node, Reader};
use slidegate::{AdHocFile, Error, GuardOptions, RuleFile, Rules};

pub use self::guard::GuardFile;
pub use self::redis::{DEFAULT_URL, RedisConfig, RedisFile, RedisModeFile, RedisTlsFile};
pub use self::topology::SentinelFile;

/// The file that `serve` uses when it is given none.
pub const DEMO: &str = include_str!("demo.yaml");

/// Where HTTP listens unless told otherwise.
pub const DEFAULT_HTTP: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8080);

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
    /// The rules.
    pub rules: Rules,
    /// Where to listen; the command line beats it.
    pub http: Option<SocketAddr>,
    /// Where to count; the command line beats it.
    pub store: Option<StoreKind>,
    /// How to reach Redis, if that is where.
    pub redis: RedisConfig,
    /// What happens when it does not answer.
    pub guard: GuardOptions,
}

impl Config {
    /// Checks a file. Reports every mistake, each with its line.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let node = Node::parse(text)?;
        let mut reader = Reader::default();
        let mut known = vec!["listen", "store", "redis", "guard"];
        known.extend(slidegate::FILE_FIELDS);
        let fields = reader.fields(&node, "the file", &known);
        let config = fields.and_then(|fields| read(&fields, &mut reader));
        reader.finish(config)
    }
}

fn read(fields: &Fields<'_>, reader: &mut Reader) -> Option<Config> {
    let http = fields.get("listen").and_then(|node| read_listen(node, reader));
    let store = fields.get("store").and_then(|node| read_store(node, reader));
    let node = fields.get("redis");
    let redis = node.map_or(Some(RedisConfig::default()), |node| redis::read(node, reader));
    let guard = fields.get("guard").map_or(Some(GuardOptions::default()), |node| guard::read(node, reader));
    let rules = Rules::read(fields, reader)?;
    if let (Some(node), Some(redis)) = (node, &redis) {
        redis::check_encodings(node, reader, redis, &rules);
    }
    Some(Config { rules, http, store, redis: redis?, guard: guard? })
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

fn read_listen(node: &Node, reader: &mut Reader) -> Option<SocketAddr> {
    let fields = reader.fields(node, "listen", &["http"])?;
    let node = fields.get("http")?;
    let text = reader.text(node, "http")?;
    match text.parse() {
        Ok(address) => Some(address),
        Err(_) => {
            reader.problem(
                node,
                format!("http must be an address and a port such as 127.0.0.1:8080, not \"{text}\""),
            );
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
    /// Where to count: `memory` is this process; `redis` is where `redis` says; or an address, `redis://…`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub store: Option<String>,
    /// How to reach Redis, and what to store there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub redis: Option<RedisFile>,
    /// What happens when Redis does not answer.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub guard: Option<GuardFile>,
    /// The bounds that requests which name their own limit must keep.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ad_hoc: Option<AdHocFile>,
    /// The rules, in the order in which they are judged.
    pub rules: Vec<RuleFile>,
}

/// Where to listen.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "Listen")]
pub struct ListenFile {
    /// HTTP: an address and a port; port 0 picks a free one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub http: Option<String>,
}
