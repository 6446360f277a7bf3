//! Which life of a server counts: one that has another run id than before has another memory.
//!
//! Whoever can write back what was lost holds decisions until it has: `hold` and `acknowledge`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::{Error, Fault};

/// What a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// It charges or takes back, so it waits until what was lost is there again.
    Decide,
    /// It looks, or it writes back.
    Look,
}

/// The lives of one server, numbered from 1; 0 before it was first met.
pub(super) struct Epochs {
    now: AtomicU64,
    acknowledged: AtomicU64,
    run_id: Mutex<String>,
    /// Shared by all servers of a store.
    hold: Arc<AtomicBool>,
}

impl Epochs {
    pub(super) fn new(hold: Arc<AtomicBool>) -> Self {
        Epochs { now: AtomicU64::new(0), acknowledged: AtomicU64::new(0), run_id: Mutex::default(), hold }
    }

    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.now.load(Ordering::Acquire)
    }

    /// A connection was made to the server with this run id: which life that is. A server that does not tell
    /// has one life.
    pub(super) fn met(&self, run_id: &str) -> u64 {
        let mut known = self.run_id.lock();
        if self.now() == 0 || *known != run_id {
            run_id.clone_into(&mut known);
            self.now.fetch_add(1, Ordering::AcqRel);
        }
        self.now()
    }

    pub(super) fn run_id(&self) -> String {
        self.run_id.lock().clone()
    }

    /// What it has is not what counted before, though it is the same process: a replica that was promoted.
    pub(super) fn begin(&self) {
        let _known = self.run_id.lock();
        if self.now() > 0 {
            self.now.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(super) fn acknowledge(&self, life: u64) {
        self.acknowledged.fetch_max(life, Ordering::AcqRel);
    }

    /// Whether `life` may decide.
    #[inline]
    pub(super) fn check(&self, life: u64, address: &str) -> Result<(), Error> {
        if !self.hold.load(Ordering::Acquire) || self.acknowledged.load(Ordering::Acquire) >= life {
            return Ok(());
        }
        Err(Error::store(
            Fault::Restarted,
            format!(
                "Redis at {address} is not the one that counted before: waiting until what it lost is written \
                 back"
            ),
        ))
    }
}
