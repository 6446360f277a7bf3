//! The `memory` section of the file: bounds of the memory store.

use slidegate::{MemoryOptions, OnFull};

slidegate::section! {
    /// Bounds of the memory store, and what happens when it is full. Only with `store: memory`.
    pub(super) struct MemoryStore("MemoryStore", base: MemoryOptions::default(), check: MemoryOptions::check) for MemoryOptions {
        /// Upper bound on keys in the store, each with its own counter.
        max_keys: usize { between(1, 1_000_000_000) },
        /// Policy for a new key when the store is full and every key counts something.
        on_full: OnFull,
        /// Bytes for request ids and settlements.
        max_note_bytes: usize { between(1 << 20, 1 << 40) },
    }
}
