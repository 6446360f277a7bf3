//! Key that signs reservations: configured, or shared by all nodes in Redis, or random and lost with the process.

use std::sync::Arc;
use std::time::Duration;

use slidegate::{Error, Limiter, ReservationKey, redis::RedisStore};

use super::state::AppState;
use crate::common::console::warn;
use crate::store::AnyStore;

/// Environment variable with a key that signs reservations.
pub(crate) const KEY_VARIABLE: &str = "SLIDEGATE_RESERVATION_KEY";

/// Time that a starting node waits for the key in Redis. After that it signs with its own key.
const START_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval between two reads of the key in Redis. If Redis has lost the key, the node writes it back.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Interval between two attempts while Redis does not answer.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Signing key that all nodes share through one Redis.
///
/// The node signs with its own random key until Redis answers. If Redis has no key yet, that key becomes the key of all
/// nodes. Otherwise the node signs with the key in Redis from then on. The node accepts every reservation that it has
/// signed, as long as it runs.
pub(crate) struct SharedKey {
    store: RedisStore,
    /// Key of this node, replaced by the last key found in Redis.
    key: ReservationKey,
}

impl SharedKey {
    /// Signs with a random key of this node, and reads the key in Redis once.
    pub(crate) async fn start(store: RedisStore, limiter: &Limiter<AnyStore>) -> Self {
        let mut shared = SharedKey { store, key: ReservationKey::random() };
        limiter.set_reservation_keys(shared.key.clone());
        let _ = tokio::time::timeout(START_TIMEOUT, shared.update(limiter)).await;
        shared
    }

    /// Reads the key in Redis and signs with it from now on. If Redis has no key, it stores the key of this node.
    async fn update(&mut self, limiter: &Limiter<AnyStore>) -> Result<(), Error> {
        let key = self.store.shared_reservation_key(&self.key).await?;
        if key != self.key {
            limiter.set_reservation_keys(limiter.reservation_keys().signing_with(key.clone()));
            self.key = key;
        }
        Ok(())
    }

    /// Keeps the key in sync with Redis as long as the process runs.
    pub(crate) async fn follow(mut self, app: Arc<AppState>) {
        let mut warned = false;
        loop {
            let updated = self.update(&app.limiter).await;
            if let Err(error) = &updated
                && !warned
            {
                warn(&format!(
                    "cannot read the reservation key in Redis: {error}; signing with the last known key"
                ));
            }
            warned = updated.is_err();
            tokio::time::sleep(if warned { RETRY_INTERVAL } else { CHECK_INTERVAL }).await;
        }
    }
}
