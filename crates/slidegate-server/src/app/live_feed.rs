//! Subscriptions of dashboards to the statistics of each second.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Upper bound on subscribers.
const MAX_SUBSCRIBERS: usize = 100;

/// Broadcast of the statistics of each second to the subscribed dashboards.
pub(crate) struct LiveFeed {
    /// Statistics of the last second. None when the server stops.
    ticks: watch::Sender<Option<Arc<str>>>,
    /// One permit for each subscriber.
    slots: Arc<Semaphore>,
}

/// Subscription of one dashboard. It holds one of the permits.
pub(crate) struct Subscription {
    ticks: watch::Receiver<Option<Arc<str>>>,
    _slot: OwnedSemaphorePermit,
}

impl Subscription {
    /// Waits for the statistics of the next second. None when the server stops.
    pub(crate) async fn next(&mut self) -> Option<Arc<str>> {
        self.ticks.changed().await.ok()?;
        self.ticks.borrow_and_update().clone()
    }
}

impl Default for LiveFeed {
    fn default() -> Self {
        LiveFeed {
            ticks: watch::Sender::new(Some(Arc::from(""))),
            slots: Arc::new(Semaphore::new(MAX_SUBSCRIBERS)),
        }
    }
}

impl LiveFeed {
    /// Subscribes to the statistics of each second. None if there are too many subscribers, or the server stops.
    pub(crate) fn subscribe(&self) -> Option<Subscription> {
        let _slot = Arc::clone(&self.slots).try_acquire_owned().ok()?;
        let ticks = self.ticks.subscribe();
        let running = ticks.borrow().is_some();
        running.then_some(Subscription { ticks, _slot })
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
    fn subscribers_are_bounded() {
        let live = LiveFeed::default();
        let mut subscriptions: Vec<Subscription> =
            (0..MAX_SUBSCRIBERS - 2).filter_map(|_| live.subscribe()).collect();
        for _ in 0..200 {
            let new: Vec<Option<Subscription>> = thread::scope(|scope| {
                let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| live.subscribe())).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(new.iter().flatten().count(), 2);
        }
        subscriptions.extend([live.subscribe().unwrap(), live.subscribe().unwrap()]);
        assert!(live.subscribe().is_none());
        subscriptions.pop();
        assert!(live.subscribe().is_some(), "a subscriber that leaves makes room");
        live.stop();
        subscriptions.pop();
        assert!(live.subscribe().is_none(), "no subscriber is accepted while the server stops");
    }
}
