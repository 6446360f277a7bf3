//! Tests that the audit reports nothing about healthy keys, also during concurrent decisions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use slidegate::{
    Algorithm, Count, Encoding, Error, Key, MemoryStore, Quota, Store,
    algorithm::Audit,
    redis::{RedisMode, RedisOptions, RedisStore},
    store::{BatchVerdicts, Check, Checks, Correction, Entry, Inspection, Outcome, Receipt, Settlement},
};
use slidegate_testkit::{Flavour, RedisServer};

use crate::conformance::{KEYS, Rng, conforms, key};

pub(crate) fn patient(server: &RedisServer) -> RedisOptions {
    let patience = Duration::from_secs(20);
    let options = RedisOptions::new(server.url());
    RedisOptions { response_timeout: patience, connect_timeout: patience, max_wait: patience, ..options }
}

pub(crate) fn patient_store(server: &RedisServer) -> RedisStore {
    RedisStore::with_options(&patient(server)).unwrap()
}

pub(crate) fn is_well(audit: &Audit) -> bool {
    audit.discrepancies.is_empty() && audit.counted == audit.stored && !audit.repaired
}

/// Store that audits a key after some calls and collects garbage after others.
struct AuditingStore {
    store: RedisStore,
    turn: AtomicU64,
    /// Number of audits that found a key in use.
    audited: AtomicU64,
}

impl AuditingStore {
    fn new(store: RedisStore) -> Self {
        AuditingStore { store, turn: AtomicU64::new(0), audited: AtomicU64::new(0) }
    }

    async fn audit_and_clean(&self) {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let key = key(turn % KEYS);
        if turn.is_multiple_of(3) {
            let audit = self.store.audit(&key, None, turn.is_multiple_of(2)).await.unwrap();
            assert!(audit.as_ref().is_none_or(is_well), "{key}: {audit:?}");
            let counts = audit.is_some_and(|audit| audit.counted > 0);
            self.audited.fetch_add(u64::from(counts), Ordering::Relaxed);
        }
        if turn.is_multiple_of(10) {
            let cleaned = self.store.clean(0, 1_000).await.unwrap();
            assert_eq!((cleaned.foreign, cleaned.expiries), (0, 0));
        }
    }
}

impl Store for AuditingStore {
    async fn admit(&self, batch: &[Checks]) -> Result<BatchVerdicts, Error> {
        let batch_verdicts = self.store.admit(batch).await;
        self.audit_and_clean().await;
        batch_verdicts
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Receipt, Error> {
        let receipt = self.store.settle(settlements).await;
        self.audit_and_clean().await;
        receipt
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Inspection>, Error> {
        self.store.inspect(key).await
    }

    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        self.store.reset(key).await
    }
}

/// Every algorithm and encoding, with ids, settlements and resets: an audit reports nothing and changes no
/// decision.
#[tokio::test]
async fn healthy_keys_have_no_discrepancy() {
    for flavour in Flavour::ALL {
        let server = RedisServer::start(flavour);
        for encoding in [Encoding::Zset, Encoding::Packed] {
            let auditing = AuditingStore::new(patient_store(&server));
            conforms(&format!("{flavour:?} {encoding:?}, audited"), &auditing, encoding, 12_000).await;
            assert!(auditing.audited.into_inner() > 100);
        }
        let options = RedisOptions { mode: RedisMode::Transaction, ..patient(&server) };
        let store = RedisStore::with_options(&options).unwrap();
        let auditing = AuditingStore::new(store);
        conforms(&format!("{flavour:?} transactions, audited"), &auditing, Encoding::Zset, 6_000).await;
        assert!(auditing.audited.into_inner() > 100);
    }
}

/// One quota of each kind, with short windows.
pub(crate) fn ways(name: &str) -> Vec<Check> {
    let quota = |limit, millis| Quota::new(limit, Duration::from_millis(millis)).unwrap();
    let exact = quota(200, 40);
    let quotas = [
        exact,
        exact.with_count(Count::Attempts),
        exact.with_algorithm(Algorithm::TimeSlice { slices: 4 }).unwrap(),
        exact.with_algorithm(Algorithm::FixedWindow).unwrap(),
        exact.with_algorithm(Algorithm::TokenBucket { burst: 50 }).unwrap(),
        quota(10_000, 900),
        exact.with_algorithm(Algorithm::SlidingCounter).unwrap(),
    ];
    let key = |i: usize| Key::new(name, [("n", i.to_string().as_str())]);
    let mut checks: Vec<Check> =
        quotas.iter().enumerate().map(|(i, quota)| Check::new(key(i), *quota, 1)).collect();
    for (i, quota) in [(7, quotas[0]), (8, quotas[1]), (9, quotas[5])] {
        checks.push(Check { encoding: Encoding::Packed, ..Check::new(key(i), quota, 1) });
    }
    checks
}

/// Callers admit and settle while another task audits: an audit never sees an incomplete change. Keys expire as early
/// as possible.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_discrepancy_during_concurrent_decisions() {
    let server = RedisServer::start(Flavour::Redis7);
    for mode in [RedisMode::Script, RedisMode::Transaction] {
        let (none, little) = (Duration::ZERO, Duration::from_millis(7));
        let options = RedisOptions { mode, min_expire: none, expire_buffer: little, ..patient(&server) };
        let store = RedisStore::with_options(&options).unwrap();
        let checks: Vec<Check> = ways(&format!("{mode:?}"))
            .into_iter()
            .filter(|check| mode == RedisMode::Script || check.encoding == Encoding::Zset)
            .collect();
        let (requests, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let callers = (0..4).map(|n| {
            let (store, checks, requests) = (store.clone(), checks.clone(), Arc::clone(&requests));
            let rounds = if mode == RedisMode::Script { 700 } else { 250 };
            tokio::spawn(async move {
                let mut rng = Rng::new(n + 1);
                let mut charges: Vec<(Key, Entry)> = Vec::new();
                for _ in 0..rounds {
                    let batch: Vec<Checks> = (0..1 + rng.below(8))
                        .map(|_| {
                            let check = checks[rng.below(checks.len() as u64) as usize].clone();
                            Checks::one(Check { cost: 1 + rng.below(3), ..check }).unwrap()
                        })
                        .collect();
                    let batch_verdicts = store.admit(&batch).await.unwrap();
                    requests.fetch_add(batch.len() as u64, Ordering::Relaxed);
                    for (request, verdicts) in batch.iter().zip(batch_verdicts) {
                        let (check, verdict) = (&request.as_slice()[0], verdicts.verdicts[0]);
                        let admitted = check.quota.count() == Count::Admitted;
                        if verdict.outcome == Outcome::Charged && admitted {
                            charges.push((check.key.clone(), verdict.entry));
                        }
                    }
                    while charges.len() > 20 || !charges.is_empty() && rng.below(3) == 0 {
                        let (key, entry) = charges.swap_remove(rng.below(charges.len() as u64) as usize);
                        let settlement =
                            Settlement { key, entry, correction: Correction::Cost(rng.below(5)) };
                        store.settle(&[settlement]).await.unwrap();
                    }
                }
            })
        });
        let callers: Vec<_> = callers.collect();
        let auditor = {
            let (store, checks, stop) = (store.clone(), checks.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let (mut audits, mut found) = (0u64, 0u64);
                while !stop.load(Ordering::Relaxed) {
                    for check in &checks {
                        let audit = store.audit(&check.key, None, audits % 2 == 0).await.unwrap();
                        assert!(audit.iter().all(is_well), "{}: {audit:?}", check.key);
                        found += audit.iter().filter(|audit| audit.counted > 0).count() as u64;
                        audits += 1;
                    }
                }
                (audits, found)
            })
        };
        for caller in callers {
            caller.await.unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        let (audits, found) = auditor.await.unwrap();
        let requests = requests.load(Ordering::Relaxed);
        eprintln!("{mode:?}: {requests} requests, {audits} audits, {found} of keys in use, 0 discrepancies");
        assert!(found > 50);
    }
}

/// A script that takes longer than its keys live, for example because Redis is paused, must not remove a key
/// and then write to it: the written part would be unreadable and would never expire.
#[tokio::test]
async fn a_script_that_outlasts_its_keys_leaves_no_incomplete_key() {
    let quota = Quota::new(1_000, Duration::from_millis(1)).unwrap();
    for flavour in Flavour::ALL {
        let server = RedisServer::start(flavour);
        let none = Duration::ZERO;
        let options =
            RedisOptions { min_expire: none, expire_buffer: none, batch_size: 1_000, ..patient(&server) };
        let store = RedisStore::with_options(&options).unwrap();
        for encoding in [Encoding::Zset, Encoding::Packed] {
            let keys: Vec<Key> =
                (0..500).map(|i: u64| Key::new("short", [("n", i.to_string().as_str())])).collect();
            let batch: Vec<Checks> = keys
                .iter()
                .map(|key| Checks::one(Check { encoding, ..Check::new(key.clone(), quota, 1) }).unwrap())
                .collect();
            for _ in 0..3 {
                for verdicts in store.admit(&batch).await.unwrap() {
                    assert_eq!(verdicts.verdicts[0].outcome, Outcome::Charged);
                }
                for key in &keys {
                    let audit = store.audit(key, None, false).await.unwrap();
                    assert!(audit.iter().all(is_well), "{flavour:?} {encoding:?} {key}: {audit:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn memory_store_has_no_discrepancy() {
    let store = MemoryStore::new();
    let mut rng = Rng::new(7);
    let checks = ways("memory");
    let (mut audits, mut charges) = (0, Vec::new());
    for _ in 0..30_000 {
        let check = checks[rng.below(checks.len() as u64) as usize].clone();
        let check = Check { cost: 1 + rng.below(3) * rng.below(40_000), ..check };
        let request = Checks::one(check).unwrap();
        let verdicts = store.admit(std::slice::from_ref(&request)).await.unwrap().remove(0);
        let key = request.as_slice()[0].key.clone();
        if verdicts.verdicts[0].outcome == Outcome::Charged {
            charges.push((key.clone(), verdicts.verdicts[0].entry));
        }
        if rng.below(3) == 0 && !charges.is_empty() {
            let (key, entry) = charges.swap_remove(rng.below(charges.len() as u64) as usize);
            store
                .settle(&[Settlement { key, entry, correction: Correction::Cost(rng.below(90_000)) }])
                .await
                .unwrap();
        }
        if let Some(audit) = store.audit(&key) {
            assert!(is_well(&audit) && audit.expires_after.is_none(), "{key}: {audit:?}");
            audits += 1;
        }
    }
    assert!(audits > 20_000, "{audits}");
    assert_eq!(store.audit(&Key::new("nothing", [])), None);
}
