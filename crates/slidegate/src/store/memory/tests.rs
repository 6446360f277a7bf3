//! Tests of statistics and key lists, which work in steps under the locks of the shards: length of a step, and total of
//! all steps.

use super::shard::Shard;
use super::stats::{MAX_RESTARTS, STEP, ShardCount};
use super::{MemoryKeyCursor, MemoryKeyPage, MemoryOptions, MemoryStats, MemoryStore, OnFull, SWEEP_STEP};
use crate::common::spin_lock::holds;
use crate::{Algorithm, Check, Checks, Key, ManualClock, Micros, Quota};

fn store(max_keys: usize) -> (ManualClock, MemoryStore<ManualClock>) {
    let clock = ManualClock::at(Micros::from_secs(1_000_000));
    (clock.clone(), MemoryStore::with_clock(clock, max_keys))
}

/// Key number `n`. Every third key is too long to be stored inline.
fn key(n: u64) -> Key {
    let padding = if n.is_multiple_of(3) { "-a-name-that-is-too-long-for-a-slot" } else { "" };
    Key::new("k", [("n", format!("{n}{padding}").as_str())])
}

fn admit(store: &MemoryStore<ManualClock>, key: Key, quota: Quota) {
    let checks = Checks::one(Check::new(key, quota, 1)).unwrap();
    store.inner.admit(std::slice::from_ref(&checks));
}

/// Returns the statistics, counted with each shard locked for the whole of its count.
fn recount(store: &MemoryStore<ManualClock>) -> MemoryStats {
    let mut stats = MemoryStats::default();
    for shard in &store.inner.shards {
        let shard = shard.lock();
        let weights: Vec<_> = (0..shard.buckets()).filter_map(|bucket| shard.usage(bucket)).collect();
        assert_eq!(weights.len(), shard.stats(0, 0).keys);
        let events = weights.iter().map(|(events, _)| events).sum();
        stats.add(shard.stats(events, weights.iter().map(|(_, bytes)| bytes).sum()));
    }
    stats
}

#[test]
fn stats_equal_a_recount_of_a_quiet_store() {
    for on_full in [OnFull::Share, OnFull::Evict] {
        stats_equal_a_recount(on_full);
    }
}

fn stats_equal_a_recount(on_full: OnFull) {
    let clock = ManualClock::at(Micros::from_secs(1_000_000));
    let options = MemoryOptions { max_keys: 20_000, on_full, ..MemoryOptions::default() };
    let store = MemoryStore::with_clock_and_options(clock.clone(), options);
    let hour = Quota::per_hour(1_000).unwrap();
    let fixed = hour.with_algorithm(Algorithm::FixedWindow).unwrap();
    let second = Quota::per_second(5).unwrap();
    for n in 0..30_000 {
        clock.advance(Micros::new(1));
        let quota = [hour, fixed, second][n as usize % 3];
        for _ in 0..1 + n % 4 {
            clock.advance(Micros::new(1));
            admit(&store, key(n), quota);
        }
    }
    let stats = store.stats();
    assert_eq!(stats, recount(&store));
    // The figures differ from each other and from zero, so that exchanged figures would be detected.
    assert!(stats.events > stats.keys && stats.keys > 10_000, "{stats:?}");
    let beyond = if on_full == OnFull::Evict { stats.evicted } else { stats.shared };
    assert!(beyond > 5_000, "{stats:?}");
    clock.advance(Micros::from_secs(2));
    store.sweep();
    let later = store.stats();
    assert_eq!(later, recount(&store));
    assert!(later.swept > stats.swept && later.keys < stats.keys && later.bytes < stats.bytes, "{later:?}");
}

/// Lists all keys in pages of `count` keys. Returns the keys and the number of pages.
fn list(store: &MemoryStore<ManualClock>, count: usize) -> (Vec<(String, u64)>, usize) {
    let (mut keys, mut from, mut pages) = (Vec::new(), MemoryKeyCursor::default(), 0);
    loop {
        let page = store.keys(&from, count, |_| true);
        assert!(page.keys.len() <= count);
        keys.extend(page.keys.into_iter().map(|usage| (usage.key.to_string(), usage.used)));
        pages += 1;
        match page.next {
            Some(next) => from = next,
            None => break,
        }
    }
    keys.sort();
    (keys, pages)
}

#[test]
fn pages_have_every_key_that_counts_once() {
    let (clock, store) = store(20_000);
    let (hour, second) = (Quota::per_hour(1_000).unwrap(), Quota::per_second(5).unwrap());
    for n in 0..1_000 {
        for _ in 0..1 + n % 3 {
            admit(&store, key(n), hour);
        }
        admit(&store, Key::new("short", [("n", n.to_string().as_str())]), second);
    }
    clock.advance(Micros::from_secs(2));
    let mut expected: Vec<(String, u64)> = (0..1_000).map(|n| (key(n).to_string(), 1 + n % 3)).collect();
    expected.sort();
    holds::take();
    for count in [1, 17, 1_000_000] {
        let (keys, pages) = list(&store, count);
        assert!(pages >= 1_000 / count, "{pages} pages");
        assert_eq!(keys, expected, "{count}");
    }
    let longest = holds::take().into_iter().max();
    assert_eq!(longest, Some(STEP));
    // A token bucket stores its capacity, so the page contains it.
    let bucket = hour.with_algorithm(Algorithm::TokenBucket { burst: 7 }).unwrap();
    admit(&store, Key::new("bucket", []), bucket);
    let page = store.keys(&MemoryKeyCursor { shard: 0, after: String::new() }, 10, |key| key == "bucket");
    let found: Vec<_> =
        page.keys.iter().map(|usage| (usage.key.as_str(), usage.used, usage.capacity)).collect();
    assert_eq!(found, [("bucket", 1, Some(7))]);
    assert_eq!(
        store.keys(&MemoryKeyCursor { shard: 1_000, after: String::new() }, 10, |_| true),
        MemoryKeyPage::default()
    );
}

/// Keys are added between the pages, so that every table is reorganised.
#[test]
fn key_that_stays_is_listed_once_while_tables_grow() {
    let (_, store) = store(100_000);
    let hour = Quota::per_hour(1_000).unwrap();
    let stays = |n: u64| Key::new("stays", [("n", n.to_string().as_str())]);
    (0..2_000).for_each(|n| admit(&store, stays(n), hour));
    let (mut found, mut from, mut added) = (Vec::new(), MemoryKeyCursor::default(), 0);
    loop {
        let page = store.keys(&from, 50, |key| key.starts_with("stays"));
        found.extend(page.keys.into_iter().map(|usage| usage.key.to_string()));
        (0..500)
            .for_each(|n| admit(&store, Key::new("more", [("n", (added + n).to_string().as_str())]), hour));
        added += 500;
        match page.next {
            Some(next) => from = next,
            None => break,
        }
    }
    found.sort();
    let mut expected: Vec<String> = (0..2_000).map(|n| stays(n).to_string()).collect();
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn stats_of_an_empty_store_are_zero() {
    let (_, store) = store(1_000);
    assert_eq!(store.stats(), MemoryStats::default());
}

#[test]
fn one_hold_of_a_lock_visits_a_bounded_number_of_buckets() {
    let (_, store) = store(20_000);
    let quota = Quota::per_hour(5).unwrap();
    (0..20_000).for_each(|n| admit(&store, key(n), quota));
    let buckets: usize = store.inner.shards.iter().map(|shard| shard.lock().buckets()).sum();
    assert!(buckets > 100 * STEP.max(SWEEP_STEP) / 4, "{buckets} buckets are many steps");

    holds::take();
    store.stats();
    let visits = holds::take();
    assert_eq!(visits.iter().sum::<usize>(), buckets, "every bucket is visited once");
    assert!(visits.iter().all(|visits| *visits <= STEP), "{:?} buckets under one lock", visits.iter().max());

    store.sweep();
    let visits = holds::take();
    assert_eq!(visits.iter().sum::<usize>(), buckets);
    assert!(
        visits.iter().all(|visits| *visits <= SWEEP_STEP),
        "{:?} buckets under one lock",
        visits.iter().max()
    );
}

/// A decision that waits for a lock finds it free after the step.
#[test]
fn steps_of_one_shard_are_separated_by_steps_of_the_others() {
    let (_, store) = store(20_000);
    let quota = Quota::per_hour(5).unwrap();
    (0..20_000).for_each(|n| admit(&store, key(n), quota));
    let shards = store.inner.shards.len();
    let mut turns: Vec<usize> = Vec::new();
    store.inner.in_turns(|shard, steps: &mut usize| {
        let address = std::ptr::from_ref(shard) as usize;
        assert!(!turns.iter().rev().take(shards - 1).any(|other| *other == address), "twice in a round");
        turns.push(address);
        *steps += 1;
        *steps < 3
    });
    assert_eq!(turns.len(), 3 * shards);
}

/// The table grows, and shrinks, in the middle of a count.
#[test]
fn a_count_starts_again_when_slots_move() {
    let (clock, store) = store(64);
    let shard = &store.inner.shards[0];
    let (long, short) = (Quota::per_hour(5).unwrap(), Quota::per_second(5).unwrap());
    let count = |meddle: &dyn Fn()| {
        let before = shard.lock().layout;
        let mut count = ShardCount::default();
        assert_eq!(count.step(&shard.lock()), None, "the table is larger than a step");
        meddle();
        assert_ne!(shard.lock().layout, before, "slots have moved");
        loop {
            let counted = count.step(&shard.lock());
            if let Some(stats) = counted {
                return stats;
            }
        }
    };
    assert_eq!(store.inner.shards.len(), 1);
    (0..10).for_each(|n| admit(&store, key(n), long));
    (10..40).for_each(|n| admit(&store, key(n), short));
    let grown = count(&|| (40..64).for_each(|n| admit(&store, key(n), short)));
    assert_eq!(grown, recount(&store));
    assert_eq!((grown.keys, grown.events), (64, 64));
    let shrunk = count(&|| {
        clock.advance(Micros::from_secs(1));
        store.sweep();
    });
    assert_eq!(shrunk, recount(&store));
    assert_eq!((shrunk.keys, shrunk.events), (10, 10));
}

/// A count ends even if slots move before each of its steps.
#[test]
fn restarts_of_a_count_are_bounded() {
    let (_, store) = store(64);
    let mut shard = store.inner.shards[0].lock();
    let mut count = ShardCount::default();
    let long = Quota::per_hour(5).unwrap();
    for n in 0..64 {
        let state = shard.fresh(&long);
        shard.insert(&key(n), state, Micros::ZERO);
    }
    let bound = MAX_RESTARTS as usize + shard.buckets().div_ceil(STEP);
    let steps = (1..=bound).find(|_| {
        shard.mark_moved();
        count.step(&shard).is_some()
    });
    assert_eq!(steps, Some(bound));
}

/// Keys come and go at random, mostly in a table that is nearly full.
#[test]
fn the_layout_changes_whenever_a_slot_moves() {
    let mut shard = Shard::new(448, OnFull::Share);
    let long = Quota::per_hour(5).unwrap();
    let mut random = 1u64;
    let mut held: Vec<(Key, Option<usize>)> = Vec::new();
    let mut moves = 0;
    for n in 0..20_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let before = shard.layout;
        if held.len() == 400 || (n % 3 == 0 && !held.is_empty()) {
            let (key, _) = held.swap_remove((random >> 33) as usize % held.len());
            assert!(shard.remove(&key));
        } else {
            let state = shard.fresh(&long);
            shard.insert(&key(n), state, Micros::ZERO);
            held.push((key(n), None));
        }
        let mut moved = false;
        for (key, bucket) in &mut held {
            let now = shard.bucket(key);
            assert!(now.is_some());
            moved |= bucket.is_some() && *bucket != now;
            *bucket = now;
        }
        assert!(!moved || shard.layout != before, "slots moved unnoticed at {n}");
        moves += u32::from(moved);
    }
    assert!(moves > 3, "{moves} times");
    assert!(shard.layout < 50, "{} times, though slots moved only {moves} times", shard.layout);
}
