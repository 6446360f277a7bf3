//! What a guard needs of Redis: writing back what a node had admitted, and telling who is there.

use redis::{Pipeline, Value};

use super::codec::reply::Numbers;
use super::epoch::Purpose;
use super::server::Call;
use super::server_registry::ServerId;
use super::{Inner, Place, RedisMode, RedisStore, bad_reply, codec};
use crate::{Encoding, Error, Key, Micros, Quota};

/// What a process said is kept at least this long.
const SAID_FOR: Micros = Micros::from_secs(300);

/// A key, and what a node had admitted of it, oldest first: instant, cost, and whether the server had admitted it.
pub(crate) struct HealLine {
    pub(crate) key: Key,
    pub(crate) quota: Quota,
    pub(crate) encoding: Encoding,
    pub(crate) entries: Vec<(Micros, u64, bool)>,
}

/// What became of one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Healed {
    /// Permits that were not there.
    pub(crate) added: u64,
    /// Permits in use now.
    pub(crate) used: u64,
}

/// Who writes back: a node, to a server that runs as `run`, that was away since then and may have lost what it had.
#[derive(Clone, Copy)]
pub(crate) struct Writer<'w> {
    pub(crate) node: &'w str,
    pub(crate) run: &'w str,
    pub(crate) lost: bool,
    pub(crate) since: Micros,
    /// How many nodes there are to write back.
    pub(crate) nodes: u64,
}

/// A server, as it is now.
#[derive(Clone, Debug)]
pub(crate) struct ServerIdentity {
    pub(crate) life: u64,
    /// Its run id, which every process sees alike.
    pub(crate) run: String,
}

impl RedisStore {
    /// Which server is there now.
    pub(crate) async fn meet(&self, server: ServerId) -> Result<ServerIdentity, Error> {
        let life = self.life(server).await?;
        Ok(ServerIdentity { life, run: self.run_of(server) })
    }

    /// Finds out which servers there are, if that is not known.
    pub(crate) async fn find(&self) -> Result<(), Error> {
        self.inner.topology.servers().await.map(|_| ())
    }

    /// Finds out which servers there are now.
    pub(crate) async fn refresh_topology(&self) -> Result<(), Error> {
        self.inner.topology.refresh_topology().await
    }

    /// Whether what was lost can be written back: it takes a script.
    pub(crate) fn can_heal(&self) -> bool {
        self.inner.mode == RedisMode::Script
    }

    /// Says something to everybody who counts on a server; what time it is there, and what everybody said, by name.
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

    /// Removes what these have said.
    pub(crate) async fn unsay(&self, server: ServerId, names: &[String]) -> Result<(), Error> {
        let mut pipeline = Pipeline::new();
        pipeline.cmd("HDEL").arg(self.nodes_of(server)).arg(names);
        self.run(server, &pipeline).await.map(|_| ())
    }

    /// Writes back what a node had admitted; twice is as good as once.
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
            // Each call that had not finished has removed some expired entries.
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
