//! Most requested and most denied keys, in bounded memory.
//!
//! A frequent-items sketch (Anderson and others, 2017) has the exact counts of up to 96 keys. With more keys it has
//! estimates that are never too low by more than 3 % of the total. There is one sketch for every twenty seconds of
//! the last minute. Sixty such sketches are merged into one sketch for every twenty minutes of the last hour.

use std::collections::{HashMap, VecDeque};

use datasketches::frequencies::{ErrorType, FrequentItemsSketch};
use slidegate::Key;

/// Number of slots of a sketch, of which three quarters are used.
const SKETCH_SLOTS: usize = 128;

/// Length of a generation, in seconds.
pub(super) const GENERATION_SECONDS: u64 = 20;

/// Number of generations of the last minute: three complete ones, and the current one.
const MAX_GENERATIONS: usize = 4;

/// Number of minute generations that are merged into one hour generation.
const MERGES_PER_HOUR_GENERATION: u32 = 60;

/// Period over which keys are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Period {
    /// The last 60 to 80 seconds.
    #[default]
    Minute,
    /// The last 60 to 80 minutes.
    Hour,
}

type Sketch = FrequentItemsSketch<Key>;

/// Sketches of one generation.
#[derive(Default)]
struct Sketches {
    requested: Option<Sketch>,
    denied: Option<Sketch>,
}

/// Most frequent keys of one rule.
#[derive(Default)]
pub(crate) struct TopKeys {
    /// Generations of the last minute, the newest last.
    minute: VecDeque<Sketches>,
    hour: VecDeque<Sketches>,
    merged: u32,
}

/// Number of requests or denials by key.
pub(crate) type Counts = HashMap<Key, u64>;

impl Sketches {
    fn merge(&mut self, other: &Sketches) {
        for (here, other) in [(&mut self.requested, &other.requested), (&mut self.denied, &other.denied)] {
            if let Some(other) = other
                && let Some(here) = sketch(here)
            {
                here.merge(other);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.requested.is_none()
    }
}

/// Returns the sketch, and creates it on first use: if there are many rules, most of them are idle.
fn sketch(slot: &mut Option<Sketch>) -> Option<&mut Sketch> {
    if slot.is_none() {
        // The size is valid: a power of two.
        *slot = Sketch::new(SKETCH_SLOTS).ok();
    }
    slot.as_mut()
}

impl TopKeys {
    /// Counts a key that stands for `weight` decisions.
    pub(super) fn add(&mut self, key: &Key, denied: bool, weight: u64) {
        if self.minute.is_empty() {
            self.minute.push_back(Sketches::default());
        }
        let Some(newest) = self.minute.back_mut() else { return };
        if let Some(requested) = sketch(&mut newest.requested) {
            requested.update_with_count_ref(key, weight);
        }
        if denied && let Some(denied) = sketch(&mut newest.denied) {
            denied.update_with_count_ref(key, weight);
        }
    }

    /// Merges the current generation into the hour, and starts a new generation.
    pub(super) fn rotate(&mut self) {
        if self.hour.is_empty() {
            self.hour.push_back(Sketches::default());
        }
        if let (Some(newest), Some(hour)) = (self.minute.back(), self.hour.back_mut()) {
            hour.merge(newest);
        }
        super::rule_stats::push(&mut self.minute, MAX_GENERATIONS, Sketches::default());
        self.merged += 1;
        if self.merged == MERGES_PER_HOUR_GENERATION {
            self.merged = 0;
            super::rule_stats::push(&mut self.hour, MAX_GENERATIONS, Sketches::default());
        }
        if self.minute.iter().chain(&self.hour).all(Sketches::is_empty) {
            *self = TopKeys::default();
        }
    }

    /// Adds the requests and denials of each key in `period` to the two maps.
    pub(crate) fn read(&self, period: Period, requested: &mut Counts, denied: &mut Counts) {
        // The newest minute generation is not merged into the hour yet, so the hour includes it separately.
        let (hour, minute) = match period {
            Period::Minute => (0, MAX_GENERATIONS),
            Period::Hour => (MAX_GENERATIONS, 1),
        };
        let all = self.hour.iter().rev().take(hour).chain(self.minute.iter().rev().take(minute));
        for Sketches { requested: a, denied: r } in all {
            read(a.as_ref(), requested);
            read(r.as_ref(), denied);
        }
    }
}

fn read(sketch: Option<&Sketch>, counts: &mut Counts) {
    let rows = sketch.map(|sketch| sketch.frequent_items(ErrorType::NoFalseNegatives)).unwrap_or_default();
    for row in rows {
        *counts.entry(row.item().clone()).or_default() += row.estimate();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> Key {
        Key::new("rule", [("n", n.to_string().as_str())])
    }

    fn counts(top: &TopKeys, period: Period) -> (Counts, Counts) {
        let (mut requested, mut denied) = (Counts::new(), Counts::new());
        top.read(period, &mut requested, &mut denied);
        (requested, denied)
    }

    #[test]
    fn few_keys_are_counted_exactly_and_forgotten_in_time() {
        let mut top = TopKeys::default();
        for n in 0..50 {
            for i in 0..=n {
                top.add(&key(n), i % 2 == 1, 1);
            }
        }
        for turn in 0..10 {
            let (minute, denied) = counts(&top, Period::Minute);
            let (hour, _) = counts(&top, Period::Hour);
            if turn <= 3 {
                assert_eq!((minute[&key(49)], minute[&key(0)], denied[&key(49)]), (50, 1, 25), "turn {turn}");
            } else {
                assert!(minute.is_empty(), "turn {turn}");
            }
            assert_eq!(hour[&key(49)], 50, "turn {turn}");
            top.rotate();
        }
        for _ in 0..MERGES_PER_HOUR_GENERATION as usize * (MAX_GENERATIONS + 1) {
            top.rotate();
        }
        assert!(counts(&top, Period::Hour).0.is_empty());
        assert!(top.minute.is_empty() && top.hour.is_empty(), "an idle rule holds nothing");
    }

    #[test]
    fn finds_the_hottest_of_many_keys() {
        let mut top = TopKeys::default();
        for n in 0..100_000 {
            top.add(&key(1_000 + n), false, 1);
            if n % 10 == 0 {
                top.add(&key(n % 3), true, 1);
            }
        }
        let (requested, denied) = counts(&top, Period::Minute);
        assert!(requested.len() <= SKETCH_SLOTS, "{}", requested.len());
        for n in 0..3 {
            let estimate = requested[&key(n)];
            assert!((3_000..=3_400 + 110_000 * 4 / 128).contains(&estimate), "{estimate}");
            assert!((3_333..=3_334).contains(&denied[&key(n)]));
        }
    }
}
