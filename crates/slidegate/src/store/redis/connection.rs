//! Multiplexed connections to one server: opened when first needed, health-checked, and reopened when they break.
//!
//! Many callers share a connection: their commands are pipelined and the replies come in order, so callers need no pool
//! of exclusive connections. If a connection breaks, the calls in flight on it fail with an unknown outcome, and the
//! next call opens a new connection. While Redis is unreachable, attempts to connect back off, and calls between two
//! attempts fail at once with the error of the last attempt.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Pipeline, RedisError, RedisResult, Value};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use super::client::with_password;
use super::epoch::{Epochs, Purpose};
use super::error_map::explain;
use super::topology::{Sentinel, check_role};
use super::{RedisOptions, RedisPassword};
use crate::{Clock, Error, Fault, Micros, SystemClock};

/// Back-off after the first failed attempt to connect; it doubles with each attempt.
const FIRST_BACKOFF: Micros = Micros::from_millis(50);

/// Longest back-off between attempts.
const LONGEST_BACKOFF: Micros = Micros::from_millis(1_000);

pub(super) struct Connections {
    slots: Box<[Arc<ConnectionSlot>]>,
    next: AtomicUsize,
    in_flight: Semaphore,
    max_in_flight: usize,
    max_wait: Duration,
    pub(super) response_timeout: Duration,
    target: Arc<Target>,
    epochs: Arc<Epochs>,
}

/// Address that connections lead to.
pub(super) enum Target {
    Fixed { client: Box<Client>, address: Arc<str>, password: Option<RedisPassword> },
    Sentinel { sentinel: Box<Sentinel>, address: Arc<str> },
}

/// Slot for one connection, which may be closed at the moment.
struct ConnectionSlot {
    target: Arc<Target>,
    epochs: Arc<Epochs>,
    config: AsyncConnectionConfig,
    health_check: Duration,
    live: ArcSwapOption<LiveConnection>,
    /// Locked while connecting, so that one caller connects and the others wait for it.
    connecting: tokio::sync::Mutex<()>,
    /// Last failed attempt to connect. All slots share it: if one slot could connect, the other slots need not wait.
    last_failure: Arc<Mutex<Option<ConnectFailure>>>,
    /// Number of connections made, shared by all slots.
    connection_count: Arc<AtomicU64>,
    /// Wakes the health check at once when the connection is suspected to be broken.
    recheck: Arc<Notify>,
    clock: SystemClock,
}

/// Open connection and its serial number.
struct LiveConnection {
    serial: u64,
    server_connection: ServerConnection,
}

/// Connection with its address and the epoch of the server at its other end.
#[derive(Clone)]
pub(super) struct ServerConnection {
    pub(super) connection: MultiplexedConnection,
    pub(super) address: Arc<str>,
    pub(super) epoch: u64,
}

/// Failed attempt to connect. The next attempt may be made at `until`.
#[derive(Clone)]
struct ConnectFailure {
    error: Error,
    backoff: Micros,
    until: Micros,
    /// Number of connections that all slots had made before the attempt: if it is higher now, the back-off is over.
    connection_count: u64,
}

/// Connection and in-flight permit, for the duration of one call.
pub(super) struct PooledConnection<'c> {
    connection: Arc<LiveConnection>,
    connections: &'c Connections,
    _permit: SemaphorePermit<'c>,
}

impl Connections {
    pub(super) fn new(target: Target, epochs: Arc<Epochs>, options: &RedisOptions) -> Self {
        let target = Arc::new(target);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(options.connect_timeout))
            .set_response_timeout(Some(options.response_timeout));
        let (connection_count, last_failure) = (Arc::new(AtomicU64::new(0)), Arc::default());
        let clock = SystemClock::new();
        let slot = || {
            Arc::new(ConnectionSlot {
                target: Arc::clone(&target),
                epochs: Arc::clone(&epochs),
                config: config.clone(),
                health_check: options.health_check,
                live: ArcSwapOption::empty(),
                connecting: tokio::sync::Mutex::new(()),
                last_failure: Arc::clone(&last_failure),
                connection_count: Arc::clone(&connection_count),
                recheck: Arc::new(Notify::new()),
                clock: clock.clone(),
            })
        };
        Connections {
            slots: (0..options.connections).map(|_| slot()).collect(),
            next: AtomicUsize::new(0),
            in_flight: Semaphore::new(options.max_in_flight),
            max_in_flight: options.max_in_flight,
            max_wait: options.max_wait,
            response_timeout: options.response_timeout,
            target,
            epochs,
        }
    }

    /// Waits for an in-flight permit, for `max_wait` at most.
    pub(super) async fn permit(&self) -> Result<SemaphorePermit<'_>, Error> {
        match self.in_flight.try_acquire() {
            Ok(permit) => Ok(permit),
            Err(_) => match tokio::time::timeout(self.max_wait, self.in_flight.acquire()).await {
                Ok(Ok(permit)) => Ok(permit),
                _ => Err(self.overloaded()),
            },
        }
    }

    /// Returns a connection for one call.
    pub(super) async fn get(&self, purpose: Purpose) -> Result<PooledConnection<'_>, Error> {
        let permit = self.permit().await?;
        let slot = &self.slots[self.next.fetch_add(1, Ordering::Relaxed) % self.slots.len()];
        loop {
            match slot.get().await {
                Ok(connection) if connection.server_connection.epoch == self.epochs.current() => {
                    if purpose == Purpose::Decide {
                        self.epochs.check(
                            connection.server_connection.epoch,
                            &connection.server_connection.address,
                        )?;
                    }
                    return Ok(PooledConnection { connection, connections: self, _permit: permit });
                }
                // The connection belongs to an earlier epoch.
                Ok(connection) => slot.drop_broken(&connection),
                Err(error) => {
                    // If one slot cannot connect, the connections of other slots may be broken without a reported
                    // error.
                    self.slots.iter().for_each(|slot| slot.recheck.notify_waiters());
                    return Err(error);
                }
            }
        }
    }

    /// Opens a dedicated connection, for commands that must not be mixed with those of other callers.
    pub(super) async fn dedicated(&self) -> Result<ServerConnection, Error> {
        self.slots[0].connect().await
    }

    /// Returns a client for other kinds of connections to the same server, such as Pub/Sub.
    pub(super) async fn client(&self) -> Result<Client, Error> {
        match &*self.target {
            Target::Fixed { client, password, .. } => with_password(client, password.as_ref()),
            Target::Sentinel { sentinel, .. } => Ok(sentinel.find_primary().await?.0),
        }
    }

    pub(super) fn address(&self) -> &str {
        match &*self.target {
            Target::Fixed { address, .. } | Target::Sentinel { address, .. } => address,
        }
    }

    /// Closes connections that were opened before the broken connection failed: they are most likely broken too.
    #[cold]
    fn drop_older(&self, broken: &Arc<LiveConnection>) {
        for slot in &self.slots {
            let current = slot.live.load();
            if current.as_ref().is_some_and(|live| live.serial < broken.serial + self.slots.len() as u64) {
                slot.live.compare_and_swap(&current, None);
            }
        }
    }

    #[cold]
    fn overloaded(&self) -> Error {
        let message = format!(
            "{} calls to Redis are in flight and none ended within {}: raise max-in-flight, or reduce the load",
            self.max_in_flight,
            Micros::from(self.max_wait),
        );
        Error::store(Fault::Overloaded, message)
    }
}

impl PooledConnection<'_> {
    pub(super) async fn send(&mut self, command: &Cmd) -> RedisResult<Value> {
        let answer = self.connection.server_connection.connection.clone().send_packed_command(command).await;
        self.close_if_broken(answer.and_then(Value::extract_error))
    }

    /// Sends ASKING and the command together, after an ASK redirect: the node then answers also for a slot that it is
    /// importing.
    pub(super) async fn send_asking(&mut self, command: Cmd) -> RedisResult<Value> {
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.cmd("ASKING").add_command(command);
        let answer =
            self.connection.server_connection.connection.clone().send_packed_commands(&pipeline, 1, 1).await;
        let answer = answer.map(|values| values.into_iter().next().unwrap_or(Value::Nil));
        self.close_if_broken(answer.and_then(Value::extract_error))
    }

    /// Sends several commands, answered together.
    pub(super) async fn send_all(&mut self, pipeline: &Pipeline) -> RedisResult<Value> {
        let answer = pipeline.query_async(&mut self.connection.server_connection.connection.clone()).await;
        self.close_if_broken(answer)
    }

    /// Converts a failure to an error with advice.
    pub(super) fn explain(&self, error: RedisError) -> Error {
        explain(&error, &self.connection.server_connection.address)
    }

    pub(super) fn epoch(&self) -> u64 {
        self.connection.server_connection.epoch
    }

    /// Closes the connection if it broke, or if it leads to a server that is no longer the primary.
    fn close_if_broken<T>(&self, answer: RedisResult<T>) -> RedisResult<T> {
        if let Err(error) = &answer {
            let broke = error.is_io_error() && !error.is_timeout();
            let is_sentinel = matches!(*self.connections.target, Target::Sentinel { .. });
            if broke || is_sentinel && error.code() == Some("READONLY") {
                self.connections.drop_older(&self.connection);
            }
        }
        answer
    }
}

impl ConnectionSlot {
    async fn get(self: &Arc<Self>) -> Result<Arc<LiveConnection>, Error> {
        if let Some(connection) = self.live.load_full() {
            return Ok(connection);
        }
        let _connecting = self.connecting.lock().await;
        if let Some(connection) = self.live.load_full() {
            return Ok(connection);
        }
        let before = self.last_failure.lock().clone();
        if let Some(ConnectFailure { error, until, connection_count, .. }) = &before
            && self.clock.now() < *until
            && *connection_count == self.connection_count.load(Ordering::Relaxed)
        {
            return Err(error.clone());
        }
        let count_before = self.connection_count.load(Ordering::Relaxed);
        let connected = match self.connect().await {
            // Another slot has connected meanwhile, so the address that this slot used was out of date.
            Err(_) if self.connection_count.load(Ordering::Relaxed) != count_before => self.connect().await,
            connected => connected,
        };
        match connected {
            Ok(server_connection) => {
                let serial = {
                    let mut last_failure = self.last_failure.lock();
                    *last_failure = None;
                    self.connection_count.fetch_add(1, Ordering::Relaxed)
                };
                let connection = Arc::new(LiveConnection { serial, server_connection });
                self.live.store(Some(Arc::clone(&connection)));
                tokio::spawn(run_health_checks(Arc::downgrade(self), Arc::clone(&connection)));
                Ok(connection)
            }
            Err(error) => {
                let backoff = before.map_or(FIRST_BACKOFF, |failure| failure.backoff.plus(failure.backoff));
                let backoff = backoff.min(LONGEST_BACKOFF);
                let until = self.clock.now().plus(backoff);
                let mut last_failure = self.last_failure.lock();
                if self.connection_count.load(Ordering::Relaxed) == count_before {
                    *last_failure = Some(ConnectFailure {
                        error: error.clone(),
                        backoff,
                        until,
                        connection_count: count_before,
                    });
                }
                Err(error)
            }
        }
    }

    async fn connect(&self) -> Result<ServerConnection, Error> {
        let (client, address) = match &*self.target {
            Target::Fixed { client, address, password } => {
                (with_password(client, password.as_ref())?, Arc::clone(address))
            }
            Target::Sentinel { sentinel, .. } => sentinel.find_primary().await?,
        };
        let connecting = client.get_multiplexed_async_connection_with_config(&self.config);
        let mut connection = connecting.await.map_err(|error| unreachable(&error, &address))?;
        if let Target::Sentinel { .. } = *self.target {
            check_role(&mut connection, &address).await?;
        }
        let run_id = run_id(&mut connection).await.map_err(|error| unreachable(&error, &address))?;
        let epoch = self.epochs.observe(&run_id);
        Ok(ServerConnection { connection, address, epoch })
    }

    fn drop_broken(&self, broken: &Arc<LiveConnection>) {
        let current = self.live.load();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, broken)) {
            self.live.compare_and_swap(&current, None);
        }
    }
}

/// Health check: pings a connection periodically, or at once when woken, and closes it if there is no reply.
async fn run_health_checks(slot: Weak<ConnectionSlot>, connection: Arc<LiveConnection>) {
    loop {
        let Some((period, recheck)) =
            slot.upgrade().map(|slot| (slot.health_check, Arc::clone(&slot.recheck)))
        else {
            return;
        };
        // Pings after the period and also when woken early.
        let _ = tokio::time::timeout(period, recheck.notified()).await;
        let mut pinged = connection.server_connection.connection.clone();
        let answer = pinged.send_packed_command(&redis::cmd("PING")).await;
        let Some(slot) = slot.upgrade() else { return };
        let moved_away = match &*slot.target {
            Target::Fixed { .. } => false,
            Target::Sentinel { sentinel, .. } => {
                sentinel.has_moved_from(&connection.server_connection.address).await
            }
        };
        let replaced = !slot.live.load().as_ref().is_some_and(|current| Arc::ptr_eq(current, &connection));
        // A server that replies with an error is reachable.
        if replaced || moved_away || answer.is_err_and(|error| error.is_io_error()) {
            slot.drop_broken(&connection);
            return;
        }
    }
}

/// Returns the run id of the server; an empty text for a proxy, or if the Redis user may not read the run id.
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
