//! Redirect loop of one call: follows a slot from node to node, while nothing was done.

use std::sync::Arc;
use std::time::Duration;

use super::{Cluster, NOBODY};
use crate::store::redis::error_map::Redirect;
use crate::store::redis::server::{Missed, Server};
use crate::store::redis::topology::Place;
use crate::{Clock, Error, Fault, Micros};

/// Age from which a map is read again.
const OLD: Micros = Micros::from_secs(10);

/// Back-off before the next attempt, which doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(32);

/// Attempts without back-off: a slot that moved once is usually at its new address.
const EAGER: u32 = 2;

/// State of one call on its way to the node that has its slot.
pub(crate) struct RedirectLoop<'c> {
    cluster: &'c Cluster,
    slot: Place,
    started: Micros,
    tries: u32,
    pause: Duration,
    /// Version of the map that was followed, and the address it led to.
    version: u64,
    followed: (String, u16),
    /// Node that an ASK named.
    ask: Option<Arc<Server>>,
}

impl<'c> RedirectLoop<'c> {
    pub(super) fn new(cluster: &'c Cluster, slot: Place) -> Self {
        RedirectLoop {
            cluster,
            slot,
            started: cluster.clock.now(),
            tries: 0,
            pause: FIRST_PAUSE,
            version: 0,
            followed: Default::default(),
            ask: None,
        }
    }

    /// Returns the server to call, and whether to send ASKING first.
    pub(crate) async fn next(&mut self) -> Result<(Arc<Server>, bool), Error> {
        if let Some(server) = self.ask.take() {
            return Ok((server, true));
        }
        loop {
            let map = self.cluster.map.load_full();
            let owner =
                map.owners.get(usize::from(self.slot)).and_then(|&owner| map.nodes.get(usize::from(owner)));
            self.version = map.version;
            if let Some(node) = owner {
                // The first caller reads it again; if that fails the old map is used.
                if self.cluster.clock.now().since(map.read) > OLD && self.cluster.reading.try_lock().is_ok() {
                    let _ = self.cluster.read(map.version).await;
                }
                self.followed = (node.host.clone(), node.port);
                return Ok((Arc::clone(&node.server), false));
            }
            self.cluster.read(map.version).await?;
            if self.cluster.map.load().owners[usize::from(self.slot)] == NOBODY {
                let message = format!("no node of the cluster has slot {}: see CLUSTER INFO", self.slot);
                self.wait(Error::store(Fault::Cluster, message)).await?;
            }
        }
    }

    /// Decides where to try next; returns the error if there is no further attempt.
    pub(crate) async fn missed(&mut self, missed: Missed, can_ask: bool) -> Result<(), Error> {
        let error = match missed {
            Missed::Redirected(redirect, _) => {
                let from = self.followed.0.clone();
                let what = match redirect {
                    Redirect::Moved(to) => {
                        // If the redirect cannot be followed now, the next attempt reports it.
                        let _ = self.cluster.moved(self.slot, &to, &from, self.version).await;
                        "MOVED: its nodes do not agree who has it"
                    }
                    Redirect::Ask(to) if can_ask => {
                        self.ask = Some(self.cluster.importing(&to, &from)?);
                        "ASK: it is on its way to another node"
                    }
                    Redirect::Ask(_) | Redirect::Again => {
                        self.tries = self.tries.max(EAGER);
                        "TRYAGAIN: it is on its way to another node"
                    }
                    Redirect::Down => {
                        self.tries = self.tries.max(EAGER);
                        let _ = self.cluster.read(self.version).await;
                        "CLUSTERDOWN: see CLUSTER INFO"
                    }
                };
                let message =
                    format!("the cluster did not answer for slot {} in time, but {what}", self.slot);
                Error::store(Fault::Cluster, message)
            }
            Missed::Failed(error) if error.fault() == Some(Fault::Unreachable) => {
                self.tries = self.tries.max(EAGER);
                let _ = self.cluster.read(self.version).await;
                error
            }
            Missed::Failed(error) => return Err(error),
        };
        self.wait(error).await
    }

    async fn wait(&mut self, error: Error) -> Result<(), Error> {
        self.tries += 1;
        if self.cluster.clock.now().since(self.started) >= self.cluster.patience {
            return Err(error);
        }
        if self.tries > EAGER {
            tokio::time::sleep(self.pause).await;
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
        Ok(())
    }
}
