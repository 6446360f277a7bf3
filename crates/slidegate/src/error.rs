//! The one error type. A denial is not an error: see [`Decision`](crate::Decision).

use std::fmt;

/// What went wrong, where, and what would be right.
///
/// Ask it with the predicates; its kinds are private so that they can grow.
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

/// Why a store could not decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// It could not be reached; nothing was sent.
    Unreachable,
    /// The connection broke while an answer was due: the outcome is unknown.
    Lost,
    /// No answer came in time: the outcome is unknown.
    Timeout,
    /// More calls are in flight than are allowed; nothing was sent.
    Overloaded,
    /// It is busy with a long script.
    Busy,
    /// It is loading its data.
    Loading,
    /// It is a replica, and only reads.
    ReadOnly,
    /// Its memory is full.
    OutOfMemory,
    /// It wants a password, denies ours, or does not allow a command.
    NotAllowed,
    /// Something else is stored under one of our keys.
    WrongType,
    /// A cluster is not in order, or one of its nodes was addressed as a single server.
    Cluster,
    /// It is not the one that counted before, and what that one had is not yet written back; nothing was sent.
    Restarted,
    /// Others changed the same keys again and again; nothing was written.
    Conflict,
    /// More entries of a key have expired than a few calls may remove; nothing was charged. The next call goes on.
    Trimming,
    /// It answered something that is not an answer.
    Protocol,
    /// Something else.
    Other,
}

impl Fault {
    /// Every one there is, in the order in which they are declared.
    #[cfg(feature = "redis")]
    pub(crate) const ALL: [Fault; 16] = [
        Fault::Unreachable,
        Fault::Lost,
        Fault::Timeout,
        Fault::Overloaded,
        Fault::Busy,
        Fault::Loading,
        Fault::ReadOnly,
        Fault::OutOfMemory,
        Fault::NotAllowed,
        Fault::WrongType,
        Fault::Cluster,
        Fault::Restarted,
        Fault::Conflict,
        Fault::Trimming,
        Fault::Protocol,
        Fault::Other,
    ];

    /// As it is written in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Fault::Unreachable => "unreachable",
            Fault::Lost => "lost",
            Fault::Timeout => "timeout",
            Fault::Overloaded => "overloaded",
            Fault::Busy => "busy",
            Fault::Loading => "loading",
            Fault::ReadOnly => "read-only",
            Fault::OutOfMemory => "out-of-memory",
            Fault::NotAllowed => "not-allowed",
            Fault::WrongType => "wrong-type",
            Fault::Cluster => "cluster",
            Fault::Restarted => "restarted",
            Fault::Conflict => "conflict",
            Fault::Trimming => "trimming",
            Fault::Protocol => "protocol",
            Fault::Other => "other",
        }
    }
}

/// One mistake in a rules file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Line in the file, from 1.
    pub line: u64,
    /// Column in that line, from 1.
    pub column: u64,
    /// What is wrong and what would be right.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

impl Error {
    /// A request or a parameter that is not acceptable as it stands.
    pub fn invalid(message: impl Into<String>) -> Self {
        Kind::Invalid(message.into()).into()
    }

    /// A file with mistakes, in the order of their lines.
    pub fn file(mut problems: Vec<Problem>) -> Self {
        problems.sort();
        Kind::File(problems).into()
    }

    /// A store that could not decide.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Error::store(Fault::Other, message)
    }

    pub(crate) fn short_answer() -> Self {
        Error::unavailable("the store answered fewer asks than it was given")
    }

    /// A store that could not decide, and why.
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

    /// The caller's mistake: the same call will fail again.
    pub fn is_invalid(&self) -> bool {
        matches!(*self.0, Kind::Invalid(_) | Kind::File(_) | Kind::TooManyChecks { .. })
    }

    /// The requests of one call meet more than [`MAX_CHECKS`](crate::MAX_CHECKS) limits. Nothing was charged: ask for fewer
    /// at once.
    pub fn is_too_many_checks(&self) -> bool {
        matches!(*self.0, Kind::TooManyChecks { .. })
    }

    /// More permits were asked for at once than the limit will ever have: waiting does not help.
    pub fn is_too_costly(&self) -> bool {
        matches!(*self.0, Kind::TooCostly { .. })
    }

    /// The rule that will never have as many permits as were asked for; none for every other error.
    pub fn too_costly_for(&self) -> Option<&str> {
        match &*self.0 {
            Kind::TooCostly { rule, .. } => Some(rule),
            _ => None,
        }
    }

    /// The store could not decide; the outcome may be unknown. Ask again with the same request id.
    pub fn is_unavailable(&self) -> bool {
        matches!(*self.0, Kind::Store { .. })
    }

    /// Why the store could not decide; none for every other error.
    pub fn fault(&self) -> Option<Fault> {
        match *self.0 {
            Kind::Store { fault, .. } => Some(fault),
            _ => None,
        }
    }

    /// The call was sent and no answer came back: it may have been carried out. Ask again with the same
    /// request id to find out without being charged twice.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self.fault(), Some(Fault::Lost | Fault::Timeout))
    }

    /// The mistakes in a file, each with its line; empty for every other error.
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
                for (i, problem) in problems.iter().enumerate() {
                    if i > 0 {
                        f.write_str("\n")?;
                    }
                    problem.fmt(f)?;
                }
                Ok(())
            }
            Kind::TooManyChecks { max } => {
                write!(
                    f,
                    "the requests of one call may meet {max} limits in all, one for each rule that applies to a request: send fewer requests"
                )
            }
            Kind::TooCostly { rule, permits, limit } => {
                write!(f, "{permits} permits can never pass rule `{rule}`: its limit is {limit}")
            }
        }
    }
}

impl std::error::Error for Error {}
