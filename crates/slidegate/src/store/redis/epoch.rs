//! Epochs of a server: a server with a new run id has restarted or was replaced, so its data may be different.
//!
//! Failover uses `hold` to block decisions until lost counts are written back, and `acknowledge` to allow them again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::{Error, Fault};

/// Purpose of a call, which determines if it waits for an acknowledged epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The call charges or gives back permits, so it waits until lost counts are restored.
    Decide,
    /// The call reads, or restores lost counts.
    Maintain,
}

/// Epochs of one server, numbered from 1; 0 before the first connection.
pub(super) struct Epochs {
    current: AtomicU64,
    acknowledged: AtomicU64,
    run_id: Mutex<String>,
    /// Blocks decisions in epochs that are not acknowledged. Shared by all servers of a store.
    hold: Arc<AtomicBool>,
}

impl Epochs {
    pub(super) fn new(hold: Arc<AtomicBool>) -> Self {
        Epochs { current: AtomicU64::new(0), acknowledged: AtomicU64::new(0), run_id: Mutex::default(), hold }
    }

    #[inline]
    pub(super) fn current(&self) -> u64 {
        self.current.load(Ordering::Acquire)
    }

    /// Records a connection to the server with this run id and returns the epoch. A server that does not report a run
    /// id has one epoch.
    pub(super) fn observe(&self, run_id: &str) -> u64 {
        let mut known_run_id = self.run_id.lock();
        if self.current() == 0 || *known_run_id != run_id {
            run_id.clone_into(&mut known_run_id);
            self.current.fetch_add(1, Ordering::AcqRel);
        }
        self.current()
    }

    pub(super) fn run_id(&self) -> String {
        self.run_id.lock().clone()
    }

    /// Starts a new epoch although the run id is the same: the data is not the data that counted before, as on a
    /// replica that was promoted.
    pub(super) fn advance(&self) {
        let _lock = self.run_id.lock();
        if self.current() > 0 {
            self.current.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(super) fn acknowledge(&self, epoch: u64) {
        self.acknowledged.fetch_max(epoch, Ordering::AcqRel);
    }

    /// Fails with [`Fault::Restarted`] unless `epoch` may decide.
    #[inline]
    pub(super) fn check(&self, epoch: u64, address: &str) -> Result<(), Error> {
        if !self.hold.load(Ordering::Acquire) || self.acknowledged.load(Ordering::Acquire) >= epoch {
            return Ok(());
        }
        Err(Error::store(
            Fault::Restarted,
            format!(
                "Redis at {address} has restarted or was replaced: waiting until its lost counts are written back"
            ),
        ))
    }
}
