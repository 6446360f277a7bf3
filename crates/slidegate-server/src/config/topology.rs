//! Redis topology: `url`, `cluster`, `shards` or `sentinel`.

use slidegate::section::{Given, Kind, Shown};
use slidegate::yaml::{Node, Reader};
use slidegate::{
    Error,
    redis::{RedisSentinel, RedisTopology},
};

use super::redis::{Written, is_url};

/// Fields with an address of Redis, of which at most one is given.
pub(super) const KINDS: [&str; 4] = ["url", "cluster", "shards", "sentinel"];

/// Takes the topology. `Some(None)` if the file does not set it.
pub(super) fn topology(given: &mut Given<'_, Written>, reader: &mut Reader) -> Option<Option<RedisTopology>> {
    let kinds: Vec<(&str, &Node)> =
        KINDS.iter().filter_map(|kind| Some((*kind, given.fields.get(kind)?))).collect();
    if let [(kind, first), (other, second), ..] = kinds.as_slice() {
        let source = |node: &Node| node.source().map_or_else(String::new, |source| format!(" ({source})"));
        let (first, place) = (source(first), source(second));
        let message = format!("`redis` has both `{kind}`{first} and `{other}`{place}: set only one of them");
        reader.problem(second, message);
        return None;
    }
    let written = &mut given.value;
    let one = written.url.take().map(RedisTopology::One);
    let cluster = written.cluster.take().map(RedisTopology::Cluster);
    let shards = written.shards.take().map(RedisTopology::Shards);
    Some(one.or(cluster).or(shards).or(written.sentinel.take().map(RedisTopology::Sentinel)))
}

slidegate::section! {
    /// The primary that Redis Sentinel monitors.
    pub(super) struct Sentinel("RedisSentinel", base: no_sentinel()) for RedisSentinel {
        /// Name of the primary (master name) in the configuration of the sentinels.
        master: String { required().nonempty().example("main") },
        /// URLs of the sentinels. If the sentinels need a user and a password, these are in the URLs.
        nodes: Vec<Url> { required().nonempty().of("url").example("[redis://a:26379]").secret() },
        /// User name for the primary.
        username: Option<String> { example("slidegate") },
        /// Password for the primary.
        password: Option<Password> { example("\"secret\"").secret() },
    }
}

fn no_sentinel() -> RedisSentinel {
    RedisSentinel { master: String::new(), nodes: Vec::new(), username: None, password: None }
}

/// Address of Redis.
pub(super) struct Url;

slidegate::field_type! {
    Url => String,
    kind: |_| Kind::Text,
    read: |node, reader, what, _| {
        let url = reader.text(node, what)?;
        if !is_url(url) {
            let form = "url must look like redis://[user:password@]host:port[/db], or rediss:// for TLS";
            return reader.accept(node, Err(Error::invalid(form)));
        }
        Some(url.to_owned())
    },
    // A url may contain a password.
    shown: |_| Shown::Null,
}

/// Password, which no message repeats.
struct Password;

slidegate::field_type! {
    Password => String,
    kind: |_| Kind::Text,
    read: |node, reader, what, _| {
        let password = node.text().map(str::to_owned);
        if password.is_none() {
            reader.problem(node, format!("{what} must be text: write it in quotes"));
        }
        password
    },
    shown: |_| Shown::Null,
}
