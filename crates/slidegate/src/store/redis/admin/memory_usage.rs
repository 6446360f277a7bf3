//! Memory of the servers, and the share of Slidegate's keys.

use std::collections::BTreeMap;

use futures_util::stream::{self, StreamExt};

use crate::store::redis::topology::ServerId;
use crate::store::redis::{Inner, RedisStore, bad_reply};
use crate::store::remote::RemoteStore;
use crate::{Error, Fault};

/// Keys that one SCAN reads.
const PAGE: usize = 1_000;

/// Maximum number of foreign keys to look at for each wanted key of this deployment.
const FOREIGN_PER_KEY: usize = 10;

/// Concurrent `MEMORY USAGE` commands.
const MAX_CONCURRENT: usize = 16;

/// Memory of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerMemory {
    /// Address, without a password.
    pub address: String,
    /// Bytes in use (`used_memory`).
    pub used: u64,
    /// Bytes that the server may use (`maxmemory`); 0 if there is no limit.
    pub max: u64,
    /// Eviction policy when the memory is used up, such as `noeviction`.
    pub policy: String,
    /// Keys in the database, including foreign keys.
    pub keys: u64,
}

/// Estimated memory of this deployment: see [`RedisStore::weigh`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryUsage {
    /// Keys in Redis that are counts or notes: an estimate, unless all keys of the servers were looked at.
    pub keys: u64,
    /// Bytes of the counts and notes: an estimate, unless all keys of the servers were looked at.
    pub bytes: u64,
    /// Keys that were measured.
    pub sampled: u64,
    /// Keys and bytes by rule, the largest first.
    pub rules: Vec<RuleMemoryUsage>,
}

/// Estimated memory of one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleMemoryUsage {
    /// Name of the rule, as in its keys.
    pub rule: String,
    /// Keys in Redis, an estimate.
    pub keys: u64,
    /// Bytes, an estimate.
    pub bytes: u64,
}

/// Sample of the keys of one server.
#[derive(Default)]
struct Sample {
    /// Keys and bytes by rule.
    rules: BTreeMap<String, (u64, u64)>,
    /// Number of keys that each sampled key stands for.
    stands_for: f64,
}

impl RedisStore {
    /// Returns the memory of each server, and how much of it is used.
    pub async fn memory(&self) -> Result<Vec<ServerMemory>, Error> {
        let mut all = Vec::new();
        for server in self.inner.topology.servers().await? {
            let info = self.inner.info(server, "memory").await?;
            let number = |name| info.field(name).and_then(|bytes| bytes.parse().ok());
            all.push(ServerMemory {
                address: self.server_address(server),
                used: number("used_memory").ok_or_else(bad_reply)?,
                max: number("maxmemory").unwrap_or(0),
                policy: info.field("maxmemory_policy").unwrap_or("noeviction").to_owned(),
                keys: self.inner.query(server, &redis::cmd("DBSIZE")).await?,
            });
        }
        Ok(all)
    }

    /// Estimates how many keys belong to this deployment and how many bytes they take, by rule, from up to `sample` of
    /// the keys that `SCAN` returns first. Looks at no more than ten times as many foreign keys, plus a thousand. So if
    /// nearly all keys are foreign, this may find and report no key of this deployment.
    pub async fn weigh(&self, sample: usize) -> Result<MemoryUsage, Error> {
        let servers = self.inner.topology.servers().await?;
        let each = sample.div_ceil(servers.len().max(1));
        let mut usage = MemoryUsage::default();
        let mut rules: BTreeMap<String, (f64, f64)> = BTreeMap::new();
        for server in servers {
            let found = self.inner.sample(server, each).await?;
            for (rule, (keys, bytes)) in found.rules {
                usage.sampled += keys;
                let sum = rules.entry(rule).or_default();
                sum.0 += keys as f64 * found.stands_for;
                sum.1 += bytes as f64 * found.stands_for;
            }
        }
        let rounded = rules.into_iter().map(|(rule, (keys, bytes))| RuleMemoryUsage {
            rule,
            keys: keys.round() as u64,
            bytes: bytes.round() as u64,
        });
        usage.rules = rounded.collect();
        usage.rules.sort_by_key(|rule| std::cmp::Reverse(rule.bytes));
        usage.keys = usage.rules.iter().map(|rule| rule.keys).sum();
        usage.bytes = usage.rules.iter().map(|rule| rule.bytes).sum();
        Ok(usage)
    }
}

impl Inner {
    async fn sample(&self, server: ServerId, most: usize) -> Result<Sample, Error> {
        let all: u64 = self.query(server, &redis::cmd("DBSIZE")).await?;
        let (mut cursor, mut scanned, mut own_keys) = (0u64, 0, Vec::new());
        let complete = loop {
            let mut command = redis::cmd("SCAN");
            command.arg(cursor).arg("COUNT").arg(PAGE.min(most.max(10)));
            let (next, found): (u64, Vec<Vec<u8>>) = self.query(server, &command).await?;
            for name in found {
                if own_keys.len() == most {
                    break;
                }
                scanned += 1;
                own_keys.extend(self.names.parse(&name).map(|(key, _)| (key, name)));
            }
            cursor = next;
            if own_keys.len() == most || scanned > FOREIGN_PER_KEY * most + PAGE {
                break false;
            }
            if cursor == 0 {
                break true;
            }
        };
        let measuring = own_keys.into_iter().map(|(key, name)| async move {
            (key, self.query::<Option<u64>>(server, redis::cmd("MEMORY").arg("USAGE").arg(name)).await)
        });
        let measured: Vec<_> = stream::iter(measuring).buffer_unordered(MAX_CONCURRENT).collect().await;
        let stands_for = if complete || scanned == 0 { 1.0 } else { (all as f64 / scanned as f64).max(1.0) };
        let mut sample = Sample { stands_for, ..Sample::default() };
        for (key, bytes) in measured {
            let bytes = match bytes {
                Ok(Some(bytes)) => bytes,
                // The key has expired since, or its slot is moving to another server.
                Ok(None) => continue,
                Err(error) if error.fault() == Some(Fault::Cluster) => continue,
                Err(error) => return Err(error),
            };
            let sum = sample.rules.entry(key.rule().to_owned()).or_default();
            *sum = (sum.0 + 1, sum.1 + bytes);
        }
        Ok(sample)
    }
}
