//! How much memory there is, and how much of it is ours.

use std::collections::BTreeMap;

use futures_util::stream::{self, StreamExt};

use crate::store::redis::topology::ServerId;
use crate::store::redis::{Inner, RedisStore, bad_reply};
use crate::{Error, Fault};

/// Keys of Redis that are read at once.
const PAGE: usize = 1_000;

/// Of each key of ours that is wanted, so many others are looked at.
const OTHERS: usize = 10;

/// Keys that are weighed at once.
const AT_ONCE: usize = 16;

/// The memory of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerMemory {
    /// Where it is, without a password.
    pub address: String,
    /// Bytes in use (`used_memory`).
    pub used: u64,
    /// Bytes that it may use (`maxmemory`); 0 if nobody has said.
    pub max: u64,
    /// What it does when they are used up, such as `noeviction`.
    pub policy: String,
    /// Keys in the database, ours and others'.
    pub keys: u64,
}

/// About how much is ours: see [`RedisStore::weigh`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryUsage {
    /// Keys of Redis that are counts of ours, or notes on them: an estimate, unless all were looked at.
    pub keys: u64,
    /// Bytes they take, likewise.
    pub bytes: u64,
    /// The keys that were weighed.
    pub sampled: u64,
    /// The same by rule, the heaviest first.
    pub rules: Vec<RuleMemoryUsage>,
}

/// What one rule takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleMemoryUsage {
    /// The name of the rule, as keys have it.
    pub rule: String,
    /// Keys of Redis, an estimate.
    pub keys: u64,
    /// Bytes, an estimate.
    pub bytes: u64,
}

/// What was found on one server.
#[derive(Default)]
struct Sample {
    /// By rule: keys and bytes.
    rules: BTreeMap<String, (u64, u64)>,
    /// How many there are for each that was looked at.
    stands_for: f64,
}

impl RedisStore {
    /// How much memory each server has, and uses.
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
                keys: self.inner.ask(server, &redis::cmd("DBSIZE")).await?,
            });
        }
        Ok(all)
    }

    /// About how many keys are ours, and what they take, by rule: an estimate from up to `sample` of them, which
    /// `SCAN` meets first. Looks at no more than ten times as many keys of others, and a thousand; so where ours are
    /// few among many it may find none, and say nothing of them.
    pub async fn weigh(&self, sample: usize) -> Result<MemoryUsage, Error> {
        let servers = self.inner.topology.servers().await?;
        let each = sample.div_ceil(servers.len().max(1));
        let mut weight = MemoryUsage::default();
        let mut rules: BTreeMap<String, (f64, f64)> = BTreeMap::new();
        for server in servers {
            let found = self.inner.sample(server, each).await?;
            for (rule, (keys, bytes)) in found.rules {
                weight.sampled += keys;
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
        weight.rules = rounded.collect();
        weight.rules.sort_by_key(|rule| std::cmp::Reverse(rule.bytes));
        weight.keys = weight.rules.iter().map(|rule| rule.keys).sum();
        weight.bytes = weight.rules.iter().map(|rule| rule.bytes).sum();
        Ok(weight)
    }
}

impl Inner {
    async fn sample(&self, server: ServerId, most: usize) -> Result<Sample, Error> {
        let all: u64 = self.ask(server, &redis::cmd("DBSIZE")).await?;
        let (mut cursor, mut looked, mut ours) = (0u64, 0, Vec::new());
        let whole = loop {
            let mut command = redis::cmd("SCAN");
            command.arg(cursor).arg("COUNT").arg(PAGE.min(most.max(10)));
            let (next, found): (u64, Vec<Vec<u8>>) = self.ask(server, &command).await?;
            for name in found {
                if ours.len() == most {
                    break;
                }
                looked += 1;
                ours.extend(self.names.parse(&name).map(|(key, _)| (key, name)));
            }
            cursor = next;
            if ours.len() == most || looked > OTHERS * most + PAGE {
                break false;
            }
            if cursor == 0 {
                break true;
            }
        };
        let weighing = ours.into_iter().map(|(key, name)| async move {
            let mut command = redis::cmd("MEMORY");
            command.arg("USAGE").arg(name);
            let bytes: Result<Option<u64>, Error> = self.ask(server, &command).await;
            (key, bytes)
        });
        let weighed: Vec<_> = stream::iter(weighing).buffer_unordered(AT_ONCE).collect().await;
        let stands_for = if whole || looked == 0 { 1.0 } else { (all as f64 / looked as f64).max(1.0) };
        let mut sample = Sample { stands_for, ..Sample::default() };
        for (key, bytes) in weighed {
            let bytes = match bytes {
                Ok(Some(bytes)) => bytes,
                // It has expired since, or its slot is on its way to another.
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
