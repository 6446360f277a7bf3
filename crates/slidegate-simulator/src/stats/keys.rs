//! Statistics by key: number of denials, and the longest run of denials.
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
    /// The latest run of denials.
    run: DenialRun,
    /// End of the wait that the latest denial announced; zero if the key was allowed since. A denial before this time continues
    /// the run.
    wait_until: Micros,
    longest: DenialRun,
}

/// Denials of a key in a row, from the first to the last.
///
/// A run ends when a request of the key is allowed. It also ends when the client pauses until the wait of its latest denial is
/// over: it would have been allowed then, so the pause is not part of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DenialRun {
    from: Micros,
    to: Micros,
    denials: u64,
}

/// A key that was denied.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub(crate) struct DeniedKey {
    pub(crate) key: String,
    /// Number of denials. If `estimated`, the true number may be smaller.
    pub(crate) denied: u64,
    /// Number of requests; none if it is not known.
    pub(crate) asked: Option<u64>,
    /// Time from the first to the last denial of the longest run of denials, its start, and its number of denials. A run ends when
    /// the key is allowed, or does not ask until the announced wait is over.
    pub(crate) longest_denied_us: u64,
    pub(crate) denied_from_us: u64,
    pub(crate) denied_in_a_row: u64,
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

    /// Adds a request of a key. `denied` is the announced wait if the rule denied the request.
    #[inline]
    pub(super) fn add(&mut self, key: &Key, rule: usize, at: Micros, allowed: bool, denied: Option<Micros>) {
        if let Some(stats) = self.tracked.get_mut(key) {
            return stats.add(at, allowed, denied);
        }
        if self.tracked.len() >= self.max_tracked {
            return self.add_to_sketch(key, rule, denied.is_some());
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
                denied_in_a_row: 0,
                estimated: true,
            }));
        }
        hits.sort_by(|a, b| b.denied.cmp(&a.denied).then_with(|| a.key.cmp(&b.key)));
        hits.truncate(n);
        hits
    }

    /// Returns the key with the longest run of denials.
    pub(crate) fn longest_denied(&self) -> Option<DeniedKey> {
        let denied = self.tracked.iter().filter(|(_, stats)| stats.denied > 0);
        let longest = denied.max_by(|(a, x), (b, y)| {
            x.longest.size().cmp(&y.longest.size()).then_with(|| b.as_str().cmp(a.as_str()))
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
    fn add(&mut self, at: Micros, allowed: bool, denied: Option<Micros>) {
        self.asked += 1;
        if let Some(wait) = denied {
            self.denied += 1;
            if at >= self.wait_until {
                self.run = DenialRun { from: at, to: at, denials: 0 };
            }
            self.run.to = at;
            self.run.denials += 1;
            self.wait_until = Micros::new(at.get().saturating_add(wait.get()));
            if self.run.size() > self.longest.size() {
                self.longest = self.run;
            }
        } else if allowed {
            self.wait_until = Micros::ZERO;
        }
    }
}

impl DenialRun {
    fn length(&self) -> Micros {
        self.to.since(self.from)
    }

    /// Returns a value that is greater for a longer run. If two runs have the same length, the one with more denials is longer.
    fn size(&self) -> (Micros, u64) {
        (self.length(), self.denials)
    }
}

impl DeniedKey {
    fn new(key: &Key, stats: &KeyStats) -> Self {
        DeniedKey {
            key: key.to_string(),
            denied: stats.denied,
            asked: Some(stats.asked),
            longest_denied_us: stats.longest.length().get(),
            denied_from_us: stats.longest.from.get(),
            denied_in_a_row: stats.longest.denials,
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

    /// Adds requests of one key, each with its time in seconds and its wait in seconds if it was denied, and returns the start, the
    /// length and the number of denials of the longest run.
    fn longest_run(requests: &[(u64, Option<u64>)]) -> (u64, u64, u64) {
        let mut keys = KeyTable::new(10);
        for (at, wait) in requests {
            keys.add(&key(1), 0, Micros::from_secs(*at), wait.is_none(), wait.map(Micros::from_secs));
        }
        let longest = keys.by_rule(1)[0].longest_denied().unwrap();
        assert_eq!(longest.asked, Some(requests.len() as u64));
        (longest.denied_from_us / 1_000_000, longest.longest_denied_us / 1_000_000, longest.denied_in_a_row)
    }

    #[test]
    fn run_of_denials_lasts_from_the_first_to_the_last_denial() {
        let requests =
            [(100, None), (101, Some(9)), (103, Some(7)), (110, None), (111, Some(5)), (112, Some(4))];
        assert_eq!(longest_run(&requests), (101, 2, 2));
        assert_eq!(longest_run(&[(100, Some(60)), (141, Some(19)), (200, None)]), (100, 41, 2));
        assert_eq!(longest_run(&[(100, Some(5)), (200, None)]), (100, 0, 1));
    }

    #[test]
    fn pause_until_the_wait_is_over_ends_a_run_of_denials() {
        // The client would have been allowed at 105 and at 147, so neither pause is part of a run.
        let requests = [(100, Some(5)), (142, Some(5)), (143, Some(4)), (147, Some(1))];
        assert_eq!(longest_run(&requests), (142, 1, 2));
        // Denials at one instant are a run, too.
        assert_eq!(longest_run(&[(1, Some(1)), (9, Some(1)), (9, Some(1))]), (9, 0, 2));
        assert_eq!(KeyTable::new(1).by_rule(2)[1].longest_denied(), None);
    }

    #[test]
    fn denial_by_another_rule_does_not_end_a_run() {
        let mut keys = KeyTable::new(10);
        let at = Micros::from_secs;
        keys.add(&key(1), 0, at(1), false, Some(at(9)));
        keys.add(&key(1), 0, at(2), false, None);
        keys.add(&key(1), 0, at(3), false, Some(at(7)));
        let longest = keys.by_rule(1)[0].longest_denied().unwrap();
        assert_eq!((longest.longest_denied_us, longest.denied_in_a_row, longest.denied), (2_000_000, 2, 2));
    }

    #[test]
    fn sketch_finds_most_denied_keys_beyond_the_maximum() {
        let mut keys = KeyTable::new(100);
        for n in 0..50_000 {
            keys.add(&key(n), 0, Micros::from_secs(n), false, Some(Micros::from_secs(1)));
            if n >= 1_000 {
                keys.add(&key(60_000 + n % 2), 0, Micros::from_secs(n), false, Some(Micros::from_secs(1)));
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
            keys.add(&key(n), 0, Micros::from_secs(1), true, None);
            for _ in 0..denials {
                keys.add(&key(n), 0, Micros::from_secs(1), false, Some(Micros::from_secs(1)));
            }
        }
        let distribution = keys.by_rule(1)[0].distribution();
        assert_eq!(
            (distribution.keys, distribution.denied_keys, distribution.histogram),
            (7, 6, vec![1, 1, 2, 2, 1])
        );
    }
}
