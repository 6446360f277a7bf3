//! One decision in memory, beside governor (keyed) and limitador (in-memory storage).
//!
//! Prints nanoseconds per decision and how many times as fast Slidegate is. The contenders take turns in short
//! rounds, and the median round counts, because the speed of a shared machine drifts: compare the ratios, not the
//! nanoseconds.
//!
//! Each contender gets a prepared key: a `String` for governor, a `Key` for Slidegate, a counter for limitador.
//! Slidegate evaluates an exact window and returns `used`, `retry_after` and `reset_after`. Governor returns yes or no
//! from one timestamp per key. Limitador counts fixed windows.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashMap;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use governor::{DefaultKeyedRateLimiter, Quota as GovernorQuota, RateLimiter};
use limitador::counter::Counter;
use limitador::limit::Limit;
use limitador::storage::in_memory::InMemoryStorage;
use limitador::storage::{Authorization, CounterStorage};
use slidegate::{
    Key, MemoryStore, Quota, Store,
    store::{Check, Checks},
};

use crate::race::{shuffled, spread, turn};
use crate::ready;

const ROUNDS: usize = 7;
const KEYS: [usize; 3] = [1, 1_000, 1_000_000];
/// Window of the comparison. Slidegate records every admission of a window, so the cost depends on its length. Ten
/// milliseconds at full speed are about a hundred events for each of a thousand keys, as under a usual limit. (With a
/// million keys each window is empty.) Longer windows are measured separately.
const USUAL_WINDOW: Duration = Duration::from_millis(10);

/// Prints all tables.
pub(crate) fn run() {
    println!("ns a decision (median of {ROUNDS} rounds); x = how many times as fast slidegate is\n");
    println!(
        "{:>9} {:>6} {:>7} | {:>9} {:>9} {:>9} | {:>10} {:>10}",
        "keys", "mix", "threads", "slidegate", "governor", "limitador", "x governor", "x limitador"
    );
    let mut worst = (f64::MAX, f64::MAX);
    for keys in KEYS {
        for admit in [true, false] {
            let contenders = Contenders::new(keys, admit, USUAL_WINDOW);
            for threads in [1, 2] {
                let [ours, governor, limitador] = contenders.race(threads);
                let (x, y) = (governor / ours, limitador / ours);
                worst = (worst.0.min(x), worst.1.min(y));
                println!(
                    "{keys:>9} {:>6} {threads:>7} | {ours:>9.1} {governor:>9.1} {limitador:>9.1} | {x:>9.2}x {y:>9.2}x",
                    if admit { "admit" } else { "deny" },
                );
            }
        }
    }
    println!("\nworst row: {:.2}x governor, {:.2}x limitador", worst.0, worst.1);
    by_window();
    flat();
    memory();
}

/// The three stores, filled with the same keys.
struct Contenders {
    order: Vec<u32>,
    store: MemoryStore,
    quota: Quota,
    ours: Vec<Key>,
    governor: DefaultKeyedRateLimiter<String>,
    names: Vec<String>,
    limitador: InMemoryStorage,
    counters: Vec<Counter>,
}

impl Contenders {
    /// `ours` is the window of Slidegate.
    fn new(keys: usize, admit: bool, ours: Duration) -> Self {
        let names: Vec<String> = (0..keys).map(name).collect();
        // For `admit`, the limit is never reached. For `deny`, it is one an hour.
        let (limit, window) = if admit { (1_000_000_000, 1) } else { (1, 3600) };
        let burst = NonZeroU32::new(limit).unwrap();
        let governor = if admit { GovernorQuota::per_second(burst) } else { GovernorQuota::per_hour(burst) };
        let ours = if admit { ours } else { Duration::from_secs(window) };
        let limit = u64::from(limit);
        let rule = Arc::new(Limit::new("bench", limit, window, vec![], vec!["user".try_into().unwrap()]));
        let counter = |name: &String| {
            let values = HashMap::from([("user".to_owned(), name.clone())]);
            Counter::new(Arc::clone(&rule), &values.into()).unwrap().unwrap()
        };
        let contenders = Contenders {
            order: shuffled(keys),
            store: MemoryStore::with_max_keys(4_000_000),
            quota: Quota::new(limit, ours).unwrap(),
            ours: names.iter().map(|name| Key::new("u", [("id", name.as_str())])).collect(),
            governor: RateLimiter::keyed(governor),
            limitador: InMemoryStorage::new(2 * keys as u64),
            counters: names.iter().map(counter).collect(),
            names,
        };
        for key in 0..keys {
            contenders.slidegate(key);
            contenders.governor(key);
            contenders.limitador(&mut vec![contenders.counters[key].clone()]);
        }
        contenders
    }

    #[inline]
    fn slidegate(&self, key: usize) -> bool {
        let checks = Checks::one(Check::new(self.ours[key].clone(), self.quota, 1)).unwrap();
        !ready(self.store.admit(std::slice::from_ref(&checks))).unwrap()[0].verdicts[0].outcome.denies()
    }

    fn governor(&self, key: usize) -> bool {
        self.governor.check_key(&self.names[key]).is_ok()
    }

    fn limitador(&self, counters: &mut Vec<Counter>) -> bool {
        matches!(self.limitador.check_and_update(counters, 1).unwrap(), Authorization::Ok)
    }

    /// Returns the median nanoseconds per decision of each contender. They take turns.
    fn race(&self, threads: usize) -> [f64; 3] {
        let mut times: [Vec<f64>; 3] = Default::default();
        for _ in 0..ROUNDS {
            times[0].push(turn(&self.order, threads, || |key| self.slidegate(key)));
            times[1].push(turn(&self.order, threads, || |key| self.governor(key)));
            times[2].push(turn(&self.order, threads, || {
                let mut counters = vec![self.counters[0].clone()];
                move |key: usize| {
                    // A clone is cheaper than the counter that a caller makes for each request.
                    counters[0] = self.counters[key].clone();
                    self.limitador(&mut counters)
                }
            }));
        }
        times.map(|times| spread(times).0)
    }
}

/// Cost of longer windows: a thousand keys that admit at full speed.
fn by_window() {
    println!(
        "\n1,000 keys, admit, by our window (and the events a key it can hold at this speed, if nobody else took turns)"
    );
    for millis in [10, 100, 1_000] {
        let contenders = Contenders::new(1_000, true, Duration::from_millis(millis));
        for threads in [1, 2] {
            let [ours, governor, limitador] = contenders.race(threads);
            let events = threads as f64 * millis as f64 * 1e6 / ours / 1_000.0;
            println!(
                "{millis:>6} ms {threads} threads | {ours:>6.1} ns, {events:>6.0} events | {:>5.2}x governor {:>5.2}x limitador",
                governor / ours,
                limitador / ours
            );
        }
    }
}

/// Cost of a decision over a full window, from a small limit to a large one.
fn flat() {
    println!("\nfull exact window, one key, by limit: ns a denial, and ns an admission as the oldest leaves");
    for limit in [10, 1_000, 100_000, 1_000_000] {
        let (deny, admit) = full_window(limit);
        println!("{limit:>9} | deny {deny:>6.1} | admit {admit:>6.1}");
    }
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn full_window(limit: u64) -> (f64, f64) {
    use slidegate::{ManualClock, Micros};
    let clock = ManualClock::at(Micros::from_secs(1_000_000));
    let store = MemoryStore::with_clock(clock.clone(), 1000);
    // One permit a step fills the window exactly; a step later the oldest has left.
    let step = Micros::new(1_000_000 / limit);
    let quota = Quota::per_second(limit).unwrap();
    let batch = [Checks::one(Check::new(Key::new("u", []), quota, 1)).unwrap()];
    for _ in 0..limit {
        clock.advance(step);
        ready(store.admit(&batch)).unwrap();
    }
    let time = |n: u32, mut f: Box<dyn FnMut() + '_>| {
        let start = Instant::now();
        (0..n).for_each(|_| f());
        start.elapsed().as_nanos() as f64 / f64::from(n)
    };
    let deny = time(200_000, Box::new(|| _ = black_box(ready(store.admit(&batch)))));
    let admit = time(
        200_000,
        Box::new(|| {
            clock.advance(step);
            black_box(ready(store.admit(&batch)).unwrap());
        }),
    );
    (deny, admit)
}

/// Bytes a key and an event, from the allocator.
fn memory() {
    COUNTING.store(true, Ordering::Relaxed);
    println!("\nbytes, as the allocator counts them");
    let names: Vec<String> = (0..100_000).map(name).collect();
    let quota = Quota::per_hour(1_000).unwrap();
    let bytes_held = |fill: &dyn Fn() -> Box<dyn std::any::Any>| {
        let before = ALLOCATED.load(Ordering::Relaxed);
        let filled = fill();
        let bytes = ALLOCATED.load(Ordering::Relaxed) - before;
        drop(filled);
        bytes as f64
    };
    let admit = |store: &MemoryStore, name: &str, quota: Quota| {
        let check = Check::new(Key::new("u", [("id", name)]), quota, 1);
        ready(store.admit(&[Checks::new([check]).unwrap()])).unwrap();
    };
    let ours = bytes_held(&|| {
        let store = MemoryStore::new();
        names.iter().for_each(|name| admit(&store, name, quota));
        Box::new(store)
    });
    let governor = bytes_held(&|| {
        let limiter = RateLimiter::keyed(GovernorQuota::per_hour(NonZeroU32::new(1_000).unwrap()));
        names.iter().for_each(|name| _ = limiter.check_key(name));
        Box::new(limiter)
    });
    let limitador = bytes_held(&|| {
        let storage = InMemoryStorage::new(200_000);
        let rule = Arc::new(Limit::new("bench", 1_000, 3600, vec![], vec!["user".try_into().unwrap()]));
        for name in &names {
            let values = HashMap::from([("user".to_owned(), name.clone())]);
            let counter = Counter::new(Arc::clone(&rule), &values.into()).unwrap().unwrap();
            storage.check_and_update(&mut vec![counter], 1).unwrap();
        }
        Box::new(storage)
    });
    let n = names.len() as f64;
    println!(
        "a key with one event: slidegate {:.0}, governor {:.0}, limitador {:.0}",
        ours / n,
        governor / n,
        limitador / n
    );
    let events = 1_000_000u64;
    let log = bytes_held(&|| {
        use slidegate::{ManualClock, Micros};
        let clock = ManualClock::at(Micros::from_secs(1_000_000));
        let store = MemoryStore::with_clock(clock.clone(), 1);
        let check = Check::new(Key::new("u", []), Quota::per_hour(events).unwrap(), 1);
        let batch = [Checks::new([check]).unwrap()];
        for _ in 0..events {
            clock.advance(Micros::new(1));
            ready(store.admit(&batch)).unwrap();
        }
        Box::new(store)
    });
    println!(
        "an event in a full exact window of {events}: slidegate {:.2} (the others keep no events)",
        log / events as f64
    );
}

fn name(i: usize) -> String {
    format!("user{i}")
}

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
/// Counting is off while time is measured, so that it slows no contender.
static COUNTING: AtomicBool = AtomicBool::new(false);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[expect(unsafe_code, reason = "an allocator that counts, for this benchmark only")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTING.load(Ordering::Relaxed) {
            ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        }
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        if COUNTING.load(Ordering::Relaxed) {
            ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        }
        unsafe { System.dealloc(ptr, layout) }
    }
}
