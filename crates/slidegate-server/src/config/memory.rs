//! The `memory` section of the file: bounds of the memory store.

use slidegate::{MemoryOptions, OnFull};

slidegate::section! {
    /// Bounds of the memory store, and its policy when it is full. The section has no effect with Redis.
    pub(super) struct MemoryStore("MemoryStore", base: MemoryOptions::default(), check: MemoryOptions::check) for MemoryOptions {
        /// Upper bound on the keys in the store. Each key has its own counter.
        max_keys: usize { between(1, 1_000_000_000) },
        /// Policy for a new key when the store is full and the counts of all keys are above zero.
        on_full: OnFull,
        /// Upper bound on the bytes for request ids and settlements.
        max_note_bytes: usize { between(1 << 20, 1 << 40) },
    }
}
