//! A store that always answers in time: when Redis is slow, gone, or not what it was.
//!
//! Every decision has a deadline. A server that fails again and again is not asked (`breaker`), and decisions are
//! made here (`local`), from what this node itself had admitted (`mirror`). When the server is back, what was
//! admitted meanwhile, and what it may have lost, is written back before it is asked again (`keeper`).

mod breaker;
mod clockwork;
mod keeper;
mod level;
mod local;
mod log;
mod mirror;
mod options;
mod peers;
mod watched;

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub use self::breaker::BreakerState;
use self::local::is_made_here;
use self::mirror::Mirror;
pub use self::mirror::MirrorStats;
pub use self::options::GuardOptions;
pub(crate) use self::options::{lasts, within};
pub use self::watched::ServerStats;
use self::watched::{Phase, Watched};
use crate::parts::{self, Places};
use crate::redis::ServerId;
use crate::{
    Ask, Check, Clock, Entry, Error, Fault, Inspection, Key, Micros, OnError, Outcome, Reading, Readings,
    Receipt, RedisStore, Settled, Settlement, Source, Store, SystemClock, Verdict,
};

/// A [`RedisStore`] that always answers in time. Clones share everything.
///
/// Each decision says who made it: see [`Decision::source`](crate::Decision::source). Use it in a tokio runtime.
///
/// ```no_run
/// # fn run() -> Result<(), slidegate::Error> {
/// use slidegate::{Guard, GuardOptions, Limiter, OnError, Quota, RedisStore, Rule, Rules};
///
/// let rule = Rule::new("per-user", Quota::per_minute(100)?)?.per(["user"])?.on_error(OnError::Local);
/// let store = Guard::new(RedisStore::new("redis://127.0.0.1:6379")?, GuardOptions::default())?;
/// let limiter = Limiter::new(store, Rules::new([rule])?);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Guard {
    inner: Arc<Inner>,
}

struct Inner {
    store: RedisStore,
    options: GuardOptions,
    clock: Arc<dyn Clock>,
    mirror: Mirror,
    servers: RwLock<Vec<Arc<Watched>>>,
    in_flight: Arc<Semaphore>,
    /// What this process is called among those that count on the same servers.
    name: String,
    chance: AtomicU64,
    late: AtomicU64,
    overloaded: AtomicU64,
    /// How many times without a server there were, of all of them.
    outages: AtomicU64,
    /// The servers that there were when the first was met, and those that were given up since for others.
    first: OnceLock<Vec<ServerId>>,
    retired: Mutex<HashSet<ServerId>>,
}

/// What a guard sees and does.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct GuardStats {
    /// The servers that were asked so far.
    pub servers: Vec<ServerStats>,
    /// What is remembered of what this process had admitted.
    pub mirror: MirrorStats,
    /// Calls to the store that have not ended.
    pub in_flight: usize,
    /// Answers of the store that came after their deadline.
    pub late: u64,
    /// Decisions that were made without the store because too many calls were in flight.
    pub overloaded: u64,
}

/// A call to the store that outlives its caller.
type Call = Pin<Box<dyn Future<Output = Result<Readings, Error>> + Send>>;

/// When a call was sent, and to which life of its server.
#[derive(Clone, Copy)]
struct Asked {
    sent: Micros,
    life: u64,
}

/// What became of a call by its deadline.
enum Answer {
    Readings(Readings),
    Failed(Error),
    /// It goes on.
    Late(Call),
}

impl Guard {
    /// Guards `store`.
    pub fn new(store: RedisStore, options: GuardOptions) -> Result<Self, Error> {
        Self::with_clock(store, options, SystemClock::new())
    }

    /// The same on another clock, which should run as the servers' clocks do.
    pub fn with_clock(
        store: RedisStore,
        options: GuardOptions,
        clock: impl Clock + 'static,
    ) -> Result<Self, Error> {
        options.check()?;
        // A server that is not the one that counted before must wait until it has everything back.
        store.hold(options.mirror > 0);
        let seed = chance_from_nowhere();
        Ok(Guard {
            inner: Arc::new(Inner {
                mirror: Mirror::new(options.mirror),
                servers: RwLock::default(),
                in_flight: Arc::new(Semaphore::new(options.max_in_flight)),
                name: peers::name(seed),
                chance: AtomicU64::new(seed),
                late: AtomicU64::new(0),
                overloaded: AtomicU64::new(0),
                outages: AtomicU64::new(0),
                first: OnceLock::new(),
                retired: Mutex::default(),
                clock: Arc::new(clock),
                store,
                options,
            }),
        })
    }

    /// The store it guards.
    pub fn store(&self) -> &RedisStore {
        &self.inner.store
    }

    /// The servers that were asked so far.
    pub fn servers(&self) -> Vec<ServerStats> {
        self.inner.servers.read().iter().map(|server| server.stats(&self.inner)).collect()
    }

    /// What it sees and does. Walks over every key it remembers: for a metrics page, not for a hot path.
    pub fn stats(&self) -> GuardStats {
        let inner = &*self.inner;
        GuardStats {
            servers: self.servers(),
            mirror: inner.mirror.stats(),
            in_flight: inner.options.max_in_flight - inner.in_flight.available_permits(),
            late: inner.late.load(Ordering::Relaxed),
            overloaded: inner.overloaded.load(Ordering::Relaxed),
        }
    }

    /// Asks the servers from now on, not only when the first decision needs them, and tells the other processes
    /// that this one is there.
    pub fn start(&self) {
        for server in self.inner.store.servers() {
            self.inner.watched(server);
        }
    }

    /// Tells the other processes that this one is gone, so that their share of the limits grows at once.
    pub async fn leave(&self) {
        let servers: Vec<_> = self.inner.servers.read().clone();
        for server in servers {
            server.leave(&self.inner).await;
        }
    }
}

impl Inner {
    /// The server with this number, watched from now on.
    fn watched(self: &Arc<Self>, id: ServerId) -> Arc<Watched> {
        if let Some(server) = self.servers.read().iter().find(|server| server.id == id) {
            return Arc::clone(server);
        }
        let mut servers = self.servers.write();
        if let Some(server) = servers.iter().find(|server| server.id == id) {
            return Arc::clone(server);
        }
        let another = servers.iter().max_by_key(|another| another.peers.lock().share().0);
        let server = Arc::new(Watched::new(id, self, another.map(|another| &**another)));
        servers.push(Arc::clone(&server));
        tokio::spawn(keeper::keep(Arc::downgrade(self), Arc::clone(&server)));
        server
    }

    fn chance(&self) -> u64 {
        // The steps of a Weyl sequence, mixed.
        let step = self.chance.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        let mixed = (step ^ step >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed ^ mixed >> 27
    }

    /// Asks on one server.
    async fn admit_on(self: &Arc<Self>, server: &Arc<Watched>, asks: &[Ask]) -> Result<Readings, Error> {
        match server.phase() {
            Phase::Direct => {}
            Phase::Away => return Ok(asks.iter().map(|ask| self.without_store(server, ask)).collect()),
            Phase::Joining => return self.with_both(server, asks).await,
        }
        let mut left = self.options.deadline;
        if !server.is_met() {
            let begun = self.clock.now();
            if let Err(error) = self.introduce(server).await {
                return self.conclude(server, asks, Answer::Failed(error), self.asked(server));
            }
            left = self.left(begun);
        }
        let asked = self.asked(server);
        let answer = self.call(asks, left).await;
        self.conclude(server, asks, answer, asked)
    }

    fn asked(&self, server: &Watched) -> Asked {
        Asked { sent: self.clock.now(), life: server.life.load(Ordering::Acquire) }
    }

    #[cold]
    async fn introduce(&self, server: &Watched) -> Result<(), Error> {
        let introduced = tokio::time::timeout(self.options.deadline, keeper::introduce(self, server)).await;
        introduced.map(|met| met.map(|_| ())).unwrap_or_else(|_| {
            let address = self.store.server_address(server.id);
            Err(Error::store(Fault::Timeout, format!("Redis at {address} did not answer in time")))
        })
    }

    /// Whether a server was there when the first was met: later ones took over from others.
    fn is_first(&self, server: ServerId) -> bool {
        let first = self.first.get().is_some_and(|first| first.contains(&server));
        // One that comes back has missed what was admitted meanwhile.
        first && !self.retired.lock().contains(&server)
    }

    /// Finds out which servers there are, the first time.
    #[cold]
    async fn find(&self) -> Result<(), Error> {
        let found = tokio::time::timeout(self.options.deadline, self.store.find()).await;
        found.unwrap_or_else(|_| Err(Error::store(Fault::Timeout, "the cluster did not answer in time")))?;
        self.first.get_or_init(|| self.store.servers());
        Ok(())
    }

    /// Finds out which servers there are now, and watches them.
    async fn look_around(self: &Arc<Self>) {
        if self.store.look_around().await.is_ok() {
            self.first.get_or_init(|| self.store.servers());
            for server in self.store.servers() {
                self.watched(server);
            }
        }
    }

    /// Whether a server counts nothing any more; it is then forgotten.
    fn is_retired(&self, server: &Watched) -> bool {
        let retired = self.first.get().is_some() && !self.store.servers().contains(&server.id);
        if retired {
            self.retired.lock().insert(server.id);
            self.servers.write().retain(|known| known.id != server.id);
        }
        retired
    }

    /// Takes the store's answer, or makes one without it.
    fn conclude(
        self: &Arc<Self>,
        server: &Arc<Watched>,
        asks: &[Ask],
        answer: Answer,
        asked: Asked,
    ) -> Result<Readings, Error> {
        match answer {
            Answer::Readings(readings) => {
                if let Some(first) = readings.first() {
                    server.answered(asked.sent, self.clock.now(), first.at);
                }
                // What another life has admitted, this one does not have.
                let there = server.life.load(Ordering::Acquire) == asked.life;
                for (ask, reading) in asks.iter().zip(&readings) {
                    if !ask.is_peek() {
                        self.mirror.answered(ask.checks(), reading, there);
                    }
                }
                Ok(readings)
            }
            Answer::Failed(error) => {
                let Some(fault) = error.fault() else { return Err(error) };
                server.failed(self, fault);
                let readings = asks.iter().map(|ask| self.without_store(server, ask)).collect();
                server.changed.notify_one();
                Ok(readings)
            }
            Answer::Late(call) => {
                server.failed(self, Fault::Timeout);
                let readings: Readings = asks.iter().map(|ask| self.without_store(server, ask)).collect();
                self.late.fetch_add(1, Ordering::Relaxed);
                let (inner, asks, told) = (Arc::clone(self), asks.to_vec(), readings.clone());
                let server = Arc::clone(server);
                tokio::spawn(async move {
                    let late = call.await;
                    // What another life has admitted is gone with it.
                    if let Ok(late) = late
                        && server.life.load(Ordering::Acquire) == asked.life
                    {
                        inner.reconcile(&asks, &told, &late).await;
                    }
                    server.changed.notify_one();
                });
                Ok(readings)
            }
        }
    }

    /// What is left of the deadline of a decision that was asked for then.
    fn left(&self, begun: Micros) -> Duration {
        self.options.deadline.saturating_sub(self.clock.now().since(begun).into())
    }

    /// Asks the store, and waits for it no longer than `left`.
    async fn call(&self, asks: &[Ask], left: Duration) -> Answer {
        let Ok(place) = Arc::clone(&self.in_flight).try_acquire_owned() else {
            self.overloaded.fetch_add(1, Ordering::Relaxed);
            let message =
                format!("{} calls to Redis are in flight: raise max-in-flight", self.options.max_in_flight);
            return Answer::Failed(Error::store(Fault::Overloaded, message));
        };
        let mut call: Call = Box::pin(admit(self.store.clone(), asks.into(), place));
        match tokio::time::timeout(left, &mut call).await {
            Ok(Ok(readings)) => Answer::Readings(readings),
            Ok(Err(error)) => Answer::Failed(error),
            Err(_) => Answer::Late(call),
        }
    }

    /// The answer came after the caller was told something else: what was told must be what is counted.
    async fn reconcile(&self, asks: &[Ask], told: &[Reading], late: &[Reading]) {
        let mut refunds = Vec::new();
        for ((ask, told), late) in asks.iter().zip(told).zip(late) {
            let allowed = !refuses(ask, told);
            let mut late = late.clone();
            for ((check, told), late_verdict) in
                ask.checks().iter().zip(&told.verdicts).zip(&mut late.verdicts)
            {
                // With an id it may be what was charged before: that is not to be given back.
                let found =
                    late_verdict.entry.at < late.at || ask.id().is_some() && late_verdict.entry.at > late.at;
                if late_verdict.outcome != Outcome::Charged || found {
                    continue;
                }
                // It is counted in the store, so it need not be written there; unless it was already.
                let twice = told.outcome == Outcome::Charged
                    && !self.mirror.settled_unwritten(&check.key, told.entry.at, check.cost, 0);
                if !allowed || twice {
                    let (key, entry) = (check.key.clone(), late_verdict.entry);
                    refunds.push(Settlement { key, entry, permits: 0 });
                    late_verdict.outcome = Outcome::Fits;
                }
            }
            if allowed {
                self.mirror.answered(ask.checks(), &late, true);
            }
        }
        for refund in refunds {
            // If it cannot be given back it counts until it leaves: stricter, never looser.
            let _ = self.store.settle(&[refund]).await;
        }
    }

    /// The server is back, but others may not have written to it yet: both it and this node's share must allow.
    async fn with_both(self: &Arc<Self>, server: &Arc<Watched>, asks: &[Ask]) -> Result<Readings, Error> {
        let begun = self.clock.now();
        let mut readings = Readings::new();
        for ask in asks {
            // All of them have one deadline, and nobody waits for a server that failed meanwhile.
            let left = self.left(begun);
            readings.push(if left.is_zero() || server.phase() == Phase::Away {
                self.without_store(server, ask)
            } else {
                self.with_both_one(server, ask, left).await?
            });
        }
        Ok(readings)
    }

    async fn with_both_one(
        self: &Arc<Self>,
        server: &Arc<Watched>,
        ask: &Ask,
        left: Duration,
    ) -> Result<Reading, Error> {
        let outage = server.outage(self);
        let here = local::decide(&self.mirror, &self.only(ask, OnError::Local), &outage, true);
        if refuses(&self.only(ask, OnError::Local), &here) {
            return Ok(self.fill(ask, here));
        }
        let asked = self.asked(server);
        let asks = std::slice::from_ref(ask);
        let answer = self.call(asks, left).await;
        let admitted =
            matches!(&answer, Answer::Readings(all) if all.iter().all(|reading| !refuses(ask, reading)));
        if !admitted {
            local::undo(&self.mirror, &self.only(ask, OnError::Local), &here, outage.now);
        }
        let readings = self.conclude(server, asks, answer, asked)?;
        readings.into_iter().next().ok_or_else(nothing)
    }

    /// Answers by what each rule wants while its server does not.
    fn without_store(self: &Arc<Self>, server: &Arc<Watched>, ask: &Ask) -> Reading {
        let closed = |check: &Check| check.enforced && self.policy(check) == OnError::Closed;
        let at = server.now(self);
        if ask.checks().iter().any(closed) {
            let retry_after = server.until_probe(self);
            let verdicts = ask.checks().iter().map(|check| {
                let outcome = if closed(check) { Outcome::Refused } else { Outcome::Fits };
                unjudged(check, outcome, if closed(check) { retry_after } else { Micros::ZERO })
            });
            return Reading { at, source: Source::FailClosed, verdicts: verdicts.collect() };
        }
        let local = self.only(ask, OnError::Local);
        if local.checks().is_empty() {
            let verdicts = ask.checks().iter().map(|check| unjudged(check, Outcome::Fits, Micros::ZERO));
            return Reading { at, source: Source::FailOpen, verdicts: verdicts.collect() };
        }
        let _deciding = server.deciding.read();
        let here = local::decide(&self.mirror, &local, &server.outage(self), false);
        self.fill(ask, here)
    }

    fn policy(&self, check: &Check) -> OnError {
        check.on_error.unwrap_or(self.options.on_error)
    }

    /// The checks of an ask with this policy.
    fn only(&self, ask: &Ask, policy: OnError) -> Ask {
        ask.with_checks(ask.checks().iter().filter(|check| self.policy(check) == policy).cloned())
    }

    /// The reading of `ask` from that of its checks that were judged here.
    fn fill(&self, ask: &Ask, here: Reading) -> Reading {
        let mut judged = here.verdicts.into_iter();
        let verdicts = ask.checks().iter().map(|check| {
            let verdict = if self.policy(check) == OnError::Local { judged.next() } else { None };
            verdict.unwrap_or_else(|| unjudged(check, Outcome::Fits, Micros::ZERO))
        });
        Reading { verdicts: verdicts.collect(), ..here }
    }
}

impl Store for Guard {
    async fn admit(&self, asks: &[Ask]) -> Result<Readings, Error> {
        if let [ask] = asks {
            return Ok(SmallVec::from_buf([self.inner.admit_one(ask).await?]));
        }
        self.inner.admit_many(asks).await
    }

    /// Corrects what was admitted here at once, and the rest in the store. While a server is given up, what it
    /// has admitted cannot be settled.
    async fn settle(&self, settlements: &[Settlement]) -> Result<Receipt, Error> {
        self.inner.settle(settlements).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Inspection>, Error> {
        self.inner.store.inspect(key).await
    }

    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        self.inner.mirror.forget(key);
        self.inner.store.reset(key).await
    }
}

impl Inner {
    async fn admit_one(self: &Arc<Self>, ask: &Ask) -> Result<Reading, Error> {
        let Some(first) = ask.checks().first() else {
            return Ok(Reading { at: Micros::ZERO, source: Source::NoRule, verdicts: SmallVec::new() });
        };
        self.find_once().await;
        if let Some(parts) = parts::split(ask, |check| self.store.server_of(&check.key)) {
            return parts::admit(Arc::new(Guard { inner: Arc::clone(self) }), ask, parts).await;
        }
        let server = self.watched(self.store.server_of(&first.key));
        let readings = self.admit_on(&server, std::slice::from_ref(ask)).await?;
        readings.into_iter().next().ok_or_else(nothing)
    }

    /// Which servers there are must be known before keys are given to them. If that cannot be found out, the first
    /// stands for them all, and does not answer.
    async fn find_once(&self) {
        if self.first.get().is_none() {
            let _ = self.find().await;
        }
    }

    /// One call per server, all at once; asks over several servers by themselves.
    async fn admit_many(self: &Arc<Self>, asks: &[Ask]) -> Result<Readings, Error> {
        self.find_once().await;
        let mut groups: Vec<(ServerId, Vec<usize>)> = Vec::new();
        let mut alone = Vec::new();
        for (i, ask) in asks.iter().enumerate() {
            let server_of = |check: &Check| self.store.server_of(&check.key);
            match ask.checks().first() {
                Some(first) if parts::split(ask, server_of).is_none() => {
                    let server = server_of(first);
                    match groups.iter_mut().find(|(known, _)| *known == server) {
                        Some((_, places)) => places.push(i),
                        None => groups.push((server, vec![i])),
                    }
                }
                _ => alone.push(i),
            }
        }
        let grouped = groups.into_iter().map(async |(server, places)| {
            let server = self.watched(server);
            let group: Vec<Ask> = places.iter().map(|&i| asks[i].clone()).collect();
            let readings = self.admit_on(&server, &group).await?;
            Ok::<_, Error>(places.into_iter().zip(readings).collect::<Vec<_>>())
        });
        let single =
            alone.into_iter().map(async |i| Ok::<_, Error>(vec![(i, self.admit_one(&asks[i]).await?)]));
        let (grouped, single) = tokio::join!(join_all(grouped), join_all(single));
        let mut readings: Vec<(usize, Reading)> = Vec::with_capacity(asks.len());
        for part in grouped.into_iter().chain(single) {
            readings.extend(part?);
        }
        readings.sort_unstable_by_key(|(i, _)| *i);
        if readings.len() != asks.len() {
            return Err(nothing());
        }
        Ok(readings.into_iter().map(|(_, reading)| reading).collect())
    }

    async fn settle(self: &Arc<Self>, settlements: &[Settlement]) -> Result<Receipt, Error> {
        let mut settled = vec![Settled::Gone; settlements.len()];
        let mut at = self.clock.now();
        let mut to_store = Vec::new();
        for (i, settlement) in settlements.iter().enumerate() {
            let Settlement { key, entry, permits } = settlement;
            let server = self.watched(self.store.server_of(key));
            let made_here = is_made_here(*entry);
            if made_here {
                let here = local::settle(&self.mirror, key, *entry, *permits, server.now(self));
                if let Some(outcome @ (Settled::Already | Settled::Gone)) = here {
                    settled[i] = outcome;
                    continue;
                }
                if self.mirror.settled_unwritten(key, entry.at, entry.cost, *permits) {
                    settled[i] = Settled::Done;
                    continue;
                }
            }
            if server.phase() == Phase::Away {
                return Err(Error::store(
                    Fault::Unreachable,
                    format!(
                        "Redis at {} does not answer: settle again when it does",
                        self.store.server_address(server.id)
                    ),
                ));
            }
            // Where nothing is written back, there is nothing to settle.
            if made_here && !self.store.can_heal() {
                continue;
            }
            let seq = if made_here { number_of(&self.name, *entry) } else { entry.seq };
            to_store.push((i, Settlement { entry: Entry { seq, ..*entry }, ..settlement.clone() }));
        }
        if to_store.is_empty() {
            return Ok(Receipt { at, settled });
        }
        let asked: Vec<Settlement> = to_store.iter().map(|(_, settlement)| settlement.clone()).collect();
        let receipt = self.store.settle(&asked).await?;
        at = receipt.at;
        for ((i, settlement), outcome) in to_store.iter().zip(receipt.settled) {
            settled[*i] = outcome;
            if outcome == Settled::Done {
                let Settlement { key, entry, permits } = settlement;
                self.mirror.settled(key, entry.at, entry.cost, *permits);
            }
        }
        Ok(Receipt { at, settled })
    }
}

impl Places for Guard {
    type Place = ServerId;

    async fn admit_part(&self, server: &ServerId, ask: Ask) -> Result<Reading, Error> {
        let server = self.inner.watched(*server);
        let readings = self.inner.admit_on(&server, std::slice::from_ref(&ask)).await?;
        readings.into_iter().next().ok_or_else(nothing)
    }

    async fn give_back(&self, _: &ServerId, settlements: Vec<Settlement>) -> Result<(), Error> {
        self.inner.settle(&settlements).await.map(|_| ())
    }
}

async fn admit(
    store: RedisStore,
    asks: SmallVec<[Ask; 1]>,
    _place: OwnedSemaphorePermit,
) -> Result<Readings, Error> {
    store.admit(&asks).await
}

fn nothing() -> Error {
    Error::unavailable("the store answered fewer asks than it was given")
}

/// As what an admission that was written back is settled: a number like those of requests with an id, which stand
/// for themselves.
fn number_of(node: &str, entry: Entry) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (node, entry.at, entry.seq).hash(&mut hasher);
    1_000_000_000_000_000_000 + hasher.finish() % 9_000_000_000_000_000_000
}

/// Of a check that nobody looked at.
fn unjudged(check: &Check, outcome: Outcome, retry_after: Micros) -> Verdict {
    let limit = check.quota.capacity();
    Verdict { outcome, limit, used: 0, retry_after, reset_after: retry_after, entry: Entry::default() }
}

fn refuses(ask: &Ask, reading: &Reading) -> bool {
    let pairs = ask.checks().iter().zip(&reading.verdicts);
    pairs.into_iter().any(|(check, verdict)| check.enforced && verdict.outcome.refuses())
}

/// Any number.
fn chance_from_nowhere() -> u64 {
    use std::hash::BuildHasher;
    std::hash::RandomState::new().hash_one(std::process::id())
}
