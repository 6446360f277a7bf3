//! Subscriptions of dashboards to the statistics of each second.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Upper bound on subscribers.
const MOST: usize = 100;

/// Broadcast of the statistics of each second to the subscribed dashboards.
pub(crate) struct LiveFeed {
    /// Statistics of the last second. None when the server stops.
    ticks: watch::Sender<Option<Arc<str>>>,
    /// One permit for each subscriber.
    places: Arc<Semaphore>,
}

/// Subscription of one dashboard. It holds one of the permits.
pub(crate) struct Ticks {
    ticks: watch::Receiver<Option<Arc<str>>>,
    _place: OwnedSemaphorePermit,
}

impl Ticks {
    /// Waits for the statistics of the next second. None when the server stops.
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
    /// Subscribes to the statistics of each second. None if there are too many subscribers, or the server stops.
    pub(crate) fn watch(&self) -> Option<Ticks> {
        let _place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let ticks = self.ticks.subscribe();
        let goes_on = ticks.borrow().is_some();
        goes_on.then_some(Ticks { ticks, _place })
    }

    /// Returns true if a dashboard is subscribed.
    pub(crate) fn has_subscribers(&self) -> bool {
        self.ticks.receiver_count() > 0
    }

    /// Sends the statistics of a second to all subscribers. After [`LiveFeed::stop`] it does nothing.
    pub(crate) fn publish(&self, text: String) {
        self.ticks.send_if_modified(|newest| newest.is_some() && newest.replace(Arc::from(text)).is_some());
    }

    /// Ends all subscriptions.
    pub(crate) fn stop(&self) {
        self.ticks.send_replace(None);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Several threads compete for the last two permits.
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
