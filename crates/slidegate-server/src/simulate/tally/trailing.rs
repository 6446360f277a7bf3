//! What was admitted to a key in the window that ends now, whoever admitted it: the library's exact window, with a limit that
//! nothing reaches, as a yardstick for those that are not exact.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use slidegate::{Key, MAX_LIMIT, Micros, Quota, State};

use super::keys::KeyHasher;

/// Windows of keys.
pub(super) struct Trailing {
    /// A quota takes longer to make than an admission.
    states: HashMap<Key, (Quota, State), BuildHasherDefault<KeyHasher>>,
    max_keys: usize,
    short: bool,
}

impl Trailing {
    pub(super) fn new(max_keys: usize) -> Self {
        Trailing { states: HashMap::default(), max_keys, short: false }
    }

    /// Adds what is admitted now, and says what was in the window that ends now; none if there are too many keys.
    pub(super) fn add(&mut self, key: &Key, window: Micros, at: Micros, cost: u64) -> Option<u64> {
        if let Some((quota, state)) = self.states.get_mut(key) {
            return Some(state.admit(at, quota, cost).used);
        }
        if self.states.len() >= self.max_keys && !self.short {
            self.states.retain(|_, (_, state)| state.idle_at() > at);
            // It takes long, so it is not tried again where it is of no use.
            self.short = self.states.len() >= self.max_keys / 2;
        }
        if self.states.len() >= self.max_keys {
            self.short = true;
            return None;
        }
        let quota = Quota::new(MAX_LIMIT, window.into()).ok()?;
        let mut state = State::new(&quota);
        let used = state.admit(at, &quota, cost).used;
        self.states.insert(key.clone(), (quota, state));
        Some(used)
    }

    pub(super) fn is_short(&self) -> bool {
        self.short
    }
}
