//! What the memory store holds, lets go, and never allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use slidegate::{Ask, Check, Key, ManualClock, MemoryStore, Micros, Quota, Store};

use crate::wait::until;

fn store(max_keys: usize) -> (ManualClock, MemoryStore<ManualClock>) {
    let clock = ManualClock::at(Micros::from_secs(1_000_000));
    (clock.clone(), MemoryStore::with_clock(clock, max_keys))
}

fn ask(name: &str, quota: Quota, cost: u64) -> Ask {
    Ask::one(Check::new(Key::new("k", [("n", name)]), quota, cost)).unwrap()
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
        store.admit(&[ask(&n.to_string(), if n % 5 == 0 { long } else { short }, 1)]).await.unwrap();
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
    store.admit(&[ask("x", Quota::new(1, Duration::from_millis(1)).unwrap(), 1)]).await.unwrap();
    until("the key is swept", async || store.stats().swept == 1).await;
    assert_eq!(store.stats().keys, 0);
}

#[tokio::test]
async fn peeks_and_refusals_hold_nothing() {
    let (_, store) = store(1_000);
    let quota = Quota::per_minute(1).unwrap();
    for n in 0..200 {
        store.admit(&[ask(&n.to_string(), quota, 1).peek()]).await.unwrap();
        store.admit(&[ask(&n.to_string(), quota, 0)]).await.unwrap();
        store.admit(&[ask(&n.to_string(), quota, 2)]).await.unwrap();
    }
    assert_eq!(store.stats().keys, 0);
}

#[tokio::test]
async fn a_flood_of_names_pushes_out_its_own() {
    let (_, store) = store(1_024);
    let quota = Quota::per_minute(100).unwrap();
    for n in 0..20 {
        store.admit(&[ask(&format!("heavy{n}"), quota, 90)]).await.unwrap();
    }
    // A single permit may be all that a key has: its flood may not push it out by taking more.
    let one_an_hour = Quota::per_hour(1).unwrap();
    for n in 0..20 {
        store.admit(&[ask(&format!("light{n}"), one_an_hour, 1)]).await.unwrap();
    }
    for n in 0..50_000 {
        store.admit(&[ask(&format!("flood{n}"), quota, 2)]).await.unwrap();
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
async fn idle_keys_make_room_before_live_ones() {
    let (clock, store) = store(16);
    let (second, hour) = (Quota::per_second(1).unwrap(), Quota::per_hour(1).unwrap());
    let admit = async |name: String, quota| store.admit(&[ask(&name, quota, 1)]).await.unwrap();
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
    // No idle key is left: the youngest makes room.
    admit("last".into(), hour).await;
    assert_eq!(counts(), (16, 8, 1));
    assert_eq!((used(&store, "new7").await, used(&store, "new6").await), (0, 1));
}

#[tokio::test]
async fn an_event_takes_eight_bytes() {
    let (clock, store) = store(1);
    let quota = Quota::per_hour(100_000).unwrap();
    let ask = [ask("x", quota, 1)];
    store.admit(&ask).await.unwrap();
    let before = store.stats().bytes;
    for _ in 1..100_000 {
        clock.advance(Micros::new(1));
        store.admit(&ask).await.unwrap();
    }
    assert_eq!(used(&store, "x").await, 100_000);
    let each = (store.stats().bytes - before) as f64 / 100_000.0;
    eprintln!("{each:.2} bytes an event");
    assert!(each <= 8.0, "{each} bytes an event");

    // A million permits of one instant, in any number of requests, are a few words.
    let (_, store) = self::store(1);
    let quota = Quota::per_hour(10_000_000).unwrap();
    for _ in 0..1_000 {
        store.admit(&[self::ask("y", quota, 1_000)]).await.unwrap();
    }
    assert_eq!(used(&store, "y").await, 1_000_000);
    assert!(store.stats().bytes < 4_096, "{} bytes", store.stats().bytes);
}

#[test]
fn a_known_key_is_decided_without_allocating() {
    let (clock, store) = store(100);
    // Longer than fits in place, so the key is on the heap.
    let name = "a-name-that-is-rather-long-for-a-key-but-not-too-long";
    let quota = Quota::new(100, Duration::from_micros(1_000)).unwrap();
    let asks = [ask(name, quota, 1)];
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let decide = |n: u64| {
        for _ in 0..n {
            clock.advance(Micros::new(7));
            runtime.block_on(store.admit(&asks)).unwrap();
        }
    };
    let none = ALLOCATIONS.get();
    decide(10_000);
    let before = ALLOCATIONS.get();
    assert!(before > none, "a new key allocates, and it is counted");
    decide(10_000);
    assert_eq!(ALLOCATIONS.get() - before, 0, "allocations in 10,000 decisions");
}

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[expect(unsafe_code, reason = "an allocator that counts, for this test only")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        unsafe { System.dealloc(ptr, layout) }
    }
}
