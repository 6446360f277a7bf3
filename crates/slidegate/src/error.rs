//! The error type of the crate. A denial is not an error: see [`Decision`](crate::Decision).

use std::fmt;

/// Returns an error with this message from the function unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err($crate::Error::invalid(std::fmt::format(format_args!($($message)+))));
        }
    };
}

/// Returns an error that names the value unless it is from `min` to `max`.
pub(crate) fn check_between<T: Copy + PartialOrd + fmt::Display>(
    name: &str,
    value: T,
    min: T,
    max: T,
) -> Result<(), Error> {
    ensure!((min..=max).contains(&value), "{name} must be between {min} and {max}, not {value}");
    Ok(())
}

/// Error with a message that states the problem, the place and the fix.
///
/// The kinds are private so that kinds can be added. Use the predicates to tell them apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Kind>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Invalid(String),
    File(Vec<Problem>),
    TooCostly { rule: String, permits: u64, limit: u64 },
    TooManyChecks { max: usize },
    Store { fault: Fault, message: String },
}

crate::words! {
    /// Reason why a store could not decide.
    #[derive(Hash)]
    #[non_exhaustive]
    pub enum Fault {
        /// The store could not be reached; nothing was sent.
        Unreachable = "unreachable",
        /// The connection broke before the reply arrived: the outcome is unknown.
        Lost = "lost",
        /// No reply arrived in time: the outcome is unknown.
        Timeout = "timeout",
        /// More calls are in flight than are allowed; nothing was sent.
        Overloaded = "overloaded",
        /// The store is busy with a long script.
        Busy = "busy",
        /// The store is loading its data.
        Loading = "loading",
        /// The store is a read-only replica.
        ReadOnly = "read-only",
        /// The memory of the store is full.
        OutOfMemory = "out-of-memory",
        /// The store requires a password, rejects the configured one, or does not permit a command.
        NotAllowed = "not-allowed",
        /// A key of this crate holds data of another type.
        WrongType = "wrong-type",
        /// The cluster is not healthy, or one of its nodes was addressed as a single server.
        Cluster = "cluster",
        /// The server is not the one that counted before, and the journal is not yet written back; nothing was sent.
        Restarted = "restarted",
        /// Other clients changed the same keys again and again; nothing was written.
        Conflict = "conflict",
        /// A key has more expired entries than a few calls may remove; nothing was charged. The next call continues.
        Trimming = "trimming",
        /// The store sent a reply that violates the protocol.
        Protocol = "protocol",
        /// Any other fault.
        Other = "other",
    }
}

/// One mistake in a rules file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Line in the file, from 1. 0 if the value is from a variable or a flag, which the message names.
    pub line: u64,
    /// Column in that line, from 1. 0 if there is no line.
    pub column: u64,
    /// The problem and the fix.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.message),
            line => write!(f, "{line}:{}: {}", self.column, self.message),
        }
    }
}

impl Error {
    /// Creates the error for an unacceptable request or parameter.
    pub fn invalid(message: impl Into<String>) -> Self {
        Kind::Invalid(message.into()).into()
    }

    /// Creates the error for a file with mistakes, and sorts them by line.
    pub fn file(mut problems: Vec<Problem>) -> Self {
        problems.sort();
        Kind::File(problems).into()
    }

    /// Creates the error for a store that could not decide, with [`Fault::Other`].
    pub fn unavailable(message: impl Into<String>) -> Self {
        Error::store(Fault::Other, message)
    }

    pub(crate) fn short_answer() -> Self {
        Error::unavailable("the store answered fewer requests than it was given")
    }

    /// Creates the error for a store that could not decide, with the reason.
    pub fn store(fault: Fault, message: impl Into<String>) -> Self {
        Kind::Store { fault, message: message.into() }.into()
    }

    pub(crate) fn too_costly(rule: &str, permits: u64, limit: u64) -> Self {
        Kind::TooCostly { rule: rule.to_owned(), permits, limit }.into()
    }

    #[cold]
    pub(crate) fn too_many_checks(max: usize) -> Self {
        Kind::TooManyChecks { max }.into()
    }

    /// Returns true if the caller made a mistake: the same call will fail again.
    pub fn is_invalid(&self) -> bool {
        matches!(*self.0, Kind::Invalid(_) | Kind::File(_) | Kind::TooManyChecks { .. })
    }

    /// Returns true if the requests of one call match more than [`MAX_CHECKS`](crate::bounds::MAX_CHECKS) limits. Nothing was charged:
    /// send fewer requests per call.
    pub fn is_too_many_checks(&self) -> bool {
        matches!(*self.0, Kind::TooManyChecks { .. })
    }

    /// Returns true if one request needs more permits than the limit will ever have: waiting does not help.
    pub fn is_too_costly(&self) -> bool {
        matches!(*self.0, Kind::TooCostly { .. })
    }

    /// Returns the rule whose limit is below the number of permits requested; `None` for every other error.
    pub fn too_costly_for(&self) -> Option<&str> {
        match &*self.0 {
            Kind::TooCostly { rule, .. } => Some(rule),
            _ => None,
        }
    }

    /// Returns true if the store could not decide; the outcome may be unknown. Retry with the same request id.
    pub fn is_unavailable(&self) -> bool {
        matches!(*self.0, Kind::Store { .. })
    }

    /// Returns the reason why the store could not decide; `None` for every other error.
    pub fn fault(&self) -> Option<Fault> {
        match *self.0 {
            Kind::Store { fault, .. } => Some(fault),
            _ => None,
        }
    }

    /// Returns true if the call was sent and no reply came back: the store may have charged it. Retry with the same request
    /// id to find out without being charged twice.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self.fault(), Some(Fault::Lost | Fault::Timeout))
    }

    /// Returns the mistakes in a file, each with its line; empty for every other error.
    pub fn problems(&self) -> &[Problem] {
        match &*self.0 {
            Kind::File(problems) => problems,
            _ => &[],
        }
    }
}

impl From<Kind> for Error {
    fn from(kind: Kind) -> Self {
        Error(Box::new(kind))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Kind::Invalid(message) | Kind::Store { message, .. } => f.write_str(message),
            Kind::File(problems) => {
                let lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
                f.write_str(&lines.join("\n"))
            }
            Kind::TooManyChecks { max } => {
                write!(
                    f,
                    "the requests of one call may have at most {max} checks, one for each rule that applies to a request: send fewer requests"
                )
            }
            Kind::TooCostly { rule, permits, limit } => {
                write!(
                    f,
                    "{permits} permits exceed the limit of rule `{rule}`, which is {limit}: waiting does not help"
                )
            }
        }
    }
}

impl std::error::Error for Error {}
