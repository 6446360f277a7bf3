//! Bounds of a memory store, and what happens when they are reached.

use crate::Error;
use crate::error::check_between;

/// Default of the maximum number of keys.
pub const DEFAULT_MAX_KEYS: usize = 1_000_000;

/// Default of the maximum number of bytes for request ids and settlements.
pub const DEFAULT_MAX_NOTE_BYTES: usize = 128 << 20;

const MAX_KEYS: usize = 1_000_000_000;
const MIN_NOTE_BYTES: usize = 1 << 20;
const MAX_NOTE_BYTES: usize = 1 << 40;

crate::words! {
    /// Policy for a new key when the store is full and no key is idle.
    pub enum OnFull default Share {
        /// New keys of one rule share a bounded number of counters. A secret hash of the key selects the counter.
        /// Such a key may be denied because of other keys that use the same counter. But no key is admitted more than
        /// its limit.
        Share = "share",
        /// A request of a new key is denied until there is room.
        Deny = "deny",
        /// The store removes the key that it inserted last, although this key still counts something. If the removed
        /// key comes again, its count starts from zero, so it may be admitted more than its limit.
        Evict = "evict",
    }
}

/// Bounds of a [`MemoryStore`](crate::MemoryStore).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryOptions {
    /// Maximum number of keys with counters of their own. Each shard has an equal part, rounded up.
    pub max_keys: usize,
    /// Policy for a new key when the store is full.
    pub on_full: OnFull,
    /// Maximum number of bytes for request ids and settlements of all keys. Ids may take three quarters of these bytes,
    /// and one key may take an eighth. When the bytes are used up, new request ids are not remembered, so retries are
    /// charged again, and settlements are not carried out.
    pub max_note_bytes: usize,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        MemoryOptions {
            max_keys: DEFAULT_MAX_KEYS,
            on_full: OnFull::default(),
            max_note_bytes: DEFAULT_MAX_NOTE_BYTES,
        }
    }
}

impl MemoryOptions {
    /// Returns an error that names the field which is out of bounds, as the configuration file spells it.
    pub fn check(&self) -> Result<(), Error> {
        check_between("max-keys", self.max_keys, 1, MAX_KEYS)?;
        check_between("max-note-bytes", self.max_note_bytes, MIN_NOTE_BYTES, MAX_NOTE_BYTES)
    }
}
