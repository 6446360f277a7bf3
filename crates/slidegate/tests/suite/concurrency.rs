//! Tests eight threads that decide at once: the pure algorithm replays the answers in order.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use slidegate::{
    Algorithm, Count, Key, MemoryStore, Micros, Quota, Store, SystemClock,
    algorithm::{State, States, evaluate},
    store::{Check, Checks, Outcome, Verdicts},
};

const THREADS: usize = 8;
const REQUESTS: usize = 40_000;

fn key(name: &str) -> Key {
    Key::new("k", [("n", name)])
}

/// The `n`-th checks of thread `t`: mostly the hot key, alone or with one or two other keys.
fn checks(t: usize, n: usize) -> Checks {
    let quota = |limit, millis| Quota::new(limit, Duration::from_millis(millis)).unwrap();
    let hot = Check::new(key("hot"), quota(400, 5), 1 + (n % 3) as u64);
    let bucket = quota(2_000, 10).with_algorithm(Algorithm::TokenBucket { burst: 300 }).unwrap();
    let attempts = quota(250, 4).with_count(Count::Attempts);
    let checks = match (t + n) % 5 {
        0 | 1 => Checks::new([hot]),
        2 => Checks::new([Check::new(key("b"), quota(150, 3), 2), hot]),
        3 => Checks::new([hot, Check::new(key("a"), bucket, 1), Check::new(key("b"), quota(150, 3), 1)]),
        _ => Checks::new([Check::new(key("guard"), attempts, 1), Check::new(key("a"), bucket, 3), hot]),
    };
    checks.unwrap()
}

struct Oracle<'a> {
    states: &'a mut HashMap<String, State>,
    checks: &'a Checks,
}

impl States for Oracle<'_> {
    fn state(&mut self, i: usize) -> &mut State {
        let check = &self.checks.as_slice()[i];
        self.states.entry(check.key.to_string()).or_insert_with(|| State::new(&check.quota))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn concurrent_history_agrees_with_the_oracle() {
    // Without the background sweep: a key that was dropped while idle counts its admissions anew.
    let store = MemoryStore::with_clock(SystemClock::new(), 1_000);
    let histories = run(&store).await;
    let total = histories.iter().map(Vec::len).sum::<usize>();
    // Calls are ordered by their instants. Calls of one instant are ordered by search: some order must explain them all.
    let mut pending: Vec<(Checks, Verdicts)> = histories.into_iter().flatten().collect();
    pending.sort_by_key(|(_, verdicts)| verdicts.at);
    let mut states = HashMap::new();
    for group in pending.chunk_by(|(_, a), (_, b)| a.at == b.at) {
        let explained = explain(states, group.iter().collect());
        let at = group[0].1.at;
        states =
            explained.unwrap_or_else(|| panic!("no order of the calls at {at:?} explains their verdicts"));
    }
    let charged: Vec<&(Checks, Verdicts)> = pending.iter().filter(|(_, r)| is_charged(r)).collect();
    let denied = total - charged.len();
    eprintln!(
        "{total} requests of {THREADS} threads replayed: {} charged, {denied} denied, 0 differences",
        charged.len()
    );
    assert!(charged.len() > 1000 && denied > 1000, "the test must see admissions and denials");
    never_over(&charged);
    never_partly(&pending);
}

async fn run(store: &MemoryStore) -> Vec<Vec<(Checks, Verdicts)>> {
    let started = Arc::new(AtomicUsize::new(0));
    let threads = (0..THREADS).map(|t| {
        let (store, started) = (store.clone(), Arc::clone(&started));
        tokio::spawn(async move {
            started.fetch_add(1, Ordering::SeqCst);
            while started.load(Ordering::SeqCst) < THREADS {
                tokio::task::yield_now().await;
            }
            let mut history = Vec::with_capacity(REQUESTS);
            for n in 0..REQUESTS {
                let checks = checks(t, n);
                let mut verdicts = store.admit(std::slice::from_ref(&checks)).await.unwrap().remove(0);
                for verdict in &mut verdicts.verdicts {
                    // The bits above these hold the generation. Keys of one shard take generations from one
                    // sequence. An attempt has no number.
                    if verdict.entry.seq != u64::MAX {
                        verdict.entry.seq &= (1 << 40) - 1;
                    }
                }
                history.push((checks, verdicts));
                if n % 64 == 0 {
                    tokio::task::yield_now().await;
                }
            }
            history
        })
    });
    let mut histories = Vec::new();
    for thread in threads.collect::<Vec<_>>() {
        histories.push(thread.await.unwrap());
    }
    histories
}

/// States after these calls of one instant, in an order in which the oracle gives the same verdicts.
fn explain(
    states: HashMap<String, State>,
    mut calls: Vec<&(Checks, Verdicts)>,
) -> Option<HashMap<String, State>> {
    if calls.is_empty() {
        return Some(states);
    }
    // A call that records nothing can go first.
    calls.sort_by_key(|(_, verdicts)| verdicts.verdicts.iter().any(|verdict| !verdict.outcome.denies()));
    for i in 0..calls.len() {
        let mut after = states.clone();
        let (checks, verdicts) = calls[i];
        if evaluate(checks, verdicts.at, &mut Oracle { states: &mut after, checks }) == *verdicts {
            let mut rest = calls.clone();
            rest.remove(i);
            if let Some(states) = explain(after, rest) {
                return Some(states);
            }
        }
    }
    None
}

fn is_charged(verdicts: &Verdicts) -> bool {
    verdicts.verdicts.iter().all(|verdict| verdict.outcome == Outcome::Charged)
}

/// No interval of the hot key's window holds more than its limit, counted from the answers alone.
fn never_over(charged: &[&(Checks, Verdicts)]) {
    let mut events: Vec<(Micros, u64)> = Vec::new();
    for (checks, verdicts) in charged {
        let hot = checks.as_slice().iter().zip(&verdicts.verdicts).find(|(check, _)| check.key == key("hot"));
        let (check, verdict) = hot.unwrap();
        events.push((verdict.entry.at, check.cost));
    }
    events.sort();
    let (mut first, mut sum, mut most) = (0, 0, 0);
    for &(at, cost) in &events {
        sum += cost;
        while events[first].0.get() + 5_000 <= at.get() {
            sum -= events[first].1;
            first += 1;
        }
        most = most.max(sum);
    }
    eprintln!("hot key: at most {most} of 400 permits in any window, over {} admissions", events.len());
    assert!(most <= 400, "{most} permits in one window");
    assert!(most >= 395, "the limit must also be reached");
}

/// Asserts that each request was charged for all of its checks, or for none.
fn never_partly(pending: &[(Checks, Verdicts)]) {
    let partly = pending.iter().filter(|(_, verdicts)| {
        let charged = verdicts.verdicts.iter().filter(|verdict| verdict.outcome == Outcome::Charged).count();
        charged != 0 && charged != verdicts.verdicts.len()
    });
    assert_eq!(partly.count(), 0);
}
