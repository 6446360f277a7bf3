//! The `reservations` section of the file: keys that sign reservations.

use std::path::PathBuf;

slidegate::section! {
    /// Keys that sign reservations. They are in a separate file, so that the file with the rules contains no secrets.
    pub struct ReservationsConfig("Reservations") {
        /// File of keys, one per line, each with at least 16 characters. The first key signs, and all keys verify. If
        /// `SLIDEGATE_RESERVATION_KEY` is set, it comes before the keys of the file. If no key is configured, all nodes
        /// share a key in Redis; with the memory store, each start makes a new random key.
        keys_file: Option<PathBuf> { required().example("/etc/slidegate/reservation-keys") },
    }
}
