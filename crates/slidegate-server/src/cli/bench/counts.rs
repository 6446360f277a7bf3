//! Counters of the results of a benchmark.

use std::borrow::Cow;

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use serde::{Serialize, Serializer};

/// Decision on one request.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) allowed: bool,
    /// Source of the decision, as in the response.
    pub(super) source: Cow<'static, str>,
}

/// Longest latency that is recorded, in microseconds: one hour.
const MAX_LATENCY: u64 = 3_600_000_000;

/// Upper bound on words that are counted separately.
const MAX_WORDS: usize = 16;

/// Length of the longest word, in characters; a server may respond with anything.
const MAX_WORD_CHARS: usize = 200;

/// Counts of words that the server chooses, so their number is bounded.
#[derive(Clone, Debug, Default)]
pub(super) struct WordCounts {
    counts: Vec<(String, u64)>,
    others: u64,
}

impl WordCounts {
    pub(super) fn add(&mut self, word: &str, count: u64) {
        // There are only a few words, and the first usually matches.
        if let Some((_, known)) = self.counts.iter_mut().find(|(known, _)| known == word) {
            *known += count;
        } else if word.chars().nth(MAX_WORD_CHARS).is_some() {
            self.add(&word.chars().take(MAX_WORD_CHARS).collect::<String>(), count);
        } else if self.counts.len() < MAX_WORDS {
            self.counts.push((word.to_owned(), count));
        } else {
            self.others += count;
        }
    }

    fn merge(&mut self, other: &WordCounts) {
        other.counts.iter().for_each(|(word, count)| self.add(word, *count));
        self.others += other.others;
    }

    /// Returns the counts, the most frequent first, and the sum of all other words last.
    pub(super) fn sorted(&self) -> Vec<(String, u64)> {
        let mut counts = self.counts.clone();
        counts.sort_by(|(a, n), (b, m)| m.cmp(n).then_with(|| a.cmp(b)));
        counts.extend((self.others > 0).then(|| ("(others)".to_owned(), self.others)));
        counts
    }

    pub(super) fn total(&self) -> u64 {
        self.others + self.counts.iter().map(|(_, count)| count).sum::<u64>()
    }
}

/// Serialized as an object of words and their counts.
impl Serialize for WordCounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.sorted())
    }
}

/// Results of some of the callers.
#[derive(Debug)]
pub(super) struct Counts {
    pub(super) allowed: u64,
    pub(super) denied: u64,
    pub(super) errors: WordCounts,
    pub(super) sources: WordCounts,
    /// Latency of every decision, in microseconds, from the time at which its request was due.
    pub(super) latency: Histogram<u64>,
    /// Delay of callers that slept until a request was due, in microseconds.
    pub(super) woke_late: Histogram<u64>,
    /// Number of requests that were due when no caller was free.
    pub(super) late: u64,
    /// Time of the last response.
    pub(super) last: u64,
}

impl Counts {
    /// Creates empty counters. Latencies have a precision of three digits.
    pub(super) fn new() -> Result<Self, String> {
        let histogram = |digits| Histogram::new_with_bounds(1, MAX_LATENCY, digits);
        let histograms = histogram(3).and_then(|latency| Ok((latency, histogram(2)?)));
        let (latency, woke_late) = histograms.map_err(|error| error.to_string())?;
        let (errors, sources) = Default::default();
        Ok(Counts { allowed: 0, denied: 0, errors, sources, latency, woke_late, late: 0, last: 0 })
    }

    /// Counts a request that took `latency` until `now`.
    pub(super) fn record(&mut self, answer: &Result<Outcome, String>, latency: u64, now: u64) {
        self.last = self.last.max(now);
        match answer {
            Ok(Outcome { allowed, source }) => {
                *(if *allowed { &mut self.allowed } else { &mut self.denied }) += 1;
                self.sources.add(source, 1);
                self.latency.saturating_record(latency);
            }
            Err(message) => self.errors.add(message, 1),
        }
    }

    /// Returns the number of requests, with or without a decision.
    pub(super) fn requests(&self) -> u64 {
        self.allowed + self.denied + self.errors.total()
    }

    fn merge(&mut self, other: &Counts) -> Result<(), String> {
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.errors.merge(&other.errors);
        self.sources.merge(&other.sources);
        self.late += other.late;
        self.last = self.last.max(other.last);
        let added = self.latency.add(&other.latency).and_then(|()| self.woke_late.add(&other.woke_late));
        added.map_err(|error| error.to_string())
    }
}

/// Counters of all callers, in a few shards. A histogram for each of ten thousand callers would fill the memory; one
/// for all callers would make them wait for each other.
#[derive(Debug)]
pub(super) struct ShardedCounts(Vec<Mutex<Counts>>);

impl ShardedCounts {
    pub(super) fn new(callers: usize) -> Result<Self, String> {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        (0..callers.min(4 * cores))
            .map(|_| Counts::new().map(Mutex::new))
            .collect::<Result<_, _>>()
            .map(ShardedCounts)
    }

    /// Returns the shard of a caller.
    pub(super) fn of(&self, caller: usize) -> &Mutex<Counts> {
        &self.0[caller % self.0.len()]
    }

    /// Returns the number of requests so far.
    pub(super) fn requests(&self) -> u64 {
        self.0.iter().map(|shard| shard.lock().requests()).sum()
    }

    /// Returns the sum of all shards.
    pub(super) fn total(&self) -> Result<Counts, String> {
        let mut total = Counts::new()?;
        self.0.iter().try_for_each(|shard| total.merge(&shard.lock()))?;
        Ok(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_bounded_and_none_is_lost() {
        let mut words = WordCounts::default();
        for n in 0..100 {
            words.add(&format!("{n}{}", "x".repeat(1_000)), 2);
        }
        words.add("0", 500);
        assert_eq!(words.total(), 700);
        let sorted = words.sorted();
        assert_eq!(sorted.len(), MAX_WORDS + 1);
        assert!(sorted.iter().all(|(word, _)| word.chars().count() <= MAX_WORD_CHARS));
        assert_eq!(sorted.last().unwrap(), &("(others)".to_owned(), 2 * 84 + 500));
    }
}
