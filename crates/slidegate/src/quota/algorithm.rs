//! Names and parameters of the algorithms.

/// Algorithm that counts a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Exact: at most `limit` permits in any interval of length `window`.
    #[default]
    SlidingWindow,
    /// The counter restarts at every multiple of the window. Up to twice the limit can pass around that instant.
    FixedWindow,
    /// The window moves in steps of one slice. A slice that is partly outside the window still counts in full, so no window
    /// ever holds more than `limit`. Constant memory.
    TimeSlice {
        /// Number of slices in the window.
        slices: u32,
    },
    /// A bucket of `burst` permits that refills at `limit` per `window`.
    TokenBucket {
        /// Capacity of the bucket.
        burst: u64,
    },
    /// At most `limit` permits held at once. A permit is held until it is released, or until `window` has passed since it
    /// was admitted or last extended.
    Concurrency,
}

impl Algorithm {
    /// Returns the name used in files and replies.
    pub fn as_str(self) -> &'static str {
        match self {
            Algorithm::SlidingWindow => "sliding-window",
            Algorithm::FixedWindow => "fixed-window",
            Algorithm::TimeSlice { .. } => "time-slice",
            Algorithm::TokenBucket { .. } => "token-bucket",
            Algorithm::Concurrency => "concurrency",
        }
    }
}
