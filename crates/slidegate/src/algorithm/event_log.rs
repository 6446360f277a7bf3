//! Log of the admissions in a window, with eight bytes per event.
//!
//! A word has 64 bits, `time << 18 | place << 16 | digit`, and means that `digit << 16 * place` permits were admitted at
//! `base + time`. Up to 65,535 permits of one microsecond are therefore one word, regardless of the number of requests, and
//! any number is at most four words. Words are sorted by time, so the words that have left the window are a prefix, and an
//! instant is found by binary search. 46 bits of time reach 2.2 years after `base`, and no window is longer than 366
//! days. A log that is in use for longer moves `base` to its oldest entry when necessary.
//!
//! The newest few admissions of a single permit wait in `recent`, next to the counters, and move to the words together. Two
//! cores that alternate on one key then exchange one cache line instead of two, and a cache line of words is fetched once
//! for seven admissions instead of once for each.

use super::ring_buffer::RingBuffer;
use crate::Micros;

const DIGIT_BITS: u32 = 16;
const TIME_SHIFT: u32 = 18;
const DIGIT_MASK: u64 = (1 << DIGIT_BITS) - 1;
const TIME_MAX: u64 = (1 << (64 - TIME_SHIFT)) - 1;
const NEVER: Micros = Micros::new(u64::MAX);

/// The fields that an admission writes are last and adjacent, so that they are in one cache line.
#[repr(C)]
#[derive(Clone, Debug)]
pub(super) struct EventLog {
    base: Micros,
    words: RingBuffer,
    /// Instants of the oldest and the newest entry; `NEVER` and zero in an empty log. From them a decision knows that
    /// no entry leaves the window, without reading the words.
    oldest: Micros,
    newest: Micros,
    total: u64,
    recent: Recent,
}

/// Admissions of a single permit after the last word: their number, and the time of each since the previous admission.
/// The last admission was at `newest`.
#[derive(Clone, Debug, Default)]
struct Recent {
    /// True if there are recent permits. A `bool` has unused bit patterns, in which the compiler stores the tag of the
    /// enum in `State`. A separate tag would take another word, and the state would not fit into two cache lines.
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

/// Returns the words that represent `permits` at `time`.
fn words(time: u64, permits: u64) -> impl Iterator<Item = u64> {
    (0..4u64).filter_map(move |place| {
        let digit = (permits >> (place as u32 * DIGIT_BITS)) & DIGIT_MASK;
        (digit > 0).then_some(time << TIME_SHIFT | place << DIGIT_BITS | digit)
    })
}

impl Default for EventLog {
    fn default() -> Self {
        EventLog {
            base: Micros::ZERO,
            oldest: NEVER,
            newest: Micros::ZERO,
            total: 0,
            words: RingBuffer::default(),
            recent: Recent::default(),
        }
    }
}

impl EventLog {
    /// Sum of all permits in the log.
    #[inline]
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Instant of the newest entry.
    #[inline]
    pub(super) fn newest(&self) -> Option<Micros> {
        (self.oldest != NEVER).then_some(self.newest)
    }

    #[cfg(test)]
    pub(super) fn corrupt_total(&mut self, total: u64) {
        self.total = total;
    }

    /// Instant of the oldest entry.
    pub(super) fn oldest(&self) -> Option<Micros> {
        (self.oldest != NEVER).then_some(self.oldest)
    }

    /// All entries, oldest first, one per instant.
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

    /// Removes entries admitted at or before `until`; returns true if there were any.
    #[inline]
    pub(super) fn forget(&mut self, until: Micros) -> bool {
        if self.oldest > until {
            return false;
        }
        self.forget_some(until);
        true
    }

    /// Adds `cost` permits at `at`. The log never needs more than `capacity` words, so its memory never grows beyond
    /// that.
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

    /// Fast path for many admissions in one microsecond. Returns false if they do not fit into the newest word.
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

    /// Replaces `from` of the permits admitted at `at` by `to`, but raises the total to at most `most`. Returns false
    /// if there is no entry at `at`.
    pub(super) fn amend(&mut self, at: Micros, from: u64, to: u64, most: u64) -> bool {
        self.flush(u64::MAX);
        let recorded = self.at(at);
        if recorded == 0 {
            return false;
        }
        let room = most.saturating_sub(self.total - recorded);
        self.put(at, (recorded.saturating_sub(from) + to).min(room));
        true
    }

    /// Removes the oldest permits until at most `keep` are left.
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
        self.update_ends();
    }

    /// Returns the instant of the entry whose expiry frees the last of `needed` permits. Entries expire from the oldest
    /// on.
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

    /// Frees memory that the log has not needed for a while.
    pub(super) fn shrink(&mut self) {
        self.words.shrink();
    }

    /// Number of words and recent admissions. A large number of permits at one instant takes up to four words.
    pub(super) fn len(&self) -> usize {
        self.words.len() + usize::from(self.recent.len)
    }

    /// Heap bytes in use.
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
                self.update_ends();
                self.forget(until);
            }
            None => self.update_ends(),
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

    /// Moves the recent admissions to the words.
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

    /// Permits admitted at the instant `at`. The recent admissions must be flushed.
    fn at(&self, at: Micros) -> u64 {
        self.range(at).filter_map(|i| self.words.get(i)).map(permits).sum()
    }

    /// Sets the permits admitted at the instant `at` to `cost`.
    fn put(&mut self, at: Micros, cost: u64) {
        self.total = self.total - self.at(at) + cost;
        let range = self.range(at);
        let new = words(at.since(self.base).get(), cost);
        self.words.splice(range, new);
        self.update_ends();
    }

    fn iter(&self) -> impl Iterator<Item = (Micros, u64)> {
        let gaps = &self.recent.gaps[..usize::from(self.recent.len)];
        let recent = (0..gaps.len()).map(move |i| (Micros::new(self.newest.get() - sum(&gaps[i + 1..])), 1));
        self.words.iter().map(|word| (self.instant(word), permits(word))).chain(recent)
    }

    /// Updates `oldest` and `newest`. The recent admissions must be flushed.
    fn update_ends(&mut self) {
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

    /// Moves `base` to the oldest entry, so that the offset of `at` fits.
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
