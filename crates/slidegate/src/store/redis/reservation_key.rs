//! Key with which all processes of a deployment sign reservations: a string in Redis. The first process that needs the
//! key creates it.

use redis::{Cmd, FromRedisValue, Value};

use super::epoch::Purpose;
use super::{RedisStore, bad_reply};
use crate::{Error, Fault, ReservationKey};

/// Name of the string: see `Names::shared`.
const NAME: &str = "reservation-key";

/// Time that the key is kept after its last use, in milliseconds: 400 days. No window is as long.
const TTL_MILLIS: u64 = 400 * 24 * 3_600 * 1_000;

impl RedisStore {
    /// Returns the key in Redis with which every process of this deployment signs reservations. If Redis has no key,
    /// this call stores `ours`, which is then the key of all processes.
    ///
    /// It expires 400 days after the last call, when every reservation that it has signed has expired. If Redis loses
    /// the key, the next process that calls this with the key stores it again.
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), slidegate::Error> {
    /// use slidegate::{redis::RedisStore, Limiter, ReservationKey, Rules};
    ///
    /// let store = RedisStore::new("redis://127.0.0.1:6379")?;
    /// let key = store.shared_reservation_key(&ReservationKey::random()).await?;
    /// let limiter = Limiter::new(store, Rules::new([])?).with_reservation_keys(key);
    /// # Ok(()) }
    /// ```
    pub async fn shared_reservation_key(&self, ours: &ReservationKey) -> Result<ReservationKey, Error> {
        let name = self.inner.names.shared(NAME);
        if let Some(stored) = self.stored_reservation_key().await? {
            self.query_key::<Value>(redis::cmd("PEXPIRE").arg(&name).arg(TTL_MILLIS)).await?;
            return Ok(stored);
        }
        let mut command = redis::cmd("SET");
        command.arg(&name).arg(ours.secret()).arg("NX").arg("PX").arg(TTL_MILLIS);
        match self.query_key(&command).await? {
            Value::Okay => Ok(ours.clone()),
            // Another process stored its key first.
            _ => self.stored_reservation_key().await?.ok_or_else(bad_reply),
        }
    }

    async fn stored_reservation_key(&self) -> Result<Option<ReservationKey>, Error> {
        let name = self.inner.names.shared(NAME);
        let stored: Option<Vec<u8>> = self.query_key(redis::cmd("GET").arg(&name)).await?;
        let wrong = |_| {
            let message = format!("{name} is too short or too long for a reservation key: delete it");
            Error::store(Fault::WrongType, message)
        };
        stored.map(|secret| ReservationKey::new(&secret).map_err(wrong)).transpose()
    }

    /// Sends a command that does not decide, so it works also while lost counts are being restored.
    async fn query_key<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Error> {
        self.inner.query_shared(NAME, Purpose::Maintain, command).await
    }
}
