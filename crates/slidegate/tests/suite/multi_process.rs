//! Tests four processes with 32 clients each on one Redis: the oracle replays the answers in the order of their
//! instants.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use slidegate::{
    Count, Encoding, Key, Micros, Quota, Source, Store,
    redis::{RedisMode, RedisOptions, RedisStore},
    store::{Check, Checks, Entry, Outcome, Precision, Verdict, Verdicts},
};
use slidegate_testkit::{Flavour, RedisServer};

use crate::conformance::Rng;
use crate::oracle::Oracle;

const PROCESSES: u64 = 4;
const CLIENTS: u64 = 32;

fn key(n: u64) -> Key {
    Key::new("shared", [("n", n.to_string().as_str())])
}

/// Key 0 is hot; the others are checked together.
fn quota(n: u64) -> Quota {
    let quota = |limit, millis| Quota::new(limit, Duration::from_millis(millis)).unwrap();
    match n {
        0 => quota(150, 200),
        1 => quota(100, 210),
        2 => quota(40, 190),
        _ => quota(60, 220).with_count(Count::Attempts),
    }
}

pub(crate) fn random_checks(rng: &mut Rng, encoding: Encoding) -> Checks {
    let check = |n: u64, cost| Check { encoding, ..Check::new(key(n), quota(n), cost) };
    let cost = 1 + rng.below(3);
    let checks = match rng.below(8) {
        0..=3 => Checks::new([check(0, cost)]),
        4 => Checks::new([check(1, cost), check(2, 1)]),
        5 => Checks::new([check(2, cost), check(1, 1), check(0, 1)]),
        6 => Checks::new([check(3, 1), check(1, cost)]),
        _ => Checks::new([check(1, 1), check(3, 1)]),
    };
    checks.unwrap()
}

/// Not a test by itself: the code of each process. Prints a line for each seed, request and answer.
#[tokio::test]
#[ignore = "started by the tests below"]
async fn worker() {
    let Ok(task) = std::env::var("SLIDEGATE_WORKER") else { return };
    let words: Vec<&str> = task.split(' ').collect();
    let [url, millis, process, mode] = words[..] else { panic!("{task}") };
    let (millis, process): (u64, u64) = (millis.parse().unwrap(), process.parse().unwrap());
    let (mode, encoding) = read_mode(mode);
    let patience = Duration::from_secs(20);
    let options =
        RedisOptions { mode, response_timeout: patience, max_wait: patience, ..RedisOptions::new(url) };
    let store = RedisStore::with_options(&options).unwrap();
    store.ping().await.unwrap();
    let clients = (0..CLIENTS).map(|client| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut lines = String::new();
            let mut rng = Rng::new(process * 1_000 + client + 1);
            let end = tokio::time::sleep(Duration::from_millis(millis));
            let mut end = std::pin::pin!(end);
            while !end.is_elapsed() {
                let checks = random_checks(&mut rng, encoding);
                let batch_verdicts = store.admit(std::slice::from_ref(&checks)).await.unwrap();
                write_line(&mut lines, &checks, &batch_verdicts[0]);
                // Polls the timer, which ends the loop.
                tokio::select! { biased; () = &mut end => {}, () = std::future::ready(()) => {} }
            }
            lines
        })
    });
    for client in clients.collect::<Vec<_>>() {
        println!("{}", client.await.unwrap());
    }
}

fn read_mode(mode: &str) -> (RedisMode, Encoding) {
    match mode {
        "packed" => (RedisMode::Script, Encoding::Packed),
        "transaction" => (RedisMode::Transaction, Encoding::Zset),
        _ => (RedisMode::Script, Encoding::Zset),
    }
}

fn write_line(lines: &mut String, checks: &Checks, verdicts: &Verdicts) {
    write!(lines, "\n@{}", verdicts.at.get()).unwrap();
    for (check, v) in checks.as_slice().iter().zip(&verdicts.verdicts) {
        let outcome = v.outcome as u64;
        let (key, cost, Entry { at, seq, .. }) = (&check.key, check.cost, v.entry);
        let (retry, reset) = (v.retry_after.get(), v.reset_after.get());
        write!(lines, " {key} {cost} {outcome} {} {retry} {reset} {} {seq}", v.used, at.get()).unwrap();
    }
}

fn read_line(line: &str, encoding: Encoding) -> Option<(Checks, Verdicts)> {
    let mut words = line.strip_prefix('@')?.split(' ');
    let at = Micros::new(words.next()?.parse().ok()?);
    let words: Vec<&str> = words.collect();
    let (mut checks, mut verdicts) = (Vec::new(), Vec::new());
    for part in words.chunks_exact(8) {
        let n = part[0].rsplit('=').next()?.parse().ok()?;
        let numbers: Vec<u64> = part[1..].iter().map(|word| word.parse().unwrap()).collect();
        let outcome =
            [Outcome::Charged, Outcome::Fits, Outcome::Denied, Outcome::Impossible][numbers[1] as usize];
        checks.push(Check { encoding, ..Check::new(key(n), quota(n), numbers[0]) });
        verdicts.push(Verdict {
            outcome,
            limit: quota(n).capacity(),
            used: numbers[2],
            retry_after: Micros::new(numbers[3]),
            precision: Precision::Exact,
            reset_after: Micros::new(numbers[4]),
            entry: Entry { at: Micros::new(numbers[5]), seq: numbers[6], cost: numbers[0] },
        });
    }
    Some((Checks::new(checks).unwrap(), Verdicts { at, source: Source::Store, verdicts: verdicts.into() }))
}

/// Runs the processes, replays their answers, and looks for windows over their limit.
fn run(mode: &str, millis: u64) {
    let server = RedisServer::start(Flavour::Redis7);
    let program = std::env::current_exe().unwrap();
    let processes: Vec<_> = (0..PROCESSES)
        .map(|process| {
            Command::new(&program)
                .args(["--exact", "multi_process::worker", "--ignored", "--nocapture"])
                .env("SLIDEGATE_WORKER", format!("{} {millis} {process} {mode}", server.url()))
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut history: Vec<(Checks, Verdicts)> = Vec::new();
    for process in processes {
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        history.extend(text.lines().filter_map(|line| read_line(line, read_mode(mode).1)));
    }
    history.sort_by_key(|(_, verdicts)| verdicts.at);
    let mut oracle = Oracle::default();
    // 0 partial charges and 0 lost permits: every number in every answer agrees with the algorithm.
    let mut denials = 0;
    for (checks, verdicts) in &history {
        // A denial writes nothing, so in a transaction it can come before an admission that is dated earlier
        // but not yet written: at most one round trip. Writes are in the order of their instants.
        if mode == "transaction" && !writes(checks, verdicts) {
            denials += 1;
            continue;
        }
        oracle.admitted(checks, verdicts);
    }
    let peaks = peaks(&history);
    eprintln!(
        "{mode}: {} requests of {PROCESSES} processes x {CLIENTS} clients in {millis} ms replayed, 0 differences; \
         {} charged, {} denied; most in any window: {peaks:?}",
        history.len(),
        oracle.seen.charged,
        oracle.seen.denied + denials,
    );
    for n in 0..3 {
        let (limit, peak) = (quota(n).limit(), peaks[&n]);
        assert!(peak <= limit, "key {n}: {peak} of {limit}");
        // The limit is also reached, so no permit was lost. A cost of up to 3 may not fit the last permits.
        // Transactions conflict and are retried, so on a busy machine they do not reach the limit.
        assert!(peak + 2 >= limit || mode == "transaction", "key {n}: only {peak} of {limit}");
    }
    let enough = history.len() > 1_000 && oracle.seen.denied + denials > 100;
    assert!(enough || mode == "transaction" && !history.is_empty());
}

/// Returns true if the request recorded an admission or an attempt.
fn writes(checks: &Checks, verdicts: &Verdicts) -> bool {
    let denier = verdicts.verdicts.iter().position(|verdict| verdict.outcome.denies());
    let attempt =
        |i: usize, check: &Check| check.quota.count() == Count::Attempts && denier.is_some_and(|r| i <= r);
    denier.is_none() || checks.as_slice().iter().enumerate().any(|(i, check)| attempt(i, check))
}

/// Returns the most permits admitted in any window, by key, from the answers alone.
fn peaks(history: &[(Checks, Verdicts)]) -> HashMap<u64, u64> {
    let mut peaks = HashMap::new();
    for n in 0..3 {
        let window = quota(n).window().get();
        let charged: Vec<(u64, u64)> = history
            .iter()
            .flat_map(|(checks, verdicts)| checks.as_slice().iter().zip(&verdicts.verdicts))
            .filter(|(check, verdict)| check.key == key(n) && verdict.outcome == Outcome::Charged)
            .map(|(check, verdict)| (verdict.entry.at.get(), check.cost))
            .collect();
        let (mut first, mut used, mut peak) = (0, 0, 0);
        for (at, cost) in &charged {
            used += cost;
            while charged[first].0 + window <= *at {
                used -= charged[first].1;
                first += 1;
            }
            peak = peak.max(used);
        }
        peaks.insert(n, peak);
    }
    peaks
}

#[test]
fn four_processes_agree_with_the_oracle() {
    run("zset", 8_000);
}

#[test]
fn four_packed_processes_agree_with_the_oracle() {
    run("packed", 4_000);
}

#[test]
fn four_transaction_processes_agree_with_the_oracle() {
    run("transaction", 4_000);
}
