//! Subscriptions of dashboards to the statistics of each second.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// The most subscribers at once.
const MOST: usize = 100;

/// Those who look on.
pub(crate) struct LiveFeed {
    /// The newest; none when the server stops.
    ticks: watch::Sender<Option<Arc<str>>>,
    /// As many as may look on.
    places: Arc<Semaphore>,
}

/// What one of them is told, and its place.
pub(crate) struct Ticks {
    ticks: watch::Receiver<Option<Arc<str>>>,
    _place: OwnedSemaphorePermit,
}

impl Ticks {
    /// The next, once it is there; none when the server stops.
    pub(crate) async fn next(&mut self) -> Option<Arc<str>> {
        self.ticks.changed().await.ok()?;
        self.ticks.borrow_and_update().clone()
    }
}

impl Default for LiveFeed {
    fn default() -> Self {
        LiveFeed { ticks: watch::Sender::new(Some(Arc::from(""))), places: Arc::new(Semaphore::new(MOST)) }
    }
}

impl LiveFeed {
    /// Told every second from now on; none if too many are.
    pub(crate) fn watch(&self) -> Option<Ticks> {
        let _place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let ticks = self.ticks.subscribe();
        let goes_on = ticks.borrow().is_some();
        goes_on.then_some(Ticks { ticks, _place })
    }

    /// True if a dashboard is subscribed.
    pub(crate) fn has_subscribers(&self) -> bool {
        self.ticks.receiver_count() > 0
    }

    /// Sends the statistics of a second to all subscribers. After [`LiveFeed::stop`] it does nothing.
    pub(crate) fn publish(&self, text: String) {
        self.ticks.send_if_modified(|newest| newest.is_some() && newest.replace(Arc::from(text)).is_some());
    }

    /// Nobody is told any more.
    pub(crate) fn stop(&self) {
        self.ticks.send_replace(None);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Many ask at once for the last places: no more than there are get one.
    #[test]
    fn no_more_look_on_than_may() {
        let live = LiveFeed::default();
        let mut known: Vec<Ticks> = (0..MOST - 2).filter_map(|_| live.watch()).collect();
        for _ in 0..200 {
            let new: Vec<Option<Ticks>> = thread::scope(|scope| {
                let asking: Vec<_> = (0..8).map(|_| scope.spawn(|| live.watch())).collect();
                asking.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(new.iter().flatten().count(), 2);
        }
        known.extend([live.watch().unwrap(), live.watch().unwrap()]);
        assert!(live.watch().is_none());
        known.pop();
        assert!(live.watch().is_some(), "who leaves makes room");
        live.stop();
        known.pop();
        assert!(live.watch().is_none(), "nobody is let in while the server stops");
    }
}
