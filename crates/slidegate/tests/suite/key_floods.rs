//! Tests floods of key names against a full memory store, for each `OnFull` policy.
//!
//! `SLIDEGATE_FLOOD_KEYS=1000000 cargo test --release -p slidegate --test suite key_floods:: -- --nocapture
//! --test-threads=1` runs the full size, as `scripts/soak.sh flood` does.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::FutureExt;
use slidegate::{
    Algorithm, Clock, Count, Key, ManualClock, MemoryOptions, MemoryStore, Micros, OnFull, Quota, RequestId,
    Settled, Store, WarmUp,
    algorithm::{State, States, evaluate},
    store::{Check, Checks, Correction, Entry, MemoryStats, Outcome, Settlement, Verdict, Verdicts},
};

use crate::conformance::Rng;
use crate::memory_store::live_bytes;

fn store(max_keys: usize, on_full: OnFull) -> (ManualClock, MemoryStore<ManualClock>) {
    let clock = ManualClock::at(Micros::from_secs(1_000_000));
    let options = MemoryOptions { max_keys, on_full, ..MemoryOptions::default() };
    (clock.clone(), MemoryStore::with_clock_and_options(clock, options))
}

fn key(rule: &str, name: &str) -> Key {
    Key::new(rule, [("n", name)])
}

fn admit(store: &MemoryStore<ManualClock>, checks: &Checks) -> Verdicts {
    let batch_verdicts = store.admit(std::slice::from_ref(checks)).now_or_never();
    batch_verdicts.expect("the memory store answers at once").unwrap().remove(0)
}

fn one(store: &MemoryStore<ManualClock>, key: &Key, quota: Quota, cost: u64) -> Verdict {
    admit(store, &Checks::one(Check::new(key.clone(), quota, cost)).unwrap()).verdicts[0]
}

fn settle(store: &MemoryStore<ManualClock>, key: &Key, entry: Entry, correction: Correction) -> Settled {
    let settlement = Settlement { key: key.clone(), entry, correction };
    store.settle(&[settlement]).now_or_never().unwrap().unwrap().settled[0]
}

/// Fills a store with keys of another rule that count something for an hour.
fn fill(store: &MemoryStore<ManualClock>, max_keys: usize) {
    let hour = Quota::per_hour(1).unwrap();
    for n in 0..4 * max_keys {
        one(store, &key("filler", &n.to_string()), hour, 1);
    }
}

/// The store is full at the first login of the account, so the account is the youngest key.
#[test]
fn new_key_names_do_not_reset_a_login_guard() {
    let clock = ManualClock::at(Micros::from_secs(1_000_000));
    let store = MemoryStore::with_clock(clock.clone(), 1_024);
    fill(&store, 1_024);
    let (login_quota, alice) = (Quota::per_hour(3).unwrap(), key("login", "alice"));
    let mut allowed = 0;
    for round in 0..50 {
        clock.advance(Micros::from_secs(1));
        allowed += (0..3).filter(|_| one(&store, &alice, login_quota, 1).outcome == Outcome::Charged).count();
        for n in 0..200 {
            one(&store, &key("login", &format!("{round}-{n}")), login_quota, 1);
        }
    }
    assert!(allowed <= 3, "{allowed} logins in an hour, of 3");
}

/// Instants of the last admissions of each key, as many as its limit. A new admission exceeds the limit if the oldest
/// of them still counts.
struct Replay {
    limit: usize,
    window: u64,
    latest: Vec<Micros>,
    over: u64,
    admitted: u64,
}

impl Replay {
    fn new(keys: usize, limit: usize, window: Micros) -> Self {
        Replay { limit, window: window.get(), latest: vec![Micros::ZERO; keys * limit], over: 0, admitted: 0 }
    }

    fn admitted(&mut self, key: usize, at: Micros) {
        let latest = &mut self.latest[key * self.limit..][..self.limit];
        let counts = latest[0] > Micros::ZERO && at.get() < latest[0].get() + self.window;
        self.over += u64::from(counts);
        self.admitted += 1;
        latest.rotate_left(1);
        latest[self.limit - 1] = at;
    }
}

struct Flood {
    victims: Replay,
    flood: Replay,
    stats: MemoryStats,
    live: i64,
}

/// A hundred keys are used before the flood and during it. Then as many keys as the store holds arrive, and twice as
/// many requests for random keys, out of four times that number.
fn flood(on_full: OnFull, max_keys: usize) -> Flood {
    const VICTIMS: usize = 100;
    let before = live_bytes();
    let names = 4 * max_keys;
    let (clock, store) = store(max_keys, on_full);
    let (login_quota, quota) = (Quota::per_minute(5).unwrap(), Quota::per_minute(2).unwrap());
    let mut flood = Replay::new(names, 2, quota.window());
    let mut victims = Replay::new(VICTIMS, 5, login_quota.window());
    let replays = live_bytes() - before;
    let mut rng = Rng::new(1);
    // The flood lasts one and a half windows. Each window has more keys than the store holds.
    let requests = 3 * max_keys as u64;
    for n in 0..requests {
        if n % 16 == 0 {
            let victim = (n / 16) as usize % VICTIMS;
            if one(&store, &key("login", &victim.to_string()), login_quota, 1).outcome == Outcome::Charged {
                victims.admitted(victim, clock.now());
            }
        }
        let name = if n < max_keys as u64 { n } else { rng.below(names as u64) };
        // Each name takes turns with one of 64 keys, which may be forgotten and start again.
        for name in [name, n % 64] {
            if one(&store, &key("flood", &name.to_string()), quota, 1).outcome == Outcome::Charged {
                flood.admitted(name as usize, clock.now());
            }
        }
        clock.advance(Micros::new(90_000_000 / requests));
        if n % 50_000 == 49_999 {
            store.sweep();
        }
    }
    let (stats, live) = (store.stats(), live_bytes() - before - replays);
    Flood { victims, flood, stats, live }
}

fn flood_keys() -> usize {
    std::env::var("SLIDEGATE_FLOOD_KEYS").map_or(10_000, |keys| keys.parse().unwrap())
}

#[test]
fn key_flood_is_never_admitted_over_its_limits() {
    let max_keys = flood_keys();
    for on_full in [OnFull::Share, OnFull::Deny, OnFull::Evict] {
        let Flood { victims, flood, stats, live } = flood(on_full, max_keys);
        eprintln!(
            "on-full {on_full:?}: {max_keys} keys at most, {} keys requested; {} held, {} shared counters; {:.1} MB by the \
             statistics, {:.1} MB allocated; victims: {} admitted, {} windows over; flood: {} admitted, {} windows over; {} \
             decisions shared, {} denied for want of room, {} evicted",
            4 * max_keys,
            stats.keys,
            stats.shared_counters,
            stats.bytes as f64 / 1e6,
            live as f64 / 1e6,
            victims.admitted,
            victims.over,
            flood.admitted,
            flood.over,
            stats.shared,
            stats.denied_full,
            stats.evicted,
        );
        assert_eq!(victims.over, 0, "{on_full:?}");
        assert!(victims.admitted > 500, "{on_full:?}: victims are admitted what their limit allows");
        // Each shard has an equal part, rounded up.
        assert!(stats.keys <= max_keys + 64, "{stats:?}");
        // 128 bytes a key in a table that is at least seven sixteenths full, and a little for logs and shared counters.
        assert!(stats.bytes < max_keys * 340 + (2 << 20), "{stats:?}");
        let within = |part: i64| (live - stats.bytes as i64).abs() <= live / part;
        assert!(within(20), "{live} bytes allocated, {} by the statistics", stats.bytes);
        match on_full {
            OnFull::Share => assert!(stats.shared > 0 && stats.shared_counters > 0, "{stats:?}"),
            OnFull::Deny => assert!(stats.denied_full > 0 && stats.shared == 0, "{stats:?}"),
            OnFull::Evict => {
                assert!(
                    flood.over > 0 && stats.evicted > 0,
                    "the test detects that this policy forgets keys"
                );
                continue;
            }
        }
        assert_eq!((flood.over, stats.evicted), (0, 0), "{on_full:?}");
    }
}

struct Single<'a>(&'a mut State);

impl States for Single<'_> {
    fn state(&mut self, _: usize) -> &mut State {
        self.0
    }
}

/// Quota of key `n`, of one of eight kinds. Limits change all the time, as those of adaptive rules do. The keys of a rule
/// have buckets of different rates and bursts, which do not change: a bucket that is full is dropped with its level.
fn quota(n: u64, rng: &mut Rng) -> Quota {
    let limit = 4 + rng.below(4);
    let plain = Quota::new(limit, Duration::from_millis(10)).unwrap();
    let of = |algorithm| plain.with_algorithm(algorithm).unwrap();
    let bucket = Quota::new(3 + n / 24, Duration::from_millis(10 + n / 48)).unwrap();
    let bucket = bucket.with_algorithm(Algorithm::TokenBucket { burst: 3 + n % 5 }).unwrap();
    match n % 8 {
        0 => plain,
        1 if n % 16 == 1 => of(Algorithm::SlidingCounter),
        1 => of(Algorithm::FixedWindow),
        2 => of(Algorithm::TimeSlice { slices: 5 }),
        3 => bucket,
        4 => of(Algorithm::Concurrency),
        5 => plain.with_count(Count::Attempts),
        6 => bucket.with_count(Count::Attempts),
        _ => plain.with_warm_up(WarmUp::new(30, Duration::from_millis(40)).unwrap()).unwrap(),
    }
}

struct Outcomes {
    /// Checks that the store charged although an exact count of the key would have denied them.
    over: u64,
    charged: u64,
    denied: u64,
    repeated: u64,
    settled: u64,
    stats: MemoryStats,
}

/// Random operations on more keys than the store holds. Each key also has a model, which records the charges that the
/// store reported.
fn play(on_full: OnFull, seed: u64, operations: u64) -> Outcomes {
    const KEYS: u64 = 120;
    let (clock, store) = store(20, on_full);
    let mut rng = Rng::new(seed);
    let mut alone: HashMap<u64, State> = HashMap::new();
    let mut charges: Vec<(u64, Entry, Entry)> = Vec::new();
    let mut entry_by_number: HashMap<(u64, Micros, u64), Entry> = HashMap::new();
    let mut out =
        Outcomes { over: 0, charged: 0, denied: 0, repeated: 0, settled: 0, stats: MemoryStats::default() };
    // Keys of one rule have different kinds of quotas.
    let name = |n: u64| key(&format!("r{}", n / 8 % 3), &n.to_string());
    for _ in 0..operations {
        clock.advance(Micros::new(match rng.below(200) {
            0 => 25_000,
            1..20 => rng.below(4_000),
            _ => rng.below(20),
        }));
        match rng.below(40) {
            0 => store.sweep(),
            1 => {
                let n = rng.below(KEYS);
                if store.reset(&name(n)).now_or_never().unwrap().unwrap() {
                    alone.remove(&n);
                    charges.retain(|(charged, ..)| *charged != n);
                }
            }
            2 => drop(store.inspect(&name(rng.below(KEYS))).now_or_never()),
            3..10 if !charges.is_empty() => {
                let recent = charges.len().min(60) as u64;
                let (n, store_entry, expected_entry) =
                    charges[charges.len() - 1 - rng.below(recent) as usize];
                let correction = match rng.below(3) {
                    0 => Correction::Extend,
                    1 => Correction::Cost(0),
                    _ => Correction::Cost(rng.below(8)),
                };
                if settle(&store, &name(n), store_entry, correction) == Settled::Done {
                    out.settled += 1;
                    alone.get_mut(&n).unwrap().correct(clock.now(), expected_entry, correction);
                }
            }
            _ => {
                // Some keys are requested more often.
                let mut keys = vec![rng.below(KEYS)];
                (0..rng.below(3)).for_each(|_| keys.push(rng.below(16)));
                keys.sort_unstable();
                keys.dedup();
                let mut check = |n: u64| Check::new(name(n), quota(n, &mut rng), 1 + rng.below(3) / 2);
                let mut checks = Checks::new(keys.iter().map(|n| check(*n))).unwrap();
                if rng.below(3) == 0 {
                    checks = checks.with_id(RequestId::new(&format!("id{}", rng.below(30))).unwrap());
                }
                let denied = store.stats().denied_full;
                let verdicts = admit(&store, &checks);
                let no_room = store.stats().denied_full > denied;
                let denier = verdicts.verdicts.iter().position(|verdict| verdict.outcome.denies());
                for (i, (n, check)) in keys.iter().zip(checks.as_slice()).enumerate() {
                    let verdict = &verdicts.verdicts[i];
                    let charged = verdict.outcome == Outcome::Charged;
                    let state = alone.entry(*n).or_insert_with(|| State::new(&check.quota));
                    let number = (*n, verdict.entry.at, verdict.entry.seq);
                    if charged && entry_by_number.contains_key(&number) {
                        out.repeated += 1;
                        continue;
                    }
                    let mut own = Checks::one(check.clone()).unwrap();
                    if let Some(id) = checks.id() {
                        own = own.with_id(id.clone());
                    }
                    // An attempt counts too, if it was evaluated and had a counter.
                    let attempt = check.quota.count() == Count::Attempts
                        && denier.is_some_and(|denier| i <= denier)
                        && !no_room;
                    if attempt {
                        state.admit(verdicts.at, &check.quota, check.cost);
                    }
                    if charged {
                        let expected = evaluate(&own, verdicts.at, &mut Single(state)).verdicts[0];
                        if expected.outcome != Outcome::Charged {
                            out.over += 1;
                        } else if check.quota.count() == Count::Admitted {
                            charges.push((*n, verdict.entry, expected.entry));
                        }
                        entry_by_number.insert(number, expected.entry);
                        out.charged += 1;
                    } else {
                        out.denied += 1;
                    }
                }
            }
        }
    }
    out.stats = store.stats();
    out
}

#[test]
fn shared_counters_are_never_looser_than_exact_counts() {
    for (on_full, seed) in [(OnFull::Share, 1), (OnFull::Share, 2), (OnFull::Share, 3), (OnFull::Deny, 4)] {
        let out = play(on_full, seed, 60_000);
        eprintln!(
            "{on_full:?}: {} charged, {} denied, {} repeated, {} settled; {:?}",
            out.charged, out.denied, out.repeated, out.settled, out.stats
        );
        assert_eq!(out.over, 0, "{on_full:?} {seed}");
        assert!(
            out.charged > 10_000 && out.denied > 10_000 && out.repeated > 20 && out.settled > 500,
            "too few"
        );
        assert_eq!(out.stats.evicted, 0);
        match on_full {
            OnFull::Share => assert!(out.stats.shared > 10_000 && out.stats.swept > 100, "{:?}", out.stats),
            _ => assert!(out.stats.denied_full > 10_000, "{:?}", out.stats),
        }
    }
    // The same operations detect a store that forgets keys.
    assert!(play(OnFull::Evict, 1, 20_000).over > 0);
}

/// Returns two keys that share a counter.
fn neighbours(store: &MemoryStore<ManualClock>, rule: &str, quota: Quota) -> (Key, Key) {
    let first = key(rule, "first");
    let used = |key: &Key| store.inspect(key).now_or_never().unwrap().unwrap().map_or(0, |seen| seen.used);
    let charged = one(store, &first, quota, 1);
    assert_eq!(charged.outcome, Outcome::Charged);
    let second = (0..1_000).map(|n| key(rule, &n.to_string())).find(|key| used(key) == 1).unwrap();
    assert_eq!(settle(store, &first, charged.entry, Correction::Cost(0)), Settled::Done);
    (first, second)
}

#[test]
fn request_ids_are_per_key_in_a_shared_counter() {
    let (clock, store) = store(16, OnFull::Share);
    fill(&store, 16);
    let quota = Quota::per_minute(10).unwrap();
    let (first, second) = neighbours(&store, "k", quota);
    let checks = |key: &Key| {
        let id = RequestId::new("the-same").unwrap();
        Checks::one(Check::new(key.clone(), quota, 1)).unwrap().with_id(id)
    };
    clock.advance(Micros::from_secs(1));
    let charged = admit(&store, &checks(&first)).verdicts[0];
    assert_eq!((charged.outcome, charged.used), (Outcome::Charged, 1));
    let again = admit(&store, &checks(&first)).verdicts[0];
    assert_eq!((again.entry, again.used), (charged.entry, 1), "a retry is not charged again");
    let other = admit(&store, &checks(&second)).verdicts[0];
    assert_eq!((other.outcome, other.used), (Outcome::Charged, 2), "another key is charged");
}

#[test]
fn settlement_refunds_only_its_own_admission() {
    let (clock, store) = store(16, OnFull::Share);
    fill(&store, 16);
    let quota = Quota::per_minute(10).unwrap();
    let (first, second) = neighbours(&store, "k", quota);
    let (a, b) = (one(&store, &first, quota, 3), one(&store, &second, quota, 4));
    assert_eq!(b.used, 7, "one counter counts both keys");
    clock.advance(Micros::from_secs(1));
    assert_eq!(settle(&store, &first, a.entry, Correction::Cost(0)), Settled::Done);
    assert_eq!(settle(&store, &first, a.entry, Correction::Cost(0)), Settled::Already);
    assert_eq!(one(&store, &second, quota, 0).used, 4);
    assert!(!store.reset(&second).now_or_never().unwrap().unwrap(), "a shared counter is not reset");
    assert_eq!(one(&store, &second, quota, 0).used, 4);
    // A shared bucket settles nothing: it may have refilled the refunded permits for other keys, and its keys may owe
    // different amounts.
    let bucket = quota.with_algorithm(Algorithm::TokenBucket { burst: 10 }).unwrap();
    let taken = one(&store, &first, bucket, 4);
    assert_eq!(taken.outcome, Outcome::Charged);
    assert_eq!(settle(&store, &first, taken.entry, Correction::Cost(1)), Settled::Gone);
    assert_eq!(settle(&store, &first, taken.entry, Correction::Cost(6)), Settled::Gone);
    assert_eq!(one(&store, &first, bucket, 0).used, 4);
}

#[test]
fn held_permits_in_a_shared_counter_are_extended_and_released() {
    let (clock, store) = store(16, OnFull::Share);
    fill(&store, 16);
    let quota = Quota::per_minute(2).unwrap().with_algorithm(Algorithm::Concurrency).unwrap();
    let (first, second) = neighbours(&store, "k", quota);
    let hold = one(&store, &first, quota, 1);
    assert_eq!(one(&store, &second, quota, 1).outcome, Outcome::Charged);
    assert_eq!(one(&store, &first, quota, 1).outcome, Outcome::Denied);
    clock.advance(Micros::from_secs(50));
    assert_eq!(settle(&store, &first, hold.entry, Correction::Extend), Settled::Done);
    clock.advance(Micros::from_secs(20));
    assert_eq!(one(&store, &second, quota, 0).used, 1, "one permit is held; the other was not extended");
    assert_eq!(settle(&store, &first, hold.entry, Correction::Cost(0)), Settled::Done);
    assert_eq!(one(&store, &second, quota, 0).used, 0);
}

/// Half of the keys leave, so that there is room.
#[test]
fn key_leaves_a_shared_counter_with_its_usage() {
    let (clock, store) = store(16, OnFull::Share);
    let (minute, hour) = (Quota::per_minute(1).unwrap(), Quota::per_hour(1).unwrap());
    for n in 0..8 {
        one(&store, &key("short", &n.to_string()), minute, 1);
        one(&store, &key("long", &n.to_string()), hour, 1);
    }
    clock.advance(Micros::from_secs(50));
    let quota = Quota::per_hour(10).unwrap();
    let (first, second) = neighbours(&store, "k", quota);
    assert_eq!(one(&store, &first, quota, 7).used, 7);
    assert_eq!(store.stats().keys, 16);
    clock.advance(Micros::from_secs(20));
    store.sweep();
    assert_eq!(store.stats().keys, 8);
    // The shared counter has admissions of the first key, and none of the second.
    assert_eq!((one(&store, &second, quota, 1).used, store.stats().keys), (1, 9));
    assert_eq!(one(&store, &first, quota, 4).outcome, Outcome::Denied);
    assert_eq!((one(&store, &first, quota, 2).used, store.stats().keys), (9, 10));
    assert_eq!(
        one(&store, &first, quota, 2).outcome,
        Outcome::Denied,
        "the key now has its own counter, with all its used permits"
    );
    clock.advance(Micros::from_secs(3_600));
    store.sweep();
    let stats = store.stats();
    assert_eq!((stats.keys, stats.shared_counters, stats.bytes), (0, 0, 0));
}

#[test]
fn full_store_denies_new_keys_until_there_is_room() {
    let (clock, store) = store(16, OnFull::Deny);
    let (minute, hour) = (Quota::per_minute(1).unwrap(), Quota::per_hour(5).unwrap());
    for n in 0..16 {
        one(&store, &key("k", &n.to_string()), if n == 0 { minute } else { hour }, 1);
    }
    let new = key("k", "new");
    let denied = one(&store, &new, hour, 1);
    assert_eq!((denied.outcome, denied.limit, denied.used), (Outcome::Denied, 5, 5));
    assert_eq!(denied.remaining(), 0);
    assert!(denied.retry_after > Micros::ZERO && denied.retry_after <= Micros::from_secs(1));
    let peek = Checks::one(Check::new(new.clone(), hour, 1)).unwrap().peek();
    assert_eq!(admit(&store, &peek).verdicts[0].outcome, Outcome::Denied);
    assert_eq!(one(&store, &new, hour, 0).used, 0, "a request for 0 permits needs no room");
    assert_eq!(one(&store, &new, hour, 6).outcome, Outcome::Impossible);
    // Keys that the store holds are still decided.
    assert_eq!(one(&store, &key("k", "1"), hour, 1).used, 2);
    let stats = store.stats();
    assert_eq!((stats.keys, stats.denied_full, stats.evicted), (16, 1, 0));
    clock.advance(Micros::from_secs(60));
    assert_eq!(one(&store, &new, hour, 1).outcome, Outcome::Charged, "one of the sixteen keys is idle");
    assert_eq!(store.stats().keys, 16);
}

/// A request over an idle key and a new key that needs its room.
#[test]
fn keys_of_one_batch_do_not_evict_each_other() {
    for on_full in [OnFull::Share, OnFull::Deny] {
        let (clock, store) = store(1, on_full);
        let quota = Quota::per_second(5).unwrap();
        one(&store, &key("k", "idle"), quota, 1);
        clock.advance(Micros::from_secs(2));
        let check = |name| Check::new(key("k", name), quota, 1);
        let verdicts = admit(&store, &Checks::new([check("idle"), check("new"), check("newer")]).unwrap());
        let shared = on_full == OnFull::Share;
        let charged = verdicts.verdicts.iter().filter(|verdict| verdict.outcome == Outcome::Charged).count();
        assert_eq!(charged, if shared { 3 } else { 0 }, "{on_full:?}");
        assert_eq!(store.stats().keys, 1);
    }
}

/// Clients choose the windows of ad-hoc limits.
#[test]
fn number_of_shared_counters_is_bounded() {
    let (_, store) = store(64, OnFull::Share);
    fill(&store, 64);
    let quota = |millis| Quota::new(1_000, Duration::from_millis(millis)).unwrap();
    for rule in ["a", "b", "c", "d", "e", "f"] {
        for n in 0..2_000 {
            one(&store, &key(rule, &n.to_string()), quota(100_000 + n % 50), 1);
        }
    }
    let stats = store.stats();
    assert!(stats.shared_counters <= 64 && stats.denied_full > 1_000 && stats.shared > 100, "{stats:?}");
    assert!(stats.bytes < 200_000, "{stats:?}");
}
