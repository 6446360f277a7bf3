//! One Redis server: its connections, its epochs, and whether it supports script flags.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};

use super::RedisOptions;
use super::connection::{Connections, PooledConnection, ServerConnection, Target};
use super::epoch::{Epochs, Purpose};
use super::error_map::{Redirect, redirect};
use super::script::{Arguments, PreparedScript};
use crate::Error;

/// Maximum number of idle connections that are kept for the next transaction.
const MAX_IDLE: usize = 64;

pub(super) struct Server {
    pub(super) connections: Connections,
    pub(super) epochs: Arc<Epochs>,
    /// True if the server does not support the shebang line of a script, such as Redis 6.2.
    without_shebang: AtomicBool,
    /// Idle connections for transactions: each transaction uses one exclusively.
    idle: Mutex<Vec<ServerConnection>>,
}

/// One call to a server.
#[derive(Clone, Copy)]
pub(super) enum Call<'a> {
    Script(&'a PreparedScript, &'a Arguments),
    Command(&'a Cmd),
    All(&'a Pipeline),
}

/// Reason why a call was not answered.
pub(super) enum CallError {
    /// The node did nothing: the caller must call another node of the cluster, or this node later. The error is for
    /// callers that cannot follow the redirect.
    Redirected(Redirect, Error),
    Failed(Error),
}

impl From<CallError> for Error {
    fn from(call_error: CallError) -> Self {
        match call_error {
            CallError::Redirected(_, error) | CallError::Failed(error) => error,
        }
    }
}

impl Server {
    pub(super) fn new(target: Target, options: &RedisOptions, hold: &Arc<AtomicBool>) -> Self {
        let epochs = Arc::new(Epochs::new(Arc::clone(hold)));
        Server {
            connections: Connections::new(target, Arc::clone(&epochs), options),
            epochs,
            without_shebang: AtomicBool::new(false),
            idle: Mutex::default(),
        }
    }

    /// Performs a call, once. `asking` sends ASKING first, after an ASK redirect.
    pub(super) async fn perform(
        &self,
        purpose: Purpose,
        call: Call<'_>,
        asking: bool,
    ) -> Result<Value, CallError> {
        let mut connection = self.connections.get(purpose).await.map_err(CallError::Failed)?;
        let answer = match call {
            Call::Script(script, arguments) => self.run(&mut connection, script, arguments, asking).await,
            Call::Command(command) => send(&mut connection, command.clone(), asking).await,
            Call::All(pipeline) => {
                let answer = connection.send_all(pipeline).await;
                return answer.map_err(|error| CallError::Failed(connection.explain(error)));
            }
        };
        answer.map_err(|error| match redirect(&error) {
            Some(redirect) => CallError::Redirected(redirect, connection.explain(error)),
            None => CallError::Failed(connection.explain(error)),
        })
    }

    /// Runs a script by its digest. If the server does not know the digest, sends the text on the same connection.
    async fn run(
        &self,
        connection: &mut PooledConnection<'_>,
        script: &PreparedScript,
        arguments: &Arguments,
        asking: bool,
    ) -> Result<Value, RedisError> {
        loop {
            let without_shebang = self.without_shebang.load(Ordering::Relaxed);
            match send(connection, script.by_digest(without_shebang, arguments), asking).await {
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {}
                answer => return answer,
            }
            match send(connection, script.by_text(without_shebang, arguments), asking).await {
                Err(error) if !without_shebang && error.to_string().contains("compiling script") => {
                    self.without_shebang.store(true, Ordering::Relaxed);
                }
                answer => return answer,
            }
        }
    }

    /// Takes a connection for a transaction.
    pub(super) async fn take_connection(&self, purpose: Purpose) -> Result<ServerConnection, Error> {
        let idle = || self.idle.lock().pop();
        let current = std::iter::from_fn(idle).find(|connection| connection.epoch == self.epochs.current());
        let connection = match current {
            Some(connection) => connection,
            None => self.connections.dedicated().await?,
        };
        if purpose == Purpose::Decide {
            self.epochs.check(connection.epoch, &connection.address)?;
        }
        Ok(connection)
    }

    pub(super) fn return_connection(&self, connection: ServerConnection) {
        let mut idle = self.idle.lock();
        if idle.len() < MAX_IDLE {
            idle.push(connection);
        }
    }

    /// Closes the idle connections: if one connection is broken, the idle connections most likely are too.
    pub(super) fn drop_idle(&self) {
        self.idle.lock().clear();
    }

    /// Connects if necessary and returns the current epoch of the server.
    pub(super) async fn epoch(&self) -> Result<u64, Error> {
        let mut connection = self.connections.get(Purpose::Maintain).await?;
        let answer = connection.send(&redis::cmd("PING")).await;
        answer.map_err(|error| connection.explain(error))?;
        Ok(connection.epoch())
    }
}

async fn send(
    connection: &mut PooledConnection<'_>,
    command: Cmd,
    asking: bool,
) -> Result<Value, RedisError> {
    if asking { connection.send_asking(command).await } else { connection.send(&command).await }
}
