//! Extended admissions of a `concurrency` limit, and the instants from which they count now.
//!
//! The holder of a permit always identifies it by its admission, even after extensions.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use crate::Micros;

/// Extended admissions of one key, by an identifier `N` that is unique within the key.
#[derive(Clone, Debug)]
pub(crate) struct Extensions<N> {
    instants: HashMap<N, Micros, foldhash::quality::RandomState>,
    /// All extensions, oldest first. If an admission was extended again, only its last extension is valid.
    by_age: VecDeque<(Micros, N)>,
}

impl<N> Default for Extensions<N> {
    fn default() -> Self {
        Extensions { instants: HashMap::default(), by_age: VecDeque::new() }
    }
}

impl<N: Copy + Eq + Hash> Extensions<N> {
    /// Returns the instant from which an admission counts, if it was extended.
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

    /// Forgets the admissions for whose last extension `left` returns true.
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

    /// Heap bytes in use.
    pub(crate) fn bytes(&self) -> usize {
        // A hash table has a control byte per bucket, and leaves an eighth of its buckets empty.
        let table = match self.instants.capacity() {
            0 => 0,
            capacity => (capacity + 1).next_power_of_two() * (size_of::<(N, Micros)>() + 1) + 16,
        };
        table + self.by_age.capacity() * size_of::<(Micros, N)>()
    }

    /// Upper bound of the heap bytes that one more extension takes.
    pub(crate) fn growth(&self) -> usize {
        let full = self.instants.len() == self.instants.capacity();
        let long = self.by_age.len() == self.by_age.capacity();
        if full || long { self.bytes() + 256 } else { 0 }
    }
}
