//! Measures the permits admitted to a key in the window that ends now, for algorithms that do not count exactly.
//!
//! The measure is the library's exact sliding window, with a limit that is never reached.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use slidegate::{Key, Micros, Quota, RequestId, algorithm::State, bounds::MAX_LIMIT, store::Entry};

use super::keys::KeyHasher;

/// Exact windows of all keys, up to a maximum.
pub(super) struct TrailingWindows {
    windows: HashMap<Key, Window, BuildHasherDefault<KeyHasher>>,
    max_keys: usize,
    truncated: bool,
}

/// Exact window of one key.
struct Window {
    /// Stored because its construction takes longer than an admission.
    quota: Quota,
    state: State,
    /// Sequence number of the latest admission. A repeated request has the number of its first admission, which is not
    /// greater.
    latest: Option<u64>,
    /// Request ids of the attempts at the latest instant. Attempts have no sequence number.
    ids: (Micros, Vec<RequestId>),
}

impl Window {
    fn add(&mut self, at: Micros, admitted: Option<Entry>, id: Option<&RequestId>) -> u64 {
        let admitted = admitted.filter(|entry| !self.is_repeated(at, entry, id));
        if let Some(entry) = admitted.filter(Entry::can_be_settled) {
            self.latest = Some(entry.seq);
        }
        self.state.admit(at, &self.quota, admitted.map_or(0, |entry| entry.cost)).used
    }

    /// Returns true if this admission was counted before, under the same request id.
    fn is_repeated(&mut self, at: Micros, entry: &Entry, id: Option<&RequestId>) -> bool {
        let Some(id) = id else { return false };
        if entry.can_be_settled() {
            return self.latest.is_some_and(|latest| entry.seq <= latest);
        }
        if entry.at < at {
            return true;
        }
        if self.ids.0 != at {
            self.ids = (at, Vec::new());
        }
        let known = self.ids.1.contains(id);
        if !known {
            self.ids.1.push(id.clone());
        }
        known
    }
}

impl TrailingWindows {
    pub(super) fn new(max_keys: usize) -> Self {
        TrailingWindows { windows: HashMap::default(), max_keys, truncated: false }
    }

    /// Adds an admission, and returns the permits admitted in the window that ends now; none if there are too many keys.
    pub(super) fn add(
        &mut self,
        key: &Key,
        window: Micros,
        at: Micros,
        admitted: Option<Entry>,
        id: Option<&RequestId>,
    ) -> Option<u64> {
        if let Some(window) = self.windows.get_mut(key) {
            return Some(window.add(at, admitted, id));
        }
        if self.windows.len() >= self.max_keys && !self.truncated {
            self.windows.retain(|_, window| window.state.idle_at() > at);
            // The scan is slow, so it is not repeated if half of the entries or more remain.
            self.truncated = self.windows.len() >= self.max_keys / 2;
        }
        if self.windows.len() >= self.max_keys {
            self.truncated = true;
            return None;
        }
        let quota = Quota::new(MAX_LIMIT, window.into()).ok()?;
        let mut window = Window { quota, state: State::new(&quota), latest: None, ids: Default::default() };
        let used = window.add(at, admitted, id);
        self.windows.insert(key.clone(), window);
        Some(used)
    }

    pub(super) fn is_truncated(&self) -> bool {
        self.truncated
    }
}
