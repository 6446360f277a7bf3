//! Tests a client that does its worst: large keys, mixed costs, mass expiry, attempts, settlements, peeks. Other
//! clients must not notice.
//!
//! `scripts/soak.sh hostile` runs it with 100,000 entries in a key, the default deadline, and a bound on the longest script call:
//! `HOSTILE_ENTRIES`, `HOSTILE_ROUNDS`, `HOSTILE_DEADLINE_MS` and `HOSTILE_MOST_US`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slidegate::{
    Algorithm, Count, Encoding, Key, Micros, Quota, RequestId, Source, Store,
    redis::{Failover, FailoverOptions, RedisStore},
    store::{Check, Checks, Correction, Settlement},
};
use slidegate_testkit::{Flavour, RedisServer, until};

use crate::failover_kills::number;
use crate::script_bounds::{Writer, patient};

/// The limit of an ordinary caller's key, in a second.
const LIMIT: u64 = 5;
const CALLERS: u64 = 8;

/// Answer to one ordinary caller.
struct CallRecord {
    key: u64,
    at: Micros,
    allowed: bool,
    source: Source,
}

fn check(name: &str, encoding: Encoding, limit: u64, window: Duration) -> Check {
    let quota = Quota::new(limit, window).unwrap();
    Check { encoding, ..Check::new(Key::new("hostile", [("n", name)]), quota, 1) }
}

fn with_cost(check: &Check, cost: u64) -> Checks {
    Checks::one(Check { cost, ..check.clone() }).unwrap()
}

/// Signals that the ordinary callers share.
#[derive(Default)]
struct Signals {
    stop: AtomicBool,
    /// Set when an ordinary caller was denied.
    denied: AtomicBool,
}

/// Sends requests for its own keys until it is stopped.
async fn ordinary(failover: Failover, caller: u64, signals: Arc<Signals>) -> Vec<CallRecord> {
    let mut records = Vec::new();
    let quota = Quota::new(LIMIT, Duration::from_secs(1)).unwrap();
    while !signals.stop.load(Ordering::Relaxed) {
        let n = caller * 3 + records.len() as u64 % 3;
        let key = Key::new("ordinary", [("n", n.to_string().as_str())]);
        let checks = Checks::one(Check::new(key, quota, 1)).unwrap();
        let verdicts = failover.admit(&[checks]).await.unwrap().remove(0);
        let allowed = !verdicts.verdicts[0].outcome.denies();
        if !allowed {
            signals.denied.store(true, Ordering::Relaxed);
        }
        records.push(CallRecord { key: n, at: verdicts.at, allowed, source: verdicts.source });
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    records
}

/// Returns the most permits admitted in any window of one key.
fn most_in_a_window(records: &[CallRecord]) -> u64 {
    let mut keys: HashMap<u64, Vec<u64>> = HashMap::new();
    for record in records.iter().filter(|record| record.allowed) {
        keys.entry(record.key).or_default().push(record.at.get());
    }
    let mut most = 0;
    for instants in keys.values_mut() {
        instants.sort_unstable();
        for (i, at) in instants.iter().enumerate() {
            let within = instants[i..].iter().take_while(|other| **other < at + 1_000_000).count();
            most = most.max(within as u64);
        }
    }
    most
}

/// Returns the longest script calls: their microseconds and the start of each command.
fn slowest(server: &RedisServer) -> Vec<(u64, String)> {
    let found: Vec<Vec<redis::Value>> =
        redis::cmd("SLOWLOG").arg("GET").arg(-1).query(&mut server.client()).unwrap();
    let mut calls: Vec<(u64, String)> = found
        .into_iter()
        .filter_map(|entry| {
            let micros: u64 = redis::from_redis_value(entry.get(2)?.clone()).ok()?;
            let words: Vec<String> = redis::from_redis_value::<Vec<Vec<u8>>>(entry.get(3)?.clone())
                .ok()?
                .iter()
                .map(|word| String::from_utf8_lossy(word).into_owned())
                .collect();
            let name = words.first()?.to_uppercase();
            let about = words.iter().skip(3).take(1).cloned().collect::<String>();
            matches!(name.as_str(), "EVALSHA" | "EVAL").then_some((micros, about))
        })
        .collect();
    calls.sort_unstable_by(|a, b| b.cmp(a));
    calls
}

/// One hostile client, which repeats every kind of call that was once slow.
async fn hostile(failover: Failover, server: Arc<RedisServer>, n: u64, rounds: u64) -> u64 {
    let (hour, minute) = (Duration::from_secs(3_600), Duration::from_secs(60));
    let redis: RedisStore = failover.store().clone();
    let mut calls = 0;
    for round in 0..rounds {
        for encoding in [Encoding::Zset, Encoding::Packed] {
            let large = 4 * n;
            // Large, falling costs, in acquires, peeks and attempts.
            let full = check(&format!("full{encoding:?}"), encoding, large, hour);
            let attempts = check(&format!("attempts{encoding:?}"), encoding, large, hour);
            let attempts = Check { quota: attempts.quota.with_count(Count::Attempts), ..attempts };
            let expired = check(&format!("expired{encoding:?}"), encoding, large, minute);
            let alike = check(&format!("alike{encoding:?}"), encoding, large, minute);
            let written = {
                let (server, full, attempts) = (Arc::clone(&server), full.clone(), attempts.clone());
                let (expired, alike) = (expired.clone(), alike.clone());
                tokio::task::spawn_blocking(move || {
                    let mut writer = Writer::new(&server);
                    let entries = writer.entries(n, minute, 7);
                    writer.write(&full, &entries);
                    writer.write(&attempts, &entries);
                    for (check, most) in [(&expired, 7), (&alike, 1)] {
                        let mut entries = writer.entries(n, 2 * minute, most);
                        entries.extend(writer.entries(5, Duration::from_secs(5), most));
                        writer.write(check, &entries);
                    }
                    let long_ago = writer.now() - 120_000_000;
                    writer.write_notes(&expired, &vec![long_ago; n as usize]);
                    entries
                })
            };
            let entries = written.await.unwrap();
            for i in 0..25 {
                let cost = large - i * large / 100 - round;
                for checks in
                    [with_cost(&full, cost), with_cost(&full, cost).peek(), with_cost(&attempts, cost / 2)]
                {
                    failover.admit(&[checks]).await.unwrap();
                    calls += 1;
                }
                // Requests with ids, so that notes are written.
                let id = RequestId::new(&format!("{round}-{i}")).unwrap();
                failover.admit(&[with_cost(&expired, 1).with_id(id)]).await.unwrap();
                failover.admit(&[with_cost(&alike, 1)]).await.unwrap();
                // A batch over all of these keys.
                let batch: Vec<Checks> = [&full, &attempts, &expired, &alike]
                    .into_iter()
                    .cycle()
                    .take(100)
                    .enumerate()
                    .map(|(k, check)| with_cost(check, cost - k as u64))
                    .collect();
                failover.admit(&batch).await.unwrap();
                calls += 3;
            }
            // Refunds the second newest entry and older ones, and then the newest: now the script must search for the
            // newest entry that is left.
            let settle = async |at: u64, cost: u64, to: u64| {
                let entry = slidegate::store::Entry { at: Micros::new(at), seq: 0, cost };
                let correction = Correction::Cost(to);
                let _ = redis.settle(&[Settlement { key: full.key.clone(), entry, correction }]).await;
            };
            for (at, cost) in entries[..entries.len() - 1].iter().rev().take(200) {
                settle(*at, *cost, 0).await;
            }
            let (at, cost) = entries[entries.len() - 1];
            settle(at, cost, 0).await;
            settle(entries[0].0, entries[0].1, 60_000).await;
            calls += 202;
            let _ = redis.inspect(&full.key).await;
            let _ = redis.audit(&full.key, None, false).await;
        }
        // Other algorithms.
        for algorithm in
            [Algorithm::FixedWindow, Algorithm::TokenBucket { burst: 100_000 }, Algorithm::Concurrency]
        {
            let check = check(algorithm.as_str(), Encoding::Zset, 100_000, minute);
            let quota = check.quota.with_algorithm(algorithm).unwrap();
            let check = Check { quota, ..check };
            for i in 0..100 {
                let id = RequestId::new(&format!("{round}-{i}")).unwrap();
                failover
                    .admit(&[with_cost(&check, 100_000 - i), with_cost(&check, 1 + i).with_id(id)])
                    .await
                    .unwrap();
                calls += 1;
            }
        }
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            cursor = redis.clean(at, 100).await.unwrap().next;
        }
    }
    calls
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_client_does_not_slow_down_other_clients() {
    let n = number("HOSTILE_ENTRIES", 20_000);
    let rounds = number("HOSTILE_ROUNDS", 1);
    // A longer deadline than the default, because the machine may be busy; the soak uses the default.
    let deadline = Duration::from_millis(number("HOSTILE_DEADLINE_MS", 1_000));
    let most = number("HOSTILE_MOST_US", 0);
    let slow = ["--slowlog-log-slower-than", "500", "--slowlog-max-len", "100000"];
    let server = Arc::new(RedisServer::with(Flavour::Redis7, &slow, &[]));
    let store = RedisStore::with_options(&patient(&server)).unwrap();
    let failover = Failover::new(store, FailoverOptions { deadline, ..FailoverOptions::default() }).unwrap();
    let signals = Arc::new(Signals::default());
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| tokio::spawn(ordinary(failover.clone(), caller, Arc::clone(&signals))))
        .collect();
    let calls = hostile(failover.clone(), Arc::clone(&server), n, rounds).await;
    until("the ordinary callers reach their limits", async || signals.denied.load(Ordering::Relaxed)).await;
    signals.stop.store(true, Ordering::Relaxed);
    let mut records = Vec::new();
    for caller in callers {
        records.extend(caller.await.unwrap());
    }
    let by_store = records.iter().filter(|record| record.source == Source::Store).count();
    let share = by_store as f64 / records.len() as f64;
    let over = most_in_a_window(&records);
    let slowest = slowest(&server);
    let longest = slowest.first().map_or(0, |(micros, _)| *micros);
    eprintln!(
        "hostile: {calls} hostile calls on keys of {n} entries; longest script call {:.2} ms ({} above 0.5 ms); \
         {} decisions of others, {:.2} % by the store; most in a window {over} of {LIMIT}",
        longest as f64 / 1_000.0,
        slowest.len(),
        records.len(),
        100.0 * share,
    );
    for (micros, about) in slowest.iter().take(5) {
        eprintln!("hostile: {:.2} ms {about}", *micros as f64 / 1_000.0);
    }
    assert!(over <= LIMIT, "{over} in a window of {LIMIT}");
    assert!(share >= 0.99, "{:.2} % by the store", 100.0 * share);
    assert!(most == 0 || longest <= most, "a script call took {longest} us, more than {most}");
}
