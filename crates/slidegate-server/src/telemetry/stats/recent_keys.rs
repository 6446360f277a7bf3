//! Random sample of recently used keys.

use parking_lot::Mutex;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use slidegate::Key;

/// Number of keys in the sample.
const SAMPLE_SIZE: usize = 1_024;

/// Sample of recent keys. Each new key replaces a random one, so older keys are less likely to be present.
pub(crate) struct RecentKeys {
    keys: Mutex<(Vec<Key>, Xoshiro256PlusPlus)>,
}

impl RecentKeys {
    pub(super) fn new(seed: u64) -> Self {
        RecentKeys { keys: Mutex::new((Vec::new(), Xoshiro256PlusPlus::seed_from_u64(seed))) }
    }

    pub(super) fn add(&self, key: &Key) {
        // If another thread holds the lock, the key is skipped: this is only a sample.
        let Some(mut keys) = self.keys.try_lock() else { return };
        let (keys, random) = &mut *keys;
        if keys.len() < SAMPLE_SIZE {
            keys.push(key.clone());
        } else {
            let index = random.random_range(0..SAMPLE_SIZE);
            keys[index] = key.clone();
        }
    }

    /// Returns up to `most` distinct keys at random.
    pub(crate) fn sample(&self, most: usize) -> Vec<Key> {
        let mut keys = self.keys.lock();
        let (keys, random) = &mut *keys;
        let mut found: Vec<Key> = Vec::new();
        for _ in 0..keys.len().min(4 * most) {
            let key = &keys[random.random_range(0..keys.len())];
            if found.len() < most && !found.contains(key) {
                found.push(key.clone());
            }
        }
        found
    }
}
