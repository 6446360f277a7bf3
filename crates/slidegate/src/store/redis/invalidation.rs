//! Telling other nodes what was freed: whoever settles or resets publishes the key's name, and each node listens on
//! each server.
//!
//! A script publishes what it settles in the same step. A connection that is lost is noticed at once if it is closed,
//! and by a question within [`ASK_EVERY`] and the time that an answer may take if it is not.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use redis::{Pipeline, RedisError};
use tokio::task::AbortHandle;

use super::server::Server;
use super::{Inner, RedisStore, ServerId};
use crate::store::MAX_LISTENED_SHARDS;
use crate::{Key, Listener};

/// How often a connection that only listens is asked whether it is still there.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// How often it is looked whether there are other servers.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The wait before a lost connection is made again.
const PAUSE: Duration = Duration::from_millis(100);

/// Stands before a key that was reset; no key begins with it.
pub(super) const RESET: char = '!';

impl RedisStore {
    pub(super) fn tell(&self, listener: Weak<dyn Listener>) {
        if let Some(listener) = listener.upgrade() {
            (0..MAX_LISTENED_SHARDS).for_each(|lane| listener.hears(lane, false));
        }
        // Without a runtime there is nobody to listen, so nothing is heard.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(follow(Arc::downgrade(&self.inner), listener));
        }
    }
}

impl Inner {
    /// What others are to hear of.
    pub(super) fn add_freed<'k>(&self, pipeline: &mut Pipeline, keys: impl Iterator<Item = &'k Key>) {
        for key in keys {
            pipeline.cmd("PUBLISH").arg(self.names.freed()).arg(key.as_str()).ignore();
        }
    }
}

/// Listens on every server that there is, as they come and go.
async fn follow(store: Weak<Inner>, listener: Weak<dyn Listener>) {
    let mut heard: HashMap<ServerId, AbortHandle> = HashMap::new();
    while let Some(inner) = store.upgrade()
        && listener.strong_count() > 0
    {
        let servers = inner.topology.known_servers();
        heard.retain(|id, task| {
            let stays = servers.contains(id);
            if !stays {
                task.abort();
                tell(&listener, *id, false);
            }
            stays
        });
        for id in servers.into_iter().filter(|id| id.0 < MAX_LISTENED_SHARDS) {
            heard.entry(id).or_insert_with(|| {
                tokio::spawn(hear(Weak::clone(&store), id, Weak::clone(&listener))).abort_handle()
            });
        }
        drop(inner);
        tokio::time::sleep(LOOK_EVERY).await;
    }
    heard.values().for_each(AbortHandle::abort);
}

/// Listens on one server, again and again.
async fn hear(store: Weak<Inner>, id: ServerId, listener: Weak<dyn Listener>) {
    tell(&listener, id, false);
    while let Some((server, channel)) = store.upgrade().and_then(|inner| {
        let channel = inner.names.freed();
        Some((inner.topology.server(id)?, channel))
    }) {
        let _ = hear_once(&server, &channel, id, &listener).await;
        tell(&listener, id, false);
        if listener.strong_count() == 0 {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Listens until the connection is lost, leads to what counts no more, or nobody wants to know.
async fn hear_once(
    server: &Server,
    channel: &str,
    id: ServerId,
    listener: &Weak<dyn Listener>,
) -> Result<(), RedisError> {
    let (life, patience) = (server.lives.now(), server.connections.patience());
    let Ok(client) = server.connections.client().await else { return Ok(()) };
    let lost = || RedisError::from((redis::ErrorKind::Io, "no answer in time"));
    let connecting = async {
        let mut connection = client.get_async_pubsub().await?;
        connection.subscribe(channel).await?;
        Ok::<_, RedisError>(connection)
    };
    let connection = tokio::time::timeout(patience, connecting).await.map_err(|_| lost())??;
    let (mut asking, mut freed) = connection.split();
    tell(listener, id, true);
    let mut next = tokio::time::interval(ASK_EVERY);
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
                if listener.strong_count() == 0 || life != server.lives.now() {
                    return Ok(());
                }
                // What arrives meanwhile waits in its stream.
                let answer = tokio::time::timeout(patience, asking.ping::<redis::Value>()).await;
                answer.map_err(|_| lost())??;
            }
        }
    }
}

fn tell(listener: &Weak<dyn Listener>, id: ServerId, hears: bool) {
    if let Some(listener) = listener.upgrade() {
        listener.hears(id.0, hears);
    }
}
