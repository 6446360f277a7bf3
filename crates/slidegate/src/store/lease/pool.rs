//! Pool of the permits of one key that are held in advance. The pool reads no clock: the caller passes the time.

use std::collections::VecDeque;

use crate::rules::MAX_LEASE;
use crate::{Check, Entry, Micros, Outcome, Quota, Source, Verdict, Verdicts};

/// Number of permits in the first block, and in the smallest block.
const MIN_BLOCK: u32 = 8;

/// A block has at most this fraction (one quarter) of the permits that remain of the limit.
const REMAINING_DIVISOR: u64 = 4;

/// A block ends earlier by this fraction of its lifetime (one thousandth), because the clocks of the node and of the
/// store may drift apart. The drift is assumed to be smaller than this fraction.
const CLOCK_DRIFT_DIVISOR: u64 = 1_000;

/// Permits that were taken in one call.
pub(super) struct Block {
    number: u64,
    quota: Quota,
    cost: u64,
    /// Time of the admission, by the store's clock.
    at: Micros,
    /// Time at which the permits were requested, by this node's clock.
    sent: Micros,
    /// Time after which no permit may be handed out, by this node's clock.
    pub(super) until: Micros,
    /// Verdicts of the permits that are not handed out yet, in reverse order.
    verdicts: Vec<Verdict>,
    /// Number of permits in the block when it was created.
    size: usize,
}

/// Blocks of one key, and the size of the next one.
pub(super) struct Pool {
    blocks: VecDeque<Block>,
    /// Number of permits to request for the next block.
    next_size: u32,
    refilling: bool,
    /// True if a block was used up before it ended.
    ran_out: bool,
    /// Permits that remained of the limit at the last answer of the store.
    pub(super) remaining: u64,
    /// Number of the last block.
    last_block: u64,
}

/// A permit that was handed out.
pub(super) struct HandedPermit {
    /// Verdict of the store when the permit was taken.
    pub(super) original: Verdict,
    block: u64,
    /// Time since the permit was requested from the store.
    elapsed: Micros,
    /// Current time on the store's clock.
    pub(super) at: Micros,
}

impl HandedPermit {
    pub(super) fn verdict(&self) -> Verdict {
        Verdict { reset_after: self.original.reset_after.since(self.elapsed), ..self.original }
    }
}

impl Default for Pool {
    fn default() -> Self {
        Pool {
            blocks: VecDeque::new(),
            next_size: MIN_BLOCK,
            refilling: false,
            ran_out: false,
            remaining: 0,
            last_block: 0,
        }
    }
}

impl Block {
    /// Creates a block of the permits that the store granted. It also returns the permits that cannot be held and
    /// must be given back.
    pub(super) fn new(
        number: u64,
        check: &Check,
        batch_verdicts: &[Verdicts],
        sent: Micros,
    ) -> (Self, Vec<Entry>) {
        let (mut verdicts, mut give_back) = (Vec::with_capacity(batch_verdicts.len()), Vec::new());
        let (mut at, mut ends) = (Micros::ZERO, Micros::ZERO);
        for call_verdicts in batch_verdicts {
            let Some(verdict) = call_verdicts.verdicts.first().filter(|v| v.outcome == Outcome::Charged)
            else {
                continue;
            };
            if call_verdicts.source != Source::Store {
                give_back.push(verdict.entry);
                continue;
            }
            (at, ends) = (call_verdicts.at, verdict.entry.at);
            verdicts.push(*verdict);
        }
        // The store may have evaluated the permits in several calls. Permits of earlier calls whose slice ends earlier
        // are not held.
        let in_last_call = |verdict: &Verdict| verdict.entry.at == ends;
        give_back
            .extend(verdicts.iter().filter(|verdict| !in_last_call(verdict)).map(|verdict| verdict.entry));
        verdicts.retain(in_last_call);
        verdicts.reverse();
        // The admission has the timestamp of the slice's end. The slice may have ended before the call, if the time of
        // the key stood still.
        let lifetime = ends.since(at);
        let lifetime = lifetime.since(Micros::new(lifetime.get().div_ceil(CLOCK_DRIFT_DIVISOR)));
        let size = verdicts.len();
        let (quota, cost, until) = (check.quota, check.cost, sent.plus(lifetime));
        (Block { number, quota, cost, at, sent, until, verdicts, size }, give_back)
    }

    pub(super) fn into_entries(self) -> Vec<Entry> {
        self.verdicts.into_iter().map(|verdict| verdict.entry).collect()
    }
}

impl Pool {
    /// Returns the number of permits held.
    pub(super) fn idle(&self) -> u64 {
        self.blocks.iter().map(|block| block.verdicts.len() as u64 * block.cost).sum()
    }

    /// Hands out a permit for `check`.
    #[inline]
    pub(super) fn hand_out(&mut self, check: &Check, now: Micros) -> Option<HandedPermit> {
        let suits =
            |block: &Block| now < block.until && block.cost == check.cost && block.quota == check.quota;
        let index = self.blocks.iter().position(suits)?;
        let block = &mut self.blocks[index];
        let original = block.verdicts.pop()?;
        let elapsed = now.since(block.sent);
        let handed = HandedPermit { original, block: block.number, elapsed, at: block.at.plus(elapsed) };
        if block.verdicts.is_empty() {
            self.blocks.remove(index);
            self.ran_out = true;
        }
        Some(handed)
    }

    /// Takes back a permit that was not needed; returns false if its block has ended.
    pub(super) fn put_back(&mut self, handed: HandedPermit) -> bool {
        let block = self.blocks.iter_mut().find(|block| block.number == handed.block);
        block.map(|block| block.verdicts.push(handed.original)).is_some()
    }

    /// Returns the number of permits to take now, if any. The caller must then take them.
    #[inline]
    pub(super) fn begin_refill(&mut self, check: &Check, now: Micros) -> Option<u32> {
        if self.refilling {
            return None;
        }
        let current = self.blocks.back().filter(|block| now < block.until && block.quota == check.quota);
        // More than half of the last block is left, so no new block is needed.
        if current.is_some_and(|block| block.verdicts.len() * 2 > block.size) {
            return None;
        }
        let max_permits = check.lease.map_or(0, |lease| u64::from(lease.get()));
        let max_part = self.remaining / REMAINING_DIVISOR / check.cost;
        let permits = u64::from(self.next_size).min(max_permits).min(max_part);
        // A block of one permit saves no call to the store.
        if permits < 2 {
            return None;
        }
        self.refilling = true;
        u32::try_from(permits).ok()
    }

    /// Adds a block. `wanted` is the number of permits that were requested.
    pub(super) fn add_block(&mut self, block: Block, wanted: u32) {
        self.refilling = false;
        if std::mem::take(&mut self.ran_out) {
            self.next_size = self.next_size.saturating_mul(2).min(MAX_LEASE);
        }
        self.remaining = block.verdicts.first().map_or(0, Verdict::remaining);
        if block.size < wanted as usize {
            // The store granted fewer permits than requested, so the limit is near. The last permits are not taken in
            // advance.
            self.remaining = 0;
        }
        self.last_block = block.number;
        if block.size > 0 {
            self.blocks.push_back(block);
        }
    }

    /// Records that no block could be taken; returns whether the pool can be removed.
    pub(super) fn refill_failed(&mut self) -> bool {
        self.refilling = false;
        self.remaining = 0;
        self.blocks.is_empty()
    }

    /// Ends a block; returns its unused permits.
    pub(super) fn end_block(&mut self, number: u64) -> Vec<Entry> {
        let Some(index) = self.blocks.iter().position(|block| block.number == number) else {
            return Vec::new();
        };
        let Some(block) = self.blocks.remove(index) else { return Vec::new() };
        if block.verdicts.len() * 2 > block.size {
            self.next_size = (self.next_size / 2).max(MIN_BLOCK);
        }
        block.into_entries()
    }

    /// Returns whether no block was taken after block `number`, and no permit is held.
    pub(super) fn is_unused_since(&self, number: u64) -> bool {
        self.blocks.is_empty() && !self.refilling && self.last_block == number
    }

    /// Removes all permits.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Entry> {
        self.blocks.drain(..).flat_map(|block| block.verdicts).map(|verdict| verdict.entry)
    }
}
