//! One key of the journal, and the admissions of a key that are to be written back.

use std::collections::HashSet;

use super::admission_log::{Admission, AdmissionLog};
use super::bucket_estimate::BucketEstimate;
use super::fallback::LocalState;
use crate::algorithm::extensions::Extensions;
use crate::{Check, Encoding, Entry, Key, Micros, Quota};

/// State of one key in the journal.
pub(super) struct Record {
    pub(super) quota: Quota,
    pub(super) encoding: Encoding,
    pub(super) log: AdmissionLog,
    /// Permits that this node has taken, if the algorithm is a token bucket.
    pub(super) bucket: BucketEstimate,
    /// Time of the last answer of the store for this key, by the server's clock.
    pub(super) last_answer: Micros,
    /// Usage of all nodes at that time.
    pub(super) last_used: u64,
    /// Last time at which the store had no room for the same cost once more.
    pub(super) last_full: Micros,
    /// Counter of the fallback, during an outage.
    pub(super) local: Option<Box<LocalState>>,
    /// Extended admissions, by their original instant and sequence number.
    pub(super) extensions: Option<Box<Extensions<(Micros, u64)>>>,
}

impl Record {
    pub(super) fn new(check: &Check) -> Self {
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

    /// Returns the instant that an admission counts from.
    pub(super) fn counted_from(&self, entry: Entry) -> Micros {
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

    /// Returns the admissions of this node that count. For a bucket it returns the missing permits, as if they were
    /// taken at once.
    pub(super) fn own_admissions(&self, now: Micros, nodes: u64) -> Vec<Admission> {
        if !self.is_bucket() {
            return self.log.iter().collect();
        }
        let cost = self.bucket.missing_at(now, &self.quota, nodes).ceil() as u64;
        let at = now.max(self.bucket.last_taken);
        (cost > 0).then_some(Admission { at, cost, written: true }).into_iter().collect()
    }

    pub(super) fn is_idle(&self, now: Micros) -> bool {
        let empty = !self.is_bucket() || self.bucket.missing_at(now, &self.quota, 1) == 0.0;
        empty && self.log.len() == 0 && self.local.is_none() && self.last_answer <= self.cutoff(now)
    }
}

/// Admissions of one key that are to be written back.
pub(super) struct PendingWrite {
    pub(super) key: Key,
    pub(super) quota: Quota,
    pub(super) encoding: Encoding,
    pub(super) entries: Vec<Admission>,
    /// Permits admitted at the instants of `entries`, and whether the store has counted any of them.
    pub(super) instant_totals: Vec<(Micros, u64, bool)>,
}

impl PendingWrite {
    pub(super) fn new(key: &Key, record: &Record, entries: Vec<Admission>) -> Self {
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

/// Adds an admission to the totals. Its instant is the last one or a later one.
fn add_to_totals(totals: &mut Vec<(Micros, u64, bool)>, admission: Admission) {
    match totals.last_mut() {
        Some((at, cost, written)) if *at == admission.at => {
            *cost = cost.saturating_add(admission.cost);
            *written |= admission.written;
        }
        _ => totals.push((admission.at, admission.cost, admission.written)),
    }
}
