//! Exact, atomic, explainable rate limiting.
#![forbid(unsafe_code)]

mod algorithm;
mod ask;
mod clock;
mod decision;
mod error;
mod judge;
mod key;
mod limiter;
mod memory;
mod micros;
mod quota;
mod request;
mod reservation;
mod rules;
mod store;
mod verdict;
#[cfg(feature = "yaml")]
pub mod yaml;

pub use algorithm::{Entry, State};
pub use ask::{Ask, Check, MAX_ID, RequestId};
pub use clock::{Clock, ManualClock, Sleep, SystemClock};
pub use decision::{Decision, Limit, Source};
pub use error::{Error, Problem};
pub use judge::{States, judge};
pub use key::{Key, MAX_PLAIN_VALUE};
pub use limiter::Limiter;
pub use memory::{DEFAULT_MAX_KEYS, MemoryStats, MemoryStore};
pub use micros::Micros;
pub use quota::{Algorithm, Count, MAX_LIMIT, MAX_SLICES, MAX_WINDOW, MIN_WINDOW, Quota};
pub use request::{MAX_ATTRIBUTES, MAX_NAME, MAX_VALUE, PLAIN_ATTRIBUTE, Request};
pub use reservation::{MAX_RESERVATION, Reservation};
pub use rules::*;
pub use store::{Settlement, Store};
pub use verdict::{Counted, Inspection, Outcome, Reading, Readings, Settled, Verdict};
