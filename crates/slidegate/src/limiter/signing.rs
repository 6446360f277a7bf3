//! Signing and verifying of the reservations that leave the process.

use std::sync::Arc;

use super::Limiter;
use crate::reservation::{self, MAX_RESERVATION};
use crate::{Decision, Error, Reservation, ReservationKeys, Store};

impl<S: Store> Limiter<S> {
    /// Signs reservations with other keys. Without this a limiter has a random key that is gone with its process, so only
    /// that process accepts what it has signed.
    ///
    /// Processes that count in one Redis have one key with `RedisStore::shared_reservation_key`.
    #[must_use]
    pub fn with_reservation_keys(self, keys: impl Into<ReservationKeys>) -> Self {
        self.set_reservation_keys(keys);
        self
    }

    /// The same while it is in use.
    pub fn set_reservation_keys(&self, keys: impl Into<ReservationKeys>) {
        self.reservation_keys.store(Arc::new(keys.into()));
    }

    /// The keys in use.
    pub fn reservation_keys(&self) -> Arc<ReservationKeys> {
        self.reservation_keys.load_full()
    }

    /// Writes a reservation as text that [`Limiter::verify`] accepts, here and wherever the key is the same.
    pub fn sign(&self, reservation: &Reservation) -> String {
        let mut text = String::with_capacity(128);
        reservation.write(&mut text);
        self.reservation_keys.load().sign(&mut text);
        text
    }

    /// Signed text of the [reservation](Decision::reservation) of a decision; none if nothing was charged. It is the same as
    /// [`Limiter::sign`] in fewer steps, for whoever answers with it.
    pub fn sign_decision(&self, decision: &Decision) -> Option<String> {
        let mut charges = decision.charges();
        let first = charges.next()?;
        let mut text = String::with_capacity(128);
        first.write(&mut text);
        charges.for_each(|charge| charge.write(&mut text));
        self.reservation_keys.load().sign(&mut text);
        Some(text)
    }

    /// Reads a reservation that this limiter, or one with the same key, has signed. Anything else is an error: a reservation
    /// that is not signed, or of which a single character was changed.
    pub fn verify(&self, text: &str) -> Result<Reservation, Error> {
        let verified = if text.len() > MAX_RESERVATION {
            None
        } else {
            self.reservation_keys.load().verify(text).and_then(reservation::read)
        };
        verified.ok_or_else(|| {
            Error::invalid("reservation is not one that was given out: send it back as it was received")
        })
    }
}
