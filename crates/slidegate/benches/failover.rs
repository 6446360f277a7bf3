//! Cost of `Failover`: the same decisions with it, without it, and without a server, in one run.
//!
//! `cargo bench -p slidegate --bench failover [-- seconds]` prints a table. Contenders take turns, round after round. A figure
//! is the median of its rounds; a ratio is the median of the ratios within a round.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]
#![expect(clippy::disallowed_methods, reason = "it measures")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use slidegate::{
    Key, Quota, Source, Store,
    redis::{Failover, FailoverOptions, RedisStore},
    store::{Check, Checks},
};
use slidegate_testkit::{Flavour, RedisServer};

const ROUNDS: usize = 7;

/// Decisions per second of `callers` over a thousand keys.
async fn rate<S: Store + Clone + 'static>(store: &S, callers: u64, length: Duration, source: Source) -> f64 {
    let quota = Quota::new(1_000_000, Duration::from_secs(2)).unwrap();
    let keys: Arc<Vec<Key>> =
        Arc::new((0..1_000).map(|n| Key::new("bench", [("n", n.to_string().as_str())])).collect());
    let start = Instant::now();
    let tasks = (0..callers).map(|caller| {
        let (store, keys) = (store.clone(), Arc::clone(&keys));
        tokio::spawn(async move {
            let mut decided = 0;
            while start.elapsed() < length {
                let key = keys[((decided * 7_919 + caller * 104_729) % 1_000) as usize].clone();
                let checks = Checks::one(Check::new(key, quota, 1)).unwrap();
                let replies = store.admit(std::slice::from_ref(&checks)).await.unwrap();
                assert_eq!(replies[0].source, source);
                decided += 1;
            }
            decided
        })
    });
    let mut decided = 0;
    for task in tasks.collect::<Vec<_>>() {
        decided += task.await.unwrap();
    }
    decided as f64 / start.elapsed().as_secs_f64()
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn main() {
    let length = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(0.5);
    let length = Duration::from_secs_f64(length);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = RedisServer::start(Flavour::Redis7).without_ttl_check();
        let bare = RedisStore::new(&server.url()).unwrap();
        let patient = FailoverOptions { deadline: Duration::from_secs(1), ..FailoverOptions::default() };
        let guarded = Failover::new(RedisStore::new(&server.url()).unwrap(), patient.clone()).unwrap();
        let gone = Failover::new(RedisStore::new("redis://127.0.0.1:1").unwrap(), patient).unwrap();
        println!("{:<34}{:>12}{:>12}{:>9}{:>16}", "", "bare", "guarded", "ratio", "server away");
        for callers in [1, 64] {
            let (mut bares, mut guardeds, mut gones) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                bares.push(rate(&bare, callers, length, Source::Store).await);
                guardeds.push(rate(&guarded, callers, length, Source::Store).await);
                gones.push(rate(&gone, callers, length, Source::Local).await);
            }
            let ratios = bares.iter().zip(&guardeds).map(|(bare, guarded)| guarded / bare).collect();
            println!(
                "{:<34}{:>12.0}{:>12.0}{:>8.2}x{:>16.0}",
                format!("decisions/s, callers: {callers}"),
                median(bares),
                median(guardeds),
                median(ratios),
                median(gones)
            );
        }
        let stats = guarded.stats().journal;
        println!(
            "mirror: {} keys, {} admissions, {:.1} bytes an admission",
            stats.keys,
            stats.entries,
            stats.bytes as f64 / stats.entries as f64
        );
    });
}
