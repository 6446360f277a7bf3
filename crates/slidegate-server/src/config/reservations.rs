//! The `reservations` section of the file: keys that sign reservations.

use std::path::PathBuf;

slidegate::section! {
    /// Keys that sign reservations. They are in a separate file, so that secrets need not be beside the rules.
    pub struct ReservationsConfig("Reservations") {
        /// File of keys, one per line of 16 characters or more: the first key signs, and all keys verify.
        /// `SLIDEGATE_RESERVATION_KEY` comes before them. Without any key, nodes share a key in Redis; with the memory
        /// store, the key is random and lost with the process.
        keys_file: Option<PathBuf> { required().example("/etc/slidegate/reservation-keys") },
    }
}
