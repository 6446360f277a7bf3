//! Mapping from keys to servers: one server, the nodes of a cluster, or independent shards.

mod cluster;
mod sentinel;
mod shards;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::Value;

#[cfg(test)]
pub(super) use self::cluster::slot_of_tag;
use self::cluster::{Cluster, RedirectLoop};
pub(super) use self::sentinel::{Sentinel, check_role};
use self::shards::Shards;
use super::client::{client, info};
use super::connection::Target;
use super::epoch::Purpose;
use super::layout::Names;
use super::options::address_of;
use super::server::{Call, CallError, Server};
use super::{RedisOptions, RedisTopology};
pub(super) use crate::store::remote::ServerId;
use crate::{Error, Key};

/// Unit of one call: a slot of a cluster, or the number of a server. Keys of one shard go in one call.
pub(super) type ShardId = u16;

pub(super) struct Topology {
    kind: Kind,
    hold: Arc<AtomicBool>,
}

enum Kind {
    One(Arc<Server>),
    Cluster(Box<Cluster>),
    Shards(Shards),
}

impl Topology {
    pub(super) fn new(options: &RedisOptions) -> Result<Self, Error> {
        let hold = Arc::new(AtomicBool::new(false));
        let kind = match &options.topology {
            RedisTopology::One(url) => Kind::One(Arc::new(fixed_server(url, options, &hold)?)),
            RedisTopology::Cluster(urls) => Kind::Cluster(Box::new(Cluster::new(urls, options, &hold)?)),
            RedisTopology::Shards(urls) => {
                let servers = urls.iter().map(|url| fixed_server(url, options, &hold).map(Arc::new));
                Kind::Shards(Shards::new(servers.collect::<Result<_, _>>()?))
            }
            RedisTopology::Sentinel(sentinel) => {
                let address = options.address().into();
                let sentinel = Box::new(Sentinel::new(sentinel, options)?);
                Kind::One(Arc::new(Server::new(Target::Sentinel { sentinel, address }, options, &hold)))
            }
        };
        Ok(Topology { kind, hold })
    }

    /// Returns true if there is one shard.
    #[inline]
    pub(super) fn is_one(&self) -> bool {
        matches!(self.kind, Kind::One(_))
    }

    /// Returns true if keys are redirected one by one.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.kind, Kind::Cluster(_))
    }

    pub(super) fn shard_of(&self, key: &Key, names: &Names) -> ShardId {
        match &self.kind {
            Kind::One(_) => 0,
            Kind::Cluster(_) => cluster::slot_of(key, names),
            Kind::Shards(shards) => shards.shard_of(key),
        }
    }

    /// Performs a call on the keys of one shard. In a cluster it follows redirects until the reply timeout, as long as
    /// no node has executed the call.
    #[inline]
    pub(super) async fn call(
        &self,
        shard: ShardId,
        purpose: Purpose,
        call: Call<'_>,
    ) -> Result<Value, Error> {
        match &self.kind {
            Kind::One(server) => Ok(server.perform(purpose, call, false).await?),
            Kind::Shards(shards) => Ok(shards.server(shard)?.perform(purpose, call, false).await?),
            Kind::Cluster(cluster) => cluster.call(shard, purpose, call).await,
        }
    }

    /// Starts an operation of more than one call on the keys of one shard.
    pub(super) fn route(&self, shard: ShardId) -> Route<'_> {
        match &self.kind {
            Kind::One(server) => Route::Server(Ok(Arc::clone(server))),
            Kind::Shards(shards) => Route::Server(shards.server(shard).cloned()),
            Kind::Cluster(cluster) => Route::Slot(cluster.redirect_loop(shard)),
        }
    }

    /// Returns the numbers of the servers that store counts now. Reads the slot map of a cluster if that was never
    /// done.
    pub(super) async fn servers(&self) -> Result<Vec<ServerId>, Error> {
        if let Kind::Cluster(cluster) = &self.kind {
            cluster.ensure_loaded().await?;
        }
        Ok(self.known_servers())
    }

    /// Reads the slot map of a cluster again.
    pub(super) async fn refresh_topology(&self) -> Result<(), Error> {
        match &self.kind {
            Kind::Cluster(cluster) => cluster.refresh().await,
            _ => Ok(()),
        }
    }

    pub(super) fn known_servers(&self) -> Vec<ServerId> {
        match &self.kind {
            Kind::One(_) => vec![ServerId(0)],
            Kind::Shards(shards) => shards.servers(),
            Kind::Cluster(cluster) => cluster.primaries(),
        }
    }

    pub(super) fn server(&self, id: ServerId) -> Option<Arc<Server>> {
        match &self.kind {
            Kind::One(server) => Some(Arc::clone(server)),
            Kind::Shards(shards) => shards.server(id.0).ok().cloned(),
            Kind::Cluster(cluster) => cluster.server(id),
        }
    }

    /// Returns the server that has `shard` now. As long as that server is not known, returns the first server.
    pub(super) fn server_of(&self, shard: ShardId) -> ServerId {
        match &self.kind {
            Kind::One(_) => ServerId(0),
            Kind::Shards(_) => ServerId(shard),
            Kind::Cluster(cluster) => cluster.owner_of(shard),
        }
    }

    /// Returns a hash tag whose slot `server` owns now.
    pub(super) fn coordination_tag(&self, server: ServerId) -> String {
        match &self.kind {
            Kind::Cluster(cluster) => cluster.tag_of(server),
            _ => "0".to_owned(),
        }
    }

    pub(super) fn hold(&self, on: bool) {
        self.hold.store(on, Ordering::Release);
    }
}

/// Target of an operation on one shard, until a server has answered.
pub(super) enum Route<'t> {
    Server(Result<Arc<Server>, Error>),
    Slot(RedirectLoop<'t>),
}

impl Route<'_> {
    pub(super) async fn server(&mut self) -> Result<Arc<Server>, Error> {
        match self {
            Route::Server(server) => server.clone(),
            // A transaction has several commands, so it follows no ASK redirect and waits until a moving slot has
            // arrived.
            Route::Slot(redirects) => Ok(redirects.next().await?.0),
        }
    }

    /// Prepares the next attempt; returns the error if there is none.
    pub(super) async fn prepare_retry(&mut self, error: CallError) -> Result<(), Error> {
        match self {
            Route::Server(_) => Err(error.into()),
            Route::Slot(redirects) => redirects.prepare_retry(error, false).await,
        }
    }
}

fn fixed_server(url: &str, options: &RedisOptions, hold: &Arc<AtomicBool>) -> Result<Server, Error> {
    let client = Box::new(client(info(url, options)?, options)?);
    let address = address_of(url).into();
    let password = options.password.clone();
    Ok(Server::new(Target::Fixed { client, address, password }, options, hold))
}
