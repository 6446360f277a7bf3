//! Hot keys: one script call per request, compared with coalescing, the deny cache and leases, in one run.
//!
//! `cargo bench -p slidegate --bench hotkey [-- seconds [load]]` prints a table, or only the rows of loads whose name
//! contains `load`. Contenders take turns, round after round. A figure is the median of its rounds; a ratio is the
//! median of the ratios within a round.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]
#![expect(clippy::disallowed_methods, reason = "it measures")]

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use slidegate::{
    Algorithm, Key, Quota, Store,
    redis::{Coalesce, Failover, FailoverOptions, RedisOptions, RedisStore, Stack, StackOptions},
    store::{Check, Checks, DenyCache},
};
use slidegate_testkit::{Flavour, RedisServer};

const ROUNDS: usize = 5;

/// Load of one measurement.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    callers: u64,
    keys: usize,
    quota: Quota,
    /// True if the load is also measured with leases.
    leased: bool,
}

/// Ranks by Zipf's law, exponent 1, by the inverse of its distribution function.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(n: usize) -> Self {
        let mut sum = 0.0;
        let sums: Vec<f64> = (1..=n)
            .map(|rank| {
                sum += 1.0 / rank as f64;
                sum
            })
            .collect();
        Zipf(sums)
    }

    fn rank(&self, chance: f64) -> usize {
        let at = chance * self.0[self.0.len() - 1];
        self.0.partition_point(|&sum| sum < at)
    }
}

struct Figures {
    decisions: f64,
    scripts: f64,
    commands: f64,
    /// Time of Redis per decision, in microseconds.
    micros: f64,
}

/// Returns the number of script calls, their microseconds, and the number of all commands, including those of scripts
/// and heartbeats.
fn calls(server: &RedisServer) -> [f64; 3] {
    let info =
        |section: &str| redis::from_redis_value::<String>(server.run(&format!("INFO {section}"))).unwrap();
    let stats = info("commandstats");
    let of = |field: &str| -> f64 {
        let lines = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_eval")?.split_once(':'));
        let fields = lines.flat_map(|(_, fields)| fields.split(','));
        fields.filter_map(|text| text.strip_prefix(field)?.parse::<f64>().ok()).sum()
    };
    let all = info("stats");
    let all = all.lines().find_map(|line| line.strip_prefix("total_commands_processed:")).unwrap();
    [of("calls="), of("usec="), all.trim().parse().unwrap()]
}

/// Decisions per second of all callers, and calls to Redis per second.
async fn rate<S: Store + Clone + 'static>(
    store: &S,
    load: Load,
    batch: &Arc<Vec<Checks>>,
    zipf: &Arc<Zipf>,
    length: Duration,
    server: &RedisServer,
) -> Figures {
    let decided = Arc::new(AtomicU64::new(0));
    let before = calls(server);
    let start = Instant::now();
    let tasks = (0..load.callers).map(|caller| {
        let (store, batch, decided, zipf) =
            (store.clone(), Arc::clone(batch), Arc::clone(&decided), Arc::clone(zipf));
        tokio::spawn(async move {
            let mut rng = caller.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            let mut n = 0u64;
            loop {
                let checks = if batch.len() == 1 {
                    &batch[0]
                } else {
                    rng ^= rng << 13;
                    rng ^= rng >> 7;
                    rng ^= rng << 17;
                    &batch[zipf.rank(rng as f64 / u64::MAX as f64)]
                };
                store.admit(std::slice::from_ref(checks)).await.unwrap();
                n += 1;
                // Reading the clock takes longer than some decisions, so it is read only every 32 decisions. A caller
                // that never waits yields here.
                if n.is_multiple_of(32) {
                    if start.elapsed() >= length {
                        break;
                    }
                    tokio::task::consume_budget().await;
                }
            }
            decided.fetch_add(n, Ordering::Relaxed);
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let seconds = start.elapsed().as_secs_f64();
    let after = calls(server);
    let decided = decided.load(Ordering::Relaxed) as f64;
    let [scripts, micros, commands] = std::array::from_fn(|i| after[i] - before[i]);
    Figures {
        decisions: decided / seconds,
        scripts: scripts / seconds,
        commands: commands / seconds,
        micros: micros / decided,
    }
}

/// The same checks, for a rule with a lease of up to 10,000 permits for a tenth of the window.
fn lease(checks: &Checks) -> Checks {
    let check = &checks.as_slice()[0];
    let quota = check.quota.with_algorithm(Algorithm::TimeSlice { slices: 10 }).unwrap();
    let key = Key::new("leased", [("key", check.key.as_str())]);
    Checks::one(Check { lease: NonZeroU32::new(10_000), ..Check::new(key, quota, 1) }).unwrap()
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn options(server: &RedisServer) -> RedisOptions {
    RedisOptions { response_timeout: Duration::from_secs(5), ..RedisOptions::new(server.url()) }
}

fn failover(server: &RedisServer) -> Failover {
    let patient = FailoverOptions { deadline: Duration::from_secs(1), ..FailoverOptions::default() };
    Failover::new(RedisStore::with_options(&options(server)).unwrap(), patient).unwrap()
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let length = words.iter().find_map(|word| word.parse().ok()).unwrap_or(1.0);
    let length = Duration::from_secs_f64(length);
    let wanted = words.iter().find(|word| word.parse::<f64>().is_err());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let quota = |limit, millis| Quota::new(limit, Duration::from_millis(millis)).unwrap();
    let loads = [
        Load {
            name: "one key, admitted",
            callers: 256,
            keys: 1,
            quota: quota(1_000_000_000, 1_000),
            leased: true,
        },
        Load { name: "one key, denied", callers: 256, keys: 1, quota: quota(1, 3_600_000), leased: false },
        Load {
            name: "100,000 keys, zipf",
            callers: 256,
            keys: 100_000,
            quota: quota(1_000_000_000, 1_000),
            leased: false,
        },
        Load {
            name: "one key, one caller",
            callers: 1,
            keys: 1,
            quota: quota(1_000_000_000, 1_000),
            leased: false,
        },
    ];
    println!(
        "{:<22}{:<24}{:>13}{:>9}{:>11}{:>12}{:>11}",
        "", "", "decisions/s", "x", "Redis µs", "scripts/s", "commands/s"
    );
    for load in loads.into_iter().filter(|load| wanted.is_none_or(|word| load.name.contains(word.as_str()))) {
        runtime.block_on(async {
            let server = RedisServer::start(Flavour::Redis7).without_ttl_check();
            let bare = RedisStore::with_options(&options(&server)).unwrap();
            let coalesce = Coalesce::new(RedisStore::with_options(&options(&server)).unwrap());
            let stack = DenyCache::new(Coalesce::new(failover(&server)));
            let batch: Arc<Vec<Checks>> = Arc::new(
                (0..load.keys)
                    .map(|n| {
                        let key = Key::new("bench", [("key", n.to_string().as_str())]);
                        Checks::one(Check::new(key, load.quota, 1)).unwrap()
                    })
                    .collect(),
            );
            let zipf = Arc::new(Zipf::new(load.keys));
            let leasing = Stack::around(failover(&server), &StackOptions::default()).unwrap();
            let leased: Arc<Vec<Checks>> = Arc::new(batch.iter().map(lease).collect());
            let mut seen: [Vec<Figures>; 4] = Default::default();
            for _ in 0..=ROUNDS {
                seen[0].push(rate(&bare, load, &batch, &zipf, length, &server).await);
                seen[1].push(rate(&coalesce, load, &batch, &zipf, length, &server).await);
                seen[2].push(rate(&stack, load, &batch, &zipf, length, &server).await);
                if load.leased {
                    seen[3].push(rate(&leasing, load, &leased, &zipf, length, &server).await);
                }
            }
            let names = ["one script a request", "coalesced", "all, guarded", "all, with a lease"];
            for (name, figures) in names.iter().zip(&seen).filter(|(_, figures)| !figures.is_empty()) {
                // The first round warms up.
                let ratios =
                    figures.iter().zip(&seen[0]).skip(1).map(|(f, bare)| f.decisions / bare.decisions);
                println!(
                    "{:<22}{:<24}{:>13.0}{:>8.2}x{:>11.2}{:>12.0}{:>11.0}",
                    load.name,
                    name,
                    median(figures.iter().skip(1).map(|f| f.decisions).collect()),
                    median(ratios.collect()),
                    median(figures.iter().skip(1).map(|f| f.micros).collect()),
                    median(figures.iter().skip(1).map(|f| f.scripts).collect()),
                    median(figures.iter().skip(1).map(|f| f.commands).collect()),
                );
            }
        });
    }
}
