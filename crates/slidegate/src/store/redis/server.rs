//! One Redis server: its connections, its epochs, and whether it supports script flags.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use redis::{Cmd, Pipeline, RedisError, Value};

use super::RedisOptions;
use super::connection::{Connections, OwnConnection, PooledConnection, Target};
use super::epoch::{Epochs, Purpose};
use super::error_map::{Redirect, redirect};
use super::script::{Arguments, Prepared};
use crate::Error;

/// Most idle connections that are kept for the next transaction.
const MAX_IDLE: usize = 64;

pub(super) struct Server {
    pub(super) connections: Connections,
    pub(super) lives: Arc<Epochs>,
    /// The server does not support the shebang: Redis 6.2.
    plain: AtomicBool,
    /// Idle connections for transactions: each transaction uses one exclusively.
    idle: Mutex<Vec<OwnConnection>>,
}

/// One call to a server.
#[derive(Clone, Copy)]
pub(super) enum Call<'a> {
    Script(&'a Prepared, &'a Arguments),
    Command(&'a Cmd),
    All(&'a Pipeline),
}

/// Reason why a call was not answered.
pub(super) enum Missed {
    /// The node did nothing: the caller must ask another node of the cluster, or this one later. The error is for
    /// callers that cannot.
    Redirected(Redirect, Error),
    Failed(Error),
}

impl From<Missed> for Error {
    fn from(missed: Missed) -> Self {
        match missed {
            Missed::Redirected(_, error) | Missed::Failed(error) => error,
        }
    }
}

impl Server {
    pub(super) fn new(target: Target, options: &RedisOptions, hold: &Arc<AtomicBool>) -> Self {
        let lives = Arc::new(Epochs::new(Arc::clone(hold)));
        Server {
            connections: Connections::new(target, Arc::clone(&lives), options),
            lives,
            plain: AtomicBool::new(false),
            idle: Mutex::default(),
        }
    }

    pub(super) fn address(&self) -> &str {
        self.connections.address()
    }

    /// Performs a call, once. `asking` sends ASKING first, after an ASK redirect.
    pub(super) async fn perform(
        &self,
        purpose: Purpose,
        call: Call<'_>,
        asking: bool,
    ) -> Result<Value, Missed> {
        let mut connection = self.connections.get(purpose).await.map_err(Missed::Failed)?;
        let answer = match call {
            Call::Script(script, arguments) => self.run(&mut connection, script, arguments, asking).await,
            Call::Command(command) => send(&mut connection, command.clone(), asking).await,
            Call::All(pipeline) => {
                let answer = connection.send_all(pipeline).await;
                return answer.map_err(|error| Missed::Failed(connection.explain(error)));
            }
        };
        answer.map_err(|error| match redirect(&error) {
            Some(redirect) => Missed::Redirected(redirect, connection.explain(error)),
            None => Missed::Failed(connection.explain(error)),
        })
    }

    /// Runs a script by its digest. If the server does not know it, sends the text on the same connection.
    async fn run(
        &self,
        connection: &mut PooledConnection<'_>,
        script: &Prepared,
        arguments: &Arguments,
        asking: bool,
    ) -> Result<Value, RedisError> {
        loop {
            let plain = self.plain.load(Ordering::Relaxed);
            match send(connection, script.by_digest(plain, arguments), asking).await {
                Err(error) if is_noscript(&error) => {}
                answer => return answer,
            }
            match send(connection, script.by_text(plain, arguments), asking).await {
                Err(error) if !plain && takes_no_shebang(&error) => {
                    self.plain.store(true, Ordering::Relaxed);
                }
                answer => return answer,
            }
        }
    }

    /// Takes a connection for a transaction.
    pub(super) async fn take(&self, purpose: Purpose) -> Result<OwnConnection, Error> {
        let idle = || self.idle.lock().pop();
        let current = std::iter::from_fn(idle).find(|own| own.life == self.lives.now());
        let own = match current {
            Some(own) => own,
            None => self.connections.own().await?,
        };
        if purpose == Purpose::Decide {
            self.lives.check(own.life, &own.address)?;
        }
        Ok(own)
    }

    pub(super) fn put_back(&self, own: OwnConnection) {
        let mut idle = self.idle.lock();
        if idle.len() < MAX_IDLE {
            idle.push(own);
        }
    }

    /// Closes the idle connections: if one connection is broken, these most likely are too.
    pub(super) fn drop_idle(&self) {
        self.idle.lock().clear();
    }

    /// Connects if necessary and returns the current epoch of the server.
    pub(super) async fn life(&self) -> Result<u64, Error> {
        let mut connection = self.connections.get(Purpose::Look).await?;
        let answer = connection.send(&redis::cmd("PING")).await;
        answer.map_err(|error| connection.explain(error))?;
        Ok(connection.life())
    }
}

async fn send(
    connection: &mut PooledConnection<'_>,
    command: Cmd,
    asking: bool,
) -> Result<Value, RedisError> {
    if asking { connection.send_asking(command).await } else { connection.send(&command).await }
}

fn is_noscript(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(redis::ServerErrorKind::NoScript)
}

fn takes_no_shebang(error: &RedisError) -> bool {
    error.to_string().contains("compiling script")
}
