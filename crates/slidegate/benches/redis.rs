//! Redis: the script of this crate compared with the script of the source documents, on one local server, in one run.
//!
//! `cargo bench -p slidegate --bench redis [-- seconds [events…]]` prints a table. Contenders take turns, round after round,
//! because the speed of a machine drifts. A figure is the median of its rounds; a ratio is the median of the ratios within a
//! round. The number of events per key stays constant: one leaves for each that is admitted.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]
#![expect(clippy::disallowed_methods, reason = "it measures")]

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;
use slidegate::{
    Encoding, Key, Quota, Store,
    redis::{RedisOptions, RedisStore},
    store::{Check, Checks, Outcome},
};

/// The "optimised" script of source document 000, without its comments.
const SEED: &str = r"
local function sliding_window_rate_limit()
    local key = KEYS[1]
    local window_start = tonumber(ARGV[1])
    local permits = tonumber(ARGV[2])
    local limit = tonumber(ARGV[3])
    local current_time = tonumber(ARGV[4])
    local expire_time = tonumber(ARGV[5])
    redis.call('ZREMRANGEBYSCORE', key, 0, window_start)
    local current_count = redis.call('ZCARD', key)
    if current_count + permits <= limit then
        local elements = {}
        for i = 1, permits do
            table.insert(elements, current_time)
            table.insert(elements, current_time .. ':' .. i)
        end
        redis.call('ZADD', key, unpack(elements))
        redis.call('EXPIRE', key, expire_time)
        return {1, current_count + permits, limit}
    else
        redis.call('EXPIRE', key, expire_time)
        return {0, current_count, limit}
    end
end
return sliding_window_rate_limit()
";

/// Implementation that decides.
#[derive(Clone)]
enum Contender {
    Seed { connection: MultiplexedConnection, digest: String },
    Ours { store: RedisStore, encoding: Encoding, batch: usize },
}

/// One row of the table.
#[derive(Clone)]
struct Row {
    name: &'static str,
    contender: Contender,
    callers: usize,
    cost: u64,
    events: u64,
}

#[derive(Clone, Copy, Default)]
struct Measured {
    /// Decisions per second.
    rate: f64,
    /// `redis.call`s per decision.
    calls: f64,
    /// Microseconds of Redis per decision.
    busy: f64,
    /// Bytes per event, and the number of events.
    bytes: f64,
    stored: f64,
}

struct Server {
    child: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--save", "", "--dir"])
            .arg(dir.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server: run scripts/tools.sh");
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
        Server { child, port, _dir: dir }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Contender {
    async fn decide(&self, key: &Key, quota: &Quota, cost: u64) -> usize {
        match self {
            Contender::Seed { connection, digest } => {
                // This script takes the time of the client. The time is in microseconds, because two requests of one
                // millisecond would count once. It is relative to a recent day, because `..` would otherwise print two
                // different times alike.
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
                    - 1_790_000_000_000_000;
                let mut command = redis::cmd("EVALSHA");
                command.arg(digest).arg(1).arg(key.as_str()).arg(now - quota.window().get()).arg(cost);
                command.arg(quota.limit()).arg(now).arg(70);
                let answer: Vec<u64> = command.query_async(&mut connection.clone()).await.unwrap();
                assert_eq!(answer.len(), 3);
                1
            }
            Contender::Ours { store, encoding, batch } => {
                let check = Check { encoding: *encoding, ..Check::new(key.clone(), *quota, cost) };
                let checks = vec![Checks::one(check).unwrap(); *batch];
                let replies = store.admit(&checks).await.unwrap();
                assert!(replies.iter().all(|r| r.verdicts[0].outcome == Outcome::Charged), "{replies:?}");
                replies.len()
            }
        }
    }
}

/// Runs `callers` concurrently for `time`; returns the number of decisions.
async fn drive(row: &Row, key: &Key, quota: Quota, time: Duration) -> u64 {
    let done = Arc::new(AtomicU64::new(0));
    let end = Instant::now() + time;
    let callers = (0..row.callers).map(|_| {
        let (row, key, done) = (row.clone(), key.clone(), Arc::clone(&done));
        tokio::spawn(async move {
            while Instant::now() < end {
                let n = row.contender.decide(&key, &quota, row.cost).await;
                done.fetch_add(n as u64, Ordering::Relaxed);
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    done.load(Ordering::Relaxed)
}

/// Returns calls and microseconds of each command so far.
fn statistics(connection: &mut redis::Connection) -> BTreeMap<String, (f64, f64)> {
    let text: String = redis::cmd("INFO").arg("commandstats").query(connection).unwrap();
    let field = |rest: &str, name: &str| -> f64 {
        rest.split(',')
            .find_map(|part| part.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
            .unwrap_or(0.0)
    };
    let lines = text.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(':'));
    lines.map(|(name, rest)| (name.to_owned(), (field(rest, "calls"), field(rest, "usec")))).collect()
}

/// Fills a key until as many events leave as arrive, then measures.
async fn measure(row: &Row, port: u16, time: Duration) -> Measured {
    let mut connection =
        redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap().get_connection().unwrap();
    let _: () = redis::cmd("FLUSHALL").query(&mut connection).unwrap();
    let long = Quota::new(1_000_000_000_000, Duration::from_secs(60)).unwrap();
    let probe = drive(row, &Key::new("probe", []), long, Duration::from_millis(150)).await;
    let calls_each = match row.contender {
        Contender::Ours { batch, .. } => batch as f64,
        Contender::Seed { .. } => 1.0,
    };
    // A batch is one event.
    let events_a_second = probe as f64 / 0.15 / calls_each;
    let window = Duration::from_secs_f64(row.events as f64 / events_a_second).max(Duration::from_millis(1));
    let quota = Quota::new(1_000_000_000_000, window).unwrap();
    let key = Key::new("bench", []);
    drive(row, &key, quota, window.mul_f64(1.1)).await;
    let before = statistics(&mut connection);
    let start = Instant::now();
    let decisions = drive(row, &key, quota, time).await as f64;
    let elapsed = start.elapsed().as_secs_f64();
    let after = statistics(&mut connection);
    let grown = |name: &str, which: fn(&(f64, f64)) -> f64| {
        after.get(name).map_or(0.0, which) - before.get(name).map_or(0.0, which)
    };
    let outer = ["evalsha", "eval", "info", "ping", "flushall"];
    let calls: f64 =
        after.keys().filter(|name| !outer.contains(&name.as_str())).map(|n| grown(n, |s| s.0)).sum();
    let (bytes, stored) = stored_events(&mut connection, row);
    Measured {
        rate: decisions / elapsed,
        calls: calls / decisions,
        busy: grown("evalsha", |s| s.1) / decisions,
        bytes,
        stored,
    }
}

/// Returns bytes per event, and the number of events.
fn stored_events(connection: &mut redis::Connection, row: &Row) -> (f64, f64) {
    let name = match &row.contender {
        Contender::Seed { .. } => "bench",
        Contender::Ours { encoding: Encoding::Zset, .. } => "sg:{bench}",
        Contender::Ours { encoding: Encoding::Packed, .. } => "sg:{bench}:log",
    };
    let bytes: f64 =
        redis::cmd("MEMORY").arg("USAGE").arg(name).arg("SAMPLES").arg(0).query(connection).unwrap_or(0.0);
    let events: f64 = if name.ends_with(":log") {
        let header: Vec<u8> = redis::cmd("GETRANGE").arg(name).arg(4).arg(107).query(connection).unwrap();
        let fields: Vec<f64> = header.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
        fields[3] + fields[5] - fields[11] + fields[12]
    } else {
        redis::cmd("ZCOUNT").arg(name).arg(1).arg("+inf").query(connection).unwrap()
    };
    (bytes / events, events)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[tokio::main]
async fn main() {
    let numbers: Vec<f64> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    let seconds = numbers.first().copied().unwrap_or(0.5);
    let sizes: Vec<u64> = match numbers.get(1) {
        Some(_) => numbers[1..].iter().map(|&n| n as u64).collect(),
        None => vec![100, 1_000, 100_000],
    };
    let rounds = 5;
    let server = Server::start();
    let client = redis::Client::open(server.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let digest: String =
        redis::cmd("SCRIPT").arg("LOAD").arg(SEED).query_async(&mut connection.clone()).await.unwrap();
    let options = RedisOptions { connections: 1, ..RedisOptions::new(server.url()) };
    let store = RedisStore::with_options(&options).unwrap();
    let seed = Contender::Seed { connection, digest };
    let ours = |encoding, batch| Contender::Ours { store: store.clone(), encoding, batch };
    let (zset, packed) = (Encoding::Zset, Encoding::Packed);
    println!("{rounds} rounds of {seconds} s each, contenders in turns; median of the rounds.");
    println!(
        "callers: concurrent callers, over one connection. Ratio: decisions a second against (a) with as many."
    );
    println!("redis µs: time in the script a decision. calls: redis.call a decision.\n");
    for events in sizes {
        let rows: Vec<Row> = [
            ("(a) source documents, one a call", seed.clone(), 1, 1),
            ("(b) ours, one request per call", ours(zset, 1), 1, 1),
            ("(e) packed, one request per call", ours(packed, 1), 1, 1),
            ("(a) source documents, pipelined", seed.clone(), 64, 1),
            ("(c) ours, pipelined", ours(zset, 1), 64, 1),
            ("(e) packed, pipelined", ours(packed, 1), 64, 1),
            ("(d) ours, batches of 100", ours(zset, 100), 1, 1),
            ("(a) cost 1,000, pipelined", seed.clone(), 64, 1_000),
            ("(c) cost 1,000, pipelined", ours(zset, 1), 64, 1_000),
            ("(c) cost 1,000,000, pipelined", ours(zset, 1), 64, 1_000_000),
        ]
        .into_iter()
        .map(|(name, contender, callers, cost)| Row { name, contender, callers, cost, events })
        // A thousand members per request exceed the available memory.
        .filter(|row| events <= 1_000 || row.cost == 1 && !row.name.starts_with("(d)"))
        .collect();
        let mut results: Vec<Vec<Measured>> = vec![Vec::new(); rows.len()];
        for _ in 0..rounds {
            for (row, results) in rows.iter().zip(&mut results) {
                results.push(measure(row, server.port, Duration::from_secs_f64(seconds)).await);
            }
        }
        println!("{events} events a key");
        println!(
            "{:<34} {:>11} {:>7} {:>9} {:>9} {:>7} {:>12}",
            "", "decisions/s", "ratio", "redis µs", "ratio", "calls", "bytes/event"
        );
        for (i, row) in rows.iter().enumerate() {
            let base = match (row.callers, row.name.starts_with("(d)")) {
                (1, false) => 0,
                _ => 3,
            };
            let of = |f: fn(&Measured) -> f64| median(results[i].iter().map(f).collect());
            let against = |f: fn(&Measured) -> f64| {
                median(results[i].iter().zip(&results[base]).map(|(us, them)| f(us) / f(them)).collect())
            };
            println!(
                "{:<34} {:>11.0} {:>6.2}x {:>9.2} {:>8.2}x {:>7.2} {:>12.1}  at {:.0}",
                row.name,
                of(|m| m.rate),
                against(|m| m.rate),
                of(|m| m.busy),
                1.0 / against(|m| m.busy),
                of(|m| m.calls),
                of(|m| m.bytes),
                of(|m| m.stored),
            );
        }
        println!();
    }
}
