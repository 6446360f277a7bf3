//! What this node had admitted of one key, by exact instants: eight bytes an instant.

use std::collections::{BTreeMap, VecDeque};

use crate::Micros;

const COST_BITS: u32 = 15;
/// The cost is among the big ones.
const BIG: u64 = (1 << COST_BITS) - 1;
const UNWRITTEN: u64 = 1 << COST_BITS;
const TIME_SHIFT: u32 = COST_BITS + 1;
/// Instants are kept modulo this: almost nine years.
const TIMES: u64 = 1 << (64 - TIME_SHIFT);

/// What was admitted at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Noted {
    pub(super) at: Micros,
    pub(super) cost: u64,
    /// Whether the store has it; what was admitted without the store must be written to it yet.
    pub(super) written: bool,
}

/// Admissions in the order of their instants. Of one instant there is at most one that is written and one that
/// is not.
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    /// From the top: instant, whether it is unwritten, cost.
    words: VecDeque<u64>,
    big: BTreeMap<(Micros, bool), u64>,
    /// What instants are read from: somewhat before the first.
    base: u64,
}

impl Log {
    pub(super) fn len(&self) -> usize {
        self.words.len()
    }

    pub(super) fn add(&mut self, noted: Noted) {
        let Noted { at, cost, written } = noted;
        if self.words.is_empty() {
            self.base = at.get().saturating_sub(TIMES / 4);
        }
        match self.find(at, written) {
            Ok(place) => {
                let cost = self.read(self.words[place]).cost.saturating_add(cost);
                self.set(place, Noted { cost, ..noted });
            }
            Err(place) => {
                self.words.insert(place, 0);
                self.set(place, noted);
            }
        }
    }

    /// Forgets what was admitted up to `cut`.
    pub(super) fn trim(&mut self, cut: Micros) {
        while let Some(&word) = self.words.front()
            && self.at(word) <= cut
        {
            self.words.pop_front();
        }
        while let Some(oldest) = self.big.first_entry()
            && oldest.key().0 <= cut
        {
            oldest.remove();
        }
        if self.words.len() * 4 < self.words.capacity() && self.words.capacity() > 64 {
            self.words.shrink_to(self.words.len() * 2);
        }
    }

    /// Oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = Noted> {
        self.words.iter().map(|&word| self.read(word))
    }

    /// The store has these now.
    pub(super) fn mark_written(&mut self, written: &[Noted]) {
        for &Noted { at, cost, .. } in written.iter().filter(|noted| !noted.written) {
            // What was settled meanwhile is not there any more.
            let held = self.find(at, false).map_or(0, |place| self.read(self.words[place]).cost);
            let cost = cost.min(held);
            if cost > 0 && self.settle(at, cost, 0, false) {
                self.add(Noted { at, cost, written: true });
            }
        }
    }

    /// The store does not have these, after all.
    pub(super) fn mark_unwritten(&mut self, unwritten: &[Noted]) {
        for &Noted { at, cost, .. } in unwritten.iter().filter(|noted| !noted.written) {
            if self.settle(at, cost, 0, true) {
                self.add(Noted { at, cost, written: false });
            }
        }
    }

    /// Of what was admitted at `at`, `from` really cost `to`; whether that much was found.
    pub(super) fn settle(&mut self, at: Micros, from: u64, to: u64, written: bool) -> bool {
        let Ok(place) = self.find(at, written) else { return false };
        let noted = self.read(self.words[place]);
        if noted.cost < from {
            return false;
        }
        let cost = (noted.cost - from).saturating_add(to);
        if cost > 0 {
            self.set(place, Noted { cost, ..noted });
        } else {
            self.words.remove(place);
            self.big.remove(&(at, written));
        }
        true
    }

    pub(super) fn bytes(&self) -> usize {
        // A node of the tree has room for eleven.
        self.words.capacity() * size_of::<u64>() + self.big.len() * 48
    }

    /// Where what was admitted at `at` is, or would be.
    fn find(&self, at: Micros, written: bool) -> Result<usize, usize> {
        // Answers come in about the order of their instants.
        let mut place = self.words.len();
        while place > 0 && self.at(self.words[place - 1]) > at {
            place -= 1;
            if self.words.len() - place > 16 {
                place = self.words.partition_point(|&word| self.at(word) <= at);
                break;
            }
        }
        let end = place;
        while place > 0 && self.at(self.words[place - 1]) == at {
            place -= 1;
            if (self.words[place] & UNWRITTEN == 0) == written {
                return Ok(place);
            }
        }
        Err(end)
    }

    fn set(&mut self, place: usize, noted: Noted) {
        let Noted { at, cost, written } = noted;
        let small = if cost < BIG {
            self.big.remove(&(at, written));
            cost
        } else {
            self.big.insert((at, written), cost);
            BIG
        };
        self.words[place] = ((at.get() % TIMES) << TIME_SHIFT) | if written { 0 } else { UNWRITTEN } | small;
    }

    fn at(&self, word: u64) -> Micros {
        let time = word >> TIME_SHIFT;
        Micros::new(self.base + (time.wrapping_sub(self.base) & (TIMES - 1)))
    }

    fn read(&self, word: u64) -> Noted {
        let (at, written) = (self.at(word), word & UNWRITTEN == 0);
        let cost = match word & BIG {
            BIG => self.big.get(&(at, written)).copied().unwrap_or(BIG),
            small => small,
        };
        Noted { at, cost, written }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_763_000_000_000_000;

    fn noted(at: u64, cost: u64, written: bool) -> Noted {
        Noted { at: Micros::new(NOW + at), cost, written }
    }

    fn log(all: &[(u64, u64, bool)]) -> Log {
        let mut log = Log::default();
        all.iter().for_each(|&(at, cost, written)| log.add(noted(at, cost, written)));
        log
    }

    fn all(log: &Log) -> Vec<(u64, u64, bool)> {
        log.iter().map(|noted| (noted.at.get() - NOW, noted.cost, noted.written)).collect()
    }

    #[test]
    fn one_instant_is_one_word() {
        let log = log(&[
            (5, 1, true),
            (9, 70_000, false),
            (7, 3, true),
            (9, 2, true),
            (9, 40_000, false),
            (5, 1, true),
        ]);
        assert_eq!(all(&log), [(5, 2, true), (7, 3, true), (9, 110_000, false), (9, 2, true)]);
    }

    #[test]
    fn what_is_written_is_told_from_what_came_meanwhile() {
        let mut log = log(&[(9, 40_000, false), (9, 2, true), (11, 1, false)]);
        let snapshot: Vec<Noted> = log.iter().collect();
        log.add(noted(9, 5, false));
        assert!(log.settle(Micros::new(NOW + 11), 1, 0, false));
        log.mark_written(&snapshot);
        assert_eq!(all(&log), [(9, 5, false), (9, 40_002, true)]);
        log.mark_unwritten(&snapshot[..1]);
        assert_eq!(all(&log), [(9, 40_005, false), (9, 2, true)]);
    }

    #[test]
    fn settling_takes_only_what_is_there() {
        let mut log = log(&[(5, 3, true), (9, 70_000, true)]);
        assert!(!log.settle(Micros::new(NOW + 5), 4, 0, true));
        assert!(!log.settle(Micros::new(NOW + 5), 3, 0, false));
        assert!(!log.settle(Micros::new(NOW + 6), 1, 0, true));
        assert!(log.settle(Micros::new(NOW + 9), 70_000, 4, true));
        assert!(log.settle(Micros::new(NOW + 5), 3, 0, true));
        assert_eq!(all(&log), [(9, 4, true)]);
    }

    #[test]
    fn trimming_forgets_the_oldest() {
        let mut log = log(&[(5, 1, true), (7, 50_000, true), (9, 60_000, true)]);
        log.trim(Micros::new(NOW + 7));
        assert_eq!(all(&log), [(9, 60_000, true)]);
        assert_eq!(log.big.len(), 1);
    }
}
