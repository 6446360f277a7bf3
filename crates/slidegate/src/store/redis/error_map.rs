//! Maps Redis errors to faults, with advice for the operator.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::{Error, Fault};

/// Error code with which our scripts stop when they find foreign data. See `error('SGFOREIGN')`.
const FOREIGN: &str = "SGFOREIGN";

pub(super) const NOT_OURS: &str =
    "a value of another program is stored under a key of Slidegate: delete it, or set another redis.prefix";
pub(super) const CLUSTER: &str = "the server is a node of a cluster: set redis.cluster instead of redis.url";
const PERMISSION: &str =
    "this user lacks a permission: docs/reference/redis.md lists the commands that are needed";

/// Server errors: code, fault, advice.
const CODES: [(&str, Fault, &str); 23] = [
    ("WRONGTYPE", Fault::WrongType, NOT_OURS),
    (FOREIGN, Fault::WrongType, NOT_OURS),
    ("READONLY", Fault::ReadOnly, "the server is a read-only replica: set redis.url to the primary"),
    ("OOM", Fault::OutOfMemory, "its memory is full: raise maxmemory, or shorten windows"),
    ("LOADING", Fault::Loading, "the server is still loading its data: wait"),
    (
        "MASTERDOWN",
        Fault::ReadOnly,
        "the server is a replica without its primary: set redis.url to the primary",
    ),
    ("BUSY", Fault::Busy, "the server runs a long script: see SCRIPT KILL"),
    (
        "NOAUTH",
        Fault::NotAllowed,
        "the server requires a password: set redis.url to redis://user:password@host",
    ),
    ("WRONGPASS", Fault::NotAllowed, "the server does not accept this user and password: correct redis.url"),
    ("NOPERM", Fault::NotAllowed, PERMISSION),
    (
        "DENIED",
        Fault::NotAllowed,
        "the server rejects connections from this host: see its protected-mode and bind",
    ),
    ("MOVED", Fault::Cluster, CLUSTER),
    ("ASK", Fault::Cluster, CLUSTER),
    ("CROSSSLOT", Fault::Cluster, CLUSTER),
    ("CLUSTERDOWN", Fault::Cluster, CLUSTER),
    ("TRYAGAIN", Fault::Cluster, CLUSTER),
    ("NOREPLICAS", Fault::Other, "the server has too few replicas to write (min-replicas-to-write)"),
    ("MISCONF", Fault::Other, "the server rejects writes because it cannot save to disk: see its log"),
    ("UNKILLABLE", Fault::Busy, "the server runs a long script"),
    ("NOSCRIPT", Fault::Other, "the server dropped a script that was just loaded"),
    ("max number of clients", Fault::Overloaded, "the server has no connections left (maxclients)"),
    ("can't run this command", Fault::NotAllowed, PERMISSION),
    (
        "unknown command",
        Fault::Other,
        "the server lacks a required command: use Redis 6.2 or newer, or Valkey",
    ),
];

/// Converts a Redis error to a typed error with advice for the operator.
pub(super) fn explain(error: &RedisError, address: &str) -> Error {
    if error.is_timeout() {
        return Error::store(Fault::Timeout, format!("Redis at {address} did not answer in time"));
    }
    if error.is_connection_refusal() {
        return Error::store(Fault::Unreachable, format!("Redis at {address} cannot be reached: {error}"));
    }
    if error.is_io_error() {
        return Error::store(Fault::Lost, format!("the connection to Redis at {address} broke: {error}"));
    }
    // If the server aborted a transaction because it rejected a command, the error of that command is explained.
    if let Some(reason) = abort_reason(error) {
        return explain(&reason, address);
    }
    let text = error.to_string();
    let code = error.code().unwrap_or_default();
    // A script of Redis 6.2 wraps the errors of its calls in an error of its own.
    let named = CODES.iter().find(|(known, _, _)| *known == code);
    let named = named.or_else(|| CODES.iter().find(|(known, _, _)| contains_word(&text, known)));
    if let Some((known, fault, advice)) = named {
        return Error::store(*fault, format!("Redis at {address} answered {known}: {advice}"));
    }
    match error.kind() {
        ErrorKind::AuthenticationFailed => Error::store(
            Fault::NotAllowed,
            format!("Redis at {address} does not accept this user and password: correct redis.url"),
        ),
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Error::store(
            Fault::Protocol,
            format!("the server at {address} does not speak the Redis protocol: {text}"),
        ),
        ErrorKind::Server(ServerErrorKind::ResponseError) | ErrorKind::Extension => {
            Error::store(Fault::Other, format!("Redis at {address} answered: {text}"))
        }
        _ => Error::store(Fault::Other, format!("Redis at {address}: {text}")),
    }
}

/// Returns the error of the first command that the server did not accept, if the server aborted a transaction for that
/// reason.
fn abort_reason(error: &RedisError) -> Option<RedisError> {
    let aborted = ErrorKind::Server(ServerErrorKind::ExecAbort);
    if error.kind() != aborted {
        return None;
    }
    let (_, first) = error.clone().into_server_errors()?.first()?.clone();
    Some(RedisError::from(first)).filter(|reason| reason.kind() != aborted)
}

/// Redirect of a cluster node: the node did nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// The slot has moved to this address for good; an empty address means that the node did not report it.
    Moved(String),
    /// The key is at this address for now.
    Ask(String),
    /// Some of the keys are on this node and some on another.
    Again,
    /// The cluster is down.
    Down,
}

/// Returns the redirect in a reply. An error of a call inside a script may contain the same words, but only if the
/// whole reply is a redirect, the node did nothing.
pub(super) fn redirect(error: &RedisError) -> Option<Redirect> {
    let to = || error.redirect_node().map(|(address, _)| address.to_owned()).unwrap_or_default();
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::Moved) => Some(Redirect::Moved(to())),
        ErrorKind::Server(ServerErrorKind::Ask) => Some(Redirect::Ask(to())),
        ErrorKind::Server(ServerErrorKind::TryAgain) => Some(Redirect::Again),
        ErrorKind::Server(ServerErrorKind::ClusterDown) => Some(Redirect::Down),
        _ => None,
    }
}

/// Returns true if `word` stands alone in `text`: ASK is not in TASK.
fn contains_word(text: &str, word: &str) -> bool {
    let bound = |c: Option<char>| !c.is_some_and(char::is_alphanumeric);
    text.match_indices(word)
        .any(|(at, _)| bound(text[..at].chars().next_back()) && bound(text[at + word.len()..].chars().next()))
}
