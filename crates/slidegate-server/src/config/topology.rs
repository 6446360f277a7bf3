//! Redis topology: `url`, `cluster`, `shards` or `sentinel`.

use schemars::JsonSchema;
use serde::Serialize;
use slidegate::yaml::{Fields, Node, Reader};
use slidegate::{Error, RedisSentinel, RedisTopology};

use super::redis::is_url;

const KINDS: [&str; 4] = ["url", "cluster", "shards", "sentinel"];

/// Reads the topology. `Some(None)` if the file does not set it.
pub(super) fn read(fields: &Fields<'_>, reader: &mut Reader) -> Option<Option<RedisTopology>> {
    let given: Vec<(&str, &Node)> =
        KINDS.iter().filter_map(|kind| Some((*kind, fields.get(kind)?))).collect();
    let &[(kind, node), ref others @ ..] = given.as_slice() else { return Some(None) };
    if let Some((other, node)) = others.first() {
        reader.problem(node, format!("redis has `{kind}` already: give that or `{other}`, not both"));
        return None;
    }
    Some(Some(match kind {
        "cluster" => RedisTopology::Cluster(read_urls(node, reader, kind)?),
        "shards" => RedisTopology::Shards(read_urls(node, reader, kind)?),
        "sentinel" => RedisTopology::Sentinel(read_sentinel(node, reader)?),
        _ => RedisTopology::One(read_url(node, reader)?),
    }))
}

fn read_sentinel(node: &Node, reader: &mut Reader) -> Option<RedisSentinel> {
    let fields = reader.fields(node, "sentinel", &["master", "nodes", "username", "password"])?;
    let master = fields.required(reader, "master", "sentinel");
    let master = master.and_then(|node| reader.text(node, "master")).map(str::to_owned);
    let nodes = fields.required(reader, "nodes", "sentinel");
    let nodes = nodes.and_then(|node| read_urls(node, reader, "nodes"));
    let username = fields.get("username").and_then(|node| reader.text(node, "username")).map(str::to_owned);
    let password = fields.get("password").and_then(|node| read_password(node, reader));
    Some(RedisSentinel { master: master?, nodes: nodes?, username, password })
}

fn read_urls(node: &Node, reader: &mut Reader, what: &str) -> Option<Vec<String>> {
    let urls = reader.list(node, what)?.iter().map(|node| read_url(node, reader));
    // All items are read, so that every mistake is reported.
    urls.collect::<Vec<_>>().into_iter().collect()
}

fn read_url(node: &Node, reader: &mut Reader) -> Option<String> {
    let url = reader.text(node, "url")?;
    if !is_url(url) {
        let form = "url must look like redis://[user:password@]host:port[/db], or rediss:// for TLS";
        return reader.accept(node, Err(Error::invalid(form)));
    }
    Some(url.to_owned())
}

/// Reads a password. An invalid value is not repeated in the message.
fn read_password(node: &Node, reader: &mut Reader) -> Option<String> {
    let password = Reader::default().text(node, "password").map(str::to_owned);
    if password.is_none() {
        reader.problem(node, "password must be text: write it in quotes");
    }
    password
}

/// Primary that Redis Sentinel monitors.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "RedisSentinel")]
pub struct SentinelFile {
    /// Name of the primary in the configuration of the sentinels.
    #[schemars(length(min = 1))]
    pub master: String,
    /// Urls of the sentinels, with their own users and passwords.
    #[schemars(length(min = 1))]
    pub nodes: Vec<String>,
    /// User name at the primary.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub username: Option<String>,
    /// Password at the primary.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub password: Option<String>,
}
