//! The first seam: who counts.
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
pub(crate) mod stack;

use std::future::Future;
use std::sync::Weak;

use crate::{BatchVerdicts, Checks, Entry, Error, Inspection, Key, Receipt, Settlement};

/// Admits asks, and remembers what it admitted.
///
/// # Contract
///
/// The asks of a batch are judged in order at one instant, by the store's own clock. Of each ask every check
/// is recorded, or none is (but see `count: attempts` in [`evaluate`](crate::algorithm::evaluate)). A batch that was judged
/// is answered whole: one [`Verdicts`](crate::Verdicts) per ask, one verdict per check.
///
/// A denial is an answer. An error means that the store could not decide; unless it says otherwise the
/// outcome is unknown, and the caller may ask again under the same [`RequestId`](crate::RequestId) without
/// being charged twice.
///
/// Everything that makes a store faster or tougher is itself a `Store` around a `Store`. For those there is
/// [`Store::lane`] and [`Store::listen`], which a store that is one place in one process need not have.
pub trait Store: Send + Sync {
    /// Judges a batch of asks.
    fn admit(&self, asks: &[Checks]) -> impl Future<Output = Result<BatchVerdicts, Error>> + Send;

    /// Judges the same ask so many times over, for whoever takes permits in advance: what cannot be decided by the
    /// store itself is an error.
    fn admit_run(
        &self,
        ask: &Checks,
        times: usize,
    ) -> impl Future<Output = Result<BatchVerdicts, Error>> + Send {
        async move { self.admit(&vec![ask.clone(); times]).await }
    }

    /// Corrects past admissions to what they really cost. One answer each, in their order. Those of one reservation name
    /// different keys; a store may settle a key that comes twice, and what is more than a batch, in further steps.
    fn settle(&self, settlements: &[Settlement]) -> impl Future<Output = Result<Receipt, Error>> + Send;

    /// Gives back admissions of `key` that were taken in advance and never handed out, so that nobody else will settle
    /// them. It is not asked for twice.
    fn give_back(&self, key: &Key, entries: &[Entry]) -> impl Future<Output = Result<(), Error>> + Send {
        give_back_singly(self, key, entries)
    }

    /// What is counted under `key`; none if nothing is.
    fn inspect(&self, key: &Key) -> impl Future<Output = Result<Option<Inspection>, Error>> + Send;

    /// Forgets `key`; false if there was nothing to forget.
    fn reset(&self, key: &Key) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Where `key` is counted, as a number: keys of one lane are counted by one server, and asks of one lane can
    /// share a call to it.
    fn lane(&self, key: &Key) -> u16 {
        let _ = key;
        0
    }

    /// Tells `listener` from now on what others free. Nobody else can where nothing is shared, so the listener
    /// then hears everything by itself.
    fn listen(&self, listener: Weak<dyn Listener>) {
        let _ = listener;
    }
}

/// Lanes that a listener is told of; what is counted beyond them is never heard.
pub(crate) const HEARD_LANES: u16 = 1024;

/// Whoever remembers what was denied must hear of what is freed other than by ageing.
pub trait Listener: Send + Sync {
    /// Something that `key` had counted counts no more: settled, or reset.
    fn freed(&self, key: &Key);

    /// Everything that `key` had counted is forgotten.
    fn reset(&self, key: &Key) {
        self.freed(key);
    }

    /// Whether what is freed in this lane is heard of from now on. What was not heard before is lost.
    fn hears(&self, lane: u16, hears: bool);
}

/// Settlements in one call, when many admissions are given back.
const BACK_AT_ONCE: usize = 250;

pub(crate) async fn give_back_singly<S: Store + ?Sized>(
    store: &S,
    key: &Key,
    entries: &[Entry],
) -> Result<(), Error> {
    for some in entries.chunks(BACK_AT_ONCE) {
        let refund = |entry: &Entry| Settlement::refund(key.clone(), *entry);
        store.settle(&some.iter().map(refund).collect::<Vec<_>>()).await?;
    }
    Ok(())
}

impl<S: Store + ?Sized> Store for std::sync::Arc<S> {
    fn admit(&self, asks: &[Checks]) -> impl Future<Output = Result<BatchVerdicts, Error>> + Send {
        (**self).admit(asks)
    }

    fn admit_run(
        &self,
        ask: &Checks,
        times: usize,
    ) -> impl Future<Output = Result<BatchVerdicts, Error>> + Send {
        (**self).admit_run(ask, times)
    }

    fn settle(&self, settlements: &[Settlement]) -> impl Future<Output = Result<Receipt, Error>> + Send {
        (**self).settle(settlements)
    }

    fn give_back(&self, key: &Key, entries: &[Entry]) -> impl Future<Output = Result<(), Error>> + Send {
        (**self).give_back(key, entries)
    }

    fn inspect(&self, key: &Key) -> impl Future<Output = Result<Option<Inspection>, Error>> + Send {
        (**self).inspect(key)
    }

    fn reset(&self, key: &Key) -> impl Future<Output = Result<bool, Error>> + Send {
        (**self).reset(key)
    }

    fn lane(&self, key: &Key) -> u16 {
        (**self).lane(key)
    }

    fn listen(&self, listener: Weak<dyn Listener>) {
        (**self).listen(listener);
    }
}
