//! What this node itself had admitted, key by key, for as long as it counts.
//!
//! It serves twice: decisions made without the store start from it, and a server that lost what it counted is
//! given it back. Bounded: when it is full, further keys and admissions are not remembered, and counted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::local::Local;
use super::log::{Log, Noted};
use crate::{Check, Encoding, Entry, Key, Micros, Outcome, Quota, Reading, State};

const SHARDS: usize = 32;

/// The bound on what decides without the store, when admissions are not remembered.
const MAX_WHEN_OFF: usize = 1_000_000;

/// What a key takes beside its admissions, in admissions.
const KEY_WEIGHT: usize = 16;

pub(super) struct Mirror {
    shards: Box<[Mutex<Records>]>,
    /// Whether admissions are remembered, or only what decides without the store.
    on: bool,
    max: usize,
    held: AtomicUsize,
    dropped: AtomicU64,
}

pub(super) type Records = HashMap<Key, Record, foldhash::quality::RandomState>;

/// One key.
pub(super) struct Record {
    pub(super) quota: Quota,
    pub(super) encoding: Encoding,
    pub(super) log: Log,
    /// When the store last answered for it, by its clock, and what was in use then.
    pub(super) seen: Micros,
    pub(super) used: u64,
    /// When the store last had no room for as much again.
    pub(super) full: Micros,
    /// What decides without the store.
    pub(super) local: Option<Box<Local>>,
}

/// How much is remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MirrorStats {
    /// Keys.
    pub keys: usize,
    /// Admissions of them.
    pub entries: usize,
    /// Bytes, about.
    pub bytes: usize,
    /// Admissions that were not remembered because it was full.
    pub dropped: u64,
}

/// A key, how it is counted, and what of it is to be written back.
pub(super) struct Owed {
    pub(super) key: Key,
    pub(super) quota: Quota,
    pub(super) encoding: Encoding,
    pub(super) entries: Vec<Noted>,
}

impl Record {
    fn new(check: &Check) -> Self {
        Record {
            quota: check.quota,
            encoding: check.encoding,
            log: Log::default(),
            seen: Micros::ZERO,
            used: 0,
            full: Micros::ZERO,
            local: None,
        }
    }

    /// What was admitted up to then has left by `now`.
    fn cut(&self, now: Micros) -> Micros {
        now.since(self.quota.horizon())
    }

    fn is_idle(&self, now: Micros) -> bool {
        self.log.len() == 0 && self.seen <= self.cut(now)
    }
}

impl Mirror {
    pub(super) fn new(max: usize) -> Self {
        Mirror {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            on: max > 0,
            max: if max > 0 { max } else { MAX_WHEN_OFF },
            held: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    /// Notes what the store answered.
    pub(super) fn answered(&self, checks: &[Check], reading: &Reading) {
        if !self.on {
            return;
        }
        for (check, verdict) in checks.iter().zip(&reading.verdicts) {
            // One that was found again by its id was noted the first time.
            let admitted =
                verdict.outcome == Outcome::Charged && check.cost > 0 && verdict.entry.at >= reading.at;
            let mut records = self.shard(&check.key);
            let Some(record) = self.record(&mut records, check) else { continue };
            record.seen = record.seen.max(reading.at);
            record.used = verdict.used;
            if verdict.used.saturating_add(check.cost) > verdict.limit {
                record.full = record.seen;
            }
            if admitted {
                let noted = Noted { at: verdict.entry.at, cost: check.cost, written: true };
                self.add(record, noted, reading.at);
            }
        }
    }

    /// Remembers an admission.
    pub(super) fn add(&self, record: &mut Record, noted: Noted, now: Micros) {
        if !self.on {
            return;
        }
        let gone = record.log.trim(record.cut(now));
        self.held.fetch_sub(gone, Ordering::Relaxed);
        if self.is_full() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        record.log.add(noted);
        self.held.fetch_add(1, Ordering::Relaxed);
    }

    /// The same, if it is one that the store does not have.
    pub(super) fn settled_unwritten(&self, key: &Key, entry: Entry, to: u64) -> bool {
        let mut records = self.shard(key);
        let Some(record) = records.get_mut(key) else { return false };
        if !record.log.iter().any(|noted| noted.at == entry.at && noted.cost == entry.cost && !noted.written)
        {
            return false;
        }
        drop(records);
        self.settled(key, entry.at, entry.cost, to)
    }

    /// An admission really cost something else; whether it was remembered.
    pub(super) fn settled(&self, key: &Key, at: Micros, from: u64, to: u64) -> bool {
        let mut records = self.shard(key);
        let Some(record) = records.get_mut(key) else { return false };
        let before = record.log.len();
        let found = record.log.settle(at, from, to);
        self.held.fetch_sub(before - record.log.len().min(before), Ordering::Relaxed);
        found
    }

    pub(super) fn forget(&self, key: &Key) {
        if let Some(record) = self.shard(key).remove(key) {
            self.held.fetch_sub(record.log.len() + KEY_WEIGHT, Ordering::Relaxed);
        }
    }

    /// Drops what no longer counts, of the keys that `ours` picks, and what decided them without their server.
    pub(super) fn sweep(&self, ours: impl Fn(&Key) -> bool, now: Micros) {
        for shard in &self.shards {
            shard.lock().retain(|key, record| {
                if !ours(key) {
                    return true;
                }
                record.local = None;
                let gone = record.log.trim(record.cut(now));
                let idle = record.is_idle(now);
                self.held.fetch_sub(if idle { gone + KEY_WEIGHT } else { gone }, Ordering::Relaxed);
                !idle
            });
        }
    }

    /// What the store does not have, of the keys that `ours` picks; or all that counts by `now`, if it `lost`
    /// what it had. In steps, so that nobody waits for all of it.
    pub(super) fn owed(
        &self,
        step: usize,
        ours: impl Fn(&Key) -> bool,
        lost: bool,
        now: Micros,
    ) -> Vec<Owed> {
        let Some(shard) = self.shards.get(step) else { return Vec::new() };
        let mut owed = Vec::new();
        for (key, record) in &mut *shard.lock() {
            let gone = record.log.trim(record.cut(now));
            self.held.fetch_sub(gone, Ordering::Relaxed);
            let entries: Vec<Noted> = record.log.iter().filter(|noted| lost || !noted.written).collect();
            if !entries.is_empty() && ours(key) {
                let (quota, encoding) = (record.quota, record.encoding);
                owed.push(Owed { key: key.clone(), quota, encoding, entries });
            }
        }
        owed
    }

    pub(super) const STEPS: usize = SHARDS;

    /// The store has what it did not have of these; or does not, after all.
    pub(super) fn mark(&self, owed: &Owed, written: bool) {
        if let Some(record) = self.shard(&owed.key).get_mut(&owed.key) {
            record.log.mark(&owed.entries, written);
        }
    }

    /// Walks over every key: for a metrics page, not for a hot path.
    pub(super) fn stats(&self) -> MirrorStats {
        let mut stats =
            MirrorStats { dropped: self.dropped.load(Ordering::Relaxed), ..MirrorStats::default() };
        for shard in &self.shards {
            let records = shard.lock();
            stats.keys += records.len();
            stats.bytes += records.capacity() * size_of::<(Key, Record)>();
            for record in records.values() {
                stats.entries += record.log.len();
                let local = record.local.as_ref().map_or(0, |local| local.bytes());
                stats.bytes += record.log.bytes() + local;
            }
        }
        stats
    }

    /// The records of these keys, for as long as all of them are needed together.
    pub(super) fn lock<'k>(&self, keys: impl Iterator<Item = &'k Key>) -> Locked<'_> {
        let mut indices: Vec<usize> = keys.map(shard_of).collect();
        indices.sort_unstable();
        indices.dedup();
        Locked { shards: indices.into_iter().map(|index| (index, self.shards[index].lock())).collect() }
    }

    /// The record of a check, made if it is not there: none if there is no room for it.
    pub(super) fn record<'r>(&self, records: &'r mut Records, check: &Check) -> Option<&'r mut Record> {
        if !records.contains_key(&check.key) {
            if self.is_full() {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            self.held.fetch_add(KEY_WEIGHT, Ordering::Relaxed);
            records.insert(check.key.clone(), Record::new(check));
        }
        let record = records.get_mut(&check.key)?;
        if record.quota != check.quota {
            // Another algorithm or window starts anew; another limit goes on.
            if !State::new(&record.quota).suits(&check.quota) {
                self.held.fetch_sub(record.log.len(), Ordering::Relaxed);
                *record = Record::new(check);
            }
            record.quota = check.quota;
        }
        record.encoding = check.encoding;
        Some(record)
    }

    fn is_full(&self) -> bool {
        self.held.load(Ordering::Relaxed) >= self.max
    }

    fn shard(&self, key: &Key) -> MutexGuard<'_, Records> {
        self.shards[shard_of(key)].lock()
    }
}

fn shard_of(key: &Key) -> usize {
    (key.hash() >> 48) as usize % SHARDS
}

/// Some of the mirror, locked.
pub(super) struct Locked<'m> {
    shards: Vec<(usize, MutexGuard<'m, Records>)>,
}

impl Locked<'_> {
    /// The records among which `key` is; it must be one of those that were locked.
    pub(super) fn records(&mut self, key: &Key) -> Option<&mut Records> {
        let index = shard_of(key);
        self.shards.iter_mut().find(|(locked, _)| *locked == index).map(|(_, records)| &mut **records)
    }
}
