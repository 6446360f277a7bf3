//! Redirect loop of one call: follows a slot from node to node, as long as no node has executed the call.

use std::sync::Arc;
use std::time::Duration;

use super::{Cluster, NO_OWNER};
use crate::store::redis::error_map::Redirect;
use crate::store::redis::server::{CallError, Server};
use crate::store::redis::topology::ShardId;
use crate::{Clock, Error, Fault, Micros};

/// Age from which a map is read again.
const MAX_MAP_AGE: Micros = Micros::from_secs(10);

/// Back-off before the next attempt, which doubles up to the longest.
const FIRST_BACKOFF: Duration = Duration::from_millis(1);
const LONGEST_BACKOFF: Duration = Duration::from_millis(32);

/// Attempts without back-off: a slot that moved once is usually at its new address.
const IMMEDIATE_ATTEMPTS: u32 = 2;

/// State of one call on its way to the node that has its slot.
pub(crate) struct RedirectLoop<'c> {
    cluster: &'c Cluster,
    slot: ShardId,
    started: Micros,
    attempts: u32,
    backoff: Duration,
    /// Version of the map that was followed, and the address it led to.
    version: u64,
    followed_address: (String, u16),
    /// Node that an ASK redirect named.
    asked_server: Option<Arc<Server>>,
}

impl<'c> RedirectLoop<'c> {
    pub(super) fn new(cluster: &'c Cluster, slot: ShardId) -> Self {
        RedirectLoop {
            cluster,
            slot,
            started: cluster.clock.now(),
            attempts: 0,
            backoff: FIRST_BACKOFF,
            version: 0,
            followed_address: Default::default(),
            asked_server: None,
        }
    }

    /// Returns the server to call, and whether to send ASKING first.
    pub(crate) async fn next(&mut self) -> Result<(Arc<Server>, bool), Error> {
        if let Some(server) = self.asked_server.take() {
            return Ok((server, true));
        }
        loop {
            let map = self.cluster.map.load_full();
            let owner =
                map.owners.get(usize::from(self.slot)).and_then(|&owner| map.nodes.get(usize::from(owner)));
            self.version = map.version;
            if let Some(node) = owner {
                // If the map is old, one caller reads it again; if the read fails, the old map is used.
                if self.cluster.clock.now().since(map.read_at) > MAX_MAP_AGE
                    && self.cluster.read_lock.try_lock().is_ok()
                {
                    let _ = self.cluster.read_since(map.version).await;
                }
                self.followed_address = (node.host.clone(), node.port);
                return Ok((Arc::clone(&node.server), false));
            }
            self.cluster.read_since(map.version).await?;
            if self.cluster.map.load().owners[usize::from(self.slot)] == NO_OWNER {
                let message = format!("no node of the cluster has slot {}: see CLUSTER INFO", self.slot);
                self.wait(Error::store(Fault::Cluster, message)).await?;
            }
        }
    }

    /// Decides where to try next; returns the error if there is no further attempt.
    pub(crate) async fn prepare_retry(&mut self, error: CallError, can_ask: bool) -> Result<(), Error> {
        let error = match error {
            CallError::Redirected(redirect, _) => {
                let from = self.followed_address.0.clone();
                let reason = match redirect {
                    Redirect::Moved(to) => {
                        // If the redirect cannot be followed now, the next attempt reports it.
                        let _ = self.cluster.apply_moved(self.slot, &to, &from, self.version).await;
                        "MOVED: its nodes disagree about the owner"
                    }
                    Redirect::Ask(to) if can_ask => {
                        self.asked_server = Some(self.cluster.importing_server(&to, &from)?);
                        "ASK: the slot is moving to another node"
                    }
                    Redirect::Ask(_) | Redirect::Again => {
                        self.attempts = self.attempts.max(IMMEDIATE_ATTEMPTS);
                        "TRYAGAIN: the slot is moving to another node"
                    }
                    Redirect::Down => {
                        self.attempts = self.attempts.max(IMMEDIATE_ATTEMPTS);
                        let _ = self.cluster.read_since(self.version).await;
                        "CLUSTERDOWN: see CLUSTER INFO"
                    }
                };
                let message =
                    format!("the cluster did not answer for slot {} in time, but {reason}", self.slot);
                Error::store(Fault::Cluster, message)
            }
            CallError::Failed(error) if error.fault() == Some(Fault::Unreachable) => {
                self.attempts = self.attempts.max(IMMEDIATE_ATTEMPTS);
                let _ = self.cluster.read_since(self.version).await;
                error
            }
            CallError::Failed(error) => return Err(error),
        };
        self.wait(error).await
    }

    async fn wait(&mut self, error: Error) -> Result<(), Error> {
        self.attempts += 1;
        if self.cluster.clock.now().since(self.started) >= self.cluster.timeout {
            return Err(error);
        }
        if self.attempts > IMMEDIATE_ATTEMPTS {
            tokio::time::sleep(self.backoff).await;
            self.backoff = (self.backoff * 2).min(LONGEST_BACKOFF);
        }
        Ok(())
    }
}
