//! Tests that script calls are bounded: a call reads and removes a fixed number of entries, for any stored state and
//! any request.
//!
//! The keys are written by hand, in the layout of `lua/zset.lua` and `lua/packed.lua`, so that they are large at once and their
//! entries are as old as a test needs.

use std::time::Duration;

use slidegate::{
    Count, Encoding, Error, Fault, Key, Micros, Quota, RequestId, Settled, Store,
    redis::{RedisMode, RedisOptions, RedisStore},
    store::{Check, Checks, Correction, Outcome, Precision, Settlement, Verdict},
};
use slidegate_testkit::{Flavour, RedisServer};

const HOUR: Duration = Duration::from_secs(3_600);
const SECOND: u64 = 1_000_000;

/// Entries to write: instant and cost, oldest first.
pub(crate) type Entries = Vec<(u64, u64)>;

/// Writes keys by hand.
pub(crate) struct Writer {
    connection: redis::Connection,
}

impl Writer {
    pub(crate) fn new(server: &RedisServer) -> Self {
        Writer { connection: server.client() }
    }

    /// The time of the server, in microseconds.
    pub(crate) fn now(&mut self) -> u64 {
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut self.connection).unwrap();
        seconds * SECOND + micros
    }

    /// `n` entries whose newest is `age` old, a millisecond apart, with costs 1 to `most` in turns.
    pub(crate) fn entries(&mut self, n: u64, age: Duration, most: u64) -> Entries {
        let newest = self.now() - age.as_micros() as u64;
        (0..n).map(|i| (newest - (n - 1 - i) * 1_000, 1 + i % most)).collect()
    }

    pub(crate) fn write(&mut self, check: &Check, entries: &[(u64, u64)]) {
        match check.encoding {
            Encoding::Zset => self.write_zset(check, entries),
            Encoding::Packed => self.write_packed(check, entries),
        }
    }

    fn write_zset(&mut self, check: &Check, entries: &[(u64, u64)]) {
        let (name, window) = (format!("sg:{{{}}}", check.key), check.quota.window().get());
        let mut modulus = 16;
        while modulus <= 2 * window {
            modulus *= 16;
        }
        let total: u64 = entries.iter().map(|(_, cost)| cost).sum();
        let cost = entries[0].1;
        let alike = if entries.iter().all(|entry| entry.1 == cost) { cost } else { 0 };
        let quarter = if alike == 1 { "" } else { ".25" };
        let mut all = redis::pipe();
        all.cmd("UNLINK").arg(&name);
        let newest = entries[entries.len() - 1].0;
        all.cmd("ZADD")
            .arg(&name)
            .arg(format!("-{total}{quarter}"))
            .arg("u")
            .arg(format!("-{alike}"))
            .arg("m");
        all.cmd("ZADD").arg(&name).arg(format!("-{newest}")).arg(format!("sliding-window {window}"));
        all.cmd("ZADD").arg(&name).arg(0).arg("l");
        all.cmd("PEXPIRE").arg(&name).arg(7_200_000);
        all.exec(&mut self.connection).unwrap();
        // Sends commands one by one, so that Redis can answer other clients between them.
        for some in entries.chunks(250) {
            let mut add = redis::cmd("ZADD");
            add.arg(&name);
            for (at, cost) in some {
                let hex = format!("{:x}", at % modulus);
                add.arg(*at).arg(if *cost == 1 { hex } else { format!("{hex}*{cost}") });
            }
            add.exec(&mut self.connection).unwrap();
        }
    }

    fn write_packed(&mut self, check: &Check, entries: &[(u64, u64)]) {
        let (name, window) = (format!("sg:{{{}}}:log", check.key), check.quota.window().get());
        let total: u64 = entries.iter().map(|(_, cost)| cost).sum();
        let (oldest, newest) = (entries[0].0, entries[entries.len() - 1].0);
        let (size, front) = (entries.len() as u64, entries.len().min(16));
        let room = size + size / 4 + 64;
        let ring = size - front as u64;
        let mut log = b"sgp1".to_vec();
        for number in [8, room, 0, ring, window, front as u64, total, newest, newest, oldest, 1, 0, 0] {
            log.extend((number as f64).to_le_bytes());
        }
        log.extend([0; 128]);
        for (at, cost) in entries {
            log.extend(&at.to_be_bytes()[2..]);
            log.extend(&cost.to_be_bytes()[6..]);
        }
        log.resize(108 + (32 + room as usize) * 8, 0);
        redis::cmd("SET").arg(&name).arg(log).arg("PX").arg(7_200_000).exec(&mut self.connection).unwrap();
    }

    /// Writes notes for admissions at these instants.
    pub(crate) fn write_notes(&mut self, check: &Check, instants: &[u64]) {
        let name = format!("sg:{{{}}}:notes", check.key);
        for (i, some) in instants.chunks(250).enumerate() {
            let mut add = redis::cmd("ZADD");
            add.arg(&name);
            for (j, at) in some.iter().enumerate() {
                add.arg(*at).arg(format!("id:{i}.{j}*1"));
            }
            add.exec(&mut self.connection).unwrap();
        }
        redis::cmd("PEXPIRE").arg(&name).arg(7_200_000).exec(&mut self.connection).unwrap();
    }

    fn members(&mut self, check: &Check, suffix: &str) -> u64 {
        redis::cmd("ZCARD").arg(format!("sg:{{{}}}{suffix}", check.key)).query(&mut self.connection).unwrap()
    }
}

pub(crate) fn patient(server: &RedisServer) -> RedisOptions {
    RedisOptions { response_timeout: Duration::from_secs(20), ..RedisOptions::new(server.url()) }
}

fn check(name: &str, encoding: Encoding, limit: u64, window: Duration) -> Check {
    let quota = Quota::new(limit, window).unwrap();
    Check { encoding, ..Check::new(Key::new("k", [("n", name)]), quota, 1) }
}

fn with_cost(check: &Check, cost: u64) -> Checks {
    Checks::one(Check { cost, ..check.clone() }).unwrap()
}

async fn admit(store: &RedisStore, checks: Checks) -> Verdict {
    store.admit(&[checks]).await.unwrap()[0].verdicts[0]
}

/// Retries until the expired entries are removed and the store decides.
async fn admit_in_the_end(store: &RedisStore, checks: Checks) -> (Verdict, usize) {
    for tried in 0..1_000 {
        match store.admit(std::slice::from_ref(&checks)).await {
            Ok(batch_verdicts) => return (batch_verdicts[0].verdicts[0], tried),
            Err(error) => assert_eq!(error.fault(), Some(Fault::Trimming), "{error}"),
        }
    }
    panic!("the store never decides");
}

/// Returns the wait from `at` until `needed` permits have left.
fn wait_for(entries: &[(u64, u64)], needed: u64, at: Micros) -> Micros {
    let mut freed = 0;
    let last = entries.iter().find(|(_, cost)| {
        freed += cost;
        freed >= needed
    });
    Micros::new(last.unwrap().0 + HOUR.as_micros() as u64 - at.get())
}

/// Finding 1 of the audit: one denied request with a large cost read every entry, and Redis served no other client meanwhile.
#[tokio::test]
async fn retry_after_of_a_large_key_is_a_lower_bound() {
    let server = RedisServer::start(Flavour::Redis7);
    let store = RedisStore::with_options(&patient(&server)).unwrap();
    let mut writer = Writer::new(&server);
    for encoding in [Encoding::Zset, Encoding::Packed] {
        let entries = writer.entries(20_000, Duration::from_secs(60), 7);
        let limit = entries.iter().map(|(_, cost)| cost).sum();
        let check = check(&format!("{encoding:?}"), encoding, limit, HOUR);
        writer.write(&check, &entries);
        for cost in [1, 2, 100, 1_000, limit / 2, limit - 1, limit] {
            for checks in [with_cost(&check, cost), with_cost(&check, cost).peek()] {
                let verdicts = store.admit(&[checks]).await.unwrap().remove(0);
                let verdict = verdicts.verdicts[0];
                let exact = wait_for(&entries, cost, verdicts.at);
                assert_eq!((verdict.outcome, verdict.used), (Outcome::Denied, limit));
                if cost <= 1_000 {
                    assert_eq!((verdict.retry_after, verdict.precision), (exact, Precision::Exact), "{cost}");
                } else {
                    assert_eq!(verdict.precision, Precision::LowerBound, "{encoding:?} {cost}");
                    assert!(verdict.retry_after < exact && verdict.retry_after > Micros::ZERO);
                    // 700 entries were read, or eight times as many records. They cost 4 on average.
                    assert!(
                        verdict.retry_after >= wait_for(&entries, 2_500, verdicts.at),
                        "{encoding:?} {cost}"
                    );
                }
            }
        }
        // All requests of a batch share one bound, and each gets a bounded answer.
        let batch: Vec<Checks> =
            (0..50).map(|i| with_cost(&check, limit - i)).chain([with_cost(&check, 1)]).collect();
        let batch_verdicts = store.admit(&batch).await.unwrap();
        for (checks, verdicts) in batch.iter().zip(&batch_verdicts) {
            let (verdict, cost) = (verdicts.verdicts[0], checks.as_slice()[0].cost);
            let exact = wait_for(&entries, cost, verdicts.at);
            assert!(
                verdict.retry_after <= exact && verdict.retry_after > Micros::ZERO,
                "{cost}: {verdict:?}"
            );
            assert_eq!(
                verdict.precision == Precision::Exact,
                verdict.retry_after == exact,
                "{cost}: {verdict:?}"
            );
        }
        assert_eq!(batch_verdicts[50].verdicts[0].precision, Precision::Exact);
    }
}

/// If all entries cost the same, the entry that makes room is found by its rank.
#[tokio::test]
async fn retry_after_is_exact_for_equal_costs() {
    let server = RedisServer::start(Flavour::Redis7);
    let store = RedisStore::with_options(&patient(&server)).unwrap();
    let mut writer = Writer::new(&server);
    for each in [1, 3] {
        let mut entries = writer.entries(20_000, Duration::from_secs(60), 1);
        entries.iter_mut().for_each(|entry| entry.1 = each);
        let limit = 20_000 * each;
        let check = check(&format!("alike{each}"), Encoding::Zset, limit, HOUR);
        writer.write(&check, &entries);
        for cost in [1, each, 1_000, limit / 2, limit] {
            for peek in [false, true] {
                let checks = with_cost(&check, cost);
                let verdicts =
                    store.admit(&[if peek { checks.peek() } else { checks }]).await.unwrap().remove(0);
                let exact = wait_for(&entries, cost, verdicts.at);
                let verdict = verdicts.verdicts[0];
                assert_eq!(
                    (verdict.retry_after, verdict.precision),
                    (exact, Precision::Exact),
                    "{cost} {peek}"
                );
            }
        }
    }
}

/// Finding 12: entries that expire at once are removed in steps, and no decision counts them.
#[tokio::test]
async fn mass_expiry_is_removed_in_steps() {
    let server = RedisServer::start(Flavour::Redis7);
    let store = RedisStore::with_options(&patient(&server)).unwrap();
    let mut writer = Writer::new(&server);
    let minute = Duration::from_secs(60);
    for (name, encoding, most) in
        [("alike", Encoding::Zset, 1), ("mixed", Encoding::Zset, 7), ("packed", Encoding::Packed, 7)]
    {
        let n = 50_000;
        let check = check(name, encoding, 1_000_000, minute);
        let mut entries = writer.entries(n, 2 * minute, most);
        entries.extend(writer.entries(10, Duration::from_secs(5), most));
        let live: u64 = entries[n as usize..].iter().map(|(_, cost)| cost).sum();
        writer.write(&check, &entries);
        let (peeked, _) = admit_in_the_end(&store, with_cost(&check, 1).peek()).await;
        assert_eq!((peeked.outcome, peeked.used), (Outcome::Fits, live), "{name}");
        let (admitted, _) = admit_in_the_end(&store, with_cost(&check, 3)).await;
        assert_eq!((admitted.outcome, admitted.used), (Outcome::Charged, live + 3), "{name}");
        let inspected = store.inspect(&check.key).await.unwrap().unwrap();
        assert_eq!((inspected.used, inspected.entries.len()), (live + 3, 11), "{name}");
        if encoding == Encoding::Zset {
            let left = writer.members(&check, "");
            assert!(
                most == 1 || left == 15,
                "{name}: a decision needs the sum of all expired entries: {left}"
            );
            let other = RedisOptions { mode: RedisMode::Transaction, ..patient(&server) };
            let transactions = RedisStore::with_options(&other).unwrap();
            assert_eq!(admit(&transactions, with_cost(&check, 1)).await.used, live + 4, "{name}");
            assert_eq!(admit_in_the_end(&store, with_cost(&check, 1)).await.0.used, live + 5, "{name}");
        } else {
            assert_eq!(admit(&store, with_cost(&check, 2)).await.used, live + 5, "{name}");
        }
        // In the end no expired entry is left, and the total is the sum of the entries.
        for _ in 0..40 {
            admit_in_the_end(&store, with_cost(&check, 1).peek()).await;
        }
        let audit = store.audit(&check.key, None, false).await.unwrap().unwrap();
        assert_eq!((audit.discrepancies, audit.counted), (Vec::new(), live + 5), "{name}");
        // `retry_after` of a key with expired entries refers to the right entry.
        writer.write(&check, &entries);
        let full = Check { quota: Quota::new(live, minute).unwrap(), ..check.clone() };
        let mut verdicts = store.admit(&[with_cost(&full, 1)]).await;
        while verdicts.as_ref().is_err_and(|error: &Error| error.fault() == Some(Fault::Trimming)) {
            verdicts = store.admit(&[with_cost(&full, 1)]).await;
        }
        let verdicts = verdicts.unwrap().remove(0);
        let leaves = entries[n as usize].0 + minute.as_micros() as u64 - verdicts.at.get();
        assert_eq!(verdicts.verdicts[0].outcome, Outcome::Denied, "{name}");
        assert_eq!(verdicts.verdicts[0].retry_after, Micros::new(leaves), "{name}");
    }
}

/// An error says that nothing was decided; every call has removed something, so the key decides again soon.
#[tokio::test]
async fn many_expired_entries_take_several_calls() {
    let server = RedisServer::start(Flavour::Redis7);
    let store = RedisStore::with_options(&patient(&server)).unwrap();
    let mut writer = Writer::new(&server);
    let check = check("k", Encoding::Zset, 1_000_000, Duration::from_secs(60));
    let mut entries = writer.entries(50_000, Duration::from_secs(120), 7);
    entries.extend(writer.entries(1, Duration::from_secs(5), 1));
    writer.write(&check, &entries);
    let error = store.admit(&[with_cost(&check, 1)]).await.unwrap_err();
    assert_eq!(error.fault(), Some(Fault::Trimming), "{error}");
    assert!(!error.outcome_unknown());
    let before = writer.members(&check, "");
    assert!(before < 50_000, "{before}");
    let (verdict, tried) = admit_in_the_end(&store, with_cost(&check, 1)).await;
    assert_eq!((verdict.outcome, verdict.used), (Outcome::Charged, 2));
    assert!(tried > 0 && tried < 10, "{tried}");
}

#[tokio::test]
async fn settle_and_gc_remove_expired_entries_in_steps() {
    let server = RedisServer::start(Flavour::Redis7);
    let store = RedisStore::with_options(&patient(&server)).unwrap();
    let mut writer = Writer::new(&server);
    let minute = Duration::from_secs(60);
    for (name, encoding, most) in
        [("alike", Encoding::Zset, 1), ("mixed", Encoding::Zset, 7), ("packed", Encoding::Packed, 7)]
    {
        let check = check(name, encoding, 1_000_000, minute);
        let mut entries = writer.entries(30_000, 2 * minute, most);
        entries.extend(writer.entries(5, Duration::from_secs(5), 1));
        let expired = entries.clone();
        writer.write(&check, &entries);
        let (at, cost) = entries[entries.len() - 1];
        let entry = slidegate::store::Entry { at: Micros::new(at), seq: 0, cost };
        let settlement = Settlement { key: check.key.clone(), entry, correction: Correction::Cost(9) };
        let receipt = store.settle(std::slice::from_ref(&settlement)).await.unwrap();
        assert_eq!(receipt.settled, [Settled::Done], "{name}");
        assert_eq!(store.settle(&[settlement]).await.unwrap().settled, [Settled::Already], "{name}");
        assert_eq!(admit(&store, with_cost(&check, 1).peek()).await.used, 13, "{name}");
        writer.write(&check, &expired);
        let mut cleaned = 0;
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            let step = store.clean(at, 100).await.unwrap();
            cleaned += step.trimmed;
            cursor = step.next;
        }
        assert_eq!(cleaned, 30_000, "{name}");
        assert_eq!(store.inspect(&check.key).await.unwrap().unwrap().used, 5, "{name}");
        assert!(store.reset(&check.key).await.unwrap());
    }
}

/// A large attempt removes many small ones: a bounded number per call, with the same decisions.
#[tokio::test]
async fn large_attempt_removes_entries_in_steps() {
    let server = RedisServer::start(Flavour::Redis7);
    let store = RedisStore::with_options(&patient(&server)).unwrap();
    let mut writer = Writer::new(&server);
    for encoding in [Encoding::Zset, Encoding::Packed] {
        let limit = 40_000;
        let check = check(&format!("{encoding:?}"), encoding, limit, HOUR);
        let check = Check { quota: check.quota.with_count(Count::Attempts), ..check };
        let entries = writer.entries(limit, Duration::from_secs(60), 1);
        writer.write(&check, &entries);
        let large = admit(&store, with_cost(&check, limit / 2)).await;
        assert_eq!((large.outcome, large.used), (Outcome::Denied, limit), "{encoding:?}");
        // The older half does not count, so `retry_after` refers to the first entry of the newer half.
        let verdicts = store.admit(&[with_cost(&check, 1).peek()]).await.unwrap().remove(0);
        let verdict = verdicts.verdicts[0];
        let exact = Micros::new(entries[limit as usize / 2].0 + HOUR.as_micros() as u64 - verdicts.at.get());
        assert_eq!(verdict.outcome, Outcome::Denied, "{encoding:?}");
        assert!(verdict.retry_after <= exact, "{encoding:?}");
        assert_eq!(verdict.precision == Precision::Exact, verdict.retry_after == exact, "{encoding:?}");
        // Each attempt removes some of the remaining old entries.
        let mut used = verdict.used;
        for _ in 0..40 {
            assert_eq!(admit(&store, with_cost(&check, 1)).await.used, limit, "{encoding:?}");
            let now = admit(&store, with_cost(&check, 1).peek()).await.used;
            assert!(now < used || now == limit, "{encoding:?}: {now} after {used}");
            used = now;
        }
        assert_eq!(used, limit, "{encoding:?}");
        let entry = 2 + limit / 2 + 38;
        let verdicts = store.admit(&[with_cost(&check, 1).peek()]).await.unwrap().remove(0);
        let exact = Micros::new(entries[entry as usize].0 + HOUR.as_micros() as u64 - verdicts.at.get());
        assert_eq!(verdicts.verdicts[0].retry_after, exact, "{encoding:?}");
    }
}

#[tokio::test]
async fn notes_are_removed_in_steps() {
    let server = RedisServer::start(Flavour::Redis7);
    let store = RedisStore::with_options(&patient(&server)).unwrap();
    let mut writer = Writer::new(&server);
    let check = check("k", Encoding::Zset, 100, Duration::from_secs(60));
    let named = |n: u64| with_cost(&check, 1).with_id(RequestId::new(&format!("r{n}")).unwrap());
    admit(&store, named(0)).await;
    // All notes have one instant, like those of a slice.
    let long_ago = writer.now() - 120 * SECOND;
    writer.write_notes(&check, &vec![long_ago; 10_000]);
    let mut left = writer.members(&check, ":notes");
    for n in 1..20 {
        assert_eq!(admit(&store, named(n)).await.used, n + 1);
        let now = writer.members(&check, ":notes");
        assert!(left.saturating_sub(now) < 2_500, "{left} to {now}");
        left = now;
    }
    assert_eq!(left, 20);
    assert_eq!(admit(&store, named(3)).await.used, 20, "a repeated id is charged once");
}

/// A packed log that is too long to be rewritten stores a large cost in its notes.
#[tokio::test]
async fn long_packed_log_stores_a_large_cost_separately() {
    let server = RedisServer::start(Flavour::Redis7);
    let store = RedisStore::with_options(&patient(&server)).unwrap();
    let mut writer = Writer::new(&server);
    let check = check("k", Encoding::Packed, 1_000_000, HOUR);
    // Too many records to rewrite, and few enough to be read in one call.
    let entries = writer.entries(5_000, Duration::from_secs(60), 1);
    writer.write(&check, &entries);
    let before = admit(&store, with_cost(&check, 1).peek()).await.used;
    let first = admit(&store, with_cost(&check, 70_000)).await;
    assert_eq!((first.outcome, first.used), (Outcome::Charged, before + 70_000));
    assert_eq!(writer.members(&check, ":log:notes"), 1, "the cost is in the notes");
    let second = admit(&store, with_cost(&check, 500_000)).await;
    assert_eq!(second.used, before + 570_000);
    admit(&store, with_cost(&check, 65_535)).await;
    let used = before + 635_535;
    // A wait that ends when one of these entries leaves is exact.
    let cost = 1_000_000 - used + before + 70_000;
    let verdicts = store.admit(&[with_cost(&check, cost)]).await.unwrap().remove(0);
    let verdict = verdicts.verdicts[0];
    let leaves = Micros::new(first.entry.at.get() + HOUR.as_micros() as u64 - verdicts.at.get());
    assert_eq!((verdict.used, verdict.retry_after, verdict.precision), (used, leaves, Precision::Exact));
    // Settles one admission to a lower cost, and one to a higher cost.
    let settle = async |entry, permits| {
        let settlement = Settlement { key: check.key.clone(), entry, correction: Correction::Cost(permits) };
        store.settle(&[settlement]).await.unwrap().settled[0]
    };
    assert_eq!(settle(first.entry, 10).await, Settled::Done);
    assert_eq!(settle(second.entry, 600_000).await, Settled::Done);
    assert_eq!(admit(&store, with_cost(&check, 1).peek()).await.used, used - 69_990 + 100_000);
    // The notes hold two settlements and one cost.
    assert_eq!(writer.members(&check, ":log:notes"), 3);
    // Attempts remove a large entry in part.
    let attempts = Check { quota: check.quota.with_count(Count::Attempts), ..check.clone() };
    let (mut last, mut tried) = (u64::MAX, 0);
    while last > 1_000_000 || tried == 0 {
        let verdict = admit(&store, with_cost(&attempts, 900_000)).await;
        assert_eq!((verdict.outcome, verdict.used), (Outcome::Denied, 1_000_000));
        last = admit(&store, with_cost(&attempts, 1).peek()).await.used;
        tried += 1;
        assert!(tried < 10);
    }
    let inspected = store.inspect(&check.key).await.unwrap().unwrap();
    assert_eq!(inspected.used, 1_000_000);
}

#[tokio::test]
async fn large_cost_of_a_packed_log_expires() {
    let server = RedisServer::start(Flavour::Redis7);
    let store = RedisStore::with_options(&patient(&server)).unwrap();
    let mut writer = Writer::new(&server);
    let minute = Duration::from_secs(60);
    let check = check("k", Encoding::Packed, 1_000_000, minute);
    let mut entries = writer.entries(5_000, 2 * minute, 1);
    // This entry costs 70,000, but the total that is written below includes only 65,535.
    entries[100].1 = 65_535;
    let name = format!("cost:{:x}", entries[100].0);
    let notes = format!("sg:{{{}}}:log:notes", check.key);
    let live: Entries =
        writer.entries(5, Duration::from_secs(5), 1).iter().map(|(at, _)| (*at, 10_000)).collect();
    entries.extend(&live);
    writer.write(&check, &entries);
    server.run(&format!("ZADD {notes} -70000 {name}"));
    server.run(&format!("PEXPIRE {notes} 600000"));
    let verdict = admit(&store, with_cost(&check, 1)).await;
    assert_eq!((verdict.outcome, verdict.used), (Outcome::Charged, 50_001 + 65_535 - 70_000));
    assert_eq!(writer.members(&check, ":log:notes"), 0);
}
