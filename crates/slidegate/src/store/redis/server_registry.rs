//! For whoever writes back what a server lost: which servers there are, which of their lives is there, and
//! holding decisions until it is done.

use redis::{Pipeline, Value};

use super::epoch::Purpose;
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

#[cfg(test)]
mod tests {
    use redis::Pipeline;
    use slidegate_testkit::{Flavour, RedisServer, eventually, lasting_port};

    use crate::{Check, Checks, Fault, Key, Quota, RedisMode, RedisOptions, RedisStore, Store};

    fn ask() -> [Checks; 1] {
        [Checks::one(Check::new(Key::new("k", []), Quota::per_hour(100).unwrap(), 1)).unwrap()]
    }

    async fn fault(store: &RedisStore) -> Option<Fault> {
        for _ in 0..200 {
            match store.admit(&ask()).await {
                Ok(_) => return None,
                Err(error) if matches!(error.fault(), Some(Fault::Lost | Fault::Unreachable)) => {
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                }
                Err(error) => {
                    assert!(!error.outcome_unknown());
                    return error.fault();
                }
            }
        }
        panic!("it does not come back")
    }

    #[tokio::test]
    async fn a_new_life_waits_until_it_is_acknowledged() {
        for mode in [RedisMode::Script, RedisMode::Transaction] {
            let server = RedisServer::start(Flavour::Redis7);
            let options = RedisOptions { mode, ..RedisOptions::new(server.url()) };
            let store = RedisStore::with_options(&options).unwrap();
            let id = store.server_of(&Key::new("k", []));
            assert_eq!(
                (store.servers(), store.server_address(id)),
                (vec![id], format!("127.0.0.1:{}", server.port))
            );
            assert_eq!(fault(&store).await, None);
            store.hold(true);
            assert_eq!(fault(&store).await, Some(Fault::Restarted));
            assert_eq!(store.life(id).await.unwrap(), 1);
            store.acknowledge(id, 1);
            assert_eq!(fault(&store).await, None);
            server.restart();
            assert_eq!(fault(&store).await, Some(Fault::Restarted));
            let key = Key::new("k", []);
            assert_eq!(store.reset(&key).await.unwrap_err().fault(), Some(Fault::Restarted));
            assert!(store.inspect(&key).await.unwrap().is_none());
            let told = store.admit(&ask()).await.unwrap_err().to_string();
            let words = "is not the one that counted before: waiting until what it lost is written back";
            assert!(told.ends_with(words), "{told}");
            let mut pipeline = Pipeline::new();
            pipeline.cmd("SET").arg("sg:{0}:x").arg(5).cmd("GET").arg("sg:{0}:x").cmd("DEL").arg("sg:{0}:x");
            let answer: (String, u64, u64) =
                redis::from_redis_value(store.run(id, &pipeline).await.unwrap()).unwrap();
            assert_eq!(answer, ("OK".to_owned(), 5, 1));
            let life = store.life(id).await.unwrap();
            assert_eq!(life, 2);
            store.acknowledge(id, 1);
            assert_eq!(fault(&store).await, Some(Fault::Restarted));
            store.acknowledge(id, life);
            assert_eq!(fault(&store).await, None);
            store.hold(false);
            server.restart();
            assert_eq!(fault(&store).await, None);
            assert_eq!(store.life(id).await.unwrap(), 3);
        }
    }

    #[tokio::test]
    async fn a_server_that_was_not_a_primary_is_a_new_life() {
        let node = || {
            let arguments = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"];
            RedisServer::at_with(Flavour::Redis7, lasting_port(), &arguments)
        };
        let (one, two) = (node(), node());
        one.run("CLUSTER ADDSLOTSRANGE 0 16383");
        one.run(&format!("CLUSTER MEET 127.0.0.1 {}", two.port));
        eventually("they have met", || {
            let info = |server: &RedisServer| format!("{:?}", server.run("CLUSTER INFO"));
            [&one, &two].iter().all(|node| {
                info(node).contains("cluster_state:ok") && info(node).contains("cluster_known_nodes:2")
            })
        });
        let options = RedisOptions::cluster([one.url()]);
        let store = RedisStore::with_options(&options).unwrap();
        store.hold(true);
        assert_eq!(fault(&store).await, Some(Fault::Restarted));
        let [first] = store.servers()[..] else { panic!() };
        assert_eq!(store.life(first).await.unwrap(), 1);
        store.acknowledge(first, 1);
        assert_eq!(fault(&store).await, None);
        let slot = crate::store::redis::topology::slot_of_tag(b"k");
        // The tag that each has, and after the move of one slot, that the other has.
        assert_eq!(store.coordination_tag(first), "0");
        let id: String = redis::from_redis_value(two.run("CLUSTER MYID")).unwrap();
        store.reset(&Key::new("k", [])).await.unwrap();
        for node in [&two, &one] {
            node.run(&format!("CLUSTER SETSLOT {slot} NODE {id}"));
        }
        assert_eq!(fault(&store).await, Some(Fault::Restarted));
        let second = store.server_of(&Key::new("k", []));
        assert_ne!(first, second);
        let tag = store.coordination_tag(second);
        assert_eq!(crate::store::redis::topology::slot_of_tag(tag.as_bytes()), slot);
        let life = store.life(second).await.unwrap();
        store.acknowledge(second, life);
        assert_eq!(fault(&store).await, None);
        assert_eq!(store.life(first).await.unwrap(), 1);
        assert_eq!(store.servers(), [first, second]);
    }
}
