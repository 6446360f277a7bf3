//! Which admissions of a `concurrency` limit were extended, and under which instant they count now.
//!
//! Whoever holds a permit names it by when it was admitted, however often it is extended.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use crate::Micros;

/// By what tells admissions of one key apart.
#[derive(Clone, Debug)]
pub(crate) struct Moved<N> {
    instants: HashMap<N, Micros, foldhash::quality::RandomState>,
    /// In the order they were extended; some have been again since.
    by_age: VecDeque<(Micros, N)>,
}

impl<N> Default for Moved<N> {
    fn default() -> Self {
        Moved { instants: HashMap::default(), by_age: VecDeque::new() }
    }
}

impl<N: Copy + Eq + Hash> Moved<N> {
    /// The instant that an admission counts from, if it was extended.
    pub(crate) fn find(&self, number: N) -> Option<Micros> {
        self.instants.get(&number).copied()
    }

    pub(crate) fn extend(&mut self, number: N, to: Micros) {
        if self.by_age.len() > 2 * self.instants.len() + 16 {
            let instants = &self.instants;
            self.by_age.retain(|(at, number)| instants.get(number) == Some(at));
        }
        self.instants.insert(number, to);
        self.by_age.push_back((to, number));
    }

    /// Forgets what was extended last at instants that have `left`.
    pub(crate) fn forget(&mut self, left: impl Fn(Micros) -> bool) {
        while let Some(&(at, number)) = self.by_age.front()
            && left(at)
        {
            self.by_age.pop_front();
            if self.instants.get(&number) == Some(&at) {
                self.instants.remove(&number);
            }
        }
    }

    pub(crate) fn newest(&self) -> Option<Micros> {
        self.by_age.back().map(|(at, _)| *at)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_age.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_age.len()
    }
}
