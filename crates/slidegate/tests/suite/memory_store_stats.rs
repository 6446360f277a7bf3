//! Tests statistics of the memory store while decisions run.

use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use slidegate::{
    Algorithm, Key, ManualClock, MemoryStore, Micros, Quota, Store,
    store::{Check, Checks},
};

const EXISTING: usize = 20_000;
const NEW: usize = 200_000;

fn decide(store: &MemoryStore<ManualClock>, name: usize, quota: Quota) {
    let key = Key::new("k", [("n", name.to_string().as_str())]);
    let checks = Checks::one(Check::new(key, quota, 1)).unwrap();
    let batch_verdicts = store.admit(std::slice::from_ref(&checks)).now_or_never();
    batch_verdicts.expect("the memory store answers at once").unwrap();
}

/// New keys without events arrive while the store counts, so its tables grow. The events of the other keys do not
/// change, so each count returns the same number of events.
#[test]
fn keys_are_counted_once_while_tables_grow() {
    let clock = ManualClock::at(Micros::from_secs(1_000_000));
    let store = MemoryStore::with_clock(clock.clone(), 2 * (EXISTING + NEW));
    let exact = Quota::per_hour(10).unwrap();
    let fixed = exact.with_algorithm(Algorithm::FixedWindow).unwrap();
    for _ in 0..3 {
        clock.advance(Micros::new(1));
        (0..EXISTING).for_each(|n| decide(&store, n, exact));
    }
    assert_eq!((store.stats().keys, store.stats().events), (EXISTING, 3 * EXISTING));

    let done = AtomicBool::new(false);
    let (mut counts, mut keys) = (0, EXISTING);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (EXISTING..EXISTING + NEW).for_each(|n| decide(&store, n, fixed));
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            let stats = store.stats();
            assert_eq!(stats.events, 3 * EXISTING, "{stats:?} in count {counts}");
            assert!((keys..=EXISTING + NEW).contains(&stats.keys), "{stats:?} after {keys} keys");
            keys = stats.keys;
            counts += 1;
        }
    });
    assert!(counts > 0);
    let stats = store.stats();
    assert_eq!((stats.keys, stats.events, stats.evicted), (EXISTING + NEW, 3 * EXISTING, 0));
}
