//! Redis operations of failover: restores permits that a node had admitted, and publishes the presence of nodes.

use redis::{Pipeline, Value};

use super::codec::reply::Numbers;
use super::epoch::Purpose;
use super::server::Call;
use super::server_registry::ServerId;
use super::{Inner, RedisMode, RedisStore, ShardId, bad_reply, codec};
use crate::{Encoding, Error, Key, Micros, Quota};

/// Shortest time that the presence of a process is kept.
const MIN_PRESENCE_TTL: Micros = Micros::from_secs(300);

/// Admissions of one key by a node, oldest first: instant, cost, and whether the server had admitted it.
pub(crate) struct RestoreLine {
    pub(crate) key: Key,
    pub(crate) quota: Quota,
    pub(crate) encoding: Encoding,
    pub(crate) entries: Vec<(Micros, u64, bool)>,
}

/// Result of restoring one line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Restored {
    /// Permits that were missing and were added.
    pub(crate) added: u64,
    /// Permits in use now.
    pub(crate) used: u64,
}

/// Node that restores its admissions to a server.
#[derive(Clone, Copy)]
pub(crate) struct Writer<'w> {
    /// Name of the node.
    pub(crate) node: &'w str,
    /// Run id of the server.
    pub(crate) run_id: &'w str,
    /// True if the server may have lost its data.
    pub(crate) lost: bool,
    /// Instant since which the server was unreachable.
    pub(crate) since: Micros,
    /// Number of nodes that restore.
    pub(crate) nodes: u64,
}

/// Epoch and run id of a server, as it is now.
#[derive(Clone, Debug)]
pub(crate) struct ServerIdentity {
    pub(crate) epoch: u64,
    /// Run id of the server, which every process sees alike.
    pub(crate) run_id: String,
}

impl RedisStore {
    /// Returns the current identity of a server; connects if necessary.
    pub(crate) async fn identify(&self, server: ServerId) -> Result<ServerIdentity, Error> {
        let epoch = self.epoch(server).await?;
        Ok(ServerIdentity { epoch, run_id: self.run_id(server) })
    }

    /// Reads the slot map of a cluster, if that was never done.
    pub(crate) async fn discover(&self) -> Result<(), Error> {
        self.inner.topology.servers().await.map(|_| ())
    }

    /// Reads the slot map of a cluster again.
    pub(crate) async fn refresh_topology(&self) -> Result<(), Error> {
        self.inner.topology.refresh_topology().await
    }

    /// Returns true if lost admissions can be restored, which takes a script.
    pub(crate) fn can_restore(&self) -> bool {
        self.inner.mode == RedisMode::Script
    }

    /// Publishes the presence of this node to all nodes that use a server. Returns the time of the server, and the
    /// presence of all nodes by name.
    pub(crate) async fn publish_presence(
        &self,
        server: ServerId,
        name: &str,
        presence: &str,
        heartbeat: Micros,
    ) -> Result<(Micros, Vec<(String, String)>), Error> {
        let nodes = self.presence_key(server);
        let ttl = MIN_PRESENCE_TTL.max(Micros::new(heartbeat.get().saturating_mul(10)));
        let mut pipeline = Pipeline::new();
        pipeline.cmd("HSET").arg(&nodes).arg(name).arg(presence).ignore();
        pipeline.cmd("PEXPIRE").arg(&nodes).arg(ttl.ceil_millis()).ignore();
        pipeline.cmd("TIME").cmd("HGETALL").arg(&nodes);
        let answer = self.run(server, &pipeline).await?;
        let ((seconds, micros), all): ((u64, u64), Vec<(String, String)>) =
            redis::from_redis_value(answer).map_err(|_| bad_reply())?;
        Ok((Micros::from_secs(seconds).plus(Micros::new(micros)), all))
    }

    /// Removes the presence of these nodes.
    pub(crate) async fn remove_presence(&self, server: ServerId, names: &[String]) -> Result<(), Error> {
        let mut pipeline = Pipeline::new();
        pipeline.cmd("HDEL").arg(self.presence_key(server)).arg(names);
        self.run(server, &pipeline).await.map(|_| ())
    }

    /// Restores admissions of a node. Sending the same lines twice adds nothing twice.
    pub(crate) async fn restore(
        &self,
        writer: Writer<'_>,
        lines: &[&RestoreLine],
    ) -> Result<Vec<Restored>, Error> {
        let Inner { topology, names, expiry, scripts, .. } = &*self.inner;
        let mut restored = vec![Restored::default(); lines.len()];
        let mut shards: Vec<(ShardId, Vec<usize>)> = Vec::new();
        for (i, line) in lines.iter().enumerate() {
            let shard = topology.shard_of(&line.key, names);
            match shards.iter_mut().find(|(known, _)| *known == shard) {
                Some((_, indexes)) => indexes.push(i),
                None => shards.push((shard, vec![i])),
            }
        }
        for (shard, indexes) in shards {
            let some: Vec<&RestoreLine> = indexes.iter().map(|&i| lines[i]).collect();
            let arguments = codec::restore_plan(writer, &some, names, *expiry);
            let mut reply = Value::Int(1);
            // Each call that did not finish has removed some expired entries.
            while Numbers::is_unfinished(&reply) {
                let call = Call::Script(scripts.restore(), &arguments);
                reply = topology.call(shard, Purpose::Maintain, call).await?;
            }
            for (i, outcome) in indexes.iter().zip(codec::decode_restored(reply, indexes.len())?) {
                restored[*i] = outcome;
            }
        }
        Ok(restored)
    }

    fn presence_key(&self, server: ServerId) -> String {
        self.inner.names.nodes(&self.coordination_tag(server))
    }
}
