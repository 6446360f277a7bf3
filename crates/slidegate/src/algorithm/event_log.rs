//! The log of a window: what was admitted, when, in eight bytes an event.
//!
//! A word is one number of 64 bits, `time << 18 | place << 16 | digit`, and says that `digit << 16 * place`
//! permits were admitted at `base + time`. So up to 65,535 permits of one microsecond are one word however
//! many requests they came in, and any number is at most four. Words are sorted by time, so those that left
//! the window are a prefix, and an instant is found by halving. 46 bits of time are 2.2 years after `base`,
//! and no window is longer than one; a log that lives longer is rebased once in a while.
//!
//! The newest few admissions of a single permit wait in `recent`, beside the counters, and move to the words
//! together: two cores that take turns at a key then pass one cache line back and forth instead of two, and
//! a line of words is fetched once for the seven it takes, not once for each.

use super::ring_buffer::Ring;
use crate::Micros;

const DIGIT_BITS: u32 = 16;
const TIME_SHIFT: u32 = 18;
const DIGIT_MASK: u64 = (1 << DIGIT_BITS) - 1;
const TIME_MAX: u64 = (1 << (64 - TIME_SHIFT)) - 1;
const NEVER: Micros = Micros::new(u64::MAX);

/// In the order of a cache line: what an admission writes comes last, together.
#[repr(C)]
#[derive(Clone, Debug)]
pub(super) struct Log {
    base: Micros,
    words: Ring,
    /// The instants of the first and the last entry, so that a decision that only needs to know that nothing
    /// leaves does not touch the words. `NEVER` and zero in an empty log.
    oldest: Micros,
    newest: Micros,
    total: u64,
    recent: Recent,
}

/// Single permits admitted after the last word: how many, and how long each after the one before it. The
/// last one was admitted at `newest`.
#[derive(Clone, Debug, Default)]
struct Recent {
    /// Whether there are any. A `bool` has values to spare, and `State` puts its tag there instead of in a
    /// word of its own, which would be one too many for two cache lines.
    any: bool,
    len: u8,
    gaps: [u16; 7],
}

fn time(word: u64) -> u64 {
    word >> TIME_SHIFT
}

fn permits(word: u64) -> u64 {
    let place = (word >> DIGIT_BITS) & 3;
    (word & DIGIT_MASK) << (place as u32 * DIGIT_BITS)
}

/// The words that say `permits` at `time`.
fn words(time: u64, permits: u64) -> impl Iterator<Item = u64> {
    (0..4u64).filter_map(move |place| {
        let digit = (permits >> (place as u32 * DIGIT_BITS)) & DIGIT_MASK;
        (digit > 0).then_some(time << TIME_SHIFT | place << DIGIT_BITS | digit)
    })
}

impl Default for Log {
    fn default() -> Self {
        Log {
            base: Micros::ZERO,
            oldest: NEVER,
            newest: Micros::ZERO,
            total: 0,
            words: Ring::default(),
            recent: Recent::default(),
        }
    }
}

impl Log {
    /// All permits in the log.
    #[inline]
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// When the newest entry was made.
    #[inline]
    pub(super) fn newest(&self) -> Option<Micros> {
        (self.oldest != NEVER).then_some(self.newest)
    }

    #[cfg(test)]
    pub(super) fn spoil(&mut self, total: u64) {
        self.total = total;
    }

    /// When the oldest entry was made.
    pub(super) fn oldest(&self) -> Option<Micros> {
        (self.oldest != NEVER).then_some(self.oldest)
    }

    /// Every entry, oldest first, one per instant.
    pub(super) fn entries(&self) -> Vec<(Micros, u64)> {
        let mut entries: Vec<(Micros, u64)> = Vec::new();
        for (at, permits) in self.iter() {
            match entries.last_mut() {
                Some((last, cost)) if *last == at => *cost += permits,
                _ => entries.push((at, permits)),
            }
        }
        entries
    }

    /// Forgets what was admitted at or before `until`; whether there was anything.
    #[inline]
    pub(super) fn forget(&mut self, until: Micros) -> bool {
        if self.oldest > until {
            return false;
        }
        self.forget_some(until);
        true
    }

    /// Adds `cost` permits at `at`. No log holds more than `capacity` words, so it need not grow beyond.
    #[inline]
    pub(super) fn add(&mut self, at: Micros, cost: u64, capacity: u64) {
        let gap = at.since(self.newest).get();
        let room = usize::from(self.recent.len) < self.recent.gaps.len();
        if self.oldest != NEVER && cost == 1 && room && (1..=u64::from(u16::MAX)).contains(&gap) {
            self.recent.gaps[usize::from(self.recent.len)] = gap as u16;
            self.recent.len += 1;
            self.recent.any = true;
            self.newest = at;
            self.total += 1;
        } else if !(gap == 0 && self.add_to_newest(cost)) {
            self.add_word(at, cost, capacity);
        }
    }

    /// The quick way for many admissions in one microsecond: false if they do not fit the newest word.
    #[inline]
    fn add_to_newest(&mut self, cost: u64) -> bool {
        if !self.recent.any
            && let Some(word) = self.words.back_mut()
            && *word & (3 << DIGIT_BITS) == 0
            && (*word & DIGIT_MASK) + cost <= DIGIT_MASK
        {
            *word += cost;
            self.total += cost;
            return true;
        }
        false
    }

    /// Corrects what was admitted at `at` from `from` to `to` permits, as far as the total stays below `most`;
    /// false if nothing was.
    pub(super) fn amend(&mut self, at: Micros, from: u64, to: u64, most: u64) -> bool {
        self.flush(u64::MAX);
        let held = self.at(at);
        if held == 0 {
            return false;
        }
        let room = most.saturating_sub(self.total - held);
        self.put(at, (held.saturating_sub(from) + to).min(room));
        true
    }

    /// Forgets the oldest permits until no more than `keep` are left.
    pub(super) fn keep_newest(&mut self, keep: u64) {
        if self.total <= keep {
            return;
        }
        self.flush(u64::MAX);
        while self.total > keep
            && let Some(word) = self.words.front()
        {
            let excess = self.total - keep;
            if permits(word) <= excess {
                self.total -= permits(word);
                self.words.pop_front();
            } else {
                let oldest = self.instant(word);
                self.put(oldest, self.at(oldest) - excess);
            }
        }
        self.note_ends();
    }

    /// The instant of the entry whose leaving brings what left to `needed` permits.
    #[inline]
    pub(super) fn frees(&self, needed: u64) -> Option<Micros> {
        if needed <= 1 {
            return (self.oldest != NEVER).then_some(self.oldest);
        }
        let mut freed = 0;
        self.iter().find_map(|(at, permits)| {
            freed += permits;
            (freed >= needed).then_some(at)
        })
    }

    /// Gives back memory that the log has not needed for a while.
    pub(super) fn shrink(&mut self) {
        self.words.shrink();
    }

    /// Number of entries: one an instant, or a few for a great cost.
    pub(super) fn len(&self) -> usize {
        self.words.len() + usize::from(self.recent.len)
    }

    /// Heap bytes held.
    pub(super) fn heap_bytes(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }

    #[inline]
    fn forget_some(&mut self, until: Micros) {
        let left = until.since(self.base).get();
        let total = &mut self.total;
        let first = self.words.pop_while(|word| {
            let gone = time(word) <= left;
            *total -= if gone { permits(word) } else { 0 };
            gone
        });
        match first {
            Some(word) => self.oldest = self.instant(word),
            None if self.recent.any => {
                self.flush(u64::MAX);
                self.note_ends();
                self.forget(until);
            }
            None => self.note_ends(),
        }
    }

    fn add_word(&mut self, at: Micros, cost: u64, capacity: u64) {
        self.flush(capacity);
        if self.words.is_empty() {
            (self.base, self.oldest) = (at, at);
        } else if at <= self.newest {
            let at = at.max(self.base);
            return self.put(at, self.at(at).saturating_add(cost));
        }
        self.push(at, cost, capacity);
        self.newest = at;
        self.total += cost;
    }

    fn push(&mut self, at: Micros, cost: u64, capacity: u64) {
        let mut offset = at.since(self.base).get();
        if offset > TIME_MAX {
            offset = self.rebase(at);
        }
        if cost <= DIGIT_MASK {
            self.words.push_back(offset << TIME_SHIFT | cost, capacity);
        } else {
            words(offset, cost).for_each(|word| self.words.push_back(word, capacity));
        }
    }

    /// Moves what is recent to the words.
    fn flush(&mut self, capacity: u64) {
        if !self.recent.any {
            return;
        }
        let Recent { len, gaps, .. } = std::mem::take(&mut self.recent);
        let gaps = &gaps[..usize::from(len)];
        if self.words.is_empty() {
            self.base = Micros::new(self.newest.get() - sum(gaps));
        } else if self.newest.since(self.base).get() > TIME_MAX {
            self.rebase(self.newest);
        }
        let first = self.newest.since(self.base).get() - sum(&gaps[1..]);
        let mut offset = first - u64::from(gaps[0]);
        let words = gaps.iter().map(|&gap| {
            offset += u64::from(gap);
            offset << TIME_SHIFT | 1
        });
        self.words.extend(gaps.len(), words, capacity);
    }

    /// Permits admitted at the instant `at`. What is recent must have been flushed.
    fn at(&self, at: Micros) -> u64 {
        self.range(at).filter_map(|i| self.words.get(i)).map(permits).sum()
    }

    /// Makes it `cost` permits that were admitted at the instant `at`.
    fn put(&mut self, at: Micros, cost: u64) {
        self.total = self.total - self.at(at) + cost;
        let range = self.range(at);
        let new = words(at.since(self.base).get(), cost);
        self.words.splice(range, new);
        self.note_ends();
    }

    fn iter(&self) -> impl Iterator<Item = (Micros, u64)> {
        let gaps = &self.recent.gaps[..usize::from(self.recent.len)];
        let recent = (0..gaps.len()).map(move |i| (Micros::new(self.newest.get() - sum(&gaps[i + 1..])), 1));
        self.words.iter().map(|word| (self.instant(word), permits(word))).chain(recent)
    }

    /// What is recent must have been flushed.
    fn note_ends(&mut self) {
        self.oldest = self.words.front().map_or(NEVER, |word| self.instant(word));
        self.newest = self.words.back_mut().map(|word| *word).map_or(Micros::ZERO, |word| self.instant(word));
    }

    #[inline]
    fn instant(&self, word: u64) -> Micros {
        self.base.plus(Micros::new(time(word)))
    }

    fn range(&self, at: Micros) -> std::ops::Range<usize> {
        let start = self.words.partition_point(|word| self.instant(word) < at);
        let end = self.words.partition_point(|word| self.instant(word) <= at);
        start..end
    }

    /// Counts from the oldest entry on; the offset of `at` is then in reach.
    #[cold]
    fn rebase(&mut self, at: Micros) -> u64 {
        let shift = self.words.front().map_or(0, time);
        self.words.for_each_mut(|word| *word -= shift << TIME_SHIFT);
        self.base = self.base.plus(Micros::new(shift));
        at.since(self.base).get()
    }
}

fn sum(gaps: &[u16]) -> u64 {
    gaps.iter().map(|&gap| u64::from(gap)).sum()
}
