//! The `memory` section of the file: bounds of the memory store.

use slidegate::{MemoryOptions, OnFull};

slidegate::section! {
    /// Bounds of the memory store, and what happens when it is full. Only with `store: memory`.
    pub(super) struct MemoryStore("MemoryStore", base: MemoryOptions::default(), check: MemoryOptions::check) for MemoryOptions {
        /// Keys that are held, each with a counter of its own.
        max_keys: usize { between(1, 1_000_000_000) },
        /// Policy for a new key when all of them count something.
        on_full: OnFull,
        /// Bytes for request ids and settlements.
        max_note_bytes: usize { between(1 << 20, 1 << 40) },
    }
}
