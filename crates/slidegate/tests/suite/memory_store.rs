//! Tests the memory of the memory store: sweeping, eviction, bytes per event, and decisions without allocation.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use slidegate::{
    Algorithm, Key, ManualClock, MemoryOptions, MemoryStore, Micros, OnFull, Quota, RequestId, Settled,
    Store,
    store::{Check, Checks, Correction, Outcome, Settlement},
};
use slidegate_testkit::until;

fn store(max_keys: usize) -> (ManualClock, MemoryStore<ManualClock>) {
    let clock = ManualClock::at(Micros::from_secs(1_000_000));
    (clock.clone(), MemoryStore::with_clock(clock, max_keys))
}

fn evicting(max_keys: usize) -> (ManualClock, MemoryStore<ManualClock>) {
    with_options(MemoryOptions { max_keys, on_full: OnFull::Evict, ..MemoryOptions::default() })
}

fn with_options(options: MemoryOptions) -> (ManualClock, MemoryStore<ManualClock>) {
    let clock = ManualClock::at(Micros::from_secs(1_000_000));
    (clock.clone(), MemoryStore::with_clock_and_options(clock, options))
}

fn checks(name: &str, quota: Quota, cost: u64) -> Checks {
    Checks::one(Check::new(Key::new("k", [("n", name)]), quota, cost)).unwrap()
}

async fn used<C: slidegate::Clock>(store: &MemoryStore<C>, name: &str) -> u64 {
    store.inspect(&Key::new("k", [("n", name)])).await.unwrap().map_or(0, |seen| seen.used)
}

#[tokio::test]
async fn expired_keys_are_swept() {
    let (clock, store) = store(10_000);
    let short = Quota::per_second(5).unwrap();
    let long = Quota::per_minute(5).unwrap();
    for n in 0..500 {
        store.admit(&[checks(&n.to_string(), if n % 5 == 0 { long } else { short }, 1)]).await.unwrap();
    }
    clock.advance(Micros::from_secs(1));
    store.sweep();
    assert_eq!((store.stats().keys, store.stats().swept), (100, 400));
    clock.advance(Micros::from_secs(59));
    store.sweep();
    let stats = store.stats();
    assert_eq!((stats.keys, stats.swept, stats.evicted), (0, 500, 0));
}

#[tokio::test]
async fn sweeping_happens_in_the_background() {
    let store = MemoryStore::new();
    store.admit(&[checks("x", Quota::new(1, Duration::from_millis(1)).unwrap(), 1)]).await.unwrap();
    until("the key is swept", async || store.stats().swept == 1).await;
    assert_eq!(store.stats().keys, 0);
}

#[tokio::test]
async fn peeks_and_denials_use_no_memory() {
    let (_, store) = store(1_000);
    let quota = Quota::per_minute(1).unwrap();
    for n in 0..200 {
        store.admit(&[checks(&n.to_string(), quota, 1).peek()]).await.unwrap();
        store.admit(&[checks(&n.to_string(), quota, 0)]).await.unwrap();
        store.admit(&[checks(&n.to_string(), quota, 2)]).await.unwrap();
    }
    assert_eq!(store.stats().keys, 0);
}

#[tokio::test]
async fn eviction_removes_flood_keys_before_older_keys() {
    let (_, store) = evicting(1_024);
    let quota = Quota::per_minute(100).unwrap();
    for n in 0..20 {
        store.admit(&[checks(&format!("heavy{n}"), quota, 90)]).await.unwrap();
    }
    // The limit of a key may be a single permit: a flood with larger counts must not evict it.
    let one_an_hour = Quota::per_hour(1).unwrap();
    for n in 0..20 {
        store.admit(&[checks(&format!("light{n}"), one_an_hour, 1)]).await.unwrap();
    }
    for n in 0..50_000 {
        store.admit(&[checks(&format!("flood{n}"), quota, 2)]).await.unwrap();
    }
    let stats = store.stats();
    assert!(stats.keys <= 1_024, "{} keys", stats.keys);
    assert_eq!(stats.keys as u64 + stats.evicted, 50_040, "every eviction is counted");
    for n in 0..20 {
        assert_eq!(used(&store, &format!("heavy{n}")).await, 90);
        assert_eq!(used(&store, &format!("light{n}")).await, 1);
    }
}

/// Sixteen keys, which is also the size of the sample that is searched for a key to drop: it always finds an idle one.
#[tokio::test]
async fn idle_keys_are_evicted_before_live_keys() {
    let (clock, store) = evicting(16);
    let (second, hour) = (Quota::per_second(1).unwrap(), Quota::per_hour(1).unwrap());
    let admit = async |name: String, quota| store.admit(&[checks(&name, quota, 1)]).await.unwrap();
    let counts = || (store.stats().keys, store.stats().swept, store.stats().evicted);
    for n in 0..8 {
        admit(format!("idle{n}"), second).await;
        admit(format!("live{n}"), hour).await;
    }
    clock.advance(Micros::from_secs(2));
    for n in 0..8u64 {
        admit(format!("new{n}"), hour).await;
        assert_eq!(counts(), (16, n + 1, 0), "after {} new keys", n + 1);
    }
    for n in 0..8 {
        assert_eq!(used(&store, &format!("live{n}")).await, 1);
        assert_eq!(used(&store, &format!("new{n}")).await, 1);
    }
    // No idle key is left, so the youngest key is evicted.
    admit("last".into(), hour).await;
    assert_eq!(counts(), (16, 8, 1));
    assert_eq!((used(&store, "new7").await, used(&store, "new6").await), (0, 1));
}

#[tokio::test]
async fn an_event_takes_eight_bytes() {
    let (clock, store) = store(1);
    let quota = Quota::per_hour(100_000).unwrap();
    let batch = [checks("x", quota, 1)];
    store.admit(&batch).await.unwrap();
    let before = store.stats().bytes;
    for _ in 1..100_000 {
        clock.advance(Micros::new(1));
        store.admit(&batch).await.unwrap();
    }
    assert_eq!(used(&store, "x").await, 100_000);
    let each = (store.stats().bytes - before) as f64 / 100_000.0;
    eprintln!("{each:.2} bytes an event");
    assert!(each <= 8.0, "{each} bytes an event");

    // A million permits of one instant, in any number of requests, take a few words of memory.
    let (_, store) = self::store(1);
    let quota = Quota::per_hour(10_000_000).unwrap();
    for _ in 0..1_000 {
        store.admit(&[self::checks("y", quota, 1_000)]).await.unwrap();
    }
    assert_eq!(used(&store, "y").await, 1_000_000);
    assert!(store.stats().bytes < 4_096, "{} bytes", store.stats().bytes);
}

#[test]
fn known_key_is_decided_without_allocation() {
    let (clock, store) = store(100);
    // The key is too long to be stored in place, so it is on the heap.
    let name = "a-name-that-is-rather-long-for-a-key-but-not-too-long";
    let quota = Quota::new(100, Duration::from_micros(1_000)).unwrap();
    let batch = [checks(name, quota, 1)];
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let decide = |n: u64| {
        for _ in 0..n {
            clock.advance(Micros::new(7));
            runtime.block_on(store.admit(&batch)).unwrap();
        }
    };
    let none = ALLOCATIONS.get();
    decide(10_000);
    let before = ALLOCATIONS.get();
    assert!(before > none, "a new key allocates, and the test counts the allocation");
    decide(10_000);
    assert_eq!(ALLOCATIONS.get() - before, 0, "allocations in 10,000 decisions");
}

fn named(key: &str, id: &str, quota: Quota) -> Checks {
    checks(key, quota, 1).with_id(RequestId::new(id).unwrap())
}

/// The statistics agree with the allocator, also for long ids such as a UUID.
#[tokio::test]
async fn statistics_count_bytes_of_ids_and_settlements() {
    let quota = Quota::per_hour(100_000).unwrap();
    let concurrency = quota.with_algorithm(Algorithm::Concurrency).unwrap();
    for (what, ids, settle, extend) in
        [("ids", true, false, false), ("settlements", false, true, false), ("extensions", false, false, true)]
    {
        let before = live_bytes();
        let (clock, store) = store(1_000);
        let quota = if extend { concurrency } else { quota };
        for n in 0..40_000u64 {
            clock.advance(Micros::new(1));
            let key = format!("key{}", n % 20);
            let checks = match ids {
                true => named(&key, &format!("3f2b8a64-7c1e-4d0a-9f5b-{n:012}"), quota),
                false => checks(&key, quota, 1),
            };
            let entry = store.admit(&[checks]).await.unwrap()[0].verdicts[0].entry;
            let key = Key::new("k", [("n", key.as_str())]);
            let correction = if extend { Correction::Extend } else { Correction::Cost(2) };
            if extend || settle && (n / 20) % 2 == 0 {
                clock.advance(Micros::new(1));
                let settled = store.settle(&[Settlement { key, entry, correction }]).await.unwrap();
                assert_eq!(settled.settled, [Settled::Done]);
            }
        }
        let (stats, live) = (store.stats(), live_bytes() - before);
        let each = stats.note_bytes as f64 / if settle { 20_000.0 } else { 40_000.0 };
        eprintln!("{what}: {live} bytes allocated, {} by the statistics, {each:.0} a note", stats.bytes);
        assert!((live - stats.bytes as i64).abs() < live / 20, "{live} bytes allocated, {stats:?}");
        assert!(each < if extend { 90.0 } else { 66.0 }, "{each} bytes a note");
        drop(store);
        assert!(live_bytes() - before < 20_000, "everything is freed");
    }
}

/// One key, many keys, and settlements: each reaches its bound, and earlier ids stay remembered.
#[tokio::test]
async fn ids_and_settlements_have_a_memory_budget() {
    const BUDGET: usize = 1 << 20;
    let options = MemoryOptions { max_note_bytes: BUDGET, ..MemoryOptions::default() };
    let (clock, store) = with_options(options);
    let quota = Quota::per_hour(100_000).unwrap();
    let admit = async |key: &str, id: String| {
        clock.advance(Micros::new(1));
        store.admit(&[named(key, &id, quota)]).await.unwrap()[0].verdicts[0]
    };
    let first = admit("hot", "first".into()).await;
    for n in 0..20_000 {
        assert_eq!(admit("hot", format!("id-{n}")).await.outcome, Outcome::Charged);
    }
    let stats = store.stats();
    assert!(stats.note_bytes <= BUDGET / 8 && stats.ids_dropped > 15_000, "{stats:?}");
    assert_eq!(admit("hot", "first".into()).await.entry, first.entry, "it is still remembered");
    let last = admit("hot", "id-19999".into()).await;
    assert_eq!(last.used, 20_002, "an id that is not remembered is charged again");
    for n in 0..20_000 {
        admit(&format!("key{}", n % 500), format!("id-{n}")).await;
    }
    let stats = store.stats();
    assert!(stats.note_bytes <= BUDGET / 4 * 3 && stats.note_bytes > BUDGET / 2, "{stats:?}");
    // Ids leave room for settlements. Only every second admission is settled, so that settlements do not merge.
    let mut settled = [0, 0];
    for n in 0..40_000 {
        let key = format!("other{}", n % 10);
        clock.advance(Micros::new(1));
        let entry = store.admit(&[checks(&key, quota, 1)]).await.unwrap()[0].verdicts[0].entry;
        if (n / 10) % 2 == 0 {
            let refund = Settlement::refund(Key::new("k", [("n", key.as_str())]), entry);
            let before = used(&store, &key).await;
            let done = store.settle(std::slice::from_ref(&refund)).await.unwrap().settled[0] == Settled::Done;
            settled[usize::from(done)] += 1;
            assert_eq!(before - used(&store, &key).await, u64::from(done));
            assert_ne!(store.settle(&[refund]).await.unwrap().settled[0], Settled::Done, "never twice");
        }
    }
    let [gone, done] = settled;
    let stats = store.stats();
    assert!(done > 3_000 && gone > 1_000 && stats.settlements_dropped >= gone, "{settled:?} {stats:?}");
    assert!(stats.note_bytes <= BUDGET, "{stats:?}");
    // All notes expire with the admissions.
    clock.advance(Micros::from_secs(3_600));
    store.sweep();
    assert_eq!((store.stats().note_bytes, store.stats().keys), (0, 0));
}

/// Calls without ids remove the expired ids of a key and free their memory.
#[tokio::test]
async fn expired_ids_are_removed_in_steps() {
    let (clock, store) = store(100);
    let quota = Quota::per_minute(100_000).unwrap();
    for n in 0..50_000 {
        clock.advance(Micros::new(1));
        store.admit(&[named("k", &n.to_string(), quota)]).await.unwrap();
    }
    let full = store.stats().note_bytes;
    clock.advance(Micros::from_secs(61));
    store.admit(&[checks("k", quota, 1)]).await.unwrap();
    let steps = (1..100).find(|_| {
        store.sweep();
        store.stats().note_bytes < full / 100
    });
    assert!(steps.is_some_and(|steps| steps > 5), "{steps:?} steps");
    assert_eq!(used(&store, "k").await, 1);
}

/// A reservation belongs to the state that issued it, also when state numbers start again.
#[tokio::test]
async fn reservation_from_before_a_reset_settles_nothing() {
    for algorithm in [
        Algorithm::SlidingWindow,
        Algorithm::FixedWindow,
        Algorithm::SlidingCounter,
        Algorithm::TimeSlice { slices: 4 },
        Algorithm::TokenBucket { burst: 10 },
        Algorithm::Concurrency,
    ] {
        let (clock, store) = store(1);
        let quota = Quota::per_hour(10).unwrap().with_algorithm(algorithm).unwrap();
        let key = Key::new("k", [("n", "x")]);
        let admit = async || store.admit(&[checks("x", quota, 3)]).await.unwrap()[0].verdicts[0];
        let old = admit().await;
        assert!(store.reset(&key).await.unwrap());
        clock.advance(Micros::new(1));
        let new = admit().await;
        // As if the store had created 2^24 other states in between.
        let forged = slidegate::store::Entry { seq: new.entry.seq, ..old.entry };
        for entry in [old.entry, forged] {
            let receipt = store.settle(&[Settlement::refund(key.clone(), entry)]).await.unwrap();
            // All admissions of one slice of a `time-slice` have the same instant.
            if !matches!(algorithm, Algorithm::TimeSlice { .. }) || entry == old.entry {
                assert_eq!(receipt.settled, [Settled::Gone], "{algorithm:?}");
                assert_eq!(used(&store, "x").await, 3, "{algorithm:?}");
            }
        }
    }
}

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

/// Bytes that this thread has allocated and not freed.
pub(crate) fn live_bytes() -> i64 {
    LIVE.get()
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[expect(unsafe_code, reason = "an allocator that counts, for this test only")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        let _ = LIVE.try_with(|n| n.set(n.get() + layout.size() as i64));
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        let _ = LIVE.try_with(|n| n.set(n.get() - layout.size() as i64));
        unsafe { System.dealloc(ptr, layout) }
    }
}
