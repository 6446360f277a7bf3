//! Crate internals for the fuzz targets in `fuzz/`. Not in the product.

use crate::store::redis::DEFAULT_PREFIX;
use crate::{Key, Reservation, reservation};

/// Returns the text that Redis hashes for a key, and the text that the key declares as hashed.
pub fn hashed(key: &Key) -> (String, String) {
    let name = crate::store::redis::main_name(DEFAULT_PREFIX, key);
    let inside = name.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let inside = inside.map(|(inside, _)| inside).filter(|inside| !inside.is_empty()).unwrap_or(&name);
    (inside.to_owned(), key.tag().unwrap_or(key.as_str()).to_owned())
}

/// Returns the keys of a reservation.
pub fn keys(reservation: &Reservation) -> Vec<Key> {
    reservation.settlements(0).into_iter().map(|settlement| settlement.key).collect()
}

/// Parses a reservation without its signature.
pub fn unsigned(text: &str) -> Option<Reservation> {
    reservation::read(text)
}

/// Returns the text of a reservation without its signature.
pub fn printed(reservation: &Reservation) -> String {
    let mut text = String::new();
    reservation.write(&mut text);
    text
}
