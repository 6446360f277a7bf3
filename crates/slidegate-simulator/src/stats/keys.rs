//! Statistics by key: number of denials, and the longest time of continuous denial.
//!
//! A limited number of keys have exact statistics. For the keys that come later, a frequent-items sketch finds those that are
//! denied most.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use datasketches::frequencies::{ErrorType, FrequentItemsSketch};
use serde::Serialize;
use slidegate::{Key, Micros};

/// Size of the sketch, in entries.
const SKETCH_SIZE: usize = 1_024;

/// Statistics of the keys of all rules.
pub(crate) struct KeyTable {
    tracked: HashMap<Key, KeyStats, BuildHasherDefault<KeyHasher>>,
    max_tracked: usize,
    /// Requests of keys without exact statistics.
    pub(crate) untracked: u64,
    sketch: Option<Sketch>,
}

/// Sketch of denied keys, each with the index of its rule.
type Sketch = FrequentItemsSketch<(usize, Key)>;

/// Exact statistics of one key.
#[derive(Clone, Copy, Debug, Default)]
struct KeyStats {
    rule: u32,
    asked: u64,
    denied: u64,
    /// Start of the current streak of denials; none if the key was allowed last.
    denied_since: Option<Micros>,
    last_denied: Micros,
    longest: Streak,
}

/// Time in which a key was denied and never allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Streak {
    from: Micros,
    length: Micros,
}

/// A key that was denied.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub(crate) struct DeniedKey {
    pub(crate) key: String,
    /// Number of denials. If `estimated`, the true number may be smaller.
    pub(crate) denied: u64,
    /// Number of requests; none if it is not known.
    pub(crate) asked: Option<u64>,
    /// Longest time in which the key was denied and never allowed: until it was allowed, or until its last denial.
    pub(crate) longest_denied_us: u64,
    pub(crate) denied_from_us: u64,
    pub(crate) estimated: bool,
}

/// Distribution of denials over the keys of a rule.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct DenialDistribution {
    pub(crate) keys: u64,
    pub(crate) denied_keys: u64,
    /// Number of keys by number of denials: never, once, up to 3 times, up to 7 times, and so on by doubling.
    pub(crate) histogram: Vec<u64>,
}

impl KeyTable {
    pub(super) fn new(max_tracked: usize) -> Self {
        KeyTable { tracked: HashMap::default(), max_tracked, untracked: 0, sketch: None }
    }

    #[inline]
    pub(super) fn add(&mut self, key: &Key, rule: usize, at: Micros, allowed: bool, denied: bool) {
        if let Some(stats) = self.tracked.get_mut(key) {
            return stats.add(at, allowed, denied);
        }
        if self.tracked.len() >= self.max_tracked {
            return self.add_to_sketch(key, rule, denied);
        }
        let mut stats = KeyStats { rule: rule as u32, ..KeyStats::default() };
        stats.add(at, allowed, denied);
        self.tracked.insert(key.clone(), stats);
    }

    #[cold]
    fn add_to_sketch(&mut self, key: &Key, rule: usize, denied: bool) {
        self.untracked += 1;
        if !denied {
            return;
        }
        if self.sketch.is_none() {
            // This does not fail, because the size is valid.
            self.sketch = Sketch::new(SKETCH_SIZE).ok();
        }
        if let Some(sketch) = &mut self.sketch {
            sketch.update((rule, key.clone()));
        }
    }

    /// Returns the keys of each rule, in the order of the rules. `rules` is the number of rules.
    pub(crate) fn by_rule(&self, rules: usize) -> Vec<RuleKeys<'_>> {
        let none = |rule| RuleKeys { rule, tracked: Vec::new(), sketch: self.sketch.as_ref() };
        let mut by_rule: Vec<RuleKeys<'_>> = (0..rules).map(none).collect();
        for (key, stats) in &self.tracked {
            if let Some(keys) = by_rule.get_mut(stats.rule as usize) {
                keys.tracked.push((key, stats));
            }
        }
        by_rule
    }
}

/// Keys of one rule.
pub(crate) struct RuleKeys<'a> {
    rule: usize,
    tracked: Vec<(&'a Key, &'a KeyStats)>,
    /// Sketch of all rules.
    sketch: Option<&'a Sketch>,
}

impl RuleKeys<'_> {
    /// Returns up to `n` keys that were denied most.
    pub(crate) fn hardest_hit(&self, n: usize) -> Vec<DeniedKey> {
        let denied = self.tracked.iter().filter(|(_, stats)| stats.denied > 0);
        let mut denied: Vec<_> = denied.collect();
        denied.sort_by(|(a, x), (b, y)| y.denied.cmp(&x.denied).then_with(|| a.as_str().cmp(b.as_str())));
        let mut hits: Vec<DeniedKey> =
            denied.into_iter().take(n).map(|(key, stats)| DeniedKey::new(key, stats)).collect();
        if let Some(sketch) = self.sketch {
            let rows = sketch.frequent_items(ErrorType::NoFalseNegatives);
            let rows = rows.iter().filter(|row| row.item().0 == self.rule);
            hits.extend(rows.map(|row| DeniedKey {
                key: row.item().1.to_string(),
                denied: row.estimate(),
                asked: None,
                longest_denied_us: 0,
                denied_from_us: 0,
                estimated: true,
            }));
        }
        hits.sort_by(|a, b| b.denied.cmp(&a.denied).then_with(|| a.key.cmp(&b.key)));
        hits.truncate(n);
        hits
    }

    /// Returns the key with the longest time of continuous denial.
    pub(crate) fn longest_denied(&self) -> Option<DeniedKey> {
        let denied = self.tracked.iter().filter(|(_, stats)| stats.denied > 0);
        let longest = denied.max_by(|(a, x), (b, y)| {
            x.longest().length.cmp(&y.longest().length).then_with(|| b.as_str().cmp(a.as_str()))
        });
        longest.map(|(key, stats)| DeniedKey::new(key, stats))
    }

    pub(crate) fn distribution(&self) -> DenialDistribution {
        let mut distribution = DenialDistribution::default();
        for (_, stats) in &self.tracked {
            distribution.keys += 1;
            distribution.denied_keys += u64::from(stats.denied > 0);
            let bucket = (u64::BITS - stats.denied.leading_zeros()) as usize;
            if distribution.histogram.len() <= bucket {
                distribution.histogram.resize(bucket + 1, 0);
            }
            distribution.histogram[bucket] += 1;
        }
        distribution
    }
}

impl KeyStats {
    #[inline]
    fn add(&mut self, at: Micros, allowed: bool, denied: bool) {
        self.asked += 1;
        if denied {
            self.denied += 1;
            self.denied_since.get_or_insert(at);
            self.last_denied = at;
        } else if allowed && let Some(since) = self.denied_since.take() {
            self.longest = self.longest.longer_of(Streak { from: since, length: at.since(since) });
        }
    }

    /// Returns the longest streak. A streak that has not ended lasts until the last denial.
    fn longest(&self) -> Streak {
        let open =
            self.denied_since.map(|since| Streak { from: since, length: self.last_denied.since(since) });
        open.map_or(self.longest, |open| self.longest.longer_of(open))
    }
}

impl Streak {
    fn longer_of(self, other: Streak) -> Streak {
        if other.length > self.length || self.from == Micros::ZERO { other } else { self }
    }
}

impl DeniedKey {
    fn new(key: &Key, stats: &KeyStats) -> Self {
        let Streak { from, length } = stats.longest();
        DeniedKey {
            key: key.to_string(),
            denied: stats.denied,
            asked: Some(stats.asked),
            longest_denied_us: length.get(),
            denied_from_us: from.get(),
            estimated: false,
        }
    }
}

/// Hasher that passes on the hash that a key has stored.
#[derive(Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> Key {
        Key::new("rule", [("n", n.to_string().as_str())])
    }

    #[test]
    fn denial_streak_ends_when_allowed_or_last_denied() {
        let mut keys = KeyTable::new(10);
        let mut add = |s: u64, allowed: bool| keys.add(&key(1), 0, Micros::from_secs(s), allowed, !allowed);
        add(100, true);
        add(101, false);
        add(103, false);
        add(105, true);
        add(110, false);
        add(113, false);
        let longest = keys.by_rule(1)[0].longest_denied().unwrap();
        assert_eq!((longest.denied_from_us, longest.longest_denied_us), (101_000_000, 4_000_000));
        keys.add(&key(1), 0, Micros::from_secs(115), false, true);
        let longest = keys.by_rule(1)[0].longest_denied().unwrap();
        assert_eq!((longest.denied_from_us, longest.longest_denied_us), (110_000_000, 5_000_000));
        assert_eq!((longest.asked, longest.denied), (Some(7), 5));
        assert_eq!(keys.by_rule(2)[1].longest_denied(), None);
    }

    #[test]
    fn sketch_finds_most_denied_keys_beyond_the_maximum() {
        let mut keys = KeyTable::new(100);
        for n in 0..50_000 {
            keys.add(&key(n), 0, Micros::from_secs(n), false, true);
            if n >= 1_000 {
                keys.add(&key(60_000 + n % 2), 0, Micros::from_secs(n), false, true);
            }
        }
        assert_eq!((keys.tracked.len(), keys.untracked), (100, 98_900));
        let hits = keys.by_rule(1)[0].hardest_hit(2);
        let names: Vec<&str> = hits.iter().map(|hit| hit.key.as_str()).collect();
        assert_eq!(names, ["rule:n=60000", "rule:n=60001"]);
    }

    #[test]
    fn histogram_buckets_double() {
        let mut keys = KeyTable::new(100);
        for (n, denials) in [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (6, 7), (7, 8)] {
            keys.add(&key(n), 0, Micros::from_secs(1), true, false);
            for _ in 0..denials {
                keys.add(&key(n), 0, Micros::from_secs(1), false, true);
            }
        }
        let distribution = keys.by_rule(1)[0].distribution();
        assert_eq!(
            (distribution.keys, distribution.denied_keys, distribution.histogram),
            (7, 6, vec![1, 1, 2, 2, 1])
        );
    }
}
