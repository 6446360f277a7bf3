//! Redis operations of failover: servers and their epochs, restored admissions, and the presence of nodes.

use redis::{Pipeline, Value};

use super::codec::record::Numbers;
use super::epoch::Purpose;
use super::script::RESTORE_SCRIPT;
use super::server::Call;
use super::{Inner, RedisMode, RedisStore, ShardId, codec, convert};
use crate::store::multi_shard::add_to_group;
use crate::store::remote::{Presences, RemoteStore, ServerId, ServerIdentity};
pub(super) use crate::store::remote::{RestoreLine, Restored, Writer};
use crate::{Error, Key, Micros, Receipt, Settlement};

/// Shortest time that the presence of a process is kept.
const MIN_PRESENCE_TTL: Micros = Micros::from_secs(300);

impl RemoteStore for RedisStore {
    fn server_of(&self, key: &Key) -> ServerId {
        let Inner { topology, names, .. } = &*self.inner;
        topology.server_of(topology.shard_of(key, names))
    }

    /// For a cluster whose slot map was read, returns its primaries and the nodes that are about to become primaries.
    fn servers(&self) -> Vec<ServerId> {
        self.inner.topology.known_servers()
    }

    fn server_address(&self, server: ServerId) -> String {
        let server = self.inner.topology.server(server);
        server.map(|server| server.connections.address().to_owned()).unwrap_or_default()
    }

    /// Reads the slot map of a cluster, if that was never done.
    async fn discover(&self) -> Result<(), Error> {
        self.inner.topology.servers().await.map(|_| ())
    }

    /// Reads the slot map of a cluster again.
    async fn refresh_topology(&self) -> Result<(), Error> {
        self.inner.topology.refresh_topology().await
    }

    fn hold(&self, on: bool) {
        self.inner.topology.hold(on);
    }

    async fn identify(&self, server: ServerId) -> Result<ServerIdentity, Error> {
        let server = self.inner.server(server)?;
        let epoch = server.epoch().await?;
        Ok(ServerIdentity { epoch, run_id: server.epochs.run_id() })
    }

    fn acknowledge(&self, server: ServerId, epoch: u64) {
        if let Ok(server) = self.inner.server(server) {
            server.epochs.acknowledge(epoch);
        }
    }

    /// Restoring needs a script.
    fn can_restore(&self) -> bool {
        self.inner.mode == RedisMode::Script
    }

    async fn publish_presence(
        &self,
        server: ServerId,
        node: &str,
        message: &str,
        heartbeat: Micros,
    ) -> Result<Presences, Error> {
        let nodes = self.presence_key(server);
        let ttl = MIN_PRESENCE_TTL.max(Micros::new(heartbeat.get().saturating_mul(10)));
        let mut pipeline = Pipeline::new();
        // HSET and PEXPIRE are one transaction, so that a failure between them leaves no hash that never expires.
        pipeline.atomic().cmd("HSET").arg(&nodes).arg(node).arg(message).ignore();
        pipeline.cmd("PEXPIRE").arg(&nodes).arg(ttl.ceil_millis()).ignore();
        pipeline.cmd("TIME").cmd("HGETALL").arg(&nodes);
        let answer = self.inner.call_server(server, Call::All(&pipeline)).await?;
        let ((seconds, micros), all): ((u64, u64), Vec<(String, String)>) = convert(answer)?;
        Ok((Micros::from_secs(seconds).plus(Micros::new(micros)), all))
    }

    async fn remove_presence(&self, server: ServerId, nodes: &[String]) -> Result<(), Error> {
        let name = self.presence_key(server);
        self.inner.query(server, redis::cmd("HDEL").arg(name).arg(nodes)).await
    }

    async fn restore(&self, writer: Writer<'_>, lines: &[&RestoreLine]) -> Result<Vec<Restored>, Error> {
        let Inner { topology, names, expiry, .. } = &*self.inner;
        let mut restored = vec![Restored::default(); lines.len()];
        let mut shards: Vec<(ShardId, Vec<usize>)> = Vec::new();
        for (i, line) in lines.iter().enumerate() {
            add_to_group(&mut shards, topology.shard_of(&line.key, names), i);
        }
        for (shard, indexes) in shards {
            let some: Vec<&RestoreLine> = indexes.iter().map(|&i| lines[i]).collect();
            let arguments = codec::restore_plan(writer, &some, names, *expiry);
            let mut reply = Value::Int(1);
            // Each call that did not finish has removed some expired entries.
            while Numbers::is_unfinished(&reply) {
                let call = Call::Script(&RESTORE_SCRIPT, &arguments);
                reply = topology.call(shard, Purpose::Maintain, call).await?;
            }
            for (i, outcome) in indexes.iter().zip(codec::decode_restored(reply, indexes.len())?) {
                restored[*i] = outcome;
            }
        }
        Ok(restored)
    }

    async fn settle_restored(&self, settlements: &[Settlement]) -> Result<Receipt, Error> {
        if self.inner.topology.is_one() {
            return self.inner.settle_in_shard(0, settlements).await;
        }
        self.inner.settle_across_shards(settlements).await
    }
}

impl RedisStore {
    fn presence_key(&self, server: ServerId) -> String {
        self.inner.names.nodes(&self.inner.topology.coordination_tag(server))
    }
}
