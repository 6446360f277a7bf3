//! The [`Store`] trait, and all stores that implement it.

/// Implements the listed methods of [`Store`] by calls to the same methods of another store.
macro_rules! forward {
    ($self:ident => $store:expr; $($method:ident),*) => { $( forward!(@$method $self, $store); )* };
    (@admit $($to:tt)*) => { forward!(@call $($to)*, admit(batch: &[$crate::Checks]) -> $crate::BatchVerdicts); };
    (@admit_run $($to:tt)*) => {
        forward!(@call $($to)*, admit_run(checks: &$crate::Checks, times: usize) -> $crate::BatchVerdicts);
    };
    (@settle $($to:tt)*) => {
        forward!(@call $($to)*, settle(settlements: &[$crate::Settlement]) -> $crate::Receipt);
    };
    (@give_back $($to:tt)*) => {
        forward!(@call $($to)*, give_back(key: &$crate::Key, entries: &[$crate::Entry]) -> ());
    };
    (@inspect $($to:tt)*) => { forward!(@call $($to)*, inspect(key: &$crate::Key) -> Option<$crate::Inspection>); };
    (@reset $($to:tt)*) => { forward!(@call $($to)*, reset(key: &$crate::Key) -> bool); };
    (@call $self:ident, $store:expr, $method:ident($($argument:ident: $type:ty),*) -> $output:ty) => {
        fn $method(&$self, $($argument: $type),*) -> impl Future<Output = Result<$output, $crate::Error>> + Send {
            $store.$method($($argument),*)
        }
    };
    (@shard_of $self:ident, $store:expr) => {
        fn shard_of(&$self, key: &$crate::Key) -> u16 {
            $store.shard_of(key)
        }
    };
    (@listen $self:ident, $store:expr) => {
        fn listen(&$self, listener: std::sync::Weak<dyn $crate::Listener>) {
            $store.listen(listener);
        }
    };
}

/// Implements `Clone` for a store: all clones share its state.
macro_rules! share_by_clone {
    ($name:ident<$parameter:ident $(: $bound:path)?>) => {
        impl<$parameter $(: $bound)?> Clone for $name<$parameter> {
            fn clone(&self) -> Self {
                $name { inner: Arc::clone(&self.inner) }
            }
        }
    };
}

#[cfg(feature = "redis")]
pub(crate) mod coalesce;
pub(crate) mod deny_cache;
#[cfg(feature = "redis")]
pub(crate) mod failover;
#[cfg(feature = "redis")]
pub(crate) mod lease;
pub(crate) mod memory;
#[cfg(feature = "redis")]
pub(crate) mod multi_shard;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(feature = "redis")]
pub(crate) mod remote;
#[cfg(feature = "redis")]
pub(crate) mod stack;

pub use self::deny_cache::{DenyCache, DenyCacheStats};
pub use self::memory::{KeyUsage, MemoryKeyCursor, MemoryKeyPage, MemoryStats};
pub use crate::checks::{Check, Checks};
pub use crate::settlement::{Correction, Entry, Receipt, Settlement};
pub use crate::verdict::{BatchVerdicts, Inspection, Outcome, Precision, Verdict, Verdicts, WindowEntry};
use std::future::Future;
use std::sync::Weak;

use crate::{Error, Key};

/// Admits requests and counts their admissions.
///
/// # Contract
///
/// The requests of a batch are evaluated in order at one instant, by the store's own clock. For each request either
/// all checks are recorded or none (but see `count: attempts` in [`evaluate`](crate::algorithm::evaluate())). A batch
/// that was evaluated is answered completely: one [`Verdicts`] per request, one verdict per check.
///
/// A denial is an answer. An error means that the store could not decide. Unless the error says otherwise the outcome
/// is unknown, and the caller may retry with the same [`RequestId`](crate::RequestId) without being charged twice.
///
/// Every layer that makes a store faster or more reliable is itself a `Store` around a `Store`. [`Store::shard_of`] and
/// [`Store::listen`] exist for such layers. A store within one process does not need to implement them.
pub trait Store: Send + Sync {
    /// Evaluates a batch of requests.
    fn admit(&self, batch: &[Checks]) -> impl Future<Output = Result<BatchVerdicts, Error>> + Send;

    /// Evaluates the same request `times` times, for a layer that takes permits in advance. It returns an error if
    /// the store itself cannot decide.
    fn admit_run(
        &self,
        checks: &Checks,
        times: usize,
    ) -> impl Future<Output = Result<BatchVerdicts, Error>> + Send {
        async move { self.admit(&vec![checks.clone(); times]).await }
    }

    /// Corrects the cost of past admissions. Returns one answer per settlement, in the order of the settlements. The
    /// settlements of one reservation have different keys. A store may need several calls if a key occurs twice, or if
    /// the settlements do not fit into one batch.
    fn settle(&self, settlements: &[Settlement]) -> impl Future<Output = Result<Receipt, Error>> + Send;

    /// Gives back admissions of `key` that a layer took in advance and never handed out, so no caller can settle them.
    /// The layer calls this method at most once for each admission.
    fn give_back(&self, key: &Key, entries: &[Entry]) -> impl Future<Output = Result<(), Error>> + Send {
        give_back_singly(self, key, entries)
    }

    /// Returns the current usage of `key`; `None` if the store counts nothing for it.
    fn inspect(&self, key: &Key) -> impl Future<Output = Result<Option<Inspection>, Error>> + Send;

    /// Forgets `key`; returns false if there was nothing to forget.
    fn reset(&self, key: &Key) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Returns the number of the shard that counts `key`. One server counts all keys of a shard, so requests for these
    /// keys can share a call to it.
    fn shard_of(&self, key: &Key) -> u16 {
        let _ = key;
        0
    }

    /// Registers a listener for admissions that other nodes free. The default does nothing: if no other node uses the
    /// store, the layer that registers the listener sees every change itself.
    fn listen(&self, listener: Weak<dyn Listener>) {
        let _ = listener;
    }
}

/// Number of shards, counted from 0, whose changes are announced to listeners. Changes on all further shards are not
/// announced.
pub(crate) const MAX_LISTENED_SHARDS: u16 = 1024;

/// Listener for admissions that are freed other than by expiry. A cache of denials needs it for invalidation.
pub trait Listener: Send + Sync {
    /// Reports that an admission of `key` no longer counts, because it was settled or reset.
    fn freed(&self, key: &Key);

    /// Reports that `key` was reset: none of its admissions counts any more.
    fn reset(&self, key: &Key) {
        self.freed(key);
    }

    /// Reports that the notifications for a shard have started (`true`) or stopped (`false`). Changes made while they
    /// were stopped are not announced later.
    fn set_connected(&self, shard: u16, connected: bool);
}

/// Maximum number of settlements in one call when many admissions are given back.
const MAX_REFUNDS_PER_CALL: usize = 250;

pub(crate) async fn give_back_singly<S: Store + ?Sized>(
    store: &S,
    key: &Key,
    entries: &[Entry],
) -> Result<(), Error> {
    for chunk in entries.chunks(MAX_REFUNDS_PER_CALL) {
        let refund = |entry: &Entry| Settlement::refund(key.clone(), *entry);
        store.settle(&chunk.iter().map(refund).collect::<Vec<_>>()).await?;
    }
    Ok(())
}

/// Returns the verdicts of a batch of one request.
pub(crate) fn single(batch_verdicts: BatchVerdicts) -> Result<Verdicts, Error> {
    batch_verdicts.into_iter().next().ok_or_else(Error::short_answer)
}

impl<S: Store + ?Sized> Store for std::sync::Arc<S> {
    forward!(self => (**self); admit, admit_run, settle, give_back, inspect, reset, shard_of, listen);
}
