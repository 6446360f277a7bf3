//! Signing and verification of reservations that leave the process.

use std::sync::Arc;

use super::Limiter;
use crate::reservation::{self, MAX_RESERVATION};
use crate::{Decision, Error, Reservation, ReservationKeys, Store};

/// Usual size of a charge with a signature, in bytes. A text is allocated with this size.
const USUAL_CHARGE: usize = 128;

impl<S: Store> Limiter<S> {
    /// Sets the keys that sign reservations. By default a limiter has a random key that is lost when its process ends, so only
    /// that process accepts its reservations.
    ///
    /// Processes that count in one Redis share a key with `RedisStore::shared_reservation_key`.
    #[must_use]
    pub fn with_reservation_keys(self, keys: impl Into<ReservationKeys>) -> Self {
        self.set_reservation_keys(keys);
        self
    }

    /// Sets the keys that sign reservations, while the limiter is in use.
    pub fn set_reservation_keys(&self, keys: impl Into<ReservationKeys>) {
        self.reservation_keys.store(Arc::new(keys.into()));
    }

    /// Returns the current keys.
    pub fn reservation_keys(&self) -> Arc<ReservationKeys> {
        self.reservation_keys.load_full()
    }

    /// Writes a reservation as text that [`Limiter::verify`] accepts, in every process with the same key.
    pub fn sign(&self, reservation: &Reservation) -> String {
        let mut text = String::with_capacity(USUAL_CHARGE);
        reservation.write(&mut text);
        self.reservation_keys.load().sign(&mut text);
        text
    }

    /// Returns the signed text of the [reservation](Decision::reservation) of a decision; `None` if nothing was charged. The
    /// result equals [`Limiter::sign`], with fewer allocations.
    pub fn sign_decision(&self, decision: &Decision) -> Option<String> {
        let mut text = String::new();
        self.sign_decision_into(decision, &mut text).then_some(text)
    }

    /// Replaces the content of `text` by the text that [`Limiter::sign_decision`] returns, without an allocation if it fits.
    /// Returns false, and leaves `text` empty, if nothing was charged.
    pub fn sign_decision_into(&self, decision: &Decision, text: &mut String) -> bool {
        text.clear();
        for charge in decision.charges() {
            text.reserve(USUAL_CHARGE);
            charge.write(text);
        }
        if text.is_empty() {
            return false;
        }
        self.reservation_keys.load().sign(text);
        true
    }

    /// Parses a reservation that this limiter, or one with the same key, has signed. Any other text is an error, such as an
    /// unsigned reservation or one with a single changed character.
    pub fn verify(&self, text: &str) -> Result<Reservation, Error> {
        let verified = if text.len() > MAX_RESERVATION {
            None
        } else {
            self.reservation_keys.load().verify(text).and_then(reservation::read)
        };
        verified.ok_or_else(|| Error::invalid("invalid reservation: send it exactly as it was received"))
    }
}
