//! Helper: a remote store that several nodes share, simulated in virtual time, with injected faults.
//!
//! The server decides with the pure algorithm ([`State`], [`evaluate`]). Each node reaches the server over its own
//! link, which delays, loses or cuts calls. The server can stop, start with or without its memory, and have its clock
//! set. Run it in a tokio runtime with paused time: then a run depends on its seed only.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use slidegate::remote::{
    FIRST_RESTORED_SEQ, Presences, RemoteStore, RestoreLine, Restored, ServerId, ServerIdentity, Writer,
};
use slidegate::{
    Clock, Count, Error, Fault, Key, Micros, Quota, Settled, Sleep, Store,
    algorithm::{State, States, evaluate},
    store::{BatchVerdicts, Checks, Correction, Entry, Inspection, Outcome, Receipt, Settlement, Verdicts},
};

use crate::conformance::Rng;
use crate::deployment::ms;

/// Time after which a call without an answer fails.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(400);

/// Time at which every run begins: 1,000 s.
const EPOCH: u64 = 1_000_000_000;

/// Clock that shows the virtual time of the runtime. Clones share it.
///
/// Timers of the runtime have a resolution of a millisecond. Each reading within one millisecond is a microsecond later than
/// the one before, so that instants differ as they do in reality.
#[derive(Clone)]
pub(crate) struct VirtualClock {
    start: tokio::time::Instant,
    /// The last reading.
    last: Arc<Mutex<u64>>,
}

impl VirtualClock {
    #[expect(clippy::disallowed_methods, reason = "this is the virtual clock")]
    pub(crate) fn start() -> Self {
        VirtualClock { start: tokio::time::Instant::now(), last: Arc::default() }
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Micros {
        let millis = self.start.elapsed().as_millis() as u64;
        let mut last = self.last.lock();
        *last = (*last + 1).min(millis * 1_000 + 999).max(millis * 1_000);
        Micros::new(EPOCH + *last)
    }

    fn sleep(&self, wait: Micros) -> Sleep {
        Box::pin(tokio::time::sleep(wait.into()))
    }
}

/// Faults of a link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Link {
    /// Longest delay in each direction, beside a millisecond that every call needs.
    pub delay_ms: u64,
    /// Number of lost calls per thousand, in each direction.
    pub lost: u64,
    /// No call passes.
    pub cut: bool,
    /// If true, a lost call fails at once; otherwise its sender waits for the timeout.
    pub resets: bool,
}

/// One key of the server.
struct Counter {
    quota: Quota,
    /// Admissions that may still count, with the node that wrote them back, if one did.
    log: Vec<(Entry, Option<String>)>,
    settled: HashSet<(Micros, u64)>,
    /// Built from `log`.
    state: State,
}

impl Counter {
    fn new(quota: Quota) -> Self {
        Counter { quota, log: Vec::new(), settled: HashSet::new(), state: State::new(&quota) }
    }

    /// Builds the state again, after entries were added or changed other than by an admission.
    fn rebuild(&mut self, now: Micros) -> u64 {
        let quota = self.quota;
        self.log.retain(|(entry, _)| counts(&quota, entry.at, now) && entry.cost > 0);
        self.log.sort_by_key(|(entry, _)| (entry.at, entry.seq));
        // Attempts count for any limit.
        let attempts = self.quota.with_count(Count::Attempts);
        self.state = State::new(&attempts);
        for (entry, _) in &self.log {
            self.state.admit(entry.at, &attempts, entry.cost);
        }
        self.log.iter().map(|(entry, _)| entry.cost).sum()
    }

    /// Adds what is missing of a node's admissions at one instant, as restore.lua does for exact windows.
    fn restore(&mut self, node: &str, at: Micros, cost: u64, admitted: bool, seq: u64) -> u64 {
        let sum = |owned: bool| -> u64 {
            let same = self.log.iter().filter(|(entry, _)| entry.at == at);
            same.filter(|(_, owner)| owner.as_deref() == owned.then_some(node))
                .map(|(entry, _)| entry.cost)
                .sum()
        };
        let missing = cost.saturating_sub(sum(true) + if admitted { sum(false) } else { 0 });
        if missing > 0 {
            self.log.push((Entry { at, seq, cost: missing }, Some(node.to_owned())));
        }
        missing
    }
}

/// Returns true if an admission of an exact window at `at` still counts.
fn counts(quota: &Quota, at: Micros, now: Micros) -> bool {
    at.get() + quota.window().get() > now.get()
}

struct Server {
    stopped: bool,
    /// Number of starts of the server.
    run: u64,
    /// Microseconds by which its clock is ahead of the virtual time.
    ahead: i64,
    keys: HashMap<Key, Counter>,
    presence: BTreeMap<String, String>,
    seq: u64,
    links: Vec<Link>,
    rng: Rng,
}

impl Server {
    fn time(&self, clock: &VirtualClock) -> Micros {
        Micros::new(clock.now().get().saturating_add_signed(self.ahead))
    }

    fn admit(&mut self, checks: &Checks, now: Micros) -> Verdicts {
        struct Taken(Vec<State>);
        impl States for Taken {
            fn state(&mut self, i: usize) -> &mut State {
                &mut self.0[i]
            }
        }
        let blank = |quota: &Quota| State::new(quota);
        let take = |check: &slidegate::store::Check| {
            let counter = self.keys.entry(check.key.clone()).or_insert_with(|| Counter::new(check.quota));
            std::mem::replace(&mut counter.state, blank(&check.quota))
        };
        let mut taken = Taken(checks.as_slice().iter().map(take).collect());
        let mut verdicts = evaluate(checks, now, &mut taken);
        for ((check, verdict), state) in checks.as_slice().iter().zip(&mut verdicts.verdicts).zip(taken.0) {
            let Some(counter) = self.keys.get_mut(&check.key) else { continue };
            counter.state = state;
            if verdict.outcome == Outcome::Charged {
                self.seq += 1;
                verdict.entry.seq = self.seq;
                counter.log.push((verdict.entry, None));
            }
        }
        verdicts
    }

    fn settle(&mut self, settlement: &Settlement, now: Micros) -> Settled {
        let Settlement { key, entry, correction: Correction::Cost(to) } = settlement else {
            return Settled::Gone;
        };
        let Some(counter) = self.keys.get_mut(key) else { return Settled::Gone };
        if counter.settled.contains(&(entry.at, entry.seq)) {
            return Settled::Already;
        }
        let found = counter.log.iter_mut().find(|(known, _)| (known.at, known.seq) == (entry.at, entry.seq));
        let Some((known, _)) = found else { return Settled::Gone };
        known.cost = *to;
        counter.settled.insert((entry.at, entry.seq));
        counter.rebuild(now);
        Settled::Done
    }

    fn restore(&mut self, node: &str, line: &RestoreLine, now: Micros) -> Restored {
        self.seq += 1;
        let seq = self.seq;
        let counter = self.keys.entry(line.key.clone()).or_insert_with(|| Counter::new(line.quota));
        let entries = line.entries.iter().filter(|(at, ..)| counts(&line.quota, *at, now));
        let added = entries.map(|&(at, cost, admitted)| counter.restore(node, at, cost, admitted, seq)).sum();
        Restored { added, used: counter.rebuild(now) }
    }
}

/// The server and the links to it, for a test that injects faults.
#[derive(Clone)]
pub(crate) struct Simulation {
    server: Arc<Mutex<Server>>,
    pub clock: VirtualClock,
}

impl Simulation {
    pub(crate) fn new(nodes: usize, seed: u64) -> Self {
        let server = Server {
            stopped: false,
            run: 1,
            ahead: 0,
            keys: HashMap::new(),
            presence: BTreeMap::new(),
            seq: 0,
            links: vec![Link::default(); nodes],
            rng: Rng::new(seed),
        };
        Simulation { server: Arc::new(Mutex::new(server)), clock: VirtualClock::start() }
    }

    /// Returns the store as one node reaches it.
    pub(crate) fn store(&self, node: usize) -> SimulatedStore {
        SimulatedStore { simulation: self.clone(), node, connection: Arc::default() }
    }

    pub(crate) fn set_link(&self, node: usize, link: Link) {
        self.server.lock().links[node] = link;
    }

    pub(crate) fn stop_server(&self) {
        self.server.lock().stopped = true;
    }

    /// Starts the server again.
    pub(crate) fn start_server(&self, with_memory: bool) {
        let mut server = self.server.lock();
        (server.stopped, server.run) = (false, server.run + 1);
        if !with_memory {
            server.keys.clear();
            server.presence.clear();
        }
    }

    /// Sets the clock of the server ahead by this time, or back.
    pub(crate) fn step_clock(&self, by: i64) {
        self.server.lock().ahead += by;
    }
}

/// A node's connection, and the epochs that it has seen.
#[derive(Default)]
struct Connection {
    /// Run that the connection belongs to; none if there is no connection.
    run: Option<u64>,
    known_run: u64,
    epoch: u64,
    acknowledged: u64,
    hold: bool,
}

/// The simulated store as one node reaches it. Clones share its connection.
#[derive(Clone)]
pub(crate) struct SimulatedStore {
    simulation: Simulation,
    node: usize,
    connection: Arc<Mutex<Connection>>,
}

impl SimulatedStore {
    /// Sends a message over the link, in either direction.
    async fn travel(&self) -> Result<(), Error> {
        let (link, delay, lost) = {
            let mut server = self.simulation.server.lock();
            let link = server.links[self.node];
            let delay = 1 + server.rng.below(link.delay_ms + 1);
            (link, delay, server.rng.below(1_000) < link.lost)
        };
        if link.cut || lost {
            return Err(self.no_answer(link.resets).await);
        }
        tokio::time::sleep(ms(delay)).await;
        let link = self.simulation.server.lock().links[self.node];
        if link.cut { Err(self.no_answer(link.resets).await) } else { Ok(()) }
    }

    /// Waits for the response timeout, and closes the connection.
    async fn no_answer(&self, resets: bool) -> Error {
        let (wait, fault) = if resets { (ms(1), Fault::Lost) } else { (RESPONSE_TIMEOUT, Fault::Timeout) };
        tokio::time::sleep(wait).await;
        self.connection.lock().run = None;
        Error::store(fault, "the simulated server does not answer")
    }

    /// Returns the run of the server that this node is connected to; connects if necessary.
    async fn connected(&self) -> Result<u64, Error> {
        if let Some(run) = self.connection.lock().run {
            return Ok(run);
        }
        self.travel().await?;
        let run = {
            let server = self.simulation.server.lock();
            (!server.stopped).then_some(server.run)
        };
        self.travel().await?;
        let run = run.ok_or_else(|| Error::store(Fault::Unreachable, "the simulated server is stopped"))?;
        let mut connection = self.connection.lock();
        if connection.known_run != run {
            (connection.known_run, connection.epoch) = (run, connection.epoch + 1);
        }
        connection.run = Some(run);
        Ok(run)
    }

    /// Makes one call. A call that decides needs an acknowledged epoch.
    async fn call<T>(
        &self,
        decides: bool,
        work: impl FnOnce(&mut Server, Micros) -> T + Send,
    ) -> Result<T, Error> {
        let run = self.connected().await?;
        {
            let Connection { epoch, acknowledged, hold, .. } = *self.connection.lock();
            if decides && hold && acknowledged < epoch {
                return Err(Error::store(Fault::Restarted, "this epoch is not acknowledged"));
            }
        }
        self.travel().await?;
        let answer = {
            let mut server = self.simulation.server.lock();
            let now = server.time(&self.simulation.clock);
            (!server.stopped && server.run == run).then(|| work(&mut server, now))
        };
        let Some(answer) = answer else {
            self.connection.lock().run = None;
            return Err(Error::store(Fault::Lost, "the simulated server has closed the connection"));
        };
        self.travel().await?;
        Ok(answer)
    }
}

impl Store for SimulatedStore {
    async fn admit(&self, batch: &[Checks]) -> Result<BatchVerdicts, Error> {
        self.call(true, |server, now| batch.iter().map(|checks| server.admit(checks, now)).collect()).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Receipt, Error> {
        self.settle_restored(settlements).await
    }

    async fn inspect(&self, _: &Key) -> Result<Option<Inspection>, Error> {
        self.call(false, |_, _| None).await
    }

    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        self.call(true, |server, _| server.keys.remove(key).is_some()).await
    }
}

impl RemoteStore for SimulatedStore {
    fn server_of(&self, _: &Key) -> ServerId {
        ServerId(0)
    }

    fn servers(&self) -> Vec<ServerId> {
        vec![ServerId(0)]
    }

    fn server_address(&self, _: ServerId) -> String {
        "simulated".to_owned()
    }

    async fn discover(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn refresh_topology(&self) -> Result<(), Error> {
        Ok(())
    }

    fn hold(&self, on: bool) {
        self.connection.lock().hold = on;
    }

    async fn identify(&self, _: ServerId) -> Result<ServerIdentity, Error> {
        self.call(false, |_, _| ()).await?;
        let Connection { epoch, known_run, .. } = *self.connection.lock();
        Ok(ServerIdentity { epoch, run_id: known_run.to_string() })
    }

    fn acknowledge(&self, _: ServerId, epoch: u64) {
        let mut connection = self.connection.lock();
        connection.acknowledged = connection.acknowledged.max(epoch);
    }

    fn can_restore(&self) -> bool {
        true
    }

    async fn restore(&self, writer: Writer<'_>, lines: &[&RestoreLine]) -> Result<Vec<Restored>, Error> {
        self.call(false, |server, now| {
            lines.iter().map(|line| server.restore(writer.node, line, now)).collect()
        })
        .await
    }

    async fn publish_presence(
        &self,
        _: ServerId,
        node: &str,
        message: &str,
        _: Micros,
    ) -> Result<Presences, Error> {
        self.call(false, |server, now| {
            server.presence.insert(node.to_owned(), message.to_owned());
            (now, server.presence.clone().into_iter().collect())
        })
        .await
    }

    async fn remove_presence(&self, _: ServerId, nodes: &[String]) -> Result<(), Error> {
        self.call(false, |server, _| server.presence.retain(|name, _| !nodes.contains(name))).await
    }

    async fn settle_restored(&self, settlements: &[Settlement]) -> Result<Receipt, Error> {
        self.call(true, |server, now| {
            // Callers of the simulation settle nothing that a node has written back.
            assert!(settlements.iter().all(|settlement| settlement.entry.seq < FIRST_RESTORED_SEQ));
            let settled = settlements.iter().map(|settlement| server.settle(settlement, now)).collect();
            Receipt { at: now, settled }
        })
        .await
    }
}
