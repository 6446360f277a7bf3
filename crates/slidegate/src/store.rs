//! The first seam: who counts.

use std::future::Future;

use crate::{Ask, Entry, Error, Inspection, Key, Readings, Receipt};

/// Admits asks, and remembers what it admitted.
///
/// # Contract
///
/// The asks of a batch are judged in order at one instant, by the store's own clock. Of each ask every check
/// is recorded, or none is (but see `count: attempts` in [`judge`](crate::judge)). A batch that was judged
/// is answered whole: one [`Reading`](crate::Reading) per ask, one verdict per check.
///
/// A refusal is an answer. An error means that the store could not decide; unless it says otherwise the
/// outcome is unknown, and the caller may ask again under the same [`RequestId`](crate::RequestId) without
/// being charged twice.
///
/// Everything that makes a store faster or tougher is itself a `Store` around a `Store`.
pub trait Store: Send + Sync {
    /// Judges a batch of asks.
    fn admit(&self, asks: &[Ask]) -> impl Future<Output = Result<Readings, Error>> + Send;

    /// Corrects past admissions to what they really cost, in one step. One answer each, in their order. Those of
    /// one reservation name different keys; a store may settle a key that comes twice in a second step.
    fn settle(&self, settlements: &[Settlement]) -> impl Future<Output = Result<Receipt, Error>> + Send;

    /// What is counted under `key`; none if nothing is.
    fn inspect(&self, key: &Key) -> impl Future<Output = Result<Option<Inspection>, Error>> + Send;

    /// Forgets `key`; false if there was nothing to forget.
    fn reset(&self, key: &Key) -> impl Future<Output = Result<bool, Error>> + Send;
}

/// The correction of one admission of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The key it was charged to.
    pub key: Key,
    /// Which admission.
    pub entry: Entry,
    /// What it really cost; 0 is a refund.
    pub permits: u64,
}

impl<S: Store + ?Sized> Store for std::sync::Arc<S> {
    fn admit(&self, asks: &[Ask]) -> impl Future<Output = Result<Readings, Error>> + Send {
        (**self).admit(asks)
    }

    fn settle(&self, settlements: &[Settlement]) -> impl Future<Output = Result<Receipt, Error>> + Send {
        (**self).settle(settlements)
    }

    fn inspect(&self, key: &Key) -> impl Future<Output = Result<Option<Inspection>, Error>> + Send {
        (**self).inspect(key)
    }

    fn reset(&self, key: &Key) -> impl Future<Output = Result<bool, Error>> + Send {
        (**self).reset(key)
    }
}
