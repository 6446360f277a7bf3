//! What is held in advance of one key. Pure: time goes in.

use std::collections::VecDeque;

use crate::{Check, Entry, MAX_LEASE, Micros, Outcome, Quota, Source, Verdict, Verdicts};

/// What is taken the first time.
const FIRST: u32 = 8;

/// Of what remains of the limit, one node takes no more than this part at once.
const PART: u64 = 4;

/// Clocks run apart by less than this part: a block ends here so much earlier.
const DRIFT: u64 = 1_000;

/// Permits that were taken together.
pub(super) struct Block {
    number: u64,
    quota: Quota,
    cost: u64,
    /// When they were admitted, by the store's clock, and when they were asked for, by ours.
    at: Micros,
    sent: Micros,
    until: Micros,
    /// Last first.
    verdicts: Vec<Verdict>,
    taken: usize,
}

/// What is held of one key.
pub(super) struct Pool {
    blocks: VecDeque<Block>,
    /// How many to take next.
    size: u32,
    taking: bool,
    /// Everything of a block was asked for before it ended.
    ran_out: bool,
    /// What remained of the limit when the store was last asked.
    remaining: u64,
    /// The number of the last block.
    last: u64,
}

/// An admission that was handed out.
pub(super) struct Handed {
    /// As it was when it was taken.
    taken: Verdict,
    block: u64,
    /// How long ago that was.
    passed: Micros,
    /// Now, by the store's clock.
    pub(super) at: Micros,
}

impl Handed {
    pub(super) fn verdict(&self) -> Verdict {
        Verdict { reset_after: self.taken.reset_after.since(self.passed), ..self.taken }
    }

    pub(super) fn entry(&self) -> Entry {
        self.taken.entry
    }
}

impl Default for Pool {
    fn default() -> Self {
        Pool { blocks: VecDeque::new(), size: FIRST, taking: false, ran_out: false, remaining: 0, last: 0 }
    }
}

impl Block {
    /// Of what the store granted; and what was granted by others, which is to be given back.
    pub(super) fn new(number: u64, check: &Check, readings: &[Verdicts], sent: Micros) -> (Self, Vec<Entry>) {
        let (mut verdicts, mut back) = (Vec::with_capacity(readings.len()), Vec::new());
        let (mut at, mut ends) = (Micros::ZERO, Micros::ZERO);
        for reading in readings {
            let Some(verdict) = reading.verdicts.first().filter(|v| v.outcome == Outcome::Charged) else {
                continue;
            };
            if reading.source != Source::Store {
                back.push(verdict.entry);
                continue;
            }
            (at, ends) = (reading.at, verdict.entry.at);
            verdicts.push(*verdict);
        }
        // They may have been judged in several calls; what came of the first ends first.
        let together = |verdict: &Verdict| verdict.entry.at == ends;
        back.extend(verdicts.iter().filter(|verdict| !together(verdict)).map(|verdict| verdict.entry));
        verdicts.retain(together);
        verdicts.reverse();
        // An admission of a slice is dated at the slice's end, which may lie before now if its key's clock had stopped.
        let lasts = ends.since(at);
        let lasts = lasts.since(Micros::new(lasts.get().div_ceil(DRIFT)));
        let taken = verdicts.len();
        let (quota, cost, until) = (check.quota, check.cost, sent.plus(lasts));
        (Block { number, quota, cost, at, sent, until, verdicts, taken }, back)
    }

    pub(super) fn into_entries(self) -> Vec<Entry> {
        self.verdicts.into_iter().map(|verdict| verdict.entry).collect()
    }

    /// When, by our clock, nothing of it may be handed out any more.
    pub(super) fn until(&self) -> Micros {
        self.until
    }
}

impl Pool {
    /// Permits that are held.
    pub(super) fn idle(&self) -> u64 {
        self.blocks.iter().map(|block| block.verdicts.len() as u64 * block.cost).sum()
    }

    /// One admission for `check`.
    #[inline]
    pub(super) fn hand_out(&mut self, check: &Check, now: Micros) -> Option<Handed> {
        let suits =
            |block: &Block| now < block.until && block.cost == check.cost && block.quota == check.quota;
        let place = self.blocks.iter().position(suits)?;
        let block = &mut self.blocks[place];
        let taken = block.verdicts.pop()?;
        let passed = now.since(block.sent);
        let handed = Handed { taken, block: block.number, passed, at: block.at.plus(passed) };
        if block.verdicts.is_empty() {
            self.blocks.remove(place);
            self.ran_out = true;
        }
        Some(handed)
    }

    /// It was not needed after all; false if its block has ended.
    pub(super) fn put_back(&mut self, handed: Handed) -> bool {
        let block = self.blocks.iter_mut().find(|block| block.number == handed.block);
        block.map(|block| block.verdicts.push(handed.taken)).is_some()
    }

    /// How many to take now, if any: the caller takes them.
    #[inline]
    pub(super) fn begins_to_take(&mut self, check: &Check, now: Micros) -> Option<u32> {
        if self.taking {
            return None;
        }
        let current = self.blocks.back().filter(|block| now < block.until && block.quota == check.quota);
        // While half of the last block is left, that will do.
        if current.is_some_and(|block| block.verdicts.len() * 2 > block.taken) {
            return None;
        }
        let most = check.lease.map_or(0, |lease| u64::from(lease.get()));
        let part = self.remaining / PART / check.cost;
        let permits = u64::from(self.size).min(most).min(part);
        // One alone is no better than to ask.
        if permits < 2 {
            return None;
        }
        self.taking = true;
        u32::try_from(permits).ok()
    }

    /// Somebody had to ask the store, with this remaining.
    pub(super) fn missed(&mut self, remaining: u64) {
        self.remaining = remaining;
    }

    /// What was taken.
    pub(super) fn add(&mut self, block: Block, wanted: u32) {
        self.taking = false;
        if std::mem::take(&mut self.ran_out) {
            self.size = self.size.saturating_mul(2).min(MAX_LEASE);
        }
        self.remaining = block.verdicts.first().map_or(0, Verdict::remaining);
        if block.taken < wanted as usize {
            // The limit is near: the last permits are not for taking in advance.
            self.remaining = 0;
        }
        self.last = block.number;
        if block.taken > 0 {
            self.blocks.push_back(block);
        }
    }

    /// Nothing could be taken. Whether there is nothing left to remember.
    pub(super) fn failed(&mut self) -> bool {
        self.taking = false;
        self.remaining = 0;
        self.blocks.is_empty()
    }

    /// A block has ended: what is left of it.
    pub(super) fn end(&mut self, number: u64) -> Vec<Entry> {
        let Some(place) = self.blocks.iter().position(|block| block.number == number) else {
            return Vec::new();
        };
        let Some(block) = self.blocks.remove(place) else { return Vec::new() };
        if block.verdicts.len() * 2 > block.taken {
            self.size = (self.size / 2).max(FIRST);
        }
        block.into_entries()
    }

    /// Whether nothing was taken after this block, and nothing is held.
    pub(super) fn is_unused_since(&self, number: u64) -> bool {
        self.blocks.is_empty() && !self.taking && self.last == number
    }

    /// Everything that is held.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Entry> {
        self.blocks.drain(..).flat_map(|block| block.verdicts).map(|verdict| verdict.entry)
    }
}
