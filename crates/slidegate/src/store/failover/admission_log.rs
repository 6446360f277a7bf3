//! Log of this node's admissions of one key, by exact instant, in eight bytes per instant.

use std::collections::{BTreeMap, VecDeque};

use crate::Micros;

const COST_BITS: u32 = 15;
/// Marks a cost that does not fit into the word and is stored in `AdmissionLog::big`.
const BIG_COST: u64 = (1 << COST_BITS) - 1;
const UNWRITTEN: u64 = 1 << COST_BITS;
const TIME_SHIFT: u32 = COST_BITS + 1;
/// Instants are stored modulo this number of microseconds: almost nine years.
const TIME_RANGE: u64 = 1 << (64 - TIME_SHIFT);

/// Permits admitted at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Admission {
    pub(super) at: Micros,
    pub(super) cost: u64,
    /// True if the store has counted it. An admission made without the store must still be written back.
    pub(super) written: bool,
}

/// Admissions in the order of their instants. One instant has at most one written and one unwritten admission.
#[derive(Clone, Debug, Default)]
pub(super) struct AdmissionLog {
    /// One word per admission, from the top bit: instant, unwritten flag, cost.
    words: VecDeque<u64>,
    /// Costs that do not fit into a word, by instant and written flag.
    big: BTreeMap<(Micros, bool), u64>,
    /// Start of the `TIME_RANGE` that contains all stored instants, somewhat before the first instant.
    base: u64,
}

impl AdmissionLog {
    pub(super) fn len(&self) -> usize {
        self.words.len()
    }

    pub(super) fn add(&mut self, admission: Admission) {
        let Admission { at, cost, written } = admission;
        if self.words.is_empty() {
            self.base = at.get().saturating_sub(TIME_RANGE / 4);
        }
        match self.find(at, written) {
            Ok(index) => {
                let cost = self.decode(self.words[index]).cost.saturating_add(cost);
                self.write(index, Admission { cost, ..admission });
            }
            Err(index) => {
                self.words.insert(index, 0);
                self.write(index, admission);
            }
        }
    }

    /// Drops the admissions up to `cut`.
    pub(super) fn trim(&mut self, cut: Micros) {
        while let Some(&word) = self.words.front()
            && self.time_of(word) <= cut
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

    /// Iterates from the oldest admission on.
    pub(super) fn iter(&self) -> impl Iterator<Item = Admission> {
        self.words.iter().map(|&word| self.decode(word))
    }

    /// Marks these unwritten admissions as written.
    pub(super) fn mark_written(&mut self, written: &[Admission]) {
        for &Admission { at, cost, .. } in written.iter().filter(|admission| !admission.written) {
            // A settlement may have removed some of them meanwhile.
            let present = self.find(at, false).map_or(0, |index| self.decode(self.words[index]).cost);
            let cost = cost.min(present);
            if cost > 0 && self.settle(at, cost, 0, false) {
                self.add(Admission { at, cost, written: true });
            }
        }
    }

    /// Marks these admissions as unwritten again.
    pub(super) fn mark_unwritten(&mut self, unwritten: &[Admission]) {
        for &Admission { at, cost, .. } in unwritten.iter().filter(|admission| !admission.written) {
            if self.settle(at, cost, 0, true) {
                self.add(Admission { at, cost, written: false });
            }
        }
    }

    /// Replaces `from` permits admitted at `at` by `to` permits. Returns false if fewer than `from` are there.
    pub(super) fn settle(&mut self, at: Micros, from: u64, to: u64, written: bool) -> bool {
        let Ok(index) = self.find(at, written) else { return false };
        let admission = self.decode(self.words[index]);
        if admission.cost < from {
            return false;
        }
        let cost = (admission.cost - from).saturating_add(to);
        if cost > 0 {
            self.write(index, Admission { cost, ..admission });
        } else {
            self.words.remove(index);
            self.big.remove(&(at, written));
        }
        true
    }

    pub(super) fn bytes(&self) -> usize {
        // A node of the B-tree has room for eleven entries, so 48 bytes per entry include the room that is not used.
        self.words.capacity() * size_of::<u64>() + self.big.len() * 48
    }

    /// Returns the index of the admission at `at`, or else the index at which to insert it.
    fn find(&self, at: Micros, written: bool) -> Result<usize, usize> {
        // Answers arrive in about the order of their instants, so the search starts at the end.
        let mut index = self.words.len();
        while index > 0 && self.time_of(self.words[index - 1]) > at {
            index -= 1;
            if self.words.len() - index > 16 {
                index = self.words.partition_point(|&word| self.time_of(word) <= at);
                break;
            }
        }
        let end = index;
        while index > 0 && self.time_of(self.words[index - 1]) == at {
            index -= 1;
            if (self.words[index] & UNWRITTEN == 0) == written {
                return Ok(index);
            }
        }
        Err(end)
    }

    fn write(&mut self, index: usize, admission: Admission) {
        let Admission { at, cost, written } = admission;
        let small = if cost < BIG_COST {
            self.big.remove(&(at, written));
            cost
        } else {
            self.big.insert((at, written), cost);
            BIG_COST
        };
        self.words[index] =
            ((at.get() % TIME_RANGE) << TIME_SHIFT) | if written { 0 } else { UNWRITTEN } | small;
    }

    fn time_of(&self, word: u64) -> Micros {
        let time = word >> TIME_SHIFT;
        Micros::new(self.base + (time.wrapping_sub(self.base) & (TIME_RANGE - 1)))
    }

    fn decode(&self, word: u64) -> Admission {
        let (at, written) = (self.time_of(word), word & UNWRITTEN == 0);
        let cost = match word & BIG_COST {
            BIG_COST => self.big.get(&(at, written)).copied().unwrap_or(BIG_COST),
            small => small,
        };
        Admission { at, cost, written }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_763_000_000_000_000;

    fn admission(at: u64, cost: u64, written: bool) -> Admission {
        Admission { at: Micros::new(NOW + at), cost, written }
    }

    fn log(all: &[(u64, u64, bool)]) -> AdmissionLog {
        let mut log = AdmissionLog::default();
        all.iter().for_each(|&(at, cost, written)| log.add(admission(at, cost, written)));
        log
    }

    fn all(log: &AdmissionLog) -> Vec<(u64, u64, bool)> {
        log.iter().map(|admission| (admission.at.get() - NOW, admission.cost, admission.written)).collect()
    }

    #[test]
    fn stores_one_word_per_instant() {
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
    fn marks_only_the_admissions_of_the_snapshot_as_written() {
        let mut log = log(&[(9, 40_000, false), (9, 2, true), (11, 1, false)]);
        let snapshot: Vec<Admission> = log.iter().collect();
        log.add(admission(9, 5, false));
        assert!(log.settle(Micros::new(NOW + 11), 1, 0, false));
        log.mark_written(&snapshot);
        assert_eq!(all(&log), [(9, 5, false), (9, 40_002, true)]);
        log.mark_unwritten(&snapshot[..1]);
        assert_eq!(all(&log), [(9, 40_005, false), (9, 2, true)]);
    }

    #[test]
    fn settles_only_costs_that_were_recorded() {
        let mut log = log(&[(5, 3, true), (9, 70_000, true)]);
        assert!(!log.settle(Micros::new(NOW + 5), 4, 0, true));
        assert!(!log.settle(Micros::new(NOW + 5), 3, 0, false));
        assert!(!log.settle(Micros::new(NOW + 6), 1, 0, true));
        assert!(log.settle(Micros::new(NOW + 9), 70_000, 4, true));
        assert!(log.settle(Micros::new(NOW + 5), 3, 0, true));
        assert_eq!(all(&log), [(9, 4, true)]);
    }

    #[test]
    fn trims_the_oldest_admissions() {
        let mut log = log(&[(5, 1, true), (7, 50_000, true), (9, 60_000, true)]);
        log.trim(Micros::new(NOW + 7));
        assert_eq!(all(&log), [(9, 60_000, true)]);
        assert_eq!(log.big.len(), 1);
    }
}
