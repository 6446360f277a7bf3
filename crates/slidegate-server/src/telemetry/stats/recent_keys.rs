//! Some of the keys that were decided about lately.

use parking_lot::Mutex;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use slidegate::Key;

/// How many are kept.
const ROOM: usize = 1_024;

/// Each new key takes the place of any: what was decided long ago is less likely to be there still.
pub(crate) struct Recent {
    keys: Mutex<(Vec<Key>, Xoshiro256PlusPlus)>,
}

impl Recent {
    pub(super) fn new(seed: u64) -> Self {
        Recent { keys: Mutex::new((Vec::new(), Xoshiro256PlusPlus::seed_from_u64(seed))) }
    }

    pub(super) fn add(&self, key: &Key) {
        // Who finds it taken leaves it: it is only a sample.
        let Some(mut keys) = self.keys.try_lock() else { return };
        let (keys, random) = &mut *keys;
        if keys.len() < ROOM {
            keys.push(key.clone());
        } else {
            let place = random.random_range(0..ROOM);
            keys[place] = key.clone();
        }
    }

    /// Up to `most` different ones, at random.
    pub(crate) fn some(&self, most: usize) -> Vec<Key> {
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
