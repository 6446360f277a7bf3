//! Tests the wrappers that make a store faster: they decide as the store does, alone, combined and under load.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use slidegate::{
    Clock, Encoding, Error, Fault, Key, MemoryStore, Quota, Source, Store, SystemClock,
    redis::{Coalesce, CoalesceOptions, Failover, FailoverOptions, Lease, RedisOptions, RedisStore},
    store::{
        BatchVerdicts, Check, Checks, DenyCache, Entry, Inspection, Listener, Outcome, Receipt, Settlement,
        Verdicts,
    },
};
use slidegate_testkit::{Flavour, RedisServer};
use tokio::sync::Semaphore;

use crate::conformance::{Rng, conforms};
use crate::multi_process::random_checks;
use crate::oracle::Oracle;
use crate::watchdog::Watchdog;

const ENOUGH: usize = 60_000;
/// Number of operations on Redis, where an operation takes much longer than in memory.
const SOME: usize = 24_000;

/// Records the answers of the inner store in order.
#[derive(Clone)]
pub(crate) struct Recorder<S> {
    store: S,
    pub log: Arc<Mutex<Vec<(Checks, Verdicts)>>>,
}

impl<S> Recorder<S> {
    pub(crate) fn new(store: S) -> Self {
        Recorder { store, log: Arc::default() }
    }
}

impl<S: Store> Store for Recorder<S> {
    async fn admit(&self, batch: &[Checks]) -> Result<BatchVerdicts, Error> {
        let batch_verdicts = self.store.admit(batch).await?;
        self.log.lock().extend(batch.iter().cloned().zip(batch_verdicts.iter().cloned()));
        Ok(batch_verdicts)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Receipt, Error> {
        self.store.settle(settlements).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Inspection>, Error> {
        self.store.inspect(key).await
    }

    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        self.store.reset(key).await
    }
}

fn memory() -> MemoryStore {
    MemoryStore::with_clock(SystemClock::new(), 1_000)
}

fn redis(server: &RedisServer) -> RedisStore {
    let patient =
        RedisOptions { response_timeout: Duration::from_secs(20), ..RedisOptions::new(server.url()) };
    RedisStore::with_options(&patient).unwrap()
}

fn guarded(server: &RedisServer) -> Failover {
    let patient = FailoverOptions { deadline: Duration::from_secs(20), ..FailoverOptions::default() };
    Failover::new(redis(server), patient).unwrap()
}

pub(crate) type Stack<S> = Lease<DenyCache<Coalesce<S>>>;

pub(crate) fn stacked<S: Store + 'static>(store: S) -> Stack<S> {
    Lease::new(DenyCache::new(Coalesce::new(store)))
}

#[tokio::test]
async fn each_wrapper_conforms_in_memory() {
    conforms("coalesced, memory", &Coalesce::new(memory()), Encoding::Zset, ENOUGH).await;
    conforms("deny cache, memory", &DenyCache::new(memory()), Encoding::Zset, ENOUGH).await;
    conforms("lease, memory", &Lease::new(memory()), Encoding::Zset, ENOUGH).await;
    conforms("all wrappers, memory", &stacked(memory()), Encoding::Zset, ENOUGH).await;
}

#[tokio::test]
async fn each_wrapper_conforms_on_redis() {
    let server = RedisServer::start(Flavour::Redis7);
    conforms("coalesced, Redis", &Coalesce::new(redis(&server)), Encoding::Zset, SOME).await;
    conforms("deny cache, Redis", &DenyCache::new(redis(&server)), Encoding::Zset, SOME).await;
    conforms("lease, Redis", &Lease::new(redis(&server)), Encoding::Zset, SOME).await;
    conforms("all wrappers, Redis", &stacked(guarded(&server)), Encoding::Zset, SOME).await;
    conforms("all wrappers, packed", &stacked(guarded(&server)), Encoding::Packed, SOME).await;
}

/// Concurrent callers: the store decides as the algorithm says, each caller gets the answer of the store, and the store
/// would have denied every locally denied call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_callers_agree_with_the_oracle() {
    for encoding in [Encoding::Zset, Encoding::Packed] {
        let server = RedisServer::start(Flavour::Redis7);
        let recorder = Recorder::new(redis(&server));
        let store = stacked(recorder.clone());
        let callers = (0..64).map(|caller| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut rng = Rng::new(caller + 1);
                let mut answers = Vec::new();
                let end = tokio::time::sleep(Duration::from_secs(2));
                let mut end = std::pin::pin!(end);
                while !end.is_elapsed() {
                    let checks = random_checks(&mut rng, encoding);
                    let verdicts = store.admit(std::slice::from_ref(&checks)).await.unwrap().remove(0);
                    answers.push((checks, verdicts));
                    tokio::select! { biased; () = &mut end => {}, () = tokio::task::yield_now() => {} }
                }
                answers
            })
        });
        let mut answers = Vec::new();
        for caller in callers.collect::<Vec<_>>() {
            answers.extend(caller.await.unwrap());
        }
        let stats = store.store().store().stats();
        let mut history = std::mem::take(&mut *recorder.log.lock());
        let cached: Vec<_> =
            answers.iter().filter(|(_, verdicts)| verdicts.source == Source::DenyCache).cloned().collect();
        assert_eq!(answers.len(), history.len() + cached.len());
        assert_eq!(sorted(&answers, Source::Store), sorted(&history, Source::Store));
        history.extend(cached.iter().cloned());
        history.sort_by_key(|(_, verdicts)| verdicts.at);
        let mut oracle = Oracle::default();
        for (checks, verdicts) in &history {
            oracle.admitted(checks, verdicts);
        }
        eprintln!(
            "{encoding:?}: {} requests of 64 callers in {} calls, {} of them denied by the cache: 0 differences",
            answers.len(),
            stats.calls,
            cached.len()
        );
        assert!(stats.requests > stats.calls * 2 && cached.len() > 100);
    }
}

/// Formats the calls that `source` decided as sorted text, so that they can be compared for any order of callers.
fn sorted(answers: &[(Checks, Verdicts)], source: Source) -> Vec<String> {
    let from = answers.iter().filter(|(_, verdicts)| verdicts.source == source);
    let mut lines: Vec<String> = from
        .map(|(checks, verdicts)| {
            let keys: Vec<_> = checks.as_slice().iter().map(|check| (&check.key, check.cost)).collect();
            format!("{keys:?} {verdicts:?}")
        })
        .collect();
    lines.sort_unstable();
    lines
}

/// Store that answers when a test permits it, and counts calls.
#[derive(Clone)]
struct Slow {
    store: MemoryStore,
    let_go: Arc<Semaphore>,
    calls: Arc<Mutex<Vec<usize>>>,
    failing: Arc<AtomicUsize>,
}

impl Slow {
    fn new() -> Self {
        Slow {
            store: memory(),
            let_go: Arc::new(Semaphore::new(0)),
            calls: Arc::default(),
            failing: Arc::default(),
        }
    }

    fn calls(&self) -> Vec<usize> {
        self.calls.lock().clone()
    }
}

impl Store for Slow {
    async fn admit(&self, batch: &[Checks]) -> Result<BatchVerdicts, Error> {
        self.calls.lock().push(batch.len());
        self.let_go.acquire().await.unwrap().forget();
        if self.failing.load(Ordering::Relaxed) > 0 {
            assert!(self.failing.fetch_sub(1, Ordering::Relaxed) != 2, "failure of the test");
            return Err(Error::store(Fault::Lost, "it is gone"));
        }
        if batch.iter().any(|checks| checks.as_slice()[0].key.as_str().starts_with("foreign")) {
            return Err(Error::store(Fault::WrongType, "the key is not ours"));
        }
        self.store.admit(batch).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Receipt, Error> {
        self.store.settle(settlements).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Inspection>, Error> {
        self.store.inspect(key).await
    }

    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        self.store.reset(key).await
    }

    fn shard_of(&self, key: &Key) -> u16 {
        u16::from(key.as_str().starts_with("other"))
    }
}

fn one(rule: &str) -> Checks {
    Checks::one(Check::new(Key::new(rule, []), Quota::per_hour(1_000_000).unwrap(), 1)).unwrap()
}

/// Starts a call, and returns when it waits.
async fn start<S: Store + Clone + 'static>(
    store: &S,
    checks: Checks,
) -> tokio::task::JoinHandle<Result<BatchVerdicts, Error>> {
    let store = store.clone();
    let task = tokio::spawn(async move { store.admit(&[checks]).await });
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
    task
}

#[tokio::test]
async fn concurrent_calls_are_coalesced_in_order() {
    let slow = Slow::new();
    let options = CoalesceOptions { batch_size: 4, ..CoalesceOptions::default() };
    let store = Coalesce::with_options(slow.clone(), options);
    let mut tasks = vec![start(&store, one("k")).await];
    assert_eq!(slow.calls(), [1], "a single caller does not wait");
    for n in 1..=9 {
        tasks.push(start(&store, one("k")).await);
        // A full batch does not wait for the first call.
        assert_eq!(slow.calls(), [&[1][..], &vec![4; n / 4][..]].concat());
    }
    let other = start(&store, one("other")).await;
    assert_eq!(slow.calls(), [1, 4, 4, 1], "a call to another server does not wait");
    slow.let_go.add_permits(100);
    let mut used = Vec::new();
    for task in tasks {
        used.push(task.await.unwrap().unwrap()[0].verdicts[0].used);
    }
    assert_eq!(slow.calls(), [1, 4, 4, 1, 1]);
    assert_eq!(used, (1..=10).collect::<Vec<u64>>(), "callers are answered in the order in which they came");
    assert!(other.await.unwrap().is_ok());
}

#[tokio::test]
async fn full_queue_calls_directly_and_cancelled_callers_are_not_charged() {
    let slow = Slow::new();
    let store = Coalesce::with_options(
        slow.clone(),
        CoalesceOptions { max_waiting: 2, ..CoalesceOptions::default() },
    );
    let first = start(&store, one("k")).await;
    let (second, third) = (start(&store, one("k")).await, start(&store, one("k")).await);
    assert_eq!(slow.calls(), [1]);
    let fourth = start(&store, one("k")).await;
    assert_eq!(slow.calls(), [1, 1], "the queue is full, so the call does not wait");
    third.abort();
    assert!(third.await.unwrap_err().is_cancelled());
    slow.let_go.add_permits(100);
    for task in [first, second, fourth] {
        task.await.unwrap().unwrap();
    }
    let inspection = store.inspect(&Key::new("k", [])).await.unwrap().unwrap();
    assert_eq!((inspection.used, slow.calls()), (3, vec![1, 1, 1]));
    // The first caller may be cancelled too: waiting callers continue.
    let slow = Slow::new();
    let store = Coalesce::new(slow.clone());
    let (first, second) = (start(&store, one("k")).await, start(&store, one("k")).await);
    first.abort();
    slow.let_go.add_permits(100);
    second.await.unwrap().unwrap();
    assert!(store.admit(&[one("k")]).await.is_ok());
}

#[tokio::test]
async fn failure_reaches_all_callers_and_a_foreign_key_only_its_own() {
    let slow = Slow::new();
    let store = Coalesce::new(slow.clone());
    let mut tasks = Vec::new();
    for rule in ["a", "b", "foreign", "c"] {
        tasks.push(start(&store, one(rule)).await);
    }
    slow.let_go.add_permits(100);
    let mut faults = Vec::new();
    for task in tasks {
        faults.push(task.await.unwrap().err().and_then(|error| error.fault()));
    }
    assert_eq!(faults, [None, None, Some(Fault::WrongType), None]);
    assert_eq!(slow.calls(), [1, 3, 1, 1, 1]);
    // A lost connection, and then a store that panics: no caller waits for ever, and the next call is answered.
    let slow = Slow::new();
    let store = Coalesce::new(slow.clone());
    slow.failing.store(3, Ordering::Relaxed);
    let (first, second) = (start(&store, one("k")).await, start(&store, one("k")).await);
    slow.let_go.add_permits(100);
    assert_eq!(first.await.unwrap().unwrap_err().fault(), Some(Fault::Lost));
    assert_eq!(second.await.unwrap().unwrap_err().fault(), Some(Fault::Other));
    assert_eq!(store.admit(&[one("k")]).await.unwrap_err().fault(), Some(Fault::Lost));
    assert!(store.admit(&[one("k")]).await.is_ok());
}

/// A batch of one caller is decided at one instant, and is not mixed with other calls.
#[tokio::test]
async fn batch_of_one_caller_is_not_mixed() {
    let slow = Slow::new();
    let store = Coalesce::new(slow.clone());
    let first = start(&store, one("k")).await;
    slow.let_go.add_permits(100);
    let batch_verdicts = store.admit(&[one("k"), one("a"), one("k")]).await.unwrap();
    assert!(batch_verdicts.iter().all(|verdicts| verdicts.verdicts[0].outcome == Outcome::Charged));
    first.await.unwrap().unwrap();
    assert_eq!(slow.calls(), [1, 3]);
}

/// A foreign key among others, behind a failover: only its own caller is answered without the store.
#[tokio::test]
async fn foreign_key_does_not_fail_the_batch() {
    let server = RedisServer::start(Flavour::Redis7).without_ttl_check();
    server.run("SET sg:{foreign} 1");
    let failover = guarded(&server);
    let batch: Vec<Checks> = ["a", "foreign", "b"].map(one).into();
    for _ in 0..2 {
        let sources: Vec<Source> =
            failover.admit(&batch).await.unwrap().iter().map(|verdicts| verdicts.source).collect();
        assert_eq!(sources, [Source::Store, Source::Local, Source::Store]);
    }
    let inspection = failover.inspect(&Key::new("a", [])).await.unwrap().unwrap();
    assert_eq!(inspection.used, 2, "the failed call had written nothing");
}

/// Callers that wait behind a server that hangs wait for one deadline, not two. Stalls of the machine are not counted.
#[tokio::test]
async fn deadline_counts_from_arrival() {
    let server = RedisServer::start(Flavour::Redis7).without_ttl_check();
    let options = FailoverOptions { deadline: Duration::from_millis(400), ..FailoverOptions::default() };
    let failover = Failover::new(redis(&server), options.clone()).unwrap();
    let store = Coalesce::new(failover.clone());
    store.admit(&[one("k")]).await.unwrap();
    server.signal("-STOP");
    let clock = SystemClock::new();
    let watchdog = Watchdog::start(&clock);
    let begun = clock.now().get();
    let first = start(&store, one("k")).await;
    let (second, third) = (start(&store, one("k")).await, start(&store, one("k")).await);
    for task in [first, second, third] {
        assert_eq!(task.await.unwrap().unwrap()[0].source, Source::Local);
    }
    let ended = clock.now().get();
    server.signal("-CONT");
    let (took, without_stalls) = (Duration::from_micros(ended - begun), watchdog.between(begun, ended));
    assert!(took >= options.deadline, "{took:?} of {:?}", options.deadline);
    assert!(without_stalls < options.deadline * 2, "{took:?}, {without_stalls:?} without stalls");
}

/// Store that notes which of its methods were called.
#[derive(Clone, Default)]
struct Noting(Arc<Mutex<Vec<&'static str>>>);

impl Noting {
    fn note(&self, method: &'static str) {
        self.0.lock().push(method);
    }
}

impl Store for Noting {
    async fn admit(&self, _: &[Checks]) -> Result<BatchVerdicts, Error> {
        self.note("admit");
        Err(Error::unavailable("no answer"))
    }

    async fn admit_run(&self, _: &Checks, _: usize) -> Result<BatchVerdicts, Error> {
        self.note("admit_run");
        Err(Error::unavailable("no answer"))
    }

    async fn settle(&self, _: &[Settlement]) -> Result<Receipt, Error> {
        self.note("settle");
        Err(Error::unavailable("no answer"))
    }

    async fn give_back(&self, _: &Key, _: &[Entry]) -> Result<(), Error> {
        self.note("give_back");
        Ok(())
    }

    async fn inspect(&self, _: &Key) -> Result<Option<Inspection>, Error> {
        self.note("inspect");
        Ok(None)
    }

    async fn reset(&self, _: &Key) -> Result<bool, Error> {
        self.note("reset");
        Ok(false)
    }

    fn shard_of(&self, _: &Key) -> u16 {
        self.note("shard_of");
        0
    }

    fn listen(&self, _: Weak<dyn Listener>) {
        self.note("listen");
    }
}

struct Deaf;

impl Listener for Deaf {
    fn freed(&self, _: &Key) {}

    fn set_connected(&self, _: u16, _: bool) {}
}

async fn forwards<S: Store>(wrap: impl Fn(Noting) -> S) {
    let check = Check::new(Key::new("k", []), Quota::per_hour(10).unwrap(), 1);
    let (key, checks) = (check.key.clone(), Checks::one(check).unwrap());
    let listener: Arc<dyn Listener> = Arc::new(Deaf);
    for method in ["admit", "admit_run", "settle", "give_back", "inspect", "reset", "shard_of", "listen"] {
        let noting = Noting::default();
        let store = wrap(noting.clone());
        match method {
            "admit" => drop(store.admit(std::slice::from_ref(&checks)).await),
            "admit_run" => drop(store.admit_run(&checks, 2).await),
            "settle" => drop(store.settle(&[]).await),
            "give_back" => drop(Store::give_back(&store, &key, &[]).await),
            "inspect" => drop(store.inspect(&key).await),
            "reset" => drop(store.reset(&key).await),
            "shard_of" => assert_eq!(store.shard_of(&key), 0),
            _ => store.listen(Arc::downgrade(&listener)),
        }
        let noted = noting.0.lock();
        assert!(noted.contains(&method), "{method} became {noted:?}");
    }
}

#[tokio::test]
async fn every_wrapper_forwards_every_method() {
    forwards(Coalesce::new).await;
    forwards(DenyCache::new).await;
    forwards(Lease::new).await;
    forwards(Arc::new).await;
}
