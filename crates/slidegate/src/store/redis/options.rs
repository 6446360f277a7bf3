//! Options of the Redis store: how to reach Redis, and what to store there.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::error::check_between;
use crate::store::failover::check_duration;
use crate::{Error, Micros, Quota};

/// Default prefix of keys.
pub const DEFAULT_PREFIX: &str = "sg";

/// Maximum number of requests in one call of the script.
pub const MAX_BATCH_SIZE: usize = 1_000;

/// Maximum number of servers in the options.
const MAX_SERVERS: usize = 1_000;

crate::words! {
    /// Mechanism that makes decisions atomic.
    pub enum RedisMode default Script {
        /// A script makes the decision in one round trip.
        Script = "script",
        /// WATCH, MULTI and EXEC, for servers and proxies that do not run scripts. A decision takes several round
        /// trips, and concurrent callers of one key cause retries.
        Transaction = "transaction",
    }
}

/// Servers that store counts, and the distribution of keys to them.
///
/// A url is `redis://[user:password@]host:port[/db]`; `rediss://` for TLS; `redis+unix:///path` for a socket.
#[derive(Clone, PartialEq, Eq)]
pub enum RedisTopology {
    /// One server has every key.
    One(String),
    /// Redis Cluster: these are some of its nodes. At least one of them must answer, to report the other nodes. A node
    /// that is not named here gets the user, password and TLS setting of the first url.
    Cluster(Vec<String>),
    /// Independent servers. Each key is on one of them. An added server takes only its share of the keys, and a lost
    /// server affects only its own keys.
    Shards(Vec<String>),
    /// The primary that sentinels monitor.
    Sentinel(RedisSentinel),
}

/// Sentinels, and the primary that they monitor.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisSentinel {
    /// Name of the primary at the sentinels.
    pub master: String,
    /// Urls of the sentinels, with their own users and passwords. `rediss://` means TLS to the primary too.
    pub nodes: Vec<String>,
    /// User name at the primary.
    pub username: Option<String>,
    /// Password at the primary.
    pub password: Option<String>,
}

/// Options of the Redis store. [`RedisOptions::new`] and the other constructors set defaults that suit most
/// deployments.
#[derive(Clone)]
pub struct RedisOptions {
    /// Servers that store counts.
    pub topology: RedisTopology,
    /// Password that can change while the store runs. It replaces the password in the urls; with sentinels, it replaces
    /// the password of the primary.
    pub password: Option<RedisPassword>,
    /// Certificates, for `rediss://`.
    pub tls: RedisTls,
    /// Number of shared connections per server. More than a few help only when one connection is saturated.
    pub connections: usize,
    /// Timeout of an attempt to connect.
    pub connect_timeout: Duration,
    /// Timeout of a reply.
    pub response_timeout: Duration,
    /// Time after which TCP probes a silent connection.
    pub keep_alive: Duration,
    /// Interval between health checks of a connection.
    pub health_check: Duration,
    /// Maximum number of calls in flight; further calls wait for a permit.
    pub max_in_flight: usize,
    /// Longest wait for a permit.
    pub max_wait: Duration,
    /// Maximum number of requests in one call of the script.
    pub batch_size: usize,
    /// Shortest time to live of a key.
    pub min_expire: Duration,
    /// Time that a key is kept after its last entry has expired.
    pub expire_buffer: Duration,
    /// Mechanism that makes decisions atomic.
    pub mode: RedisMode,
    /// Prefix of every key: several deployments can share a server.
    pub prefix: String,
}

/// Password that can change while a store runs. New connections use the newest password; open connections stay open,
/// because Redis checks the password only once per connection. Clones share the password.
#[derive(Clone)]
pub struct RedisPassword(Arc<ArcSwap<String>>);

impl RedisPassword {
    /// Creates a password.
    pub fn new(password: impl Into<String>) -> Self {
        RedisPassword(Arc::new(ArcSwap::from_pointee(password.into())))
    }

    /// Replaces the password, also in all clones.
    pub fn set(&self, password: impl Into<String>) {
        self.0.store(Arc::new(password.into()));
    }

    pub(super) fn current(&self) -> Arc<String> {
        self.0.load_full()
    }
}

/// Omits the password.
impl fmt::Debug for RedisPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RedisPassword")
    }
}

/// Certificates in PEM. Without a `ca` the system's certificate authorities are trusted.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RedisTls {
    /// Certificate authority to trust.
    pub ca: Option<Vec<u8>>,
    /// Client certificate, for servers that require one.
    pub cert: Option<Vec<u8>>,
    /// Private key of `cert`.
    pub key: Option<Vec<u8>>,
}

impl RedisOptions {
    /// One Redis server at `url`, with defaults.
    pub fn new(url: impl Into<String>) -> Self {
        RedisOptions::at(RedisTopology::One(url.into()))
    }

    /// Redis Cluster, some of whose nodes have these urls, with defaults.
    pub fn cluster<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Self {
        RedisOptions::at(RedisTopology::Cluster(urls.into_iter().map(Into::into).collect()))
    }

    /// Independent servers that share the keys, with defaults.
    pub fn shards<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Self {
        RedisOptions::at(RedisTopology::Shards(urls.into_iter().map(Into::into).collect()))
    }

    /// The primary that the sentinels at these urls call `master`, with defaults.
    pub fn sentinel<U: Into<String>>(master: impl Into<String>, urls: impl IntoIterator<Item = U>) -> Self {
        RedisOptions::at(RedisTopology::Sentinel(RedisSentinel {
            master: master.into(),
            nodes: urls.into_iter().map(Into::into).collect(),
            username: None,
            password: None,
        }))
    }

    /// Servers of `topology`, with defaults.
    pub fn at(topology: RedisTopology) -> Self {
        RedisOptions {
            topology,
            password: None,
            tls: RedisTls::default(),
            connections: 2,
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_millis(500),
            keep_alive: Duration::from_secs(15),
            health_check: Duration::from_secs(5),
            max_in_flight: 4_096,
            max_wait: Duration::from_millis(50),
            batch_size: 100,
            min_expire: Duration::from_secs(60),
            expire_buffer: Duration::from_secs(10),
            mode: RedisMode::default(),
            prefix: DEFAULT_PREFIX.to_owned(),
        }
    }

    /// Checks that every option is within its bounds. The error names the option as the configuration file does.
    pub fn check(&self) -> Result<(), Error> {
        check_between("connections", self.connections, 1, 64)?;
        check_between("batch-size", self.batch_size, 1, MAX_BATCH_SIZE)?;
        check_between("max-in-flight", self.max_in_flight, 1, 1_000_000)?;
        let (ms, minute, day) =
            (Duration::from_millis(1), Duration::from_secs(60), Duration::from_secs(86_400));
        check_duration("connect-timeout", self.connect_timeout, ms, minute)?;
        check_duration("response-timeout", self.response_timeout, ms, minute)?;
        check_duration("keep-alive", self.keep_alive, Duration::from_secs(1), day)?;
        check_duration("health-check", self.health_check, Duration::from_millis(100), day)?;
        check_duration("max-wait", self.max_wait, Duration::ZERO, minute)?;
        check_duration("min-expire", self.min_expire, Duration::ZERO, 366 * day)?;
        check_duration("expire-buffer", self.expire_buffer, Duration::ZERO, 366 * day)?;
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        let valid = (1..=32).contains(&self.prefix.len()) && self.prefix.bytes().all(allowed);
        ensure!(valid, "prefix must be 1 to 32 letters, digits or any of `._-`");
        self.topology.check()
    }

    /// Address without passwords.
    pub fn address(&self) -> String {
        self.topology.address()
    }
}

impl RedisTopology {
    /// Urls of the servers or sentinels.
    pub fn urls(&self) -> &[String] {
        match self {
            RedisTopology::One(url) => std::slice::from_ref(url),
            RedisTopology::Cluster(urls) | RedisTopology::Shards(urls) => urls,
            RedisTopology::Sentinel(sentinel) => &sentinel.nodes,
        }
    }

    fn check(&self) -> Result<(), Error> {
        let addresses: Vec<String> = self.urls().iter().map(|url| address_of(url)).collect();
        let what = match self {
            RedisTopology::One(_) => return Ok(()),
            RedisTopology::Cluster(_) => "cluster",
            RedisTopology::Shards(_) => "shards",
            RedisTopology::Sentinel(_) => "sentinel.nodes",
        };
        let n = addresses.len();
        ensure!((1..=MAX_SERVERS).contains(&n), "{what} must name 1 to {MAX_SERVERS} urls, not {n}");
        for (i, address) in addresses.iter().enumerate() {
            ensure!(!addresses[..i].contains(address), "{what} names {address} twice");
        }
        let nameless = matches!(self, RedisTopology::Sentinel(sentinel) if sentinel.master.is_empty());
        ensure!(!nameless, "sentinel.master is empty: set the name of the primary in the sentinels");
        Ok(())
    }

    fn address(&self) -> String {
        let addresses: Vec<String> = self.urls().iter().map(|url| address_of(url)).collect();
        let addresses = addresses.join(", ");
        match self {
            RedisTopology::One(_) => addresses,
            RedisTopology::Cluster(_) => format!("the cluster of {addresses}"),
            RedisTopology::Shards(_) => format!("the shards {addresses}"),
            RedisTopology::Sentinel(sentinel) => {
                format!("{} of the sentinels {addresses}", sentinel.master)
            }
        }
    }
}

/// Prints only the address, so that passwords do not reach a log.
impl fmt::Debug for RedisTopology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address())
    }
}

impl fmt::Debug for RedisSentinel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.master)
    }
}

/// Returns the address of a url, without user and password.
pub(super) fn address_of(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    rest.split(['?', '#']).next().unwrap_or_default().to_owned()
}

/// Omits the password, so that it does not reach a log.
impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("address", &self.address())
            .field("connections", &self.connections)
            .field("mode", &self.mode)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

/// Expiry of keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expiry {
    pub(super) min: Micros,
    pub(super) buffer: Micros,
}

impl Expiry {
    pub(super) fn new(options: &RedisOptions) -> Self {
        Expiry { min: options.min_expire.into(), buffer: options.expire_buffer.into() }
    }

    /// Time to live that a key gets when its expiry is set.
    pub(super) fn ttl(self, quota: &Quota) -> Micros {
        self.min.max(quota.horizon().plus(self.buffer))
    }

    /// Length of a period. The first write in each period sets the expiry of the key, late enough for every other write
    /// of the period.
    pub(super) fn period(self, quota: &Quota) -> Micros {
        let least = quota.horizon().plus(Micros::new(self.buffer.get() / 2));
        self.ttl(quota).since(least).max(Micros::new(1))
    }
}
