//! A few multiplexed connections: made when first needed, watched while they live, made again when they break.
//!
//! Many callers share a connection; their commands go out back to back and the answers come in order, so there
//! is nothing to borrow and give back. A connection that breaks fails the calls in flight on it, whose outcome
//! is then unknown, and the next call makes another. While Redis is away, attempts are spaced out, and calls in
//! between fail at once with what the last attempt said.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use redis::{ClientTlsConfig, Pipeline, RedisError, RedisResult, TlsCertificates, Value};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use super::RedisOptions;
use super::fault::explain;
use crate::{Clock, Error, Fault, Micros, SystemClock};

/// The wait after the first failed attempt to connect; it doubles with each.
const FIRST_PAUSE: Micros = Micros::from_millis(50);

/// The longest wait between attempts.
const LONGEST_PAUSE: Micros = Micros::from_millis(1_000);

pub(super) struct Connections {
    links: Box<[Arc<Link>]>,
    next: AtomicUsize,
    in_flight: Semaphore,
    max_in_flight: usize,
    max_wait: Duration,
}

/// One connection, alive or not.
struct Link {
    client: Client,
    config: AsyncConnectionConfig,
    address: String,
    health_check: Duration,
    live: ArcSwapOption<Live>,
    /// Held while connecting, so that one caller does and the others wait for it.
    connecting: tokio::sync::Mutex<()>,
    failed: Mutex<Option<Failed>>,
    /// Shared by all links: numbers the connections.
    made: Arc<AtomicU64>,
    /// Something speaks against the connection: it is asked at once.
    doubt: Arc<Notify>,
    clock: SystemClock,
}

/// A connection, and which of all that were made.
struct Live {
    connection: MultiplexedConnection,
    made: u64,
}

/// The last attempt failed, and the next may be made `until` later.
#[derive(Clone)]
struct Failed {
    error: Error,
    pause: Micros,
    until: Micros,
}

/// A connection, and a place among the calls in flight, for the length of one call.
pub(super) struct Lent<'c> {
    connection: Arc<Live>,
    connections: &'c Connections,
    _place: SemaphorePermit<'c>,
}

impl Connections {
    pub(super) fn new(options: &RedisOptions) -> Result<Self, Error> {
        let client = client(options)?;
        let address = options.address();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(options.connect_timeout))
            .set_response_timeout(Some(options.response_timeout));
        let made = Arc::new(AtomicU64::new(0));
        let link = || {
            Arc::new(Link {
                client: client.clone(),
                config: config.clone(),
                address: address.clone(),
                health_check: options.health_check,
                live: ArcSwapOption::empty(),
                connecting: tokio::sync::Mutex::new(()),
                failed: Mutex::new(None),
                made: Arc::clone(&made),
                doubt: Arc::new(Notify::new()),
                clock: SystemClock::new(),
            })
        };
        Ok(Connections {
            links: (0..options.connections).map(|_| link()).collect(),
            next: AtomicUsize::new(0),
            in_flight: Semaphore::new(options.max_in_flight),
            max_in_flight: options.max_in_flight,
            max_wait: options.max_wait,
        })
    }

    /// A place among the calls in flight; waits for one, but not for long.
    pub(super) async fn place(&self) -> Result<SemaphorePermit<'_>, Error> {
        match self.in_flight.try_acquire() {
            Ok(place) => Ok(place),
            Err(_) => match tokio::time::timeout(self.max_wait, self.in_flight.acquire()).await {
                Ok(Ok(place)) => Ok(place),
                _ => Err(self.overloaded()),
            },
        }
    }

    /// A connection for one call.
    pub(super) async fn get(&self) -> Result<Lent<'_>, Error> {
        let place = self.place().await?;
        let link = &self.links[self.next.fetch_add(1, Ordering::Relaxed) % self.links.len()];
        match link.get().await {
            Ok(connection) => Ok(Lent { connection, connections: self, _place: place }),
            Err(error) => {
                // If one cannot be made, the others may be broken without having noticed.
                self.links.iter().for_each(|link| link.doubt.notify_waiters());
                Err(error)
            }
        }
    }

    /// A connection of its own, for what must not be mixed with other callers' commands.
    pub(super) async fn own(&self) -> Result<MultiplexedConnection, Error> {
        self.links[0].connect().await
    }

    pub(super) fn address(&self) -> &str {
        &self.links[0].address
    }

    /// When one breaks, those that were made before it did are most likely broken too.
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

impl Lent<'_> {
    pub(super) async fn send(&mut self, command: &Cmd) -> RedisResult<Value> {
        let answer = self.connection.connection.clone().send_packed_command(command).await;
        self.note(answer.and_then(Value::extract_error))
    }

    /// Several commands, answered together.
    pub(super) async fn send_all(&mut self, pipeline: &Pipeline) -> RedisResult<Value> {
        let answer = pipeline.query_async(&mut self.connection.connection.clone()).await;
        self.note(answer)
    }

    /// What a failure means, and what to do about it.
    pub(super) fn explain(&self, error: RedisError) -> Error {
        explain(&error, self.connections.address())
    }

    /// A connection that broke is not lent again.
    fn note<T>(&self, answer: RedisResult<T>) -> RedisResult<T> {
        if let Err(error) = &answer
            && error.is_io_error()
            && !error.is_timeout()
        {
            self.connections.drop_older(&self.connection);
        }
        answer
    }
}

impl Link {
    async fn get(self: &Arc<Self>) -> Result<Arc<Live>, Error> {
        if let Some(connection) = self.live.load_full() {
            return Ok(connection);
        }
        let _connecting = self.connecting.lock().await;
        if let Some(connection) = self.live.load_full() {
            return Ok(connection);
        }
        let before = self.failed.lock().clone();
        if let Some(Failed { error, until, .. }) = &before
            && self.clock.now() < *until
        {
            return Err(error.clone());
        }
        match self.connect().await {
            Ok(connection) => {
                *self.failed.lock() = None;
                let made = self.made.fetch_add(1, Ordering::Relaxed);
                let connection = Arc::new(Live { connection, made });
                self.live.store(Some(Arc::clone(&connection)));
                tokio::spawn(watch(Arc::downgrade(self), Arc::clone(&connection)));
                Ok(connection)
            }
            Err(error) => {
                let pause = before.map_or(FIRST_PAUSE, |failed| failed.pause.plus(failed.pause));
                let pause = pause.min(LONGEST_PAUSE);
                let until = self.clock.now().plus(pause);
                *self.failed.lock() = Some(Failed { error: error.clone(), pause, until });
                Err(error)
            }
        }
    }

    async fn connect(&self) -> Result<MultiplexedConnection, Error> {
        let connecting = self.client.get_multiplexed_async_connection_with_config(&self.config);
        connecting.await.map_err(|error| match explain(&error, &self.address) {
            // What fails here was never asked.
            unknown if unknown.outcome_unknown() => Error::store(
                Fault::Unreachable,
                format!("Redis at {} cannot be reached: {error}", self.address),
            ),
            error => error,
        })
    }

    fn drop_broken(&self, broken: &Arc<Live>) {
        let current = self.live.load();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, broken)) {
            self.live.compare_and_swap(&current, None);
        }
    }
}

/// Asks a connection now and then whether it still answers, and drops it if it does not.
async fn watch(link: Weak<Link>, connection: Arc<Live>) {
    loop {
        let Some((period, doubt)) = link.upgrade().map(|link| (link.health_check, Arc::clone(&link.doubt)))
        else {
            return;
        };
        // Either way it is asked now.
        let _ = tokio::time::timeout(period, doubt.notified()).await;
        let mut asked = connection.connection.clone();
        let answer = asked.send_packed_command(&redis::cmd("PING")).await;
        let Some(link) = link.upgrade() else { return };
        let replaced = !link.live.load().as_ref().is_some_and(|current| Arc::ptr_eq(current, &connection));
        // A server that answers with an error is there.
        if replaced || answer.is_err_and(|error| error.is_io_error()) {
            link.drop_broken(&connection);
            return;
        }
    }
}

fn client(options: &RedisOptions) -> Result<Client, Error> {
    let info = info(options)?;
    let tls = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
    let client = match (tls, options.tls.is_default()) {
        (false, false) => {
            return Err(Error::invalid("redis.tls needs a url that starts with rediss://"));
        }
        (_, true) => Client::open(info),
        (true, false) => {
            let tls = &options.tls;
            let client_tls = match (&tls.cert, &tls.key) {
                (Some(cert), Some(key)) => {
                    Some(ClientTlsConfig { client_cert: cert.clone(), client_key: key.clone() })
                }
                (None, None) => None,
                _ => return Err(Error::invalid("redis.tls needs both `cert` and `key`, or neither")),
            };
            Client::build_with_tls(info, TlsCertificates { client_tls, root_cert: tls.ca.clone() })
        }
    };
    client.map_err(|error| bad_url(&error))
}

fn info(options: &RedisOptions) -> Result<ConnectionInfo, Error> {
    let info = options.url.as_str().into_connection_info().map_err(|error| bad_url(&error))?;
    let keep_alive = TcpKeepalive::new().with_time(options.keep_alive).with_interval(options.keep_alive);
    let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keep_alive);
    let redis = info.redis_settings().clone().set_lib_name("slidegate", env!("CARGO_PKG_VERSION"));
    Ok(info.set_tcp_settings(tcp).set_redis_settings(redis))
}

/// Never repeats the url: it may hold a password.
fn bad_url(error: &RedisError) -> Error {
    let detail = error.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
    Error::invalid(format!(
        "the redis url must look like redis://[user:password@]host:port[/db], or rediss:// for TLS{detail}"
    ))
}
