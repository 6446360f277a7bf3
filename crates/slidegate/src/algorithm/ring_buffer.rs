//! Ring buffer of words. It takes three quarters of the size of a `VecDeque`, and grows up to a given capacity.

use std::ops::Range;

/// The order of the fields is fixed, because `EventLog` contains this buffer and places its fields in cache lines.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub(super) struct RingBuffer {
    slots: Box<[u64]>,
    head: u32,
    len: u32,
}

impl RingBuffer {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    pub(super) fn get(&self, i: usize) -> Option<u64> {
        (i < self.len as usize).then(|| self.slots[self.slot_index(i)])
    }

    #[inline]
    pub(super) fn front(&self) -> Option<u64> {
        self.get(0)
    }

    #[inline]
    pub(super) fn back_mut(&mut self) -> Option<&mut u64> {
        let last = (self.len as usize).checked_sub(1)?;
        let slot = self.slot_index(last);
        Some(&mut self.slots[slot])
    }

    #[inline]
    pub(super) fn pop_front(&mut self) {
        if self.len > 0 {
            self.head = self.slot_index(1) as u32;
            self.len -= 1;
        }
    }

    /// Drops words from the front while they are `gone`; returns the first remaining word, if there is one.
    #[inline]
    pub(super) fn pop_while(&mut self, mut gone: impl FnMut(u64) -> bool) -> Option<u64> {
        let (mut head, mut len) = (self.head as usize, self.len);
        let first = loop {
            if len == 0 {
                break None;
            }
            let word = self.slots[head];
            if !gone(word) {
                break Some(word);
            }
            head = if head + 1 < self.slots.len() { head + 1 } else { 0 };
            len -= 1;
        };
        (self.head, self.len) = (head as u32, len);
        first
    }

    /// Appends `n` words; grows like [`RingBuffer::push_back`].
    #[inline]
    pub(super) fn extend(&mut self, n: usize, words: impl Iterator<Item = u64>, most: u64) {
        while self.len as usize + n > self.slots.len() {
            self.grow(most);
        }
        let mut slot = self.slot_index(self.len as usize);
        let mut added = 0;
        for word in words.take(n) {
            self.slots[slot] = word;
            slot = if slot + 1 < self.slots.len() { slot + 1 } else { 0 };
            added += 1;
        }
        self.len += added;
    }

    /// Appends a word. The capacity doubles when needed, but exceeds `most` slots only if more words than that must be
    /// stored.
    #[inline]
    pub(super) fn push_back(&mut self, word: u64, most: u64) {
        if self.len as usize == self.slots.len() {
            self.grow(most);
        }
        let slot = self.slot_index(self.len as usize);
        self.slots[slot] = word;
        self.len += 1;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        (0..self.len as usize).map(|i| self.slots[self.slot_index(i)])
    }

    pub(super) fn for_each_mut(&mut self, change: impl FnMut(&mut u64)) {
        self.resize(self.slots.len());
        self.slots[..self.len as usize].iter_mut().for_each(change);
    }

    /// Returns the first index for which `before` is false. `before` must be true for a prefix and false for the rest.
    pub(super) fn partition_point(&self, before: impl Fn(u64) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len as usize);
        while low < high {
            let middle = (low + high) / 2;
            if before(self.slots[self.slot_index(middle)]) { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Replaces the words of `range`. Moves all words after it if the number of words changes.
    pub(super) fn splice(&mut self, range: Range<usize>, words: impl Iterator<Item = u64>) {
        let mut new: Vec<u64> = words.collect();
        if new.len() != range.len() {
            let behind = range.end..self.len as usize;
            new.extend(behind.map(|i| self.slots[self.slot_index(i)]));
            self.len = range.start as u32;
        }
        for (i, word) in new.into_iter().enumerate() {
            if range.start + i < self.len as usize {
                let slot = self.slot_index(range.start + i);
                self.slots[slot] = word;
            } else {
                self.push_back(word, u64::MAX);
            }
        }
    }

    pub(super) fn shrink(&mut self) {
        let len = self.len as usize;
        if self.slots.len() > 16 && len * 4 < self.slots.len() {
            self.resize(len * 2);
        }
    }

    #[inline]
    fn slot_index(&self, i: usize) -> usize {
        let slot = self.head as usize + i;
        if slot < self.slots.len() { slot } else { slot - self.slots.len() }
    }

    #[cold]
    fn grow(&mut self, most: u64) {
        let capacity = self.slots.len();
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        self.resize((capacity * 2).max(4).min(most).max(capacity + 1));
    }

    fn resize(&mut self, capacity: usize) {
        let mut slots = Vec::with_capacity(capacity);
        slots.extend(self.iter());
        slots.resize(capacity, 0);
        self.slots = slots.into_boxed_slice();
        self.head = 0;
    }
}
