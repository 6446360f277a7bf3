//! The configuration file: rules, and where to listen. Raw text in, checked values out, every mistake at once.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::Serialize;
use slidegate::yaml::{Fields, Node, Reader};
use slidegate::{AdHocFile, Error, RuleFile, Rules};

/// The file that `serve` uses when it is given none.
pub const DEMO: &str = include_str!("demo.yaml");

/// Where HTTP listens unless told otherwise.
pub const DEFAULT_HTTP: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8080);

/// Where counts are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreKind {
    /// In this process.
    #[default]
    Memory,
}

impl StoreKind {
    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            StoreKind::Memory => "memory",
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
}

impl Config {
    /// Checks a file. Reports every mistake, each with its line.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let node = Node::parse(text)?;
        let mut reader = Reader::default();
        let mut known = vec!["listen", "store"];
        known.extend(slidegate::FILE_FIELDS);
        let fields = reader.fields(&node, "the file", &known);
        let config = fields.and_then(|fields| read(&fields, &mut reader));
        reader.finish(config)
    }
}

fn read(fields: &Fields<'_>, reader: &mut Reader) -> Option<Config> {
    let http = fields.get("listen").and_then(|node| read_listen(node, reader));
    let store =
        fields.get("store").and_then(|node| reader.word(node, "store", &[("memory", StoreKind::Memory)]));
    let rules = Rules::read(fields, reader)?;
    Some(Config { rules, http, store })
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
    /// Where to count: `memory` is this process.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub store: Option<StoreFile>,
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

/// Where to count.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Store")]
pub enum StoreFile {
    /// In this process.
    Memory,
}
