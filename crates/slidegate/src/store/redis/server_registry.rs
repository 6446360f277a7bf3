//! Calls to one server of a store, also if its epoch is not acknowledged.

use redis::Value;

use super::Inner;
use super::epoch::Purpose;
use super::server::{Call, Server};
use crate::Error;
use crate::store::remote::ServerId;

impl Inner {
    /// Performs a call on one server, also if its epoch is not acknowledged. Follows no redirects.
    pub(super) async fn call_server(&self, server: ServerId, call: Call<'_>) -> Result<Value, Error> {
        Ok(self.server(server)?.perform(Purpose::Maintain, call, false).await?)
    }

    pub(super) fn server(&self, server: ServerId) -> Result<std::sync::Arc<Server>, Error> {
        self.topology.server(server).ok_or_else(|| Error::invalid("there is no such server"))
    }
}

#[cfg(test)]
mod tests {
    use redis::Pipeline;
    use slidegate_testkit::{Flavour, RedisServer, eventually, lasting_port};

    use super::Call;
    use crate::store::redis::{RedisMode, RedisOptions};
    use crate::store::remote::RemoteStore;
    use crate::{Check, Checks, Fault, Key, Quota, RedisStore, Store};

    fn batch() -> [Checks; 1] {
        [Checks::one(Check::new(Key::new("k", []), Quota::per_hour(100).unwrap(), 1)).unwrap()]
    }

    async fn fault(store: &RedisStore) -> Option<Fault> {
        for _ in 0..200 {
            match store.admit(&batch()).await {
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
        panic!("the server does not come back")
    }

    #[tokio::test]
    async fn blocks_new_epoch_until_acknowledged() {
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
            assert_eq!(store.identify(id).await.unwrap().epoch, 1);
            store.acknowledge(id, 1);
            assert_eq!(fault(&store).await, None);
            server.restart();
            assert_eq!(fault(&store).await, Some(Fault::Restarted));
            let key = Key::new("k", []);
            assert_eq!(store.reset(&key).await.unwrap_err().fault(), Some(Fault::Restarted));
            assert!(store.inspect(&key).await.unwrap().is_none());
            let message = store.admit(&batch()).await.unwrap_err().to_string();
            let words = "has restarted or was replaced: waiting until its lost counts are written back";
            assert!(message.ends_with(words), "{message}");
            let mut pipeline = Pipeline::new();
            pipeline.cmd("SET").arg("sg:{0}:x").arg(5).cmd("GET").arg("sg:{0}:x").cmd("DEL").arg("sg:{0}:x");
            let answer = store.inner.call_server(id, Call::All(&pipeline)).await.unwrap();
            let answer: (String, u64, u64) = redis::from_redis_value(answer).unwrap();
            assert_eq!(answer, ("OK".to_owned(), 5, 1));
            let epoch = store.identify(id).await.unwrap().epoch;
            assert_eq!(epoch, 2);
            store.acknowledge(id, 1);
            assert_eq!(fault(&store).await, Some(Fault::Restarted));
            store.acknowledge(id, epoch);
            assert_eq!(fault(&store).await, None);
            store.hold(false);
            server.restart();
            assert_eq!(fault(&store).await, None);
            assert_eq!(store.identify(id).await.unwrap().epoch, 3);
        }
    }

    #[tokio::test]
    async fn starts_new_epoch_when_node_becomes_primary() {
        let node = || {
            let arguments = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"];
            RedisServer::at_with(Flavour::Redis7, lasting_port(), &arguments)
        };
        let (one, two) = (node(), node());
        one.run("CLUSTER ADDSLOTSRANGE 0 16383");
        one.run(&format!("CLUSTER MEET 127.0.0.1 {}", two.port));
        eventually("the nodes have met", || {
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
        assert_eq!(store.identify(first).await.unwrap().epoch, 1);
        store.acknowledge(first, 1);
        assert_eq!(fault(&store).await, None);
        let slot = crate::store::redis::topology::slot_of_tag(b"k");
        // The hash tag of each server, before and after one slot moves.
        assert_eq!(store.inner.topology.coordination_tag(first), "0");
        let id: String = redis::from_redis_value(two.run("CLUSTER MYID")).unwrap();
        store.reset(&Key::new("k", [])).await.unwrap();
        for node in [&two, &one] {
            node.run(&format!("CLUSTER SETSLOT {slot} NODE {id}"));
        }
        assert_eq!(fault(&store).await, Some(Fault::Restarted));
        let second = store.server_of(&Key::new("k", []));
        assert_ne!(first, second);
        let tag = store.inner.topology.coordination_tag(second);
        assert_eq!(crate::store::redis::topology::slot_of_tag(tag.as_bytes()), slot);
        let epoch = store.identify(second).await.unwrap().epoch;
        store.acknowledge(second, epoch);
        assert_eq!(fault(&store).await, None);
        assert_eq!(store.identify(first).await.unwrap().epoch, 1);
        assert_eq!(store.servers(), [first, second]);
    }
}
