//! Journal of this node's own admissions, by key, for as long as they count.
//!
//! It has two uses: decisions without the store start from it, and it is written back to a server that has lost its
//! data. It is bounded: when it is full, further keys and admissions are dropped, and the drops are counted.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::admission_log::{Admission, AdmissionLog};
use super::bucket_estimate::BucketEstimate;
use super::fallback::LocalState;
use crate::algorithm::extensions::Extensions;
use crate::{Check, Encoding, Entry, Key, Micros, Outcome, Quota, State, Verdict, Verdicts};

pub(super) const SHARDS: usize = 32;

/// Maximum size if admissions are not recorded and the journal holds only the counters of the fallback.
const MAX_SIZE_WHEN_OFF: usize = 1_000_000;

/// Size of a key without its admissions, measured in admissions.
const KEY_WEIGHT: usize = 24;

pub(super) struct Journal {
    pub(super) shards: Box<[Mutex<Records>]>,
    /// True if admissions are recorded; otherwise only the counters of the fallback are.
    records_admissions: bool,
    max_size: usize,
    size: AtomicUsize,
    dropped: AtomicU64,
    /// Last known number of nodes that share the limits.
    pub(super) nodes: AtomicU64,
    /// Keys with admissions that the store has not counted.
    pub(super) unwritten_keys: Mutex<HashSet<Key, foldhash::quality::RandomState>>,
}

pub(super) type Records = HashMap<Key, Record, foldhash::quality::RandomState>;

/// State of one key in the journal.
pub(super) struct Record {
    pub(super) quota: Quota,
    pub(super) encoding: Encoding,
    pub(super) log: AdmissionLog,
    /// Permits that this node has taken, if the algorithm is a token bucket.
    pub(super) bucket: BucketEstimate,
    /// Time of the last answer of the store for this key, by the server's clock.
    pub(super) last_answer: Micros,
    /// Usage of all nodes at `last_answer`.
    pub(super) last_used: u64,
    /// Last time at which an answer of the store showed that the same cost would not fit again.
    pub(super) last_full: Micros,
    /// Counter of the fallback, during an outage.
    pub(super) local: Option<Box<LocalState>>,
    /// Extended admissions, by their original instant and sequence number.
    extensions: Option<Box<Extensions<(Micros, u64)>>>,
}

impl Record {
    fn new(check: &Check) -> Self {
        Record {
            quota: check.quota,
            encoding: check.encoding,
            log: AdmissionLog::default(),
            bucket: BucketEstimate::default(),
            last_answer: Micros::ZERO,
            last_used: 0,
            last_full: Micros::ZERO,
            local: None,
            extensions: None,
        }
    }

    /// Returns the instant from which an admission counts.
    fn counted_from(&self, entry: Entry) -> Micros {
        let extensions = self.extensions.as_ref();
        extensions.and_then(|known| known.find((entry.at, entry.seq))).unwrap_or(entry.at)
    }

    /// Returns the instant up to which admissions have expired by `now`.
    pub(super) fn cutoff(&self, now: Micros) -> Micros {
        now.since(self.quota.horizon())
    }

    pub(super) fn is_bucket(&self) -> bool {
        self.quota.algorithm().refills()
    }

    /// Returns the admissions of this node that count. For a bucket it returns the missing permits as one admission.
    pub(super) fn own_admissions(&self, now: Micros, nodes: u64) -> Vec<Admission> {
        if !self.is_bucket() {
            return self.log.iter().collect();
        }
        let cost = self.bucket.missing_at(now, &self.quota, nodes).ceil() as u64;
        let at = now.max(self.bucket.last_taken);
        (cost > 0).then_some(Admission { at, cost, written: true }).into_iter().collect()
    }

    fn is_idle(&self, now: Micros) -> bool {
        let empty = !self.is_bucket() || self.bucket.missing_at(now, &self.quota, 1) == 0.0;
        empty && self.log.len() == 0 && self.local.is_none() && self.last_answer <= self.cutoff(now)
    }
}

/// Size of a node's journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalStats {
    /// Number of keys.
    pub keys: usize,
    /// Number of admissions.
    pub entries: usize,
    /// Approximate size in bytes.
    pub bytes: usize,
    /// Admissions that were not recorded because the journal was full.
    pub dropped: u64,
}

impl Journal {
    pub(super) fn new(max: usize) -> Self {
        Journal {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            records_admissions: max > 0,
            max_size: if max > 0 { max } else { MAX_SIZE_WHEN_OFF },
            size: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            nodes: AtomicU64::new(1),
            unwritten_keys: Mutex::default(),
        }
    }

    /// Records the verdicts of the store. `written` is false if the server has lost its data since, so that the
    /// admissions must be written back.
    pub(super) fn record_verdicts(&self, checks: &[Check], verdicts: &Verdicts, written: bool) {
        for (check, verdict) in checks.iter().zip(&verdicts.verdicts) {
            self.record_verdict(check, check.cost, verdict, verdicts.at, written);
        }
    }

    /// Records permits that were taken together in advance.
    pub(super) fn record_run(&self, check: &Check, batch_verdicts: &[Verdicts], written: bool) {
        let charged = |verdicts: &&Verdicts| {
            verdicts.verdicts.first().is_some_and(|verdict| verdict.outcome == Outcome::Charged)
        };
        // The permits have one instant, so they are one admission.
        let last =
            batch_verdicts.iter().rfind(charged).and_then(|last| Some((last.at, last.verdicts.first()?)));
        if let Some((at, verdict)) = last {
            let granted = batch_verdicts.iter().filter(charged).count() as u64;
            self.record_verdict(check, check.cost.saturating_mul(granted), verdict, at, written);
        }
    }

    /// Records one verdict of the store. A charged verdict counts `cost` permits.
    fn record_verdict(&self, check: &Check, cost: u64, verdict: &Verdict, at: Micros, written: bool) {
        if !self.records_admissions {
            return;
        }
        // An admission before `at` was found by its request id. It was recorded when it was made.
        let admitted = verdict.outcome == Outcome::Charged && cost > 0 && verdict.entry.at >= at;
        let mut records = self.shard(&check.key);
        let Some(record) = self.get_or_create(&mut records, check) else { return };
        if at >= record.last_answer {
            (record.last_answer, record.last_used) = (at, verdict.used);
        }
        if verdict.used.saturating_add(check.cost) > verdict.limit {
            record.last_full = record.last_full.max(at);
        }
        if admitted {
            self.add(&check.key, record, Admission { at: verdict.entry.at, cost, written }, at);
        }
    }

    /// Records an admission if there is room.
    pub(super) fn add(&self, key: &Key, record: &mut Record, admission: Admission, now: Micros) {
        if !self.records_admissions {
            return;
        }
        let cutoff = record.cutoff(now);
        self.update_log(record, |log| log.trim(cutoff));
        if self.is_full() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.update_log(record, |log| log.add(admission));
        if record.is_bucket() {
            record.bucket.take(admission.at, admission.cost, &record.quota, self.nodes());
        }
        if !admission.written {
            self.unwritten_keys.lock().insert(key.clone());
        }
    }

    /// Changes the cost of an admission that the store has counted.
    pub(super) fn settle(&self, key: &Key, entry: Entry, to: u64) {
        if let Some(record) = self.shard(key).get_mut(key) {
            let (at, from) = (record.counted_from(entry), entry.cost);
            if self.update_log(record, |log| log.settle(at, from, to, true)) {
                record.bucket.correct(from, to, &record.quota);
            }
        }
    }

    /// Moves an admission that the store has counted to the instant `to`.
    pub(super) fn extend(&self, key: &Key, entry: Entry, to: Micros) {
        let mut records = self.shard(key);
        let Some(record) = records.get_mut(key) else { return };
        let at = record.counted_from(entry);
        if self.update_log(record, |log| log.settle(at, entry.cost, 0, true)) {
            self.update_log(record, |log| log.add(Admission { at: to, cost: entry.cost, written: true }));
            let cutoff = record.cutoff(to);
            let extensions = record.extensions.get_or_insert_default();
            extensions.forget(|at| at <= cutoff);
            extensions.extend((entry.at, entry.seq), to);
        }
    }

    /// Moves an unwritten admission that counted from `at` to the instant `to`. Returns whether there is one.
    pub(super) fn extend_unwritten(&self, key: &Key, at: Micros, cost: u64, to: Micros) -> bool {
        let mut records = self.shard(key);
        let Some(record) = records.get_mut(key) else { return false };
        let found = self.update_log(record, |log| log.settle(at, cost, 0, false));
        if found {
            self.update_log(record, |log| log.add(Admission { at: to, cost, written: false }));
        }
        found
    }

    /// Changes the cost of an unwritten admission. Returns whether there is one.
    pub(super) fn settle_unwritten(&self, key: &Key, at: Micros, from: u64, to: u64) -> bool {
        let mut records = self.shard(key);
        let Some(record) = records.get_mut(key) else { return false };
        let found = self.update_log(record, |log| log.settle(at, from, to, false));
        if found {
            record.bucket.correct(from, to, &record.quota);
        }
        found
    }

    pub(super) fn forget(&self, key: &Key) {
        if let Some(record) = self.shard(key).remove(key) {
            self.size.fetch_sub(record.log.len() + KEY_WEIGHT, Ordering::Relaxed);
        }
    }

    /// Drops expired admissions of the keys that `selects` returns true for. If the server is back, it also drops
    /// their fallback counters.
    pub(super) fn sweep(&self, selects: impl Fn(&Key) -> bool, now: Micros, server_is_back: bool) {
        for shard in &self.shards {
            shard.lock().retain(|key, record| {
                if !selects(key) {
                    return true;
                }
                let cutoff = record.cutoff(now);
                self.update_log(record, |log| log.trim(cutoff));
                if server_is_back || record.local.as_ref().is_some_and(|local| local.is_idle(now)) {
                    record.local = None;
                }
                let idle = record.is_idle(now);
                if idle {
                    self.size.fetch_sub(KEY_WEIGHT, Ordering::Relaxed);
                }
                !idle
            });
        }
    }

    pub(super) fn nodes(&self) -> u64 {
        self.nodes.load(Ordering::Relaxed)
    }

    /// Returns the statistics. It visits every key, so it suits a metrics page, not a hot path.
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

    /// Locks the shards of these keys, in ascending order.
    pub(super) fn lock<'k>(&self, keys: impl Iterator<Item = &'k Key>) -> LockedRecords<'_> {
        let mut indices: Vec<usize> = keys.map(shard_of).collect();
        indices.sort_unstable();
        indices.dedup();
        LockedRecords {
            shards: indices.into_iter().map(|index| (index, self.shards[index].lock())).collect(),
        }
    }

    /// Returns the record of a check, creating it if needed; `None` if the journal is full.
    pub(super) fn get_or_create<'r>(
        &self,
        records: &'r mut Records,
        check: &Check,
    ) -> Option<&'r mut Record> {
        if !records.contains_key(&check.key) {
            if self.is_full() {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            self.size.fetch_add(KEY_WEIGHT, Ordering::Relaxed);
            records.insert(check.key.clone(), Record::new(check));
        }
        let record = records.get_mut(&check.key)?;
        if record.quota != check.quota {
            // With another algorithm or window the record starts again. With another limit only, it continues.
            if !State::new(&record.quota).suits(&check.quota) {
                self.size.fetch_sub(record.log.len(), Ordering::Relaxed);
                *record = Record::new(check);
            }
            record.quota = check.quota;
        }
        record.encoding = check.encoding;
        Some(record)
    }

    /// Changes a log, and updates the size of the journal.
    pub(super) fn update_log<T>(
        &self,
        record: &mut Record,
        update: impl FnOnce(&mut AdmissionLog) -> T,
    ) -> T {
        let before = record.log.len();
        let changed = update(&mut record.log);
        let after = record.log.len();
        if after >= before {
            self.size.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.size.fetch_sub(before - after, Ordering::Relaxed);
        }
        changed
    }

    pub(super) fn is_full(&self) -> bool {
        self.size.load(Ordering::Relaxed) >= self.max_size
    }

    pub(super) fn shard(&self, key: &Key) -> MutexGuard<'_, Records> {
        self.shards[shard_of(key)].lock()
    }
}

fn shard_of(key: &Key) -> usize {
    (key.hash() >> 48) as usize % SHARDS
}

/// Locked shards of a journal.
pub(super) struct LockedRecords<'m> {
    shards: Vec<(usize, MutexGuard<'m, Records>)>,
}

impl LockedRecords<'_> {
    /// Returns the records of the shard of `key`, which must be one of the locked keys.
    pub(super) fn records(&mut self, key: &Key) -> Option<&mut Records> {
        let index = shard_of(key);
        self.shards.iter_mut().find(|(locked, _)| *locked == index).map(|(_, records)| &mut **records)
    }
}
