//! What this node itself had admitted, key by key, for as long as it counts.
//!
//! It serves twice: decisions made without the store start from it, and a server that lost what it counted is
//! given it back. Bounded: when it is full, further keys and admissions are not remembered, and counted.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::admission_log::{Log, Noted};
use super::bucket_estimate::Level;
use super::fallback::Local;
use crate::algorithm::extensions::Extensions;
use crate::{Algorithm, Check, Encoding, Entry, Key, Micros, Outcome, Quota, State, Verdict, Verdicts};

const SHARDS: usize = 32;

/// The bound on what decides without the store, when admissions are not remembered.
const MAX_WHEN_OFF: usize = 1_000_000;

/// What a key takes beside its admissions, in admissions.
const KEY_WEIGHT: usize = 24;

pub(super) struct Journal {
    shards: Box<[Mutex<Records>]>,
    /// Whether admissions are remembered, or only what decides without the store.
    on: bool,
    max: usize,
    held: AtomicUsize,
    dropped: AtomicU64,
    /// How many nodes share the limits, at most.
    nodes: AtomicU64,
    /// Keys with something that the store does not have.
    unwritten: Mutex<HashSet<Key, foldhash::quality::RandomState>>,
}

pub(super) type Records = HashMap<Key, Record, foldhash::quality::RandomState>;

/// One key.
pub(super) struct Record {
    pub(super) quota: Quota,
    pub(super) encoding: Encoding,
    pub(super) log: Log,
    /// Of a bucket: what this node has taken out of it.
    pub(super) level: Level,
    /// When the store last answered for it, by its clock, and what was in use then.
    pub(super) seen: Micros,
    pub(super) used: u64,
    /// When the store last had no room for as much again.
    pub(super) full: Micros,
    /// What decides without the store.
    pub(super) local: Option<Box<Local>>,
    /// What was extended, by when it was admitted and as which.
    moved: Option<Box<Extensions<(Micros, u64)>>>,
}

/// How much is remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalStats {
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
    /// All that was admitted at their instants, and whether any of that the store had admitted.
    pub(super) whole: Vec<(Micros, u64, bool)>,
}

impl Owed {
    fn new(key: &Key, record: &Record, entries: Vec<Noted>) -> Self {
        let instants: HashSet<Micros> = entries.iter().map(|noted| noted.at).collect();
        let mut whole = Vec::new();
        for noted in record.log.iter().filter(|noted| instants.contains(&noted.at)) {
            merge(&mut whole, noted);
        }
        Owed { key: key.clone(), quota: record.quota, encoding: record.encoding, entries, whole }
    }

    /// Its instants, each with all that was admitted at it, and whether any of that the store had admitted.
    pub(super) fn instants(&self) -> Vec<(Micros, u64, bool)> {
        let mut whole = Vec::new();
        self.entries.iter().for_each(|noted| merge(&mut whole, *noted));
        whole
    }
}

/// Adds to what was admitted at an instant, which is the last or comes after it.
fn merge(whole: &mut Vec<(Micros, u64, bool)>, noted: Noted) {
    match whole.last_mut() {
        Some((at, cost, written)) if *at == noted.at => {
            *cost = cost.saturating_add(noted.cost);
            *written |= noted.written;
        }
        _ => whole.push((noted.at, noted.cost, noted.written)),
    }
}

impl Record {
    fn new(check: &Check) -> Self {
        Record {
            quota: check.quota,
            encoding: check.encoding,
            log: Log::default(),
            level: Level::default(),
            seen: Micros::ZERO,
            used: 0,
            full: Micros::ZERO,
            local: None,
            moved: None,
        }
    }

    /// The instant that an admission counts from.
    fn counted_from(&self, entry: Entry) -> Micros {
        self.moved.as_ref().and_then(|moved| moved.find((entry.at, entry.seq))).unwrap_or(entry.at)
    }

    /// What was admitted up to then has left by `now`.
    fn cut(&self, now: Micros) -> Micros {
        now.since(self.quota.horizon())
    }

    pub(super) fn is_bucket(&self) -> bool {
        matches!(self.quota.algorithm(), Algorithm::TokenBucket { .. })
    }

    /// What was admitted here and counts; of a bucket, what is missing from it as if it were taken at once.
    pub(super) fn taken(&self, now: Micros, nodes: u64) -> Vec<Noted> {
        if !self.is_bucket() {
            return self.log.iter().collect();
        }
        let cost = self.level.at(now, &self.quota, nodes).ceil() as u64;
        let at = now.max(self.level.last());
        (cost > 0).then_some(Noted { at, cost, written: true }).into_iter().collect()
    }

    fn is_idle(&self, now: Micros) -> bool {
        let empty = !self.is_bucket() || self.level.at(now, &self.quota, 1) == 0.0;
        empty && self.log.len() == 0 && self.local.is_none() && self.seen <= self.cut(now)
    }
}

impl Journal {
    pub(super) fn new(max: usize) -> Self {
        Journal {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            on: max > 0,
            max: if max > 0 { max } else { MAX_WHEN_OFF },
            held: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            nodes: AtomicU64::new(1),
            unwritten: Mutex::default(),
        }
    }

    /// Notes what the store answered. What a server answered that is not there any more must be `written` again.
    pub(super) fn answered(&self, checks: &[Check], reading: &Verdicts, written: bool) {
        for (check, verdict) in checks.iter().zip(&reading.verdicts) {
            self.judged(check, check.cost, verdict, reading.at, written);
        }
    }

    /// Notes permits that were taken together, in advance.
    pub(super) fn took(&self, check: &Check, readings: &[Verdicts], written: bool) {
        let charged = |reading: &&Verdicts| {
            reading.verdicts.first().is_some_and(|verdict| verdict.outcome == Outcome::Charged)
        };
        // They are of one instant, so they are one entry.
        let last = readings.iter().rfind(charged).and_then(|last| Some((last.at, last.verdicts.first()?)));
        if let Some((at, verdict)) = last {
            let granted = readings.iter().filter(charged).count() as u64;
            self.judged(check, check.cost.saturating_mul(granted), verdict, at, written);
        }
    }

    /// Notes one verdict of the store; what it charged counts `cost`.
    fn judged(&self, check: &Check, cost: u64, verdict: &Verdict, at: Micros, written: bool) {
        if !self.on {
            return;
        }
        // One that was found again by its id was noted the first time.
        let admitted = verdict.outcome == Outcome::Charged && cost > 0 && verdict.entry.at >= at;
        let mut records = self.shard(&check.key);
        let Some(record) = self.record(&mut records, check) else { return };
        if at >= record.seen {
            (record.seen, record.used) = (at, verdict.used);
        }
        if verdict.used.saturating_add(check.cost) > verdict.limit {
            record.full = record.full.max(at);
        }
        if admitted {
            self.add(&check.key, record, Noted { at: verdict.entry.at, cost, written }, at);
        }
    }

    /// Remembers an admission, if there is room.
    pub(super) fn add(&self, key: &Key, record: &mut Record, noted: Noted, now: Micros) {
        if !self.on {
            return;
        }
        let cut = record.cut(now);
        self.change(record, |log| log.trim(cut));
        if self.is_full() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.change(record, |log| log.add(noted));
        if record.is_bucket() {
            record.level.take(noted.at, noted.cost, &record.quota, self.nodes());
        }
        if !noted.written {
            self.unwritten.lock().insert(key.clone());
        }
    }

    /// An admission that the store has really cost something else.
    pub(super) fn settled(&self, key: &Key, entry: Entry, to: u64) {
        if let Some(record) = self.shard(key).get_mut(key) {
            let (at, from) = (record.counted_from(entry), entry.cost);
            if self.change(record, |log| log.settle(at, from, to, true)) {
                record.level.correct(from, to, &record.quota);
            }
        }
    }

    /// An admission that the store has counts from `to` on.
    pub(super) fn extended(&self, key: &Key, entry: Entry, to: Micros) {
        let mut records = self.shard(key);
        let Some(record) = records.get_mut(key) else { return };
        let at = record.counted_from(entry);
        if self.change(record, |log| log.settle(at, entry.cost, 0, true)) {
            self.change(record, |log| log.add(Noted { at: to, cost: entry.cost, written: true }));
            let cut = record.cut(to);
            let moved = record.moved.get_or_insert_default();
            moved.forget(|at| at <= cut);
            moved.extend((entry.at, entry.seq), to);
        }
    }

    /// The same of one that the store does not have, and that has counted since `at`; whether it is one.
    pub(super) fn extended_unwritten(&self, key: &Key, at: Micros, cost: u64, to: Micros) -> bool {
        let mut records = self.shard(key);
        let Some(record) = records.get_mut(key) else { return false };
        let found = self.change(record, |log| log.settle(at, cost, 0, false));
        if found {
            self.change(record, |log| log.add(Noted { at: to, cost, written: false }));
        }
        found
    }

    /// The same of one that the store does not have; whether it is one.
    pub(super) fn settled_unwritten(&self, key: &Key, at: Micros, from: u64, to: u64) -> bool {
        let mut records = self.shard(key);
        let Some(record) = records.get_mut(key) else { return false };
        let found = self.change(record, |log| log.settle(at, from, to, false));
        if found {
            record.level.correct(from, to, &record.quota);
        }
        found
    }

    pub(super) fn forget(&self, key: &Key) {
        if let Some(record) = self.shard(key).remove(key) {
            self.held.fetch_sub(record.log.len() + KEY_WEIGHT, Ordering::Relaxed);
        }
    }

    /// Drops what no longer counts of the keys that `ours` picks, and what decided them without their server if it
    /// is `back`.
    pub(super) fn sweep(&self, ours: impl Fn(&Key) -> bool, now: Micros, back: bool) {
        for shard in &self.shards {
            shard.lock().retain(|key, record| {
                if !ours(key) {
                    return true;
                }
                let cut = record.cut(now);
                self.change(record, |log| log.trim(cut));
                if back || record.local.as_ref().is_some_and(|local| local.is_idle(now)) {
                    record.local = None;
                }
                let idle = record.is_idle(now);
                if idle {
                    self.held.fetch_sub(KEY_WEIGHT, Ordering::Relaxed);
                }
                !idle
            });
        }
    }

    /// Everything that counts by `now`, of the keys that `ours` picks, for a server that may have `lost` it; else only
    /// of buckets, for what is missing from one is not the sum of what was taken. In steps, so that nobody waits for
    /// all of it.
    pub(super) fn all(&self, step: usize, ours: impl Fn(&Key) -> bool, lost: bool, now: Micros) -> Vec<Owed> {
        let Some(shard) = self.shards.get(step) else { return Vec::new() };
        let mut owed = Vec::new();
        for (key, record) in &mut *shard.lock() {
            let cut = record.cut(now);
            self.change(record, |log| log.trim(cut));
            if !ours(key) || !lost && !record.is_bucket() {
                continue;
            }
            let entries = record.taken(now, self.nodes());
            if !entries.is_empty() {
                owed.push(Owed::new(key, record, entries));
            }
        }
        owed
    }

    /// What the store does not have, of the keys that `ours` picks. From now on it is the store's: a late answer must
    /// not find it here while it is on its way.
    pub(super) fn unwritten(&self, ours: impl Fn(&Key) -> bool) -> Vec<Owed> {
        let keys: Vec<Key> = {
            let mut unwritten = self.unwritten.lock();
            let (ours, others) = std::mem::take(&mut *unwritten).into_iter().partition(|key| ours(key));
            *unwritten = others;
            let ours: HashSet<Key, foldhash::quality::RandomState> = ours;
            ours.into_iter().collect()
        };
        let mut owed = Vec::new();
        for key in keys {
            let mut records = self.shard(&key);
            let Some(record) = records.get_mut(&key) else { continue };
            let entries: Vec<Noted> = record.log.iter().filter(|noted| !noted.written).collect();
            if !entries.is_empty() {
                let one = Owed::new(&key, record, entries);
                self.change(record, |log| log.mark_written(&one.entries));
                owed.push(one);
            }
        }
        owed
    }

    /// They could not be written, after all.
    pub(super) fn not_written(&self, owed: &[Owed]) {
        for owed in owed {
            if let Some(record) = self.shard(&owed.key).get_mut(&owed.key) {
                self.change(record, |log| log.mark_unwritten(&owed.entries));
            }
            self.unwritten.lock().insert(owed.key.clone());
        }
    }

    /// How many nodes share the limits.
    pub(super) fn nodes(&self) -> u64 {
        self.nodes.load(Ordering::Relaxed)
    }

    pub(super) fn set_nodes(&self, nodes: u64) {
        self.nodes.store(nodes, Ordering::Relaxed);
    }

    pub(super) const STEPS: usize = SHARDS;

    /// The store has these now.
    pub(super) fn written(&self, owed: &Owed) {
        if let Some(record) = self.shard(&owed.key).get_mut(&owed.key) {
            self.change(record, |log| log.mark_written(&owed.entries));
        }
    }

    /// The store has everything of a bucket up to `now`: it was told what is missing.
    pub(super) fn written_whole(&self, key: &Key, now: Micros) {
        if let Some(record) = self.shard(key).get_mut(key) {
            let all: Vec<Noted> = record.log.iter().filter(|noted| noted.at <= now).collect();
            self.change(record, |log| log.mark_written(&all));
        }
    }

    /// Walks over every key: for a metrics page, not for a hot path.
    pub(super) fn stats(&self) -> JournalStats {
        let mut stats =
            JournalStats { dropped: self.dropped.load(Ordering::Relaxed), ..JournalStats::default() };
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

    /// Changes a log, and keeps count of what is held.
    fn change<T>(&self, record: &mut Record, change: impl FnOnce(&mut Log) -> T) -> T {
        let before = record.log.len();
        let changed = change(&mut record.log);
        let after = record.log.len();
        if after >= before {
            self.held.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.held.fetch_sub(before - after, Ordering::Relaxed);
        }
        changed
    }

    pub(super) fn is_full(&self) -> bool {
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
