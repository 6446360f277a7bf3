//! Pub/Sub between nodes about freed permits: a node that settles or resets publishes the name of the key, and each
//! node subscribes on each server.
//!
//! A script publishes in the same step in which it settles. A lost connection is noticed at once if it is closed, and
//! otherwise by a ping within [`PING_INTERVAL`] and the reply timeout.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use redis::RedisError;
use tokio::task::AbortHandle;

use super::server::Server;
use super::{Inner, RedisStore, ServerId};
use crate::store::MAX_LISTENED_SHARDS;
use crate::{Key, Listener};

/// Interval between pings of a subscribed connection.
const PING_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between two checks of the list of servers.
const TOPOLOGY_INTERVAL: Duration = Duration::from_millis(250);

/// Delay before a lost connection is reopened.
const RECONNECT_DELAY: Duration = Duration::from_millis(100);

/// Prefix of a message about a key that was reset; no key begins with this character.
pub(super) const RESET: char = '!';

impl RedisStore {
    pub(super) fn subscribe(&self, listener: Weak<dyn Listener>) {
        if let Some(listener) = listener.upgrade() {
            (0..MAX_LISTENED_SHARDS).for_each(|shard| listener.set_connected(shard, false));
        }
        // Without a runtime no task can subscribe, so the listener receives nothing.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(follow_servers(Arc::downgrade(&self.inner), listener));
        }
    }
}

/// Keeps a subscription on every server of the store, also if the servers change.
async fn follow_servers(store: Weak<Inner>, listener: Weak<dyn Listener>) {
    let mut subscriptions: HashMap<ServerId, AbortHandle> = HashMap::new();
    while let Some(inner) = store.upgrade()
        && listener.strong_count() > 0
    {
        let servers = inner.topology.known_servers();
        subscriptions.retain(|id, task| {
            let stays = servers.contains(id);
            if !stays {
                task.abort();
                notify(&listener, *id, false);
            }
            stays
        });
        for id in servers.into_iter().filter(|id| id.0 < MAX_LISTENED_SHARDS) {
            subscriptions.entry(id).or_insert_with(|| {
                tokio::spawn(keep_subscribed(Weak::clone(&store), id, Weak::clone(&listener))).abort_handle()
            });
        }
        drop(inner);
        tokio::time::sleep(TOPOLOGY_INTERVAL).await;
    }
    subscriptions.values().for_each(AbortHandle::abort);
}

/// Subscribes on one server, and again after each lost connection.
async fn keep_subscribed(store: Weak<Inner>, id: ServerId, listener: Weak<dyn Listener>) {
    notify(&listener, id, false);
    while let Some((server, channel)) = store.upgrade().and_then(|inner| {
        let channel = inner.names.freed_channel();
        Some((inner.topology.server(id)?, channel))
    }) {
        let _ = receive_messages(&server, &channel, id, &listener).await;
        notify(&listener, id, false);
        if listener.strong_count() == 0 {
            return;
        }
        tokio::time::sleep(RECONNECT_DELAY).await;
    }
}

/// Receives messages until the connection is lost, belongs to an earlier epoch, or the listener is dropped.
async fn receive_messages(
    server: &Server,
    channel: &str,
    id: ServerId,
    listener: &Weak<dyn Listener>,
) -> Result<(), RedisError> {
    let (epoch, response_timeout) = (server.epochs.current(), server.connections.response_timeout);
    let Ok(client) = server.connections.client().await else { return Ok(()) };
    let lost = || RedisError::from((redis::ErrorKind::Io, "no answer in time"));
    let connecting = async {
        let mut connection = client.get_async_pubsub().await?;
        connection.subscribe(channel).await?;
        Ok::<_, RedisError>(connection)
    };
    let connection = tokio::time::timeout(response_timeout, connecting).await.map_err(|_| lost())??;
    let (mut sink, mut freed) = connection.split();
    notify(listener, id, true);
    let mut next = tokio::time::interval(PING_INTERVAL);
    next.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            message = freed.next() => {
                let (Some(message), Some(listener)) = (message, listener.upgrade()) else { return Ok(()) };
                let text = String::from_utf8_lossy(message.get_payload_bytes());
                match text.strip_prefix(RESET) {
                    Some(key) => listener.reset(&Key::printed(key)),
                    None => listener.freed(&Key::printed(&text)),
                }
            }
            _ = next.tick() => {
                if listener.strong_count() == 0 || epoch != server.epochs.current() {
                    return Ok(());
                }
                // Messages that arrive meanwhile wait in the stream.
                let answer = tokio::time::timeout(response_timeout, sink.ping::<redis::Value>()).await;
                answer.map_err(|_| lost())??;
            }
        }
    }
}

fn notify(listener: &Weak<dyn Listener>, id: ServerId, connected: bool) {
    if let Some(listener) = listener.upgrade() {
        listener.set_connected(id.0, connected);
    }
}
