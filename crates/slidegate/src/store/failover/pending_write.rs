//! Admissions that are to be written back to the server.

use std::collections::HashSet;

use super::admission_log::Admission;
use super::journal::{Journal, Record, SHARDS};
use crate::{Encoding, Key, Micros, Quota};

/// Admissions of one key that are to be written back.
pub(super) struct PendingWrite {
    pub(super) key: Key,
    pub(super) quota: Quota,
    pub(super) encoding: Encoding,
    pub(super) entries: Vec<Admission>,
    /// For each instant of `entries`: all permits admitted at this instant, and whether the store has counted any of
    /// them.
    pub(super) instant_totals: Vec<(Micros, u64, bool)>,
}

impl PendingWrite {
    fn new(key: &Key, record: &Record, entries: Vec<Admission>) -> Self {
        let instants: HashSet<Micros> = entries.iter().map(|admission| admission.at).collect();
        let mut totals = Vec::new();
        for admission in record.log.iter().filter(|admission| instants.contains(&admission.at)) {
            add_to_totals(&mut totals, admission);
        }
        PendingWrite {
            key: key.clone(),
            quota: record.quota,
            encoding: record.encoding,
            entries,
            instant_totals: totals,
        }
    }

    /// Returns the permits of `entries` by instant, and whether the store has counted any of them.
    pub(super) fn entry_totals(&self) -> Vec<(Micros, u64, bool)> {
        let mut totals = Vec::new();
        self.entries.iter().for_each(|admission| add_to_totals(&mut totals, *admission));
        totals
    }
}

impl Journal {
    /// Number of steps of [`snapshot_step`](Self::snapshot_step).
    pub(super) const STEPS: usize = SHARDS;

    /// Returns the admissions that count at `now`, of the keys in one shard for which `selects` returns true. If the
    /// server has not `lost` its data, only buckets are returned, because the permits missing from a bucket are not the
    /// sum of its unwritten admissions. The time on the server's clock is at least `earliest`, so an admission that may
    /// still count by that clock is returned too. The caller goes shard by shard, so that no decision waits for the
    /// whole journal.
    pub(super) fn snapshot_step(
        &self,
        step: usize,
        selects: impl Fn(&Key) -> bool,
        lost: bool,
        now: Micros,
        earliest: Micros,
    ) -> Vec<PendingWrite> {
        let Some(shard) = self.shards.get(step) else { return Vec::new() };
        let mut pending = Vec::new();
        for (key, record) in &mut *shard.lock() {
            let cutoff = record.cutoff(earliest);
            self.update_log(record, |log| log.trim(cutoff));
            if !selects(key) || !lost && !record.is_bucket() {
                continue;
            }
            let entries = record.own_admissions(now, self.nodes());
            if !entries.is_empty() {
                pending.push(PendingWrite::new(key, record, entries));
            }
        }
        pending
    }

    /// Returns the unwritten admissions of the keys for which `selects` returns true, and marks them as written: a late
    /// answer of the store must not find them unwritten while they are being written back.
    pub(super) fn take_unwritten(&self, selects: impl Fn(&Key) -> bool) -> Vec<PendingWrite> {
        let keys: Vec<Key> = self.unwritten_keys.lock().extract_if(|key| selects(key)).collect();
        let mut pending = Vec::new();
        for key in keys {
            let mut records = self.shard(&key);
            let Some(record) = records.get_mut(&key) else { continue };
            let entries: Vec<Admission> = record.log.iter().filter(|admission| !admission.written).collect();
            if !entries.is_empty() {
                let write = PendingWrite::new(&key, record, entries);
                self.update_log(record, |log| log.mark_written(&write.entries));
                pending.push(write);
            }
        }
        pending
    }

    /// Marks admissions as unwritten again after a failed write.
    pub(super) fn restore_unwritten(&self, pending: &[PendingWrite]) {
        for pending in pending {
            if let Some(record) = self.shard(&pending.key).get_mut(&pending.key) {
                self.update_log(record, |log| log.mark_unwritten(&pending.entries));
            }
            self.unwritten_keys.lock().insert(pending.key.clone());
        }
    }

    /// Records that these admissions are on the server. A bucket was written as one sum of all its admissions up to `now`.
    pub(super) fn mark_written(&self, pending: &PendingWrite, now: Micros) {
        if let Some(record) = self.shard(&pending.key).get_mut(&pending.key) {
            let written: Vec<Admission> = match pending.quota.algorithm().refills() {
                true => record.log.iter().filter(|admission| admission.at <= now).collect(),
                false => pending.entries.clone(),
            };
            self.update_log(record, |log| log.mark_written(&written));
        }
    }
}

/// Adds an admission to the totals. The instant of the admission must not be before the last instant in the totals.
fn add_to_totals(totals: &mut Vec<(Micros, u64, bool)>, admission: Admission) {
    match totals.last_mut() {
        Some((at, cost, written)) if *at == admission.at => {
            *cost = cost.saturating_add(admission.cost);
            *written |= admission.written;
        }
        _ => totals.push((admission.at, admission.cost, admission.written)),
    }
}
