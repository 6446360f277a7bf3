//! TTL cache for statistics that are expensive to gather.

use std::sync::Arc;

use slidegate::Micros;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

/// Cache of one value with a time to live.
pub(crate) struct TtlCache<T> {
    entry: Arc<Mutex<Option<(Micros, T)>>>,
    ttl: Micros,
}

impl<T: Clone + Send + 'static> TtlCache<T> {
    pub(crate) fn new(ttl: Micros) -> Self {
        TtlCache { entry: Arc::default(), ttl }
    }

    /// Returns the last value, or the result of `find` if that value is too old. None if `find` panics.
    ///
    /// `find` runs on a blocking thread, so it does not delay other tasks. Callers that come meanwhile wait for the same
    /// result. The blocking thread owns the lock: if the first caller is cancelled, the others still wait, and do not
    /// start `find` once more.
    pub(crate) async fn get(&self, now: Micros, find: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let mut entry = Arc::clone(&self.entry).lock_owned().await;
        if let Some((since, value)) = &*entry
            && now.since(*since) < self.ttl
        {
            return Some(value.clone());
        }
        spawn_blocking(move || entry.insert((now, find())).1.clone()).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_value_is_gathered_again_when_it_is_too_old() {
        let cache = TtlCache::new(Micros::from_secs(5));
        let at = async |seconds, find| cache.get(Micros::from_secs(seconds), move || find).await.unwrap();
        assert_eq!(
            (
                at(100, 'a').await,
                at(104, 'b').await,
                at(105, 'c').await,
                at(109, 'd').await,
                at(110, 'e').await
            ),
            ('a', 'a', 'c', 'c', 'e')
        );
    }

    /// The only thread of this runtime must be free to release `find`.
    #[tokio::test(flavor = "current_thread")]
    async fn other_tasks_run_while_a_value_is_gathered() {
        let cache = TtlCache::new(Micros::from_secs(5));
        let (release, wait) = mpsc::channel();
        let find = move || wait.recv_timeout(LIMIT).expect("the other task runs");
        let (found, ()) = tokio::join!(cache.get(Micros::from_secs(100), find), async {
            release.send('a').unwrap();
        });
        assert_eq!(found, Some('a'));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn callers_share_one_computation_though_the_first_is_cancelled() {
        let cache = Arc::new(TtlCache::new(Micros::from_secs(5)));
        let computations = Arc::new(AtomicU32::new(0));
        let (release, wait) = mpsc::channel::<()>();
        let (started, mut begun) = tokio::sync::mpsc::unbounded_channel();
        let first = tokio::spawn({
            let (cache, computations) = (Arc::clone(&cache), Arc::clone(&computations));
            async move {
                let find = move || {
                    started.send(()).unwrap();
                    wait.recv_timeout(LIMIT).unwrap();
                    computations.fetch_add(1, Ordering::SeqCst);
                };
                cache.get(Micros::from_secs(100), find).await
            }
        });
        begun.recv().await.unwrap();
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        let again = || {
            let computations = Arc::clone(&computations);
            cache.get(Micros::from_secs(101), move || {
                computations.fetch_add(1, Ordering::SeqCst);
            })
        };
        // The other callers wait from here on: `join!` polls them before it polls the release.
        let (one, other, ()) = tokio::join!(again(), again(), async { release.send(()).unwrap() });
        assert_eq!((one, other, computations.load(Ordering::SeqCst)), (Some(()), Some(()), 1));
    }
}
