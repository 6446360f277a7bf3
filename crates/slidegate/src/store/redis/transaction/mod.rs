//! `mode: transaction`: the same decisions without scripts, for servers and proxies that do not run them.
//!
//! It watches the keys with WATCH, reads the needed parts of them into a [`State`](crate::State), evaluates with the
//! pure algorithm, and writes the changes in MULTI / EXEC. If another client changed a key meanwhile, EXEC writes
//! nothing and the attempt is repeated, a bounded number of times. Callers of one key in the same process do not
//! conflict, because they wait for each other.
//!
//! The layout is that of the scripts, so both can work on the same keys. Only the oldest entries of a window are read.
//! The permits of the other entries are counted at the newest instant, and if a decision depends on one of these
//! entries, all entries are read.
//!
//! A denial writes nothing, so it may be returned before an admission with an earlier instant is written.

mod admit;
mod key_state;
mod load;
mod settle;
mod write;

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};
use tokio::sync::MutexGuard;

use self::load::LoadRequest;
use super::Inner;
use super::epoch::Purpose;
use super::error_map::{Redirect, explain, redirect};
use super::layout::KeyPart;
use super::server::{self, Server};
use super::topology::ShardId;
use crate::{BatchVerdicts, Checks, Error, Fault, Key, Receipt, Settlement};

/// Maximum number of attempts of a decision when other clients change its keys.
const MAX_ATTEMPTS: u32 = 100;

/// Attempts without back-off; later attempts wait a little.
const IMMEDIATE_ATTEMPTS: u32 = 4;

/// Locks by hash of the key, so that callers of one key in one process run one after the other.
pub(super) type KeyLocks = [tokio::sync::Mutex<()>; 64];

/// Work of one transaction, and the location of its result.
enum Work<'a> {
    Admit(&'a [Checks], &'a [&'a Key], &'a mut BatchVerdicts),
    Settle(&'a [Settlement], &'a mut Receipt),
}

/// Reason why an attempt did not succeed.
enum AttemptError {
    /// Another client changed a key first.
    Conflict,
    /// The decision depends on entries of these keys that were not read: all of their entries must be read.
    NeedsAllEntries(Vec<usize>),
    Failed(RedisError),
    Invalid(Error),
}

impl From<RedisError> for AttemptError {
    fn from(error: RedisError) -> Self {
        AttemptError::Failed(error)
    }
}

impl Inner {
    /// Makes attempts on the server that has the keys, and follows redirects to other servers.
    async fn attempt(&self, shard: ShardId, keys: &[&Key], mut work: Work<'_>) -> Result<(), Error> {
        let _locks = lock_keys(&self.key_locks, keys).await;
        let mut route = self.topology.route(shard);
        loop {
            let server = route.server().await?;
            match self.attempt_at(&server, &mut work).await {
                Ok(()) => return Ok(()),
                Err(error) => route.prepare_retry(error).await?,
            }
        }
    }

    /// Repeats attempts until one succeeds, fails, or there were too many conflicts.
    async fn attempt_at(&self, server: &Server, work: &mut Work<'_>) -> Result<(), server::CallError> {
        let failed = server::CallError::Failed;
        let _permit = server.connections.permit().await.map_err(failed)?;
        let (mut read_whole, mut conflicts) = (Vec::new(), 0);
        while conflicts < MAX_ATTEMPTS {
            let mut dedicated = server.take_connection(Purpose::Decide).await.map_err(failed)?;
            let connection = &mut dedicated.connection;
            let done = match work {
                Work::Admit(batch, keys, batch_verdicts) => {
                    let admitted = self.try_admit(connection, batch, keys, &read_whole).await;
                    admitted.map(|admitted| **batch_verdicts = admitted)
                }
                Work::Settle(settlements, receipt) => {
                    let settled = self.try_settle(connection, settlements, &read_whole).await;
                    settled.map(|settled| **receipt = settled)
                }
            };
            match done {
                Ok(()) => {
                    server.return_connection(dedicated);
                    return Ok(());
                }
                Err(AttemptError::Failed(error)) => {
                    let explained = explain(&error, &dedicated.address);
                    // If a slot moves away between WATCH and EXEC, EXEC does nothing.
                    let left = explained.fault() == Some(Fault::Cluster)
                        && error.kind() == ErrorKind::Server(ServerErrorKind::ExecAbort);
                    return Err(match redirect(&error).or_else(|| left.then_some(Redirect::Again)) {
                        // Dropping the connection ends its WATCH.
                        Some(redirect) => server::CallError::Redirected(redirect, explained),
                        None => {
                            server.drop_idle();
                            failed(explained)
                        }
                    });
                }
                Err(AttemptError::Invalid(error)) => return Err(failed(error)),
                // Each key is added at most once, so the loop ends.
                Err(AttemptError::NeedsAllEntries(keys)) => read_whole.extend(keys),
                Err(AttemptError::Conflict) => conflicts += 1,
            }
            // The next user of the connection must not inherit the WATCH.
            if redis::cmd("UNWATCH").exec_async(&mut dedicated.connection).await.is_ok() {
                server.return_connection(dedicated);
            }
            if conflicts > IMMEDIATE_ATTEMPTS {
                tokio::time::sleep(Duration::from_millis(1 + u64::from(conflicts) % 7)).await;
            }
        }
        Err(failed(Error::store(
            Fault::Conflict,
            format!(
                "other clients changed the same keys {MAX_ATTEMPTS} times during the decision: use redis.mode: script for hot keys"
            ),
        )))
    }

    fn load_request(&self, key: &Key, noted: bool) -> LoadRequest {
        let [name, notes] = [KeyPart::Main, KeyPart::Notes].map(|part| self.names.name(key, part));
        LoadRequest { name, notes, noted, warm: None }
    }
}

async fn lock_keys<'l>(key_locks: &'l KeyLocks, keys: &[&Key]) -> Vec<MutexGuard<'l, ()>> {
    let mut indexes: Vec<usize> = keys.iter().map(|key| key.hash() as usize % key_locks.len()).collect();
    indexes.sort_unstable();
    indexes.dedup();
    let mut guards = Vec::with_capacity(indexes.len());
    for index in indexes {
        guards.push(key_locks[index].lock().await);
    }
    guards
}

/// Executes the transaction, which fails if another client changed a watched key. A transaction without writes is
/// executed too, to find out whether a key was changed.
async fn commit(connection: &mut MultiplexedConnection, mut writes: Pipeline) -> Result<(), AttemptError> {
    if writes.is_empty() {
        writes.cmd("PING");
    }
    match writes.query_async::<Value>(connection).await? {
        Value::Nil => Err(AttemptError::Conflict),
        _ => Ok(()),
    }
}
