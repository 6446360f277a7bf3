//! The one error type. A refusal is not an error: see [`Decision`](crate::Decision).

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
    Unavailable(String),
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
        Kind::Unavailable(message.into()).into()
    }

    pub(crate) fn too_costly(rule: &str, permits: u64, limit: u64) -> Self {
        Kind::TooCostly { rule: rule.to_owned(), permits, limit }.into()
    }

    /// The caller's mistake: the same call will fail again.
    pub fn is_invalid(&self) -> bool {
        matches!(*self.0, Kind::Invalid(_) | Kind::File(_))
    }

    /// More permits were asked for at once than the limit will ever have: waiting does not help.
    pub fn is_too_costly(&self) -> bool {
        matches!(*self.0, Kind::TooCostly { .. })
    }

    /// The store could not decide; the outcome may be unknown. Ask again with the same request id.
    pub fn is_unavailable(&self) -> bool {
        matches!(*self.0, Kind::Unavailable(_))
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
            Kind::Invalid(message) | Kind::Unavailable(message) => f.write_str(message),
            Kind::File(problems) => {
                for (i, problem) in problems.iter().enumerate() {
                    if i > 0 {
                        f.write_str("\n")?;
                    }
                    problem.fmt(f)?;
                }
                Ok(())
            }
            Kind::TooCostly { rule, permits, limit } => {
                write!(f, "{permits} permits can never pass rule `{rule}`: its limit is {limit}")
            }
        }
    }
}

impl std::error::Error for Error {}
