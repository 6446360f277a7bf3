//! Redis operations of failover: restores permits that a node had admitted, and publishes the presence of nodes.

use redis::{Pipeline, Value};

use super::codec::reply::Numbers;
use super::epoch::Purpose;
use super::server::Call;
use super::server_registry::ServerId;
use super::{Inner, Place, RedisMode, RedisStore, bad_reply, codec};
use crate::{Encoding, Error, Key, Micros, Quota};

/// Shortest time that the presence of a process is kept.
const SAID_FOR: Micros = Micros::from_secs(300);

/// Admissions of one key by a node, oldest first: instant, cost, and whether the server had admitted it.
pub(crate) struct HealLine {
    pub(crate) key: Key,
    pub(crate) quota: Quota,
    pub(crate) encoding: Encoding,
    pub(crate) entries: Vec<(Micros, u64, bool)>,
}

/// Result of restoring one line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Healed {
    /// Permits that were missing and were added.
    pub(crate) added: u64,
    /// Permits in use now.
    pub(crate) used: u64,
}

/// Node that restores its admissions to a server.
#[derive(Clone, Copy)]
pub(crate) struct Writer<'w> {
    pub(crate) node: &'w str,
    pub(crate) run: &'w str,
    pub(crate) lost: bool,
    pub(crate) since: Micros,
    /// Number of nodes that restore.
    pub(crate) nodes: u64,
}

/// Epoch and run id of a server, as it is now.
#[derive(Clone, Debug)]
pub(crate) struct ServerIdentity {
    pub(crate) life: u64,
    /// Run id of the server, which every process sees alike.
    pub(crate) run: String,
}

impl RedisStore {
    /// Returns the current identity of a server; connects if necessary.
    pub(crate) async fn meet(&self, server: ServerId) -> Result<ServerIdentity, Error> {
        let life = self.life(server).await?;
        Ok(ServerIdentity { life, run: self.run_of(server) })
    }

    /// Reads the slot map of a cluster, if that was never done.
    pub(crate) async fn find(&self) -> Result<(), Error> {
        self.inner.topology.servers().await.map(|_| ())
    }

    /// Reads the slot map of a cluster again.
    pub(crate) async fn refresh_topology(&self) -> Result<(), Error> {
        self.inner.topology.refresh_topology().await
    }

    /// Returns true if lost admissions can be restored, which takes a script.
    pub(crate) fn can_heal(&self) -> bool {
        self.inner.mode == RedisMode::Script
    }

    /// Publishes the presence of this node to all nodes that use a server. Returns the time of the server, and the
    /// presence of all nodes by name.
    pub(crate) async fn say(
        &self,
        server: ServerId,
        name: &str,
        said: &str,
        heartbeat: Micros,
    ) -> Result<(Micros, Vec<(String, String)>), Error> {
        let nodes = self.nodes_of(server);
        let life = SAID_FOR.max(Micros::new(heartbeat.get().saturating_mul(10)));
        let mut pipeline = Pipeline::new();
        pipeline.cmd("HSET").arg(&nodes).arg(name).arg(said).ignore();
        pipeline.cmd("PEXPIRE").arg(&nodes).arg(life.ceil_millis()).ignore();
        pipeline.cmd("TIME").cmd("HGETALL").arg(&nodes);
        let answer = self.run(server, &pipeline).await?;
        let ((seconds, micros), all): ((u64, u64), Vec<(String, String)>) =
            redis::from_redis_value(answer).map_err(|_| bad_reply())?;
        Ok((Micros::from_secs(seconds).plus(Micros::new(micros)), all))
    }

    /// Removes the presence of these nodes.
    pub(crate) async fn unsay(&self, server: ServerId, names: &[String]) -> Result<(), Error> {
        let mut pipeline = Pipeline::new();
        pipeline.cmd("HDEL").arg(self.nodes_of(server)).arg(names);
        self.run(server, &pipeline).await.map(|_| ())
    }

    /// Restores admissions of a node. Sending the same lines twice adds nothing twice.
    pub(crate) async fn heal(&self, writer: Writer<'_>, lines: &[&HealLine]) -> Result<Vec<Healed>, Error> {
        let Inner { topology, names, expiry, scripts, .. } = &*self.inner;
        let mut healed = vec![Healed::default(); lines.len()];
        let mut places: Vec<(Place, Vec<usize>)> = Vec::new();
        for (i, line) in lines.iter().enumerate() {
            let place = topology.place_of(&line.key, names);
            match places.iter_mut().find(|(known, _)| *known == place) {
                Some((_, which)) => which.push(i),
                None => places.push((place, vec![i])),
            }
        }
        for (place, which) in places {
            let some: Vec<&HealLine> = which.iter().map(|&i| lines[i]).collect();
            let arguments = codec::heal_plan(writer, &some, names, *expiry);
            let mut reply = Value::Int(1);
            // Each call that did not finish has removed some expired entries.
            while Numbers::is_unfinished(&reply) {
                let call = Call::Script(scripts.heal(), &arguments);
                reply = topology.call(place, Purpose::Look, call).await?;
            }
            for (i, outcome) in which.iter().zip(codec::healed(reply, which.len())?) {
                healed[*i] = outcome;
            }
        }
        Ok(healed)
    }

    fn nodes_of(&self, server: ServerId) -> String {
        self.inner.names.nodes(&self.coordination_tag(server))
    }
}
