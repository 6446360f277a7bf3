//! Helper: a server in this process with a listener and limits that a test chooses, and a client that sends plain
//! bytes.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use slidegate::{MemoryStore, Rules};
use slidegate_server::AnyStore;
use slidegate_server::AppState;
use slidegate_server::Limits;
use slidegate_server::serve::{self, Listeners};
use slidegate_server::{Auth, Token};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) struct RespServer {
    pub(crate) address: String,
    pub(crate) app: Arc<AppState>,
    runtime: Runtime,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<()>>,
}

impl RespServer {
    /// Starts a server without tokens and with the default timeouts.
    pub(crate) fn open() -> Self {
        RespServer::with(Limits::default(), Auth::default())
    }

    /// Starts a server that needs `token`.
    pub(crate) fn locked(token: &str) -> Self {
        RespServer::with(Limits::default(), Auth::new(vec![Token::new(token.as_bytes())], vec![]))
    }

    /// Starts a server with these short timeouts.
    pub(crate) fn impatient(limits: Limits) -> Self {
        RespServer::with(limits, Auth::default())
    }

    pub(crate) fn with(limits: Limits, access: Auth) -> Self {
        let runtime = Runtime::new().unwrap();
        let mut app = AppState::new(AnyStore::Memory(MemoryStore::new()), Rules::new([]).unwrap(), "a test");
        (app.settings.limits, app.settings.access) = (limits, access);
        let app = Arc::new(app);
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let listeners = Listeners { resp: Some(listener), ..Listeners::default() };
        let (stop, stopped) = oneshot::channel::<()>();
        let served = runtime.spawn(serve::run(listeners, Arc::clone(&app), async {
            let _ = stopped.await;
        }));
        RespServer { address, app, runtime, stop: Some(stop), served: Some(served) }
    }

    pub(crate) fn client(&self) -> Wire {
        Wire::connect(&self.address)
    }

    /// Stops the server, and waits for its end.
    pub(crate) fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        let served = self.served.take().unwrap();
        let stopped = async { tokio::time::timeout(Duration::from_secs(60), served).await };
        self.runtime.block_on(stopped).expect("the server stops within 60 s").unwrap();
    }

    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(String),
    /// Null of RESP 2.
    NoBulk,
    /// Null of RESP 3.
    Null,
    Array(Vec<Value>),
    /// Map of RESP 3: names and values in turn.
    Map(Vec<Value>),
}

impl Value {
    pub(crate) fn numbers(&self) -> Vec<i64> {
        let Value::Array(values) = self else { panic!("not numbers: {self:?}") };
        values.iter().map(Value::number).collect()
    }

    pub(crate) fn number(&self) -> i64 {
        let Value::Integer(n) = self else { panic!("not a number: {self:?}") };
        *n
    }

    pub(crate) fn error(&self) -> &str {
        let Value::Error(text) = self else { panic!("not an error: {self:?}") };
        text
    }
}

pub(crate) fn simple(text: &str) -> Value {
    Value::Simple(text.to_owned())
}

pub(crate) fn bulk(text: &str) -> Value {
    Value::Bulk(text.to_owned())
}

/// Encodes a command as clients send it.
pub(crate) fn encode(command: &str) -> Vec<u8> {
    let words: Vec<&str> = command.split(' ').collect();
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
    }
    bytes
}

/// The longest wait for an answer or the end of a connection.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Wire(BufReader<TcpStream>);

impl Wire {
    pub(crate) fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Wire(BufReader::new(stream))
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    /// Sends bytes until the server no longer accepts them.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.0.get_mut().write_all(bytes).is_ok()
    }

    pub(crate) fn finish(&mut self, how: Shutdown) {
        // The connection may have ended already.
        let _ = self.0.get_mut().shutdown(how);
    }

    /// Sends a command, whose words are separated by spaces, and returns the reply.
    pub(crate) fn call(&mut self, command: &str) -> Value {
        self.send(&encode(command));
        self.read().expect("an answer")
    }

    /// Returns the next reply, or `None` when the connection has ended. Panics if the connection stays open and silent.
    pub(crate) fn read(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(0) => return None,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                panic!("neither an answer nor the end of the connection in {PATIENCE:?}")
            }
            // The connection was reset.
            Err(_) => return None,
            Ok(_) => {}
        }
        let line = line.strip_suffix("\r\n").unwrap_or_else(|| panic!("half a line: {line:?}"));
        let (kind, rest) = line.split_at(1);
        let number = || rest.parse::<i64>().unwrap();
        Some(match kind {
            "+" => simple(rest),
            "-" => Value::Error(rest.to_owned()),
            ":" => Value::Integer(number()),
            "_" => Value::Null,
            "$" if number() == -1 => Value::NoBulk,
            "$" => {
                let mut bytes = vec![0; usize::try_from(number()).unwrap() + 2];
                self.0.read_exact(&mut bytes).unwrap();
                Value::Bulk(String::from_utf8(bytes).unwrap().strip_suffix("\r\n").unwrap().to_owned())
            }
            "*" => Value::Array((0..number()).map(|_| self.read().unwrap()).collect()),
            "%" => Value::Map((0..2 * number()).map(|_| self.read().unwrap()).collect()),
            _ => panic!("not an answer: {line:?}"),
        })
    }

    /// Returns all replies up to the end of the connection.
    pub(crate) fn rest(mut self) -> Vec<Value> {
        std::iter::from_fn(|| self.read()).collect()
    }
}
