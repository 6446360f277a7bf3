//! What this node had admitted of one key, each with its exact instant: eight bytes an admission.

use std::collections::VecDeque;

use crate::Micros;

const COST_BITS: u32 = 15;
/// The cost is among the big ones.
const BIG: u64 = (1 << COST_BITS) - 1;
const UNWRITTEN: u64 = 1 << COST_BITS;
const TIME_SHIFT: u32 = COST_BITS + 1;
/// Instants are kept modulo this: almost nine years.
const TIMES: u64 = 1 << (64 - TIME_SHIFT);

/// One admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Noted {
    pub(super) at: Micros,
    pub(super) cost: u64,
    /// Whether the store has it; one that was made without the store must be written to it yet.
    pub(super) written: bool,
}

/// Admissions in the order of their instants.
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    /// From the top: instant, whether it is unwritten, cost.
    words: VecDeque<u64>,
    big: Vec<(Micros, u64)>,
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
        let small = if cost < BIG {
            cost
        } else {
            self.big.push((at, cost));
            BIG
        };
        let word = ((at.get() % TIMES) << TIME_SHIFT) | if written { 0 } else { UNWRITTEN } | small;
        // Answers come in about the order of their instants.
        let mut place = self.words.len();
        while place > 0 && self.at(self.words[place - 1]) > at {
            place -= 1;
        }
        self.words.insert(place, word);
    }

    /// Forgets what was admitted up to `cut`; how many.
    pub(super) fn trim(&mut self, cut: Micros) -> usize {
        let mut gone = 0;
        while let Some(&word) = self.words.front()
            && self.at(word) <= cut
        {
            self.words.pop_front();
            gone += 1;
        }
        if gone > 0 && !self.big.is_empty() {
            self.big.retain(|(at, _)| *at > cut);
        }
        if self.words.len() * 4 < self.words.capacity() && self.words.capacity() > 64 {
            self.words.shrink_to(self.words.len() * 2);
        }
        gone
    }

    /// Oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = Noted> {
        self.words.iter().map(|&word| self.read(word))
    }

    /// The store has those of `some` that were unwritten; or does not, after all.
    pub(super) fn mark(&mut self, some: &[Noted], written: bool) {
        for noted in some.iter().filter(|noted| !noted.written) {
            let other = |word: u64| (word & UNWRITTEN != 0) == written && self.read(word).cost == noted.cost;
            if let Some(place) = self.find(noted.at, other) {
                self.words[place] ^= UNWRITTEN;
            }
        }
    }

    /// An admission of `from` at `at` really cost `to`; whether it was found.
    pub(super) fn settle(&mut self, at: Micros, from: u64, to: u64) -> bool {
        let cost_of = |log: &Log, word: u64| log.read(word).cost;
        let exact = self.find(at, |word| cost_of(self, word) == from);
        let Some(place) = exact.or_else(|| self.find(at, |word| cost_of(self, word) > from)) else {
            return false;
        };
        let noted = self.read(self.words[place]);
        self.words.remove(place);
        if let Some(big) = self.big.iter().position(|big| *big == (at, noted.cost)) {
            self.big.swap_remove(big);
        }
        let left = (noted.cost - from.min(noted.cost)).saturating_add(to);
        if left > 0 {
            self.add(Noted { cost: left, ..noted });
        }
        true
    }

    pub(super) fn bytes(&self) -> usize {
        self.words.capacity() * size_of::<u64>() + self.big.capacity() * size_of::<(Micros, u64)>()
    }

    fn find(&self, at: Micros, wanted: impl Fn(u64) -> bool) -> Option<usize> {
        let first = self.words.partition_point(|&word| self.at(word) < at);
        (first..self.words.len())
            .take_while(|&i| self.at(self.words[i]) == at)
            .find(|&i| wanted(self.words[i]))
    }

    fn at(&self, word: u64) -> Micros {
        let time = word >> TIME_SHIFT;
        Micros::new(self.base + (time.wrapping_sub(self.base) & (TIMES - 1)))
    }

    fn read(&self, word: u64) -> Noted {
        let at = self.at(word);
        let cost = match word & BIG {
            BIG => self.big.iter().find(|(then, _)| *then == at).map_or(BIG, |(_, cost)| *cost),
            small => small,
        };
        Noted { at, cost, written: word & UNWRITTEN == 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(at: u64, cost: u64, written: bool) -> Noted {
        Noted { at: Micros::new(at), cost, written }
    }

    #[test]
    fn keeps_instants_costs_and_order() {
        let now = 1_763_000_000_000_000;
        let mut log = Log::default();
        for (at, cost, written) in [(5, 1, true), (9, 70_000, false), (7, 3, true), (9, 2, true)] {
            log.add(noted(now + at, cost, written));
        }
        let all: Vec<Noted> = log.iter().collect();
        let expected = [(5, 1, true), (7, 3, true), (9, 70_000, false), (9, 2, true)]
            .map(|(a, c, w)| noted(now + a, c, w));
        assert_eq!(all, expected);
        log.mark(&all, true);
        assert!(log.iter().all(|noted| noted.written));
        log.mark(&all, false);
        assert_eq!(log.iter().collect::<Vec<_>>(), all);
        log.mark(&all, true);
        assert!(log.settle(Micros::new(now + 9), 2, 0));
        assert!(log.settle(Micros::new(now + 9), 70_000, 4));
        assert!(!log.settle(Micros::new(now + 8), 1, 0));
        assert_eq!(log.trim(Micros::new(now + 7)), 2);
        assert_eq!(log.iter().collect::<Vec<_>>(), [noted(now + 9, 4, true)]);
    }
}
