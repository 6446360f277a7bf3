//! Key that signs reservations: configured, or one that all nodes share in Redis, or random and gone with the process.

use std::sync::Arc;
use std::time::Duration;

use slidegate::{Error, Limiter, RedisStore, ReservationKey};

use super::state::AppState;
use crate::common::console::warn;
use crate::store::AnyStore;

/// The variable with a key that signs reservations.
pub(crate) const VARIABLE: &str = "SLIDEGATE_RESERVATION_KEY";

/// How long a node that starts waits for the key in Redis. Without it, it signs with its own key.
const AT_START: Duration = Duration::from_secs(2);

/// How often the key in Redis is looked at: one that Redis has lost is written back.
const EVERY: Duration = Duration::from_secs(10);

/// How often it is looked for while Redis does not answer.
const AGAIN: Duration = Duration::from_secs(2);

/// Key that this node shares with all that count in the same Redis.
///
/// The node signs with its own random key until Redis answers. If Redis has no key yet, that becomes the key of all nodes;
/// otherwise the node signs with the one in Redis from then on. Whatever this node has signed, it accepts as long as it runs.
pub(crate) struct SharedKey {
    store: RedisStore,
    /// The key of this node, then the one that it last found in Redis.
    key: ReservationKey,
}

impl SharedKey {
    /// Signs with a key of this node, and looks for the one in Redis once.
    pub(crate) async fn start(store: RedisStore, limiter: &Limiter<AnyStore>) -> Self {
        let mut shared = SharedKey { store, key: ReservationKey::random() };
        limiter.set_reservation_keys(shared.key.clone());
        let _ = tokio::time::timeout(AT_START, shared.update(limiter)).await;
        shared
    }

    /// Signs with the key in Redis from now on; a Redis that has none gets that of this node.
    async fn update(&mut self, limiter: &Limiter<AnyStore>) -> Result<(), Error> {
        let key = self.store.shared_reservation_key(&self.key).await?;
        if key != self.key {
            limiter.set_reservation_keys(limiter.reservation_keys().signing_with(key.clone()));
            self.key = key;
        }
        Ok(())
    }

    /// Follows the key in Redis as long as the process runs.
    pub(crate) async fn follow(mut self, gate: Arc<AppState>) {
        let mut told = false;
        loop {
            let updated = self.update(&gate.limiter).await;
            if let Err(error) = &updated
                && !told
            {
                warn(&format!(
                    "the reservation key in Redis is not known: {error}; signing with the last one that was"
                ));
            }
            told = updated.is_err();
            tokio::time::sleep(if told { AGAIN } else { EVERY }).await;
        }
    }
}
