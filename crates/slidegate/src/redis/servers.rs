//! For whoever writes back what a server lost: which servers there are, which of their lives is there, and
//! holding decisions until it is done.

use redis::{Pipeline, Value};

use super::life::Purpose;
use super::server::{Call, Server};
pub(crate) use super::topology::ServerId;
use super::{Inner, RedisStore};
use crate::{Error, Key};

impl RedisStore {
    /// Where `key` is counted; in a cluster by the map of slots as it is now.
    pub(crate) fn server_of(&self, key: &Key) -> ServerId {
        let Inner { topology, names, .. } = &*self.inner;
        topology.server_of(topology.place_of(key, names))
    }

    /// The servers that count; of a cluster, once it was found, its primaries and what is about to be one.
    pub(crate) fn servers(&self) -> Vec<ServerId> {
        self.inner.topology.known_servers()
    }

    /// Without the password.
    pub(crate) fn server_address(&self, server: ServerId) -> String {
        let server = self.inner.topology.server(server);
        server.map(|server| server.address().to_owned()).unwrap_or_default()
    }

    /// Which life of the server is there now; connects if need be.
    pub(crate) async fn life(&self, server: ServerId) -> Result<u64, Error> {
        self.inner.server(server)?.life().await
    }

    /// The run id of the server, as it was last met.
    pub(super) fn run_of(&self, server: ServerId) -> String {
        self.inner.server(server).map(|server| server.lives.run_id()).unwrap_or_default()
    }

    /// Whether decisions wait until a server's life is acknowledged. They fail with
    /// [`Fault::Restarted`](crate::Fault::Restarted) until then.
    pub(crate) fn hold(&self, on: bool) {
        self.inner.topology.hold(on);
    }

    /// What this life of the server lost is written back.
    pub(crate) fn acknowledge(&self, server: ServerId, life: u64) {
        if let Ok(server) = self.inner.server(server) {
            server.lives.acknowledge(life);
        }
    }

    /// Sends commands to one server, whether its life is acknowledged or not.
    pub(crate) async fn run(&self, server: ServerId, pipeline: &Pipeline) -> Result<Value, Error> {
        self.inner.at(server, Call::All(pipeline)).await
    }

    /// A hash tag, for `sg:{tag}:…`, that is counted on this server now.
    pub(crate) fn coordination_tag(&self, server: ServerId) -> String {
        self.inner.topology.coordination_tag(server)
    }
}

impl Inner {
    /// On one server, whether its life is acknowledged or not; nothing is followed elsewhere.
    pub(super) async fn at(&self, server: ServerId, call: Call<'_>) -> Result<Value, Error> {
        Ok(self.server(server)?.perform(Purpose::Look, call, false).await?)
    }

    fn server(&self, server: ServerId) -> Result<std::sync::Arc<Server>, Error> {
        self.topology.server(server).ok_or_else(|| Error::invalid("there is no such server"))
    }
}
