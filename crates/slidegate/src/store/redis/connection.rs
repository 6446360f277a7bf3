//! Multiplexed connections to one server: opened when first needed, health-checked, and reopened when they break.
//!
//! Many callers share a connection: their commands go out back to back and the replies come in order, so there is no
//! pool to borrow from. A connection that breaks fails the calls in flight on it, whose outcome is then unknown, and
//! the next call opens another. While Redis is unreachable, attempts back off, and calls between attempts fail at
//! once with the error of the last attempt.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Pipeline, RedisError, RedisResult, Value};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use super::RedisOptions;
use super::epoch::{Epochs, Purpose};
use super::error_map::explain;
use super::topology::{Sentinel, check_role};
use crate::{Clock, Error, Fault, Micros, SystemClock};

/// Back-off after the first failed attempt to connect; it doubles with each attempt.
const FIRST_PAUSE: Micros = Micros::from_millis(50);

/// Longest back-off between attempts.
const LONGEST_PAUSE: Micros = Micros::from_millis(1_000);

pub(super) struct Connections {
    links: Box<[Arc<ConnectionSlot>]>,
    next: AtomicUsize,
    in_flight: Semaphore,
    max_in_flight: usize,
    max_wait: Duration,
    response_timeout: Duration,
    target: Arc<Target>,
    lives: Arc<Epochs>,
}

/// Address that connections lead to.
pub(super) enum Target {
    Fixed { client: Box<Client>, address: Arc<str> },
    Sentinel { sentinel: Box<Sentinel>, address: Arc<str> },
}

/// Slot for one connection, which may be closed at the moment.
struct ConnectionSlot {
    target: Arc<Target>,
    lives: Arc<Epochs>,
    config: AsyncConnectionConfig,
    health_check: Duration,
    live: ArcSwapOption<Live>,
    /// Locked while connecting, so that one caller connects and the others wait for it.
    connecting: tokio::sync::Mutex<()>,
    /// Last failure, shared by all slots: if one slot could connect, the next need not wait.
    failed: Arc<Mutex<Option<Failed>>>,
    /// Number of connections made, shared by all slots.
    made: Arc<AtomicU64>,
    /// Wakes the health check at once when the connection is suspected to be broken.
    doubt: Arc<Notify>,
    clock: SystemClock,
}

/// Open connection and its serial number.
struct Live {
    made: u64,
    own: OwnConnection,
}

/// Connection with its address and the epoch of the server at its other end.
#[derive(Clone)]
pub(super) struct OwnConnection {
    pub(super) connection: MultiplexedConnection,
    pub(super) address: Arc<str>,
    pub(super) life: u64,
}

/// Failed attempt to connect. The next attempt may be made at `until`.
#[derive(Clone)]
struct Failed {
    error: Error,
    pause: Micros,
    until: Micros,
    /// Number of connections that all slots had made: when there are more, the back-off is over.
    made: u64,
}

/// Connection and in-flight permit, for the duration of one call.
pub(super) struct PooledConnection<'c> {
    connection: Arc<Live>,
    connections: &'c Connections,
    _place: SemaphorePermit<'c>,
}

impl Connections {
    pub(super) fn new(target: Target, lives: Arc<Epochs>, options: &RedisOptions) -> Self {
        let target = Arc::new(target);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(options.connect_timeout))
            .set_response_timeout(Some(options.response_timeout));
        let (made, failed) = (Arc::new(AtomicU64::new(0)), Arc::default());
        let clock = SystemClock::new();
        let link = || {
            Arc::new(ConnectionSlot {
                target: Arc::clone(&target),
                lives: Arc::clone(&lives),
                config: config.clone(),
                health_check: options.health_check,
                live: ArcSwapOption::empty(),
                connecting: tokio::sync::Mutex::new(()),
                failed: Arc::clone(&failed),
                made: Arc::clone(&made),
                doubt: Arc::new(Notify::new()),
                clock: clock.clone(),
            })
        };
        Connections {
            links: (0..options.connections).map(|_| link()).collect(),
            next: AtomicUsize::new(0),
            in_flight: Semaphore::new(options.max_in_flight),
            max_in_flight: options.max_in_flight,
            max_wait: options.max_wait,
            response_timeout: options.response_timeout,
            target,
            lives,
        }
    }

    /// Waits for an in-flight permit, for `max_wait` at most.
    pub(super) async fn place(&self) -> Result<SemaphorePermit<'_>, Error> {
        match self.in_flight.try_acquire() {
            Ok(place) => Ok(place),
            Err(_) => match tokio::time::timeout(self.max_wait, self.in_flight.acquire()).await {
                Ok(Ok(place)) => Ok(place),
                _ => Err(self.overloaded()),
            },
        }
    }

    /// Returns a connection for one call.
    pub(super) async fn get(&self, purpose: Purpose) -> Result<PooledConnection<'_>, Error> {
        let place = self.place().await?;
        let link = &self.links[self.next.fetch_add(1, Ordering::Relaxed) % self.links.len()];
        loop {
            match link.get().await {
                Ok(connection) if connection.own.life == self.lives.now() => {
                    if purpose == Purpose::Decide {
                        self.lives.check(connection.own.life, &connection.own.address)?;
                    }
                    return Ok(PooledConnection { connection, connections: self, _place: place });
                }
                // The connection belongs to an earlier epoch.
                Ok(connection) => link.drop_broken(&connection),
                Err(error) => {
                    // If one cannot connect, the others may be broken without having noticed.
                    self.links.iter().for_each(|link| link.doubt.notify_waiters());
                    return Err(error);
                }
            }
        }
    }

    /// Opens a dedicated connection, for commands that must not be mixed with those of other callers.
    pub(super) async fn own(&self) -> Result<OwnConnection, Error> {
        self.links[0].connect().await
    }

    /// Returns a client for other kinds of connections to the same server, such as Pub/Sub.
    pub(super) async fn client(&self) -> Result<Client, Error> {
        match &*self.target {
            Target::Fixed { client, .. } => Ok(Client::clone(client)),
            Target::Sentinel { sentinel, .. } => Ok(sentinel.find().await?.0),
        }
    }

    /// Timeout of a reply.
    pub(super) fn patience(&self) -> Duration {
        self.response_timeout
    }

    pub(super) fn address(&self) -> &str {
        match &*self.target {
            Target::Fixed { address, .. } | Target::Sentinel { address, .. } => address,
        }
    }

    /// Closes connections that were opened before the broken one failed: they are most likely broken too.
    #[cold]
    fn drop_older(&self, broken: &Arc<Live>) {
        for link in &self.links {
            let current = link.live.load();
            if current.as_ref().is_some_and(|live| live.made < broken.made + self.links.len() as u64) {
                link.live.compare_and_swap(&current, None);
            }
        }
    }

    #[cold]
    fn overloaded(&self) -> Error {
        let message = format!(
            "{} calls to Redis are in flight and none ended within {}: raise max-in-flight, or ask less",
            self.max_in_flight,
            Micros::from(self.max_wait),
        );
        Error::store(Fault::Overloaded, message)
    }
}

impl PooledConnection<'_> {
    pub(super) async fn send(&mut self, command: &Cmd) -> RedisResult<Value> {
        let answer = self.connection.own.connection.clone().send_packed_command(command).await;
        self.note(answer.and_then(Value::extract_error))
    }

    /// Sends ASKING and the command together, after an ASK redirect: the node then answers also for a slot that it is
    /// importing.
    pub(super) async fn send_asking(&mut self, command: Cmd) -> RedisResult<Value> {
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.cmd("ASKING").add_command(command);
        let answer = self.connection.own.connection.clone().send_packed_commands(&pipeline, 1, 1).await;
        let answer = answer.map(|values| values.into_iter().next().unwrap_or(Value::Nil));
        self.note(answer.and_then(Value::extract_error))
    }

    /// Sends several commands, answered together.
    pub(super) async fn send_all(&mut self, pipeline: &Pipeline) -> RedisResult<Value> {
        let answer = pipeline.query_async(&mut self.connection.own.connection.clone()).await;
        self.note(answer)
    }

    /// Converts a failure to an error with advice.
    pub(super) fn explain(&self, error: RedisError) -> Error {
        explain(&error, &self.connection.own.address)
    }

    pub(super) fn life(&self) -> u64 {
        self.connection.own.life
    }

    /// Closes the connection if it broke, or if it leads to a server that is no longer the primary.
    fn note<T>(&self, answer: RedisResult<T>) -> RedisResult<T> {
        if let Err(error) = &answer {
            let broke = error.is_io_error() && !error.is_timeout();
            let followed = matches!(*self.connections.target, Target::Sentinel { .. });
            if broke || followed && error.code() == Some("READONLY") {
                self.connections.drop_older(&self.connection);
            }
        }
        answer
    }
}

impl ConnectionSlot {
    async fn get(self: &Arc<Self>) -> Result<Arc<Live>, Error> {
        if let Some(connection) = self.live.load_full() {
            return Ok(connection);
        }
        let _connecting = self.connecting.lock().await;
        if let Some(connection) = self.live.load_full() {
            return Ok(connection);
        }
        let before = self.failed.lock().clone();
        if let Some(Failed { error, until, made, .. }) = &before
            && self.clock.now() < *until
            && *made == self.made.load(Ordering::Relaxed)
        {
            return Err(error.clone());
        }
        let made_before = self.made.load(Ordering::Relaxed);
        let connected = match self.connect().await {
            // Another slot has connected meanwhile: the address was out of date.
            Err(_) if self.made.load(Ordering::Relaxed) != made_before => self.connect().await,
            connected => connected,
        };
        match connected {
            Ok(own) => {
                let made = {
                    let mut failed = self.failed.lock();
                    *failed = None;
                    self.made.fetch_add(1, Ordering::Relaxed)
                };
                let connection = Arc::new(Live { made, own });
                self.live.store(Some(Arc::clone(&connection)));
                tokio::spawn(watch(Arc::downgrade(self), Arc::clone(&connection)));
                Ok(connection)
            }
            Err(error) => {
                let pause = before.map_or(FIRST_PAUSE, |failed| failed.pause.plus(failed.pause));
                let pause = pause.min(LONGEST_PAUSE);
                let until = self.clock.now().plus(pause);
                let mut failed = self.failed.lock();
                if self.made.load(Ordering::Relaxed) == made_before {
                    *failed = Some(Failed { error: error.clone(), pause, until, made: made_before });
                }
                Err(error)
            }
        }
    }

    async fn connect(&self) -> Result<OwnConnection, Error> {
        let (client, address) = match &*self.target {
            Target::Fixed { client, address } => (Client::clone(client), Arc::clone(address)),
            Target::Sentinel { sentinel, .. } => sentinel.find().await?,
        };
        let connecting = client.get_multiplexed_async_connection_with_config(&self.config);
        let mut connection = connecting.await.map_err(|error| unreachable(&error, &address))?;
        if let Target::Sentinel { .. } = *self.target {
            check_role(&mut connection, &address).await?;
        }
        let run_id = run_id(&mut connection).await.map_err(|error| unreachable(&error, &address))?;
        let life = self.lives.met(&run_id);
        Ok(OwnConnection { connection, address, life })
    }

    fn drop_broken(&self, broken: &Arc<Live>) {
        let current = self.live.load();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, broken)) {
            self.live.compare_and_swap(&current, None);
        }
    }
}

/// Health check: pings a connection periodically, or at once when woken, and closes it if there is no reply.
async fn watch(link: Weak<ConnectionSlot>, connection: Arc<Live>) {
    loop {
        let Some((period, doubt)) = link.upgrade().map(|link| (link.health_check, Arc::clone(&link.doubt)))
        else {
            return;
        };
        // Pings after the period and also when woken early.
        let _ = tokio::time::timeout(period, doubt.notified()).await;
        let mut asked = connection.own.connection.clone();
        let answer = asked.send_packed_command(&redis::cmd("PING")).await;
        let Some(link) = link.upgrade() else { return };
        let left = match &*link.target {
            Target::Fixed { .. } => false,
            Target::Sentinel { sentinel, .. } => sentinel.has_left(&connection.own.address).await,
        };
        let replaced = !link.live.load().as_ref().is_some_and(|current| Arc::ptr_eq(current, &connection));
        // A server that replies with an error is reachable.
        if replaced || left || answer.is_err_and(|error| error.is_io_error()) {
            link.drop_broken(&connection);
            return;
        }
    }
}

/// Returns the run id of the server; an empty one for a proxy, or if the user may not read it.
async fn run_id(connection: &mut MultiplexedConnection) -> RedisResult<String> {
    match redis::cmd("INFO").arg("server").query_async::<Value>(connection).await {
        Ok(info) => {
            let info: String = redis::from_redis_value(info).unwrap_or_default();
            let run_id = info.lines().find_map(|line| line.strip_prefix("run_id:"));
            Ok(run_id.unwrap_or_default().trim().to_owned())
        }
        Err(error) if error.code() == Some("NOPERM") || error.code() == Some("ERR") => Ok(String::new()),
        Err(error) => Err(error),
    }
}

/// Converts an error while connecting: no call was sent, so its outcome is never unknown.
fn unreachable(error: &RedisError, address: &str) -> Error {
    match explain(error, address) {
        unknown if unknown.outcome_unknown() => {
            Error::store(Fault::Unreachable, format!("Redis at {address} cannot be reached: {error}"))
        }
        error => error,
    }
}
