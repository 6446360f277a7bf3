//! Registry of the algorithms.
//!
//! An algorithm is a variant of [`Algorithm`], a place in [`Algorithm::all`] and a row of [`Properties`]. Other modules
//! use these properties and do not match on the variants. The counters are in the module `algorithm`, and their scripts
//! for Redis in `store/redis/lua`.

/// Algorithm that counts a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Exact: at most `limit` permits in any interval of length `window`.
    #[default]
    SlidingWindow,
    /// The counter restarts at every multiple of the window. Up to twice the limit can pass around that instant.
    FixedWindow,
    /// Approximate: counts the current aligned window in full and the previous one in part, as if the admissions of the
    /// previous one had been spread evenly over it. Up to almost twice the limit can pass in an interval that is not
    /// aligned. Needs two numbers for any limit.
    SlidingCounter,
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

/// Number of slices if a rule states none.
const DEFAULT_SLICES: u32 = 10;

/// Properties of an algorithm that do not depend on its parameter.
struct Properties {
    name: &'static str,
    summary: &'static str,
    storage: Storage,
    /// Number of aligned windows for which an admission counts: its own, and those after it. 0 if windows are not aligned.
    aligned_windows: u64,
}

/// How a key stores the permits of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    /// Every admission, by its instant.
    Log,
    /// A few numbers.
    Counter {
        /// Number of the kind in the scripts of Redis: see `kinds` in `lua/common.lua`.
        kind: u8,
        /// Name of the second number in Redis, if there is one.
        second: Option<&'static str>,
    },
}

impl Algorithm {
    /// Returns all algorithms with their default parameters: ten slices, and a burst of `limit`.
    pub const fn all(limit: u64) -> [Algorithm; 6] {
        [
            Algorithm::SlidingWindow,
            Algorithm::FixedWindow,
            Algorithm::SlidingCounter,
            Algorithm::TimeSlice { slices: DEFAULT_SLICES },
            Algorithm::TokenBucket { burst: limit },
            Algorithm::Concurrency,
        ]
    }

    const fn properties(self) -> &'static Properties {
        match self {
            Algorithm::SlidingWindow => &Properties {
                name: "sliding-window",
                summary: "Exact: admits at most `limit` permits in any interval with the length of the window.",
                storage: Storage::Log,
                aligned_windows: 0,
            },
            Algorithm::FixedWindow => &Properties {
                name: "fixed-window",
                summary: "The count restarts at every multiple of the window.",
                storage: Storage::Counter { kind: 3, second: None },
                aligned_windows: 1,
            },
            Algorithm::SlidingCounter => &Properties {
                name: "sliding-counter",
                summary: "Approximate: counts the current fixed window, and the part of the previous one that the sliding window still overlaps. Constant memory.",
                storage: Storage::Counter { kind: 5, second: Some("p") },
                aligned_windows: 2,
            },
            Algorithm::TimeSlice { .. } => &Properties {
                name: "time-slice",
                summary: "The window moves in steps of one slice. Never admits more than the limit, and needs constant memory.",
                storage: Storage::Log,
                aligned_windows: 0,
            },
            Algorithm::TokenBucket { .. } => &Properties {
                name: "token-bucket",
                summary: "A bucket of permits refills at a steady rate and allows a burst.",
                storage: Storage::Counter { kind: 4, second: Some("g") },
                aligned_windows: 0,
            },
            Algorithm::Concurrency => &Properties {
                name: "concurrency",
                summary: "Limits the permits that are held at the same time. A permit is held until it is released, or until the window has passed.",
                storage: Storage::Log,
                aligned_windows: 0,
            },
        }
    }

    /// Returns the name used in files and replies.
    pub const fn as_str(self) -> &'static str {
        self.properties().name
    }

    /// Returns a description in one sentence, for the schema and for help texts.
    pub const fn summary(self) -> &'static str {
        self.properties().summary
    }

    /// Returns the capacity of a bucket; none for other algorithms.
    #[inline]
    pub fn burst(self) -> Option<u64> {
        match self {
            Algorithm::TokenBucket { burst } => Some(burst),
            _ => None,
        }
    }

    /// Returns the number of slices; none for an algorithm without slices.
    #[inline]
    pub fn slices(self) -> Option<u32> {
        match self {
            Algorithm::TimeSlice { slices } => Some(slices),
            _ => None,
        }
    }

    /// Replaces the burst, if the algorithm has one.
    pub(crate) fn with_burst(self, burst: u64) -> Self {
        if self.refills() { Algorithm::TokenBucket { burst } } else { self }
    }

    /// Replaces the number of slices, if the algorithm has slices.
    pub(crate) fn with_slices(self, slices: u32) -> Self {
        if self.is_sliced() { Algorithm::TimeSlice { slices } } else { self }
    }

    /// Returns true if every admission counts from its own instant for exactly one window. Such an
    /// algorithm never exceeds the limit, and never denies without need.
    #[inline]
    pub fn is_exact(self) -> bool {
        self == Algorithm::SlidingWindow
    }

    /// Returns true if permits are held until they are released.
    #[inline]
    pub fn is_held(self) -> bool {
        self == Algorithm::Concurrency
    }

    /// Returns true if admissions are dated at the end of their slice.
    #[inline]
    pub(crate) fn is_sliced(self) -> bool {
        self.slices().is_some()
    }

    /// Returns true if permits come back at a rate, independent of the admission that took them.
    #[inline]
    pub(crate) fn refills(self) -> bool {
        self.burst().is_some()
    }

    /// Returns the number of aligned windows for which an admission counts; 0 if windows are not aligned.
    pub(crate) fn aligned_windows(self) -> u64 {
        self.properties().aligned_windows
    }

    /// Returns how a key stores the permits.
    pub(crate) fn storage(self) -> Storage {
        self.properties().storage
    }

    /// Returns true if a key stores its admissions one by one, or by slice.
    pub(crate) fn has_entries(self) -> bool {
        self.storage() == Storage::Log
    }

    /// Returns true if a key stores every admission under its own instant, which identifies it.
    pub(crate) fn keeps_instants(self) -> bool {
        self.has_entries() && !self.is_sliced()
    }
}
