//! Tests held permits: released once, extended, and free again when their lease ends.

use std::time::Duration;

use slidegate::{
    Algorithm, Decision, Key, Limiter, ManualClock, MemoryStore, Micros, Quota, Request, RequestId, Rules,
    Settled, Store,
    redis::{RedisMode, RedisOptions, RedisStore},
    store::{Check, Checks, Correction, Entry, Settlement},
};
use slidegate_testkit::FakeTime;

const RULES: &str = "
rules:
  - { name: calls,   key: [user], limit: 10, window: 1m }
  - { name: at-once, key: [user], limit: 2, window: 30s, algorithm: concurrency }
";

fn limiter(clock: &ManualClock) -> Limiter<MemoryStore<ManualClock>> {
    Limiter::new(MemoryStore::with_clock(clock.clone(), 100), Rules::from_yaml(RULES).unwrap())
}

fn alice() -> Request<'static> {
    Request::new([("user", "alice")])
}

fn used(decision: &Decision) -> Vec<u64> {
    decision.limits().map(|limit| limit.used()).collect()
}

#[tokio::test]
async fn third_holder_waits_until_one_releases() {
    let clock = ManualClock::at(Micros::from_secs(1_000));
    let limiter = limiter(&clock);
    let first = limiter.acquire(alice()).await.unwrap();
    let second = limiter.acquire(alice()).await.unwrap();
    assert!(first.holds() && second.holds());
    let third = limiter.acquire(alice()).await.unwrap();
    assert_eq!((third.allowed(), third.denied_by(), third.holds()), (false, Some("at-once"), false));
    // Without a release, a permit is free when the lease of the first permit ends.
    assert_eq!(third.retry_after(), Micros::from_secs(30));

    let first = first.reservation().unwrap();
    assert_eq!(limiter.release(&first).await.unwrap(), Settled::Done);
    assert_eq!(limiter.release(&first).await.unwrap(), Settled::Already);
    let third = limiter.acquire(alice()).await.unwrap();
    assert!(third.allowed());
    assert_eq!(used(&third), [3, 2], "a release does not refund the call");

    // A refund returns the call and the held permit.
    assert_eq!(limiter.settle(&third.reservation().unwrap(), 0).await.unwrap(), Settled::Done);
    assert_eq!(used(&limiter.peek(alice()).await.unwrap()), [2, 1]);
}

#[tokio::test]
async fn extended_permit_is_kept_and_others_expire() {
    let clock = ManualClock::at(Micros::from_secs(1_000));
    let limiter = limiter(&clock);
    let alive = limiter.acquire(alice()).await.unwrap().reservation().unwrap();
    let dead = limiter.acquire(alice()).await.unwrap().reservation().unwrap();
    for _ in 0..10 {
        clock.advance(Micros::from_secs(20));
        assert_eq!(limiter.extend(&alive).await.unwrap(), Settled::Done);
    }
    assert_eq!(used(&limiter.peek(alice()).await.unwrap())[1], 1, "the permit of the dead holder is free");
    assert_eq!(limiter.extend(&dead).await.unwrap(), Settled::Gone);
    assert_eq!(limiter.release(&dead).await.unwrap(), Settled::Gone);
    // The first reservation still identifies the extended permit.
    assert_eq!(limiter.release(&alive).await.unwrap(), Settled::Done);
    assert_eq!(limiter.extend(&alive).await.unwrap(), Settled::Already);
    assert_eq!(used(&limiter.peek(alice()).await.unwrap())[1], 0);
}

#[tokio::test]
async fn reservation_text_identifies_the_held_permit() {
    let clock = ManualClock::at(Micros::from_secs(1_000));
    let limiter = limiter(&clock);
    let text = limiter.sign_decision(&limiter.acquire(alice()).await.unwrap()).unwrap();
    let read = limiter.verify(&text).unwrap();
    assert!(read.holds());
    assert_eq!(limiter.sign(&read), text);
    assert_eq!(limiter.extend(&read).await.unwrap(), Settled::Done);
    assert_eq!(limiter.release(&read).await.unwrap(), Settled::Done);
    // A key without held permits has nothing to release.
    let plain = Limiter::per_minute(5).unwrap();
    let plain_text = plain.acquire("alice").await.unwrap().reservation().unwrap();
    assert!(!plain_text.holds());
    assert_eq!(plain.release(&plain_text).await.unwrap(), Settled::Gone);
    assert_eq!(plain.extend(&plain_text).await.unwrap(), Settled::Gone);
}

/// Memory does not grow with the number of extensions.
#[tokio::test]
async fn extensions_use_no_further_memory() {
    let clock = ManualClock::at(Micros::from_secs(1_000));
    let limiter = limiter(&clock);
    let permit = limiter.acquire(alice()).await.unwrap().reservation().unwrap();
    let extend = async |times: usize| {
        for _ in 0..times {
            clock.advance(Micros::from_millis(1));
            assert_eq!(limiter.extend(&permit).await.unwrap(), Settled::Done);
        }
        limiter.store().stats().bytes
    };
    let (few, many) = (extend(100).await, extend(20_000).await);
    assert!(many <= few + 4_096, "{few} bytes after a hundred, {many} after twenty thousand");
}

/// Clock of a store that a test moves.
trait Moves {
    fn move_to(&self, micros: u64);
}

impl Moves for ManualClock {
    fn move_to(&self, micros: u64) {
        self.set(Micros::new(micros));
    }
}

impl Moves for FakeTime {
    fn move_to(&self, micros: u64) {
        self.stop_at(micros);
    }
}

const SECOND: u64 = 1_000_000;

/// Lifecycle of one permit, step by step: its first reservation identifies it throughout, and no more is released than
/// is held.
async fn the_life_of_a_permit<S: Store>(store: &S, clock: &impl Moves) {
    let quota = Quota::new(3, Duration::from_secs(30)).unwrap();
    let quota = quota.with_algorithm(Algorithm::Concurrency).unwrap();
    let key = Key::new("life", []);
    let checks = |cost| Checks::one(Check::new(key.clone(), quota, cost)).unwrap();
    let admit = async |checks: Checks| store.admit(&[checks]).await.unwrap().remove(0).verdicts[0];
    let correct = async |entry: Entry, correction| {
        let settlement = Settlement { key: key.clone(), entry, correction };
        store.settle(&[settlement]).await.unwrap().settled[0]
    };
    let used = async || admit(checks(1).peek()).await.used;
    let named = || checks(1).with_id(RequestId::new("job-1").unwrap());

    clock.move_to(1_000 * SECOND);
    let first = admit(named()).await.entry;
    let other = admit(checks(2)).await.entry;
    clock.move_to(1_020 * SECOND);
    assert_eq!(correct(first, Correction::Extend).await, Settled::Done);
    assert_eq!(correct(first, Correction::Extend).await, Settled::Done, "two extensions at one instant");
    // A repeated request gets the same permit with the same reservation.
    assert_eq!(admit(named()).await.entry, first);
    clock.move_to(1_031 * SECOND);
    assert_eq!(used().await, 1, "the other was not extended");
    assert_eq!(correct(other, Correction::Extend).await, Settled::Gone);
    // The request id is remembered for one window after its admission. After that it is a new request.
    let again = admit(named()).await.entry;
    assert_ne!(again, first);
    assert_eq!(used().await, 2);
    assert_eq!(correct(again, Correction::Cost(0)).await, Settled::Done);
    assert_eq!(
        correct(again, Correction::Extend).await,
        Settled::Already,
        "a returned permit cannot be extended"
    );

    // A false cost in an entry changes nothing, and an entry that was never admitted is not extended.
    clock.move_to(1_032 * SECOND);
    assert_eq!(correct(Entry { cost: 1_000, ..first }, Correction::Extend).await, Settled::Done);
    assert_eq!(used().await, 1);
    assert_eq!(correct(Entry { cost: 0, ..first }, Correction::Extend).await, Settled::Gone);
    for _ in 0..5 {
        clock.move_to(1_033 * SECOND);
        assert_eq!(correct(first, Correction::Extend).await, Settled::Done);
    }
    assert_eq!(correct(first, Correction::Cost(0)).await, Settled::Done);
    assert_eq!(correct(first, Correction::Cost(0)).await, Settled::Already);
    assert_eq!(used().await, 0);
    assert_eq!(admit(checks(3)).await.used, 3, "all permits are free again");
}

#[tokio::test]
async fn permit_lifecycle_is_the_same_in_every_store() {
    let clock = ManualClock::at(Micros::ZERO);
    the_life_of_a_permit(&MemoryStore::with_clock(clock.clone(), 10), &clock).await;
    for mode in [RedisMode::Script, RedisMode::Transaction] {
        let time = FakeTime::start();
        let server = time.stopped();
        let patience = Duration::from_secs(20);
        let options = RedisOptions { mode, response_timeout: patience, ..RedisOptions::new(server.url()) };
        the_life_of_a_permit(&RedisStore::with_options(&options).unwrap(), &time).await;
    }
}
